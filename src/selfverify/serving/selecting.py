"""The heart of the gateway: draw candidates until the answer is sure, the budget spent or the time over, then
choose."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from selfverify.errors import ServerError
from selfverify.remote.replies import Reply, candidate_of, read_reply
from selfverify.remote.usage import Usage
from selfverify.selection.adaptive import is_sure, next_draw
from selfverify.selection.calibration import Calibration
from selfverify.selection.candidates import Candidate
from selfverify.selection.choose import Choice, choose
from selfverify.serving.images import Picture
from selfverify.serving.protocol import BestOf

Read = Callable[[Reply, str], Candidate]
"""Makes a candidate of a reply, with the score of a verifier."""


@dataclass(slots=True)
class Ask:
    """One question on its way.

    Args:
        model: As the backend calls it.
        body: OpenAI's fields, as an upstream may get them; without those that this gateway sees to itself.
        pictures: The images in the messages, in order.
        best_of: How to choose.
        deadline: On the event loop's clock.
        streams: Whether somebody watches the candidates come.
        id: Of the request.
        usage: What it costs.
    """

    model: str
    body: dict[str, Any]
    pictures: list[Picture]
    best_of: BestOf
    deadline: float
    streams: bool = False
    id: str = ""
    usage: Usage = field(default_factory=Usage)


@dataclass(slots=True)
class Drawing:
    """Where a backend puts candidates.

    Args:
        best_of: How to choose.
        verifier: Whose scores count.
        strict: Whether an answer has to be in tags to be read.
        on_ready: Told the place of each one that is there with its score.
        read: Makes a candidate of a reply; by default `candidate_of`.
    """

    best_of: BestOf
    verifier: str
    strict: bool = False
    on_ready: Callable[[int, Candidate], None] | None = None
    read: Read | None = None
    replies: list[Reply] = field(default_factory=list)

    def arrived(self, reply: Reply) -> None:
        """It counts from now on; its score may follow."""
        self.replies.append(reply)

    def ready(self, reply: Reply) -> None:
        """Nothing more will be found out about it."""
        if self.on_ready:
            place = next(i for i, known in enumerate(self.replies) if known is reply)
            self.on_ready(place, self.candidate(reply))

    def candidate(self, reply: Reply) -> Candidate:
        """As `choose` takes it."""
        if self.read:
            return self.read(reply, self.verifier)
        return candidate_of(reply, self.verifier, self.best_of.answers, self.strict)


class Backend(Protocol):
    """What writes and scores candidates."""

    name: str
    default_verifier: str
    strict: bool

    def check(self, ask: Ask) -> None:
        """Raise `ApiError` for what this backend cannot do."""
        ...

    async def draw(self, ask: Ask, n: int, first: int, drawing: Drawing) -> ServerError | None:
        """Draw ``n`` candidates after the ``first`` ones; what happened to missing ones.

        Raises:
            ServerError: There is not a single one.
        """
        ...

    async def verify(self, ask: Ask, answers: Sequence[str]) -> list[float | None]:
        """Scores of given answers."""
        ...

    async def models(self) -> list[dict[str, Any]]:
        """As ``/v1/models`` lists them."""
        ...


@dataclass(frozen=True, slots=True)
class Selected:
    """One of the answers that are returned.

    Args:
        choice: Which, and why.
        reply: The completion that stands for it.
        probability: Calibrated; None without a calibration that fits.
        abstained: It is too unsure to be given.
    """

    choice: Choice
    reply: Reply
    probability: float | None
    abstained: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found.

    Args:
        selected: Best first.
        candidates: All, in the order they came.
        replies: Theirs.
        stopped: Why there are no more: ``samples``, ``tokens``, ``confident``, ``greedy`` (another would be
            the same), ``deadline`` or ``fault``.
        missing: Candidates that were asked for and did not come.
        verifier: Whose scores they are.
        calibrated: Whether probabilities are.
    """

    selected: list[Selected]
    candidates: list[Candidate]
    replies: list[Reply]
    stopped: str
    missing: int
    verifier: str
    calibrated: bool


