"""Draw candidates until the answer is sure, the budget is spent or the time is over; then choose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from selfverify.clients.replies import Completion, Reader, read_text, shown_answer, without_score
from selfverify.core.errors import ConfigError, ServerError
from selfverify.selection.calibration import Calibration, Fusion, fusion_of
from selfverify.selection.rules import Candidate
from selfverify.selection.stopping import is_sure, next_draw
from selfverify.selection.strategies import STRATEGIES, Choice, choose
from selfverify.serving.backend import AnswerRequest, Backend, Draws, Tell
from selfverify.serving.best_of import BestOf, Choosing


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
    """What was found.

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
    strict = backend.strict and settings.instruction
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
    selected = [
        with_probability(
            with_known_confidence(choice, settings.strategy, fusion),
            candidates[choice.index],
            calibration,
            settings.abstain_below,
        )
        for choice in rank(candidates, settings, wanted)
    ]
    return Selection(selected, candidates, stopped, missing, verifier, calibration is not None)


def check_verifier(backend: Backend, verifier: str, calibration: Calibration | None) -> None:
    """Refuse a verifier that a backend does not have.

    Raises:
        ConfigError: There is no such verifier; or it is ``fused``, whose weight nobody knows.
    """
    fusion = fusion_of(verifier, calibration.fusion if calibration else None)
    backend.check_verifier("soft" if fusion else verifier)


def check_abstaining(settings: BestOf, verifier: str, calibration: Calibration | None) -> None:
    """Refuse to abstain by a confidence that is no probability and that no calibration makes one.

    Raises:
        ConfigError: The settings ask for that; the message says what to do.
    """
    fusion = fusion_of(verifier, calibration.fusion if calibration else None)
    counts = STRATEGIES[settings.strategy].confidence == "agreement"
    if settings.abstain_below is None or fusion is None or fusion.is_probability or counts:
        return
    if calibration is None or calibration.misfit(use_of(settings, verifier)):
        text = (
            f"the scores of verifier {verifier} are no probabilities that could be compared with it; leave "
            "it out, or use fused with the --calibration that it was fitted with"
        )
        raise ConfigError(text)


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
                fault = await backend.draw(ask, n, len(candidates), drawing)
                if fault and not candidates:
                    raise fault
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


def use_of(settings: Choosing, verifier: str) -> dict[str, Any]:
    """Return the settings that a calibration has to have been fitted with."""
    return {
        "verifier": verifier,
        "strategy": settings.strategy,
        "options": asdict(settings.options),
        "samples_per_problem": settings.n,
    }


def rank(candidates: Sequence[Candidate], settings: Choosing, wanted: int) -> list[Choice]:
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


def with_known_confidence(choice: Choice, strategy: str, fusion: Fusion | None) -> Choice:
    """Return a choice by fused scores, without a confidence where that is none.

    A sum that is not calibrated is no probability. Where no candidate has a fused score, a vote has chosen
    instead of the ``strategy``, and its share of votes says nothing of what the fused score would have been.
    """
    if fusion is None:
        return choice
    summed = not fusion.is_probability and STRATEGIES[choice.strategy].confidence != "agreement"
    return replace(choice, confidence=None) if summed or choice.strategy != strategy else choice


def with_probability(
    choice: Choice, reply: Completion, calibration: Calibration | None, abstain_below: float | None = None
) -> Selected:
    """Return a choice with its calibrated probability; it abstains below ``abstain_below``, or without that
    below the calibration's threshold."""
    probability, threshold = None, abstain_below
    if calibration is not None and choice.confidence is not None:
        probability = float(calibration(choice.confidence))
        threshold = calibration.threshold if abstain_below is None else abstain_below
    sure = choice.confidence if probability is None else probability
    abstained = threshold is not None and (choice.answer is None or (sure or 0.0) < threshold)
    return Selected(choice, reply, probability, abstained)


def visible(selected: Selected, settings: BestOf) -> str:
    """Return the text that a client gets of an answer."""
    if settings.content == "raw":
        return selected.reply.text
    if settings.content == "text":
        return without_score(selected.reply.text)
    answer = selected.choice.answer
    if isinstance(answer, list) and answer != selected.reply.answer:  # a box between those that were written
        return " ".join(f"{number:g}" for number in answer)
    return shown_answer(selected.reply.text)
