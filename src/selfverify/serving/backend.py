"""Backends of the gateway, which write candidates and score them, and the choice among candidates.

`select` draws candidates until the answer is sure, the budget is spent or the time is over; then it chooses.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from PIL import Image

from selfverify.clients.replies import (
    Completion,
    Reader,
    Usage,
    finish_reading,
    read_text,
    shown_answer,
    without_score,
)
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError, ServerError
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import TURN_1, Trajectory
from selfverify.rollouts.score_reading import answer_logprob
from selfverify.selection.calibration import Calibration, Fusion, fusion_of
from selfverify.selection.rules import Candidate, Kind, read_answer
from selfverify.selection.stopping import is_sure, next_draw
from selfverify.selection.strategies import STRATEGIES, Choice, choose
from selfverify.serving.config import BestOfConfig, ChoosingConfig
from selfverify.tasks.base import SCORE_INSTRUCTION, UNREADABLE, Task, Verdict, user_turn

if TYPE_CHECKING:
    from selfverify.serving.schemas import Picture  # it needs the extra `serve`, which an own model does not
    from selfverify.visual.task import VisualToolTask


Events = AsyncGenerator[dict[str, Any], None]
"""The reply of a model server: a chat completion, or its chunks."""

NO_JUDGE = "{!r} reads only what the model wrote itself; leave it out, or name a judge"
"""The error's words about a verifier that cannot score given answers."""

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
        usage: The cost of the question.
        look: How the model looks at the images again; None where it does not.
        looked: Told of each step of looking as it is made, from any thread.
    """

    body: dict[str, Any]
    pictures: list[Picture]
    best_of: BestOfConfig
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
        scoring: Scores the candidates that say the same, once for all of them.
    """

    verifier: str
    read: Reader
    tell: Tell | None = None
    fusion: Fusion | None = None
    candidates: list[Completion] = field(default_factory=list)
    scoring: dict[str, asyncio.Future[float | None]] = field(default_factory=dict)
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
        place = next(i for i, known in enumerate(self.candidates) if known is reply)
        self._fuse(place)
        if self.tell:
            self.tell(place, reply)

    def end(self) -> None:
        """Take unfinished candidates for complete at the deadline: they keep the scores that they have."""
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
        is_server: Whether requests go to a server: messages as they are, and those without selection through
            `pass_on`. A model that runs here gets messages with places for images.
        default_verifier: The verifier where a request names none.
    """

    is_server: bool
    default_verifier: str

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

    def pass_on(self, body: Mapping[str, Any], usage: Usage, until: float) -> Events:
        """Yield what a server answers by itself, with all fields: a completion, or a stream's chunks.

        Raises:
            ServerError: The server failed.
        """
        raise NotImplementedError

    @abstractmethod
    async def draw(self, ask: AnswerRequest, n: int, first: int, drawing: Draws) -> None:
        """Draw ``n`` candidates after the ``first`` ones.

        Raises:
            ApiError: The request cannot be answered.
            SelfVerifyError: Why candidates are missing; others are there nevertheless.
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


@dataclass(frozen=True, slots=True)
class Selected:
    """One of the answers that are returned.

    Args:
        choice: The choice, and the reason for it.
        reply: The candidate that stands for it.
        probability: Its calibrated probability of being right; None without a calibration that fits.
        abstained: Whether it is too unsure to be given.
    """

    choice: Choice
    reply: Completion
    probability: float | None
    abstained: bool


@dataclass(frozen=True, slots=True)
class Selection:
    """The candidates and the choice.

    Args:
        selected: The answers, best first.
        candidates: All candidates, in the order in which they came.
        stopped: Why there are no more: ``samples``, ``tokens``, ``confident``, ``greedy`` (another would be
            the same), ``deadline`` or ``fault``.
        missing: How many candidates were asked for and did not come.
        verifier: The name of the verifier that scored the candidates.
        calibrated: Whether a calibration gave the probabilities.
    """

    selected: list[Selected]
    candidates: list[Completion]
    stopped: str
    missing: int
    verifier: str
    calibrated: bool