async def select(
    backend: Backend,
    ask: Ask,
    wanted: int = 1,
    calibration: Calibration | None = None,
    on_candidate: Callable[[int, Candidate], None] | None = None,
    read: Read | None = None,
) -> Outcome:
    """Draw candidates and choose the ``wanted`` best answers.

    Raises:
        ServerError: There is no candidate at all: the backend failed, or the time was over.
        ConfigError: Scores that the stopping rule cannot use.
    """
    settings = ask.best_of
    verifier = settings.verifier or backend.default_verifier
    drawing = Drawing(settings, verifier, backend.strict and settings.instruction, on_candidate, read)
    greedy = ask.body.get("temperature") == 0 and wanted == 1
    stopping = settings.stopping
    stopping = replace(stopping, start=1, max_samples=1) if greedy else stopping
    missing, candidates = 0, list[Candidate]()
    try:
        async with asyncio.timeout_at(ask.deadline):
            while True:
                n, stopped = next_draw(candidates, stopping)
                if not n:
                    stopped = "greedy" if greedy and stopped == "samples" and settings.n > 1 else stopped
                    break
                before = len(drawing.replies)
                fault = await _draw(backend, ask, n, drawing)
                candidates = [drawing.candidate(reply) for reply in drawing.replies]
                missing = n - (len(drawing.replies) - before)
                if settings.stop != "never" and is_sure(
                    candidates, stopping, settings.strategy, settings.options
                ):
                    stopped = "confident"
                    break
                if missing or fault:
                    stopped = "fault"
                    break
    except TimeoutError:
        candidates = [drawing.candidate(reply) for reply in drawing.replies]
        stopped, missing = "deadline", max(0, n - (len(drawing.replies) - before))
    if not candidates:
        raise ServerError("there was no answer within the time allowed", 504, "timeout")
    fits = calibration is not None and not missing and stopped == "samples"
    fits = fits and calibration is not None and calibration.misfit(use_of(settings, verifier)) is None
    used = calibration if fits else None
    selected = [
        _judge(choice, drawing.replies[choice.index], settings, used)
        for choice in rank(candidates, settings, wanted)
    ]
    return Outcome(selected, candidates, drawing.replies, stopped, missing, verifier, used is not None)


async def _draw(backend: Backend, ask: Ask, n: int, drawing: Drawing) -> ServerError | None:
    try:
        return await backend.draw(ask, n, len(drawing.replies), drawing)
    except ServerError as error:
        if not drawing.replies:
            raise
        return error


def use_of(settings: BestOf, verifier: str) -> dict[str, Any]:
    """What a calibration has to have been fitted for."""
    options = {name: getattr(settings.options, name) for name in ("temperature", "share", "iou")}
    return {
        "verifier": verifier,
        "strategy": settings.strategy,
        "options": options,
        "samples_per_problem": settings.n,
    }


def rank(candidates: Sequence[Candidate], settings: BestOf, wanted: int) -> list[Choice]:
    """The best answer, then the best of those that gave another one, and so on; when all answers are taken,
    what is left of the candidates. ``first`` leaves them in order."""
    if settings.strategy == "first":
        some = range(min(wanted, len(candidates)))
        return [replace(choose([candidates[i]], "first"), index=i) for i in some]
    choices: list[Choice] = []
    left = list(range(len(candidates)))
    while left and len(choices) < wanted:
        found = choose([candidates[i] for i in left], settings.strategy, settings.options)
        choices.append(replace(found, index=left[found.index]))
        best = choices[-1].index
        key = candidates[best].key
        taken = {i for i in left if i == best or (key is not None and candidates[i].key == key)}
        left = [i for i in left if i not in taken]
        if not left:
            indices = {choice.index for choice in choices}
            rest = [i for i in range(len(candidates)) if i not in indices]
            for i in rest[: wanted - len(choices)]:
                again = choose([candidates[i]], settings.strategy, settings.options)
                choices.append(replace(again, index=i))
    return choices


def _judge(choice: Choice, reply: Reply, settings: BestOf, calibration: Calibration | None) -> Selected:
    probability = None
    if calibration is not None and choice.confidence is not None:
        probability = float(calibration(choice.confidence))
    sure = choice.confidence if probability is None else probability
    threshold = settings.abstain_below
    if threshold is None and probability is not None and calibration is not None:
        threshold = calibration.threshold
    abstained = threshold is not None and (choice.answer is None or (sure or 0.0) < threshold)
    return Selected(choice, reply, probability, abstained)


def visible(selected: Selected, settings: BestOf) -> str:
    """What a client gets to read of an answer."""
    if settings.content == "raw":
        return selected.reply.text
    if settings.content == "answer" and selected.choice.answer is not None and not selected.reply.tool_calls:
        answer = selected.choice.answer
        return answer if isinstance(answer, str) else " ".join(map(str, answer))
    return read_reply(selected.reply, settings.answers).visible
