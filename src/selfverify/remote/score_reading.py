"""Reads the score that a model behind a server gives an answer, from the probabilities of its tokens.

Alternatives for every token of a candidate are most of what a server would send. So candidates are drawn
without them, and a short call continues each distinct one behind its ``<score>``. vLLM and SGLang continue
the last message with ``continue_final_message``; whether a server does so is found out by trying.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.core.errors import ServerError
from selfverify.core.score_tokens import decimals_of
from selfverify.remote.client import REFUSALS, TOP_LOGPROBS, OpenAIClient
from selfverify.remote.growing import read_choices
from selfverify.remote.score_shares import OPENING, ScoreShares, begins_number
from selfverify.remote.server_replies import Completion, at_score
from selfverify.remote.usage import Usage

_PROMPT = {"model", "messages", "tools", "chat_template", "chat_template_kwargs", "mm_processor_kwargs"}
"""The fields that decide what a model reads; the others say how it writes."""

_CONTINUE = {
    "continue_final_message": True,
    "add_generation_prompt": False,
    "temperature": 0,
    "logprobs": True,
    "top_logprobs": TOP_LOGPROBS,
}

_THOUGHTS = {"reasoning", "reasoning_content"}
"""Where servers keep thoughts that they take out of a message."""

_PROBE = [
    {"role": "user", "content": "What colour is the sky by day?"},
    {"role": "assistant", "content": f"<think>It is blue.</think><answer>blue</answer>{OPENING}"},
]
"""A model that goes on from here writes a number, if it knows no scores of ours perhaps another one. One that
begins a turn of its own writes words."""

_SURE = 0.5
"""The probability of a number above which a model is believed to have gone on."""

_TOKENS = 3
"""Tokens of a score, at most, that say which one it is: a digit, the point, a digit."""

_WEIGHS = 0.001
"""The probability of a beginning of scores below which nobody asks how they go on."""


_WEIGHS_OF_MANY = 0.1
"""The same among the beginnings 0.0, ..., 0.9 of two decimals: each left out moves a score by .045 of its
share at most."""


class ScoreReader:
    """Reads scores from a server, and remembers the models whose last message it does not continue."""

    def __init__(self, client: OpenAIClient) -> None:
        self.client = client
        self.unable = set[str]()
        self._able = set[str]()
        self._refused = Counter[str]()

    async def can_read(self, model: str, usage: Usage, until: float) -> bool:
        """Return whether the server continues messages of this model. The first call finds out.

        Args:
            model: The model's name on the server.
            usage: Counts what finding out costs.
            until: See `OpenAIClient.chat`.
        """
        if model in self.unable:
            return False
        if model in self._able:
            return True
        written: Sequence[Mapping[str, Any]] = ()
        try:
            written = await self._go_on({"model": model, "messages": _PROBE}, 1, usage, until)
        except ServerError as error:
            if error.status not in REFUSALS:
                return False  # it failed for another reason, and is asked again the next time
        if begins_number(written) > _SURE:
            self._able.add(model)
        else:
            self.unable.add(model)
        return model in self._able

    async def read(
        self, body: Mapping[str, Any], reply: Completion, usage: Usage, until: float
    ) -> float | None:
        """Return the expected score of a candidate that has written one.

        Args:
            body: The request that the candidate answers.
            reply: The candidate.
            usage: Counts what the calls cost.
            until: See `OpenAIClient.chat`.

        Returns:
            None if the server does not say.
        """
        model = str(body["model"])
        head, opened, written = at_score(reply.text)
        decimals = decimals_of(written.partition("<")[0])
        shares = ScoreShares(decimals)
        if not opened:
            return None
        if _THOUGHTS & reply.rest.keys():  # what the score depends on cannot be sent back
            self.unable.add(model)
            return None
        asked = {name: value for name, value in body.items() if name in _PROMPT}

        async def look(prefix: str, tokens: int) -> None:
            last = {"role": "assistant", "content": head + opened + prefix}
            question = asked | {"messages": [*body["messages"], last]}
            shares.follow(await self._go_on(question, tokens, usage, until), prefix)

        try:
            await look("", _TOKENS + decimals - 1)
            # One beginning was written, "1" or "0."; what follows the other one is not seen yet.
            for prefix in shares.unknown(_WEIGHS if decimals == 1 else _WEIGHS_OF_MANY):
                await look(prefix, 1)
        except ServerError as error:
            if error.status in REFUSALS:  # such as by a template that drops the thoughts of earlier turns
                self._refused[model] += 1
                if self._refused[model] > 1:  # the first may be an accident
                    self.unable.add(model)
        return shares.expectation() if shares else None

    async def _go_on(
        self, asked: Mapping[str, Any], tokens: int, usage: Usage, until: float
    ) -> Sequence[Mapping[str, Any]]:
        """Let the server go on from the last message. Returns its tokens as OpenAI's ``logprobs.content``."""
        reply = await self.client.chat({**asked, **_CONTINUE, "max_tokens": tokens}, usage.lost, until)
        [found, *_] = read_choices(reply, usage, judge=True)
        return found.logprobs