async def select(
    backend: Backend,
    ask: AnswerRequest,
    wanted: int = 1,
    calibration: Calibration | None = None,
    tell: Tell | None = None,
    read: Reader | None = None,
) -> Selection:
    """Draw candidates and choose the ``wanted`` best answers.

    Args:
        backend: Writes and scores the candidates.
        ask: The question.
        wanted: The number of answers.
        calibration: Used where it was fitted for these settings and all candidates came.
        tell: Told about every candidate.
        read: Reads candidates' texts; by default as ``ask.best_of.answers`` says.

    Raises:
        ServerError: There is no candidate at all: the backend failed, or the time was over.
        ConfigError: The stopping rule cannot use the scores.
    """
    settings = ask.best_of
    verifier = settings.verifier or backend.default_verifier
    strict = settings.instruction and not backend.is_server  # a model that runs here was taught the tags
    fusion = fusion_of(verifier, calibration.fusion if calibration else None)
    read = read or partial(read_text, kind=settings.answers, strict=strict)
    drawing = Draws("soft" if fusion else verifier, read, tell, fusion)
    greedy = wanted if ask.body.get("temperature") == 0 else None
    stopped, missing = await _draw_until_sure(backend, ask, drawing, greedy)
    drawing.end()
    candidates = drawing.candidates
    fits = calibration is not None and not missing and stopped == "samples"
    if not fits or calibration is None or calibration.misfit(use_of(settings, verifier)):
        calibration = None
    return selection_of(
        candidates, settings, verifier, fusion, calibration, wanted, stopped, missing, settings.abstain_below
    )


def selection_of(
    candidates: list[Completion],
    settings: ChoosingConfig,
    verifier: str,
    fusion: Fusion | None = None,
    calibration: Calibration | None = None,
    wanted: int = 1,
    stopped: str = "samples",
    missing: int = 0,
    abstain_below: float | None = None,
) -> Selection:
    """Choose the ``wanted`` best answers. It abstains below ``abstain_below``, or without that below the
    calibration's threshold.

    Choices by fused scores have no confidence where that is none: a sum that is not calibrated is no
    probability; and where no candidate has a fused score, a vote has chosen instead of the strategy, and its
    share of votes says nothing of what the fused score would have been.
    """
    selected = []
    for choice in rank(candidates, settings, wanted):
        counted = STRATEGIES[choice.strategy].confidence == "agreement"
        known = choice.strategy == settings.strategy and (fusion is None or fusion.is_probability or counted)
        choice = choice if fusion is None or known else replace(choice, confidence=None)
        probability, threshold = None, abstain_below
        if calibration is not None and choice.confidence is not None:
            probability = float(calibration(choice.confidence))
            threshold = calibration.threshold if abstain_below is None else abstain_below
        sure = choice.confidence if probability is None else probability
        abstained = threshold is not None and (choice.answer is None or (sure or 0.0) < threshold)
        selected.append(Selected(choice, candidates[choice.index], probability, abstained))
    return Selection(selected, candidates, stopped, missing, verifier, calibration is not None)


def check_choosing(
    backend: Backend, settings: BestOfConfig, calibration: Calibration | None, param: str = "best_of.verifier"
) -> None:
    """Refuse a choice that a backend cannot make; ``param`` is the field that names the verifier.

    Raises:
        ApiError: There is no such verifier; or it is ``fused``, whose weight is not known; or an answer is to
            be withheld by a confidence that is no probability, and no calibration makes it one.
    """
    from selfverify.serving.schemas import invalid_value

    verifier = settings.verifier or backend.default_verifier
    try:
        fusion = fusion_of(verifier, calibration.fusion if calibration else None)
        backend.check_verifier("soft" if fusion else verifier)
        counts = STRATEGIES[settings.strategy].confidence == "agreement"
        fits = calibration is not None and not calibration.misfit(use_of(settings, verifier))
        if settings.abstain_below is None or fusion is None or fusion.is_probability or counts or fits:
            return
        param = "best_of.abstain_below"
        raise ConfigError(
            f"the scores of verifier {verifier} are no probabilities that could be compared with it; leave "
            "it out, or use fused with the calibration that it was fitted with"
        )
    except ConfigError as error:
        raise invalid_value(param, str(error)) from None


