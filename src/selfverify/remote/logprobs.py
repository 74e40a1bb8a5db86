"""Ask a server for log-probabilities as long as it gives them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from selfverify.core.errors import ServerError

TOP_LOGPROBS = 20
"""The most that OpenAI's protocol can be asked for."""
_REFUSALS = (400, 422, 501)

Found = TypeVar("Found")


class LogprobsWhereGiven:
    """Remembers the models for which a server refuses log-probabilities."""

    def __init__(self) -> None:
        self._refused: set[str] = set()

    async def ask(self, model: str, call: Callable[[dict[str, Any]], Awaitable[Found]]) -> Found:
        """Call with the fields that ask for log-probabilities; if the server refuses them, call without.

        Raises:
            ServerError: ``call`` failed, and not because of these fields.
        """
        if model in self._refused:
            return await call({})
        try:
            return await call({"logprobs": True, "top_logprobs": TOP_LOGPROBS})
        except ServerError as error:
            if error.status not in _REFUSALS:
                raise
        found = await call({})
        self._refused.add(model)  # that worked: it was the log-probabilities that the server refused
        return found
