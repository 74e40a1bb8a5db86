"""Answer one question: draw N candidates, choose one, and say how sure it is and why.

An own model answers (`solve_here`), or a server, which is asked as the gateway asks it (`solve_on_server`);
only that needs the extra `serve`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from selfverify.clients.replies import Completion, Reading, read_text
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem, openai_messages
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import Trajectory
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import opening, rollout
from selfverify.selection.calibration import CALIBRATION_FILE, Calibration, Fusion
from selfverify.selection.rules import Candidate
from selfverify.selection.stopping import sample_adaptively
from selfverify.selection.strategies import Choice
from selfverify.serving.backend import (
    AnswerRequest,
    Backend,
    FreeQuestion,
    Selection,
    check_choosing,
    reply_of,
    select,
    selection_of,
    use_of,
)
from selfverify.serving.config import BestOfConfig, CandidateConfig, ChoosingConfig, DrawsConfig, SolveConfig
from selfverify.tasks.answering import SECOND_TURN
from selfverify.tasks.base import Task, Verdict
from selfverify.verifiers.base import Verifier, verify
from selfverify.verifiers.make_verifier import Fused, make_verifier
from selfverify.visual.episode import steps_of
from selfverify.visual.task import VisualToolTask

MOST_PIXELS = 200_000_000
"""The most pixels that a question's images have together where a server's model looks at them again."""

OnCandidate = Callable[[Candidate], None]
"""Called with each candidate when it is there."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The result of `solve`.

    Args:
        choice: The answer and why it was chosen.
        candidates: All candidates, in the order they were sampled.
        stopped: Why there are no more: ``samples``, ``tokens`` or ``confident``; of servers also ``greedy``,
            ``deadline`` or ``fault``.
        probability: The choice's calibrated probability of being right; None without a calibration.
        abstained: The probability lies below the calibration's threshold, or no answer could be read.
        verifier: The name of the verifier that scored the candidates.
        tokens: The number of tokens written in all.
        seconds: How long it took.
        correct: Whether the chosen answer is right; None where that is not known.
        looks: By candidate what it looked at, step by step (`VisualStep`).
    """

    choice: Choice
    candidates: Sequence[Candidate]
    stopped: str
    probability: float | None
    abstained: bool
    verifier: str
    tokens: int
    seconds: float
    correct: bool | None
    looks: Sequence[Sequence[Mapping[str, Any]]] = ()

    @classmethod
    def of(cls, found: Selection, tokens: int, begun: float, correct: bool | None) -> Solution:
        """Return a solution made from the selection of one answer.

        Args:
            found: The selection.
            tokens: The number of tokens written in all.
            begun: When it was asked, by `time.perf_counter`.
            correct: Whether the chosen candidate is right. A consensus of several candidates was not judged.
        """
        [best] = found.selected
        return cls(
            choice=best.choice,
            candidates=found.candidates,
            stopped=found.stopped,
            probability=best.probability,
            abstained=best.abstained or best.choice.answer is None,
            verifier=found.verifier,
            tokens=tokens,
            seconds=time.perf_counter() - begun,
            correct=correct if best.choice.answer == best.reply.answer else None,
            looks=[candidate.about.get("looks", ()) for candidate in found.candidates],
        )

    def as_json(self) -> dict[str, Any]:
        """The solution as a JSON object."""
        names = [field.name for field in fields(Candidate)]
        shown = [{name: getattr(candidate, name) for name in names} for candidate in self.candidates]
        return asdict(self) | {"candidates": shown}


def solve(
    policy: Policy,
    task: Task,
    problem: Problem,
    verifier: Verifier,
    choosing: ChoosingConfig,
    drawing: DrawsConfig,
    calibration: Calibration | None = None,
    on_candidate: OnCandidate | None = None,
) -> Solution:
    """Sample candidates, have them verified, choose one.

    Args:
        policy: Writes the answers.
        task: Parses the answers and says which are the same.
        problem: The question.
        verifier: Scores the answers.
        choosing: How many candidates there are, and how one is chosen.
        drawing: How a candidate is sampled.
        calibration: Turns the choice's confidence into a probability.
        on_candidate: Called with each candidate when it is there.

    Raises:
        DataError: The problem's images or messages cannot be used.
    """
    begun = time.perf_counter()
    trajectories: list[Trajectory] = []

    def draw(n: int) -> list[Completion]:
        # The prompt is prefilled again for every batch: few large ones are faster than many small ones.
        given = drawing.model_dump(include={"temperature", "top_p", "max_new_tokens"})
        sampling = SamplingConfig(group_size=n, **given)
        seeds = [drawing.seed * 1_000_003 + len(trajectories)]
        words = (drawing.second_turn or SECOND_TURN) if drawing.turns == 2 else None
        begin, limits = opening(task, words)
        sampler = PolicySampler(policy, sampling)
        made = rollout(sampler, task, [problem], seeds, n, open_episode=begin, limits=limits)
        verify(made.groups, verifier)
        drawn = made.groups[0].trajectories
        trajectories.extend(drawn)
        found = [reply_of(t, verifier.name, task.kind == "continuous") for t in drawn]
        for candidate, trajectory in zip(found, drawn, strict=True):
            candidate.about["looks"] = steps_of(trajectory)
            if on_candidate:
                on_candidate(candidate)
        return found

    candidates, stopped = sample_adaptively(draw, choosing.stopping, choosing.strategy, choosing.options)
    fusion = verifier.fusion if isinstance(verifier, Fused) else None
    found = selection_of(candidates, choosing, verifier.name, fusion, calibration, stopped=stopped)
    best = found.selected[0].choice.index
    correct = bool(trajectories[best].rewards["correct"]) if task.judges else None
    return Solution.of(found, sum(candidate.tokens for candidate in candidates), begun, correct)


def solve_here(
    settings: SolveConfig, task: Task, problem: Problem, on_candidate: OnCandidate | None = None
) -> Solution:
    """Load a model, and `solve` with it.

    Raises:
        ConfigError: There is no such verifier, or the calibration was fitted for something else.
        DataError: The calibration, or the problem's images or messages cannot be used.
    """
    model = settings.answerer.model or "builtin:digits"
    choosing, drawing = settings.choosing, settings.drawing
    policy = Policy.load(model)
    if settings.looking.look:
        looking = VisualToolTask(task, settings.looking.settings())
        looking.set_coordinate_space(policy.coordinate_space)
        looking.set_policy(policy)
        task, problem = looking, looking.asked(problem)
    calibration, fusion = find_calibration(choosing, model)
    words = drawing.second_turn or SECOND_TURN
    verifier = make_verifier(choosing.verifier, policy, task, words, fusion)
    return solve(policy, task, problem, verifier, choosing, drawing, calibration, on_candidate)


def find_calibration(choosing: CandidateConfig, model: str) -> tuple[Calibration | None, Fusion | None]:
    """Return the calibration that was asked for, or the model folder's if it was fitted for these settings;
    and what the verifier ``fused`` makes its scores with, which holds for any strategy and number.

    Raises:
        ConfigError: The calibration that was asked for was fitted for something else.
        DataError: The calibration cannot be read.
    """
    asked, beside = choosing.calibration, Path(model) / CALIBRATION_FILE
    if asked is None and not beside.is_file():
        return None, None
    found = Calibration.load(asked or beside)
    misfit = found.misfit(use_of(choosing, choosing.verifier))
    if misfit and asked is not None:
        raise ConfigError(f"{asked} was fitted with {misfit}")
    return None if misfit or not choosing.all_samples else found, found.fusion


def solve_on_server(
    settings: SolveConfig, task: Task, problem: Problem, on_candidate: OnCandidate | None = None
) -> Solution:
    """Draw candidates from a server and choose one, as `solve` does with a policy.

    With ``--look`` each candidate is a conversation in which the model looks again.

    Args:
        settings: The server, and how the answer is chosen. The seed is sent with the request, but some
            servers ignore it.
        task: Reads the answers and says which are the same.
        problem: The question.
        on_candidate: Called with each candidate when it is there.

    Raises:
        ConfigError: The server has several models and none is named, servers do not have the verifier, or an
            image cannot be looked at.
        ServerError: The server gave no candidate at all.
    """
    from selfverify.serving.schemas import ApiError

    try:
        return asyncio.run(_solve(settings, task, problem, on_candidate))
    except ApiError as error:
        raise ConfigError(str(error)) from None


async def _solve(
    settings: SolveConfig, task: Task, problem: Problem, on_candidate: OnCandidate | None
) -> Solution:
    from selfverify.clients.openai_client import OpenAIClient, ServerConfig
    from selfverify.serving.schemas import take_images
    from selfverify.serving.upstream import Upstream

    def judged(text: str) -> Verdict:
        return task.verdict(problem, parse_tagged(text, task.tags))

    def read(text: str) -> Reading:
        if isinstance(task, FreeQuestion):
            return read_text(text, task.answers)
        found = judged(text)
        key = None if task.kind == "continuous" else found.key
        return Reading(found.answer, key, read_text(text).score)

    begun, answerer = time.perf_counter(), settings.answerer
    drawing, choosing = settings.drawing, settings.choosing
    assert answerer.server is not None
    calibration = Calibration.load(choosing.calibration) if choosing.calibration else None
    server = ServerConfig(answerer.server, timeout_s=answerer.timeout)
    async with Upstream(OpenAIClient(server)) as backend:
        messages = openai_messages(problem)
        body = {
            "model": answerer.model or await _only_model(backend, server.url),
            "messages": messages,
            "max_tokens": drawing.max_new_tokens,
            **drawing.model_dump(include={"temperature", "top_p", "seed"}),
        }
        looks = settings.looking.look
        own = {"verifier": "inline"} if looks else {}  # candidates that look have the score that they write
        best_of = BestOfConfig.model_validate(choosing.model_dump(exclude={"calibration"}) | own)
        check_choosing(backend, best_of, calibration)
        deadline = asyncio.get_running_loop().time() + answerer.timeout
        ask = AnswerRequest(body, [], best_of, deadline, streams=True)
        if looks:
            ask.look = VisualToolTask(FreeQuestion(choosing.answers), settings.looking.settings())
            ask.pictures = await take_images(messages, MOST_PIXELS)
        tell = None if on_candidate is None else lambda place, candidate: on_candidate(candidate)
        found = await select(backend, ask, calibration=calibration, tell=tell, read=read)
    [best] = found.selected
    correct = judged(best.reply.text).correct if task.judges else None
    tokens = ask.usage.candidate_tokens + ask.usage.verification_tokens
    return Solution.of(found, tokens, begun, correct)


async def _only_model(backend: Backend, url: str) -> str:
    names = [str(model["id"]) for model in await backend.models()]
    if len(names) != 1:
        known = ", ".join(names) or "none"
        raise ConfigError(f"which model is meant? {url} has: {known}; name one")
    return names[0]