async def _draw_until_sure(
    backend: Backend, ask: AnswerRequest, drawing: Draws, greedy: int | None
) -> tuple[str, int]:
    """Draw; return why that ended, and how many candidates are missing.

    ``greedy`` candidates are drawn where all would be the same.
    """
    settings, candidates = ask.best_of, drawing.candidates
    stopping = settings.stopping
    if greedy is not None:
        most = min(greedy, settings.n)
        stopping = replace(stopping, start=most, max_samples=most)
    asked_for = 0
    try:
        async with asyncio.timeout_at(ask.deadline):
            while True:
                n, stopped = next_draw(candidates, stopping)
                if not n:
                    alike = stopped == "samples" and stopping.max_samples < settings.n
                    return "greedy" if alike else stopped, 0
                asked_for = len(candidates) + n
                fault = None
                try:
                    await backend.draw(ask, n, len(candidates), drawing)
                except SelfVerifyError as error:
                    if not candidates:
                        raise
                    fault = error
                missing = asked_for - len(candidates)
                if settings.stop != "never" and is_sure(
                    candidates, stopping, settings.strategy, settings.options
                ):
                    return "confident", missing
                if missing or fault:
                    return "fault", missing
    except TimeoutError:
        if not candidates:
            raise ServerError("there was no answer within the time allowed", 504, "timeout") from None
        return "deadline", max(0, asked_for - len(candidates))


def use_of(settings: ChoosingConfig, verifier: str) -> dict[str, Any]:
    """Return the settings that a calibration has to have been fitted with."""
    return {
        "verifier": verifier,
        "strategy": settings.strategy,
        "options": asdict(settings.options),
        "samples_per_problem": settings.n,
    }


def rank(candidates: Sequence[Candidate], settings: ChoosingConfig, wanted: int) -> list[Choice]:
    """Return the ``wanted`` best answers, each different from those before it while there are such.

    After the last distinct answer, the other candidates follow in order. The strategy ``first`` keeps all
    candidates in order.
    """

    def choose_from(places: list[int]) -> Choice:
        found = choose([candidates[i] for i in places], settings.strategy, settings.options)
        return replace(found, index=places[found.index])

    left = list(range(len(candidates)))
    if settings.strategy == "first":
        return [choose_from([i]) for i in left[:wanted]]
    choices: list[Choice] = []
    while left and len(choices) < wanted:
        choices.append(choose_from(left))
        best = choices[-1].index
        key = candidates[best].key
        left = [i for i in left if i != best and (key is None or candidates[i].key != key)]
    taken = {choice.index for choice in choices}
    rest = [i for i in range(len(candidates)) if i not in taken]
    return choices + [choose_from([i]) for i in rest[: wanted - len(choices)]]


def visible(selected: Selected, settings: BestOfConfig) -> str:
    """Return the text that a client gets of an answer."""
    if settings.content == "raw":
        return selected.reply.text
    if settings.content == "text":
        return without_score(selected.reply.text)
    answer = selected.choice.answer
    if isinstance(answer, list) and answer != selected.reply.answer:  # a box between those that were written
        return " ".join(f"{number:g}" for number in answer)
    return shown_answer(selected.reply.text)


def reply_of(trajectory: Trajectory, verifier: str, continuous: bool = False) -> Completion:
    """Return a judged trajectory as a candidate, with the score that ``verifier`` gave it.

    Args:
        trajectory: The trajectory, judged by its task.
        verifier: The name of the verifier.
        continuous: Whether answers are boxes, which have no keys.
    """
    judged: Verdict | None = trajectory.parsed
    first: Verdict | None = next((s.parsed for s in trajectory.segments if s.channel == TURN_1), None)
    return Completion(
        answer=judged.answer if judged else None,
        key=None if judged is None or continuous else judged.key,
        score=trajectory.scores.get(verifier),
        logprob=answer_logprob(trajectory),
        tokens=trajectory.written,
        text=trajectory.text,
        first=first.answer if first else None,
        finish=str(trajectory.finish),
    )


class FreeQuestion(Task):
    """A question without a known answer: it can be parsed and compared, not judged."""

    name = "question"
    summary = "a person's own question"
    judges = False

    def __init__(self, kind_of_answer: Kind = "text") -> None:
        super().__init__()
        self.answers = kind_of_answer
        self.kind = "continuous" if kind_of_answer == "box" else "discrete"

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """Refuse: a person's question is the only problem."""
        raise DataError("a free question has no problems of its own")

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Return the answer and its key, without a reward: the right answer is not known."""
        answer, key = read_answer(tagged.fields.get("answer", ""), self.answers)
        return UNREADABLE if answer is None else Verdict(0.0, False, answer, key)


def free_problem(question: str, images: Sequence[Image.Image]) -> Problem:
    """Return the problem of a person's question: the images, the question, the request for the format."""
    text = f"{question.strip()} {SCORE_INSTRUCTION}".strip()
    return Problem("question", user_turn(text, len(images)), list(images), meta={"question": question})
