"""Answer one question: draw N candidates, choose one, and say how sure it is and why.

An own model answers (`solve_here`), or a server, which is asked as the gateway asks it (`solve_on_server`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from selfverify.clients.replies import Completion
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Trajectory
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import opening, rollout
from selfverify.selection.calibration import CALIBRATION_FILE, Calibration, Fusion
from selfverify.selection.rules import Candidate
from selfverify.selection.stopping import sample_adaptively
from selfverify.selection.strategies import Choice
from selfverify.serving.backend import Selection, reply_of, selection_of, use_of
from selfverify.serving.config import CandidateConfig, ChoosingConfig, DrawsConfig, SolveConfig
from selfverify.tasks.answering import SECOND_TURN
from selfverify.tasks.base import Task
from selfverify.verifiers.base import Verifier, verify
from selfverify.verifiers.make_verifier import Fused, make_verifier
from selfverify.visual.episode import steps_of
from selfverify.visual.task import VisualToolTask

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
