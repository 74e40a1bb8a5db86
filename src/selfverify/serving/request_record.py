"""What is known of a request while it is worked on: for the log, the figures and the servers asked for it."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from selfverify.remote.origin import Origin
from selfverify.remote.usage import Usage

_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}", re.ASCII)
"""The ids that are taken from clients."""

_MODEL = re.compile(r"[\w./:@+-]{1,128}", re.ASCII)
"""The names of models that are logged."""

_MOST_MODELS = 1000


@dataclass(slots=True)
class RequestRecord:
    """A request, without anything that it says.

    Args:
        origin: Counts the calls of servers that are made for it.
        model: The model that it names, which may be anything until a backend has ``answered`` to it.
        candidates: The candidates that were drawn; None where none are.
        stopped: Why there are no more: see `Selection`.
        usage: What it costs.
        first_s: Seconds until the first part of a streamed answer was sent.
        code: The code of its error.
        status: The status that it ends with; 499 where the client leaves.
    """

    origin: Origin = field(default_factory=Origin)
    model: str | None = None
    answered: bool = False
    candidates: int | None = None
    stopped: str | None = None
    usage: Usage | None = None
    first_s: float | None = None
    code: str | None = None
    status: int = 499
    begun: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        """Seconds since its beginning."""
        return time.perf_counter() - self.begun

    def asks(self, model: str, usage: Usage) -> None:
        """Note whom it asks, and where its cost is counted."""
        self.model, self.usage = model, usage

    def saw(self, chunk: dict[str, Any]) -> None:
        """Note the time of the first chunk in which an answer says something."""
        if self.first_s is None and _says(chunk):
            self.speaks()

    def speaks(self) -> None:
        """Note the time at which an answer says something, if it is the first."""
        if self.first_s is None:
            self.first_s = self.seconds

    @property
    def about(self) -> str:
        """What a line for people says of the candidates."""
        if self.candidates is None or self.usage is None:
            return ""
        return f" {self.candidates} candidates ({self.stopped}), {self.usage.candidate_tokens} tokens"

    def fields(self) -> dict[str, Any]:
        """Return what a line for programs says, without what is not known. Times are in seconds."""
        usage = self.usage
        found = {
            "model": self.model,
            "candidates": self.candidates,
            "stopped": self.stopped,
            "calls": self.origin.calls or None,
            "upstream_seconds": round(self.origin.seconds, 4) if self.origin.calls else None,
            "first_token_seconds": None if self.first_s is None else round(self.first_s, 4),
            "tokens": usage
            and {
                "prompt": usage.prompt_tokens,
                "candidate": usage.candidate_tokens,
                "verification": usage.verification_tokens,
            },
            "usage_complete": usage and usage.complete,
            "error": self.code,
        }
        return {name: value for name, value in found.items() if value is not None}


RECORD = web.RequestKey("record", RequestRecord)


def _says(chunk: dict[str, Any]) -> bool:
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        return False
    for choice in choices:
        delta = choice.get("delta") if isinstance(choice, dict) else None
        if isinstance(delta, dict) and any(value for name, value in delta.items() if name != "role"):
            return True
    return False


def request_id(given: str | None) -> str:
    """Return the client's id of a request if it is well formed, else a new one."""
    return given if given and _ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"


def well_formed(model: str | None) -> bool:
    """Whether a text looks like a model's name, rather than like anything else that a client may write."""
    return model is not None and _MODEL.fullmatch(model) is not None


class AnsweredModels:
    """The names of models that a backend has answered to. Others are whatever a client wrote."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def told(self, name: str | None, answered: bool) -> str | None:
        """Return a model's name if it may be logged, now that a backend has ``answered`` to it or not."""
        if name is None or not well_formed(name):
            return None
        if answered and len(self._names) < _MOST_MODELS:
            self._names.add(name)
        return name if name in self._names else None
