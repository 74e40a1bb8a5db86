"""What the gateway asks, and what a backend is: it writes candidates and scores them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from selfverify.clients.openai_client import Usage
from selfverify.clients.replies import Completion, Reader, finish_reading
from selfverify.core.errors import ServerError
from selfverify.selection.calibration import Fusion
from selfverify.serving.best_of import BestOf

if TYPE_CHECKING:  # they import aiohttp, which `selfverify solve` does without, and torch
    from selfverify.serving.request_images import Picture
    from selfverify.visual.task import VisualToolTask

Events = AsyncGenerator[tuple[bytes, dict[str, Any]], None]
"""A streamed chat completion: the events as a model server sends them, and the chunks in them."""

Tell = Callable[[int, Completion], None]
"""Told the place of each candidate and the candidate, once it has its score."""

OnLook = Callable[[int, Mapping[str, Any]], None]
"""Told the number of a conversation that looks again, and a step of it (`VisualStep`)."""


@dataclass(slots=True)
class AnswerRequest:
    """One question on its way.

    Args:
        body: OpenAI's fields, as an upstream may get them; without those that the gateway handles itself. The
            model has the name that the backend gives it.
        pictures: The images in the messages, in order; of those for a server only where it looks again.
        best_of: How the answer is chosen.
        deadline: The time at which the answer has to be there, on the event loop's clock.
        streams: Whether somebody watches the candidates come.
        id: The request's id.
        write: Gets the text of the only candidate in pieces, as far as the backend knows it while it comes.
        usage: What the question costs.
        look: How the model looks at the images again; None where it does not.
        looked: Told of each step of looking as it is made, from any thread.
    """

    body: dict[str, Any]
    pictures: list[Picture]
    best_of: BestOf
    deadline: float
    streams: bool = False
    id: str = ""
    write: Callable[[str], None] | None = None
    usage: Usage = field(default_factory=Usage)
    look: VisualToolTask | None = None
    looked: OnLook | None = None

    @property
    def model(self) -> str:
        """The model, as the backend names it."""
        return str(self.body["model"])


@dataclass(slots=True)
class Draws:
    """Where a backend puts candidates.

    Args:
        verifier: The name of the verifier that scores them.
        read: Reads a candidate's text.
        tell: Told about every candidate that has its score.
        fusion: Makes the final scores of those that the verifier gave, and of log-probabilities, which the
            backend then has to get.
        candidates: All so far, in the order in which they came.
    """

    verifier: str
    read: Reader
    tell: Tell | None = None
    fusion: Fusion | None = None
    candidates: list[Completion] = field(default_factory=list)
    _fused: set[int] = field(default_factory=set)

    def arrived(self, reply: Completion) -> float | None:
        """Keep a candidate. It counts from now on, even if its score is late.

        Returns:
            The score that the writer gave it.
        """
        written = finish_reading(reply, self.read)
        self.candidates.append(reply)
        return written

    def ready(self, reply: Completion) -> None:
        """Tell that a candidate is complete: its score is there, or there will be none."""
        if self.fusion is None and self.tell is None:
            return
        place = next(i for i, known in enumerate(self.candidates) if known is reply)
        self._fuse(place)
        if self.tell:
            self.tell(place, reply)

    def end(self) -> None:
        """Take those for complete that have not become it in time: they keep the scores that they have."""
        for place in range(len(self.candidates)):
            self._fuse(place)

    def _fuse(self, place: int) -> None:
        if self.fusion is not None and place not in self._fused:
            self._fused.add(place)
            reply = self.candidates[place]
            reply.score = self.fusion.of(reply.score, reply.logprob)


class Backend(ABC):
    """Writes and scores candidates. Use it as an asynchronous context manager.

    Attributes:
        name: ``local`` or ``upstream``.
        default_verifier: The verifier where a request names none.
        strict: Whether answers have to be in tags to be read, if the format was asked for.
    """

    name: str
    default_verifier: str
    strict: bool

    async def __aenter__(self) -> Self:
        """Open what the backend needs."""
        return self

    @abstractmethod
    async def __aexit__(self, *_: object) -> None:
        """Close it."""

    @abstractmethod
    def check_verifier(self, verifier: str) -> None:
        """Refuse a verifier that this backend does not have.

        Raises:
            ConfigError: There is no such verifier; the message lists those there are.
        """

    def check(self, ask: AnswerRequest) -> None:
        """Refuse what else this backend cannot do.

        Raises:
            ApiError: The question has such a field.
        """

    def own_messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return a request's messages as `draw` and `verify` want them.

        Raises:
            ApiError: A message holds what this backend does not understand.
        """
        return messages

    def passes_on(self) -> bool:
        """Whether requests without selection go through as they are, by `reply_to` and `stream`."""
        return False

    async def reply_to(self, body: Mapping[str, Any], usage: Usage, until: float) -> bytes:
        """Return a completion without selection, as the model server wrote it.

        Raises:
            ServerError: The server failed.
        """
        raise NotImplementedError

    def stream(self, body: Mapping[str, Any], usage: Usage, until: float) -> Events:
        """Yield a streamed completion without selection.

        Raises:
            ServerError: The server failed.
        """
        raise NotImplementedError

    @abstractmethod
    async def draw(self, ask: AnswerRequest, n: int, first: int, drawing: Draws) -> ServerError | None:
        """Draw ``n`` candidates after the ``first`` ones.

        Returns:
            Why candidates are missing; None where none are.
        """

    @abstractmethod
    async def verify(self, ask: AnswerRequest, answers: Sequence[str]) -> list[float | None]:
        """Return the scores of given answers; None for an answer on which the verifier failed."""

    async def fault(self) -> str | None:
        """Return what is wrong with the server behind the gateway; None where it answers or is none."""
        return None

    @abstractmethod
    async def models(self) -> list[dict[str, Any]]:
        """Return the models, as ``/v1/models`` lists them."""
