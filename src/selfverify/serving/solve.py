"""Answer one question: draw N candidates, choose one, and say how sure it is and why.

An own model answers (`solve_here`), or a server, which is asked the way the gateway asks (`solve_on_server`).
With ``--look`` a server's model holds several conversations in which it looks again (`look_on_server`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from threading import Lock
from typing import Any

from pydantic import Field, model_validator

from selfverify.clients.openai_client import OpenAIClient, ServerConfig, openai_messages
from selfverify.clients.replies import Completion, Reader, Reading, read_text
from selfverify.core.config import CommandConfig, SamplingConfig, Seed
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.tags import parse_tagged
from selfverify.core.trajectory import Trajectory
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import roll_out
from selfverify.selection.calibration import CALIBRATION_FILE, FUSED, Calibration, Fusion
from selfverify.selection.rules import Candidate
from selfverify.selection.stopping import sample_adaptively
from selfverify.selection.strategies import Choice, choose
from selfverify.serving.backend import (
    AnswerRequest,
    FreeQuestion,
    Selection,
    check_verifier,
    select,
    use_of,
    with_known_confidence,
    with_probability,
)
from selfverify.serving.completions import reply_of
from selfverify.serving.schemas import MOST_SAMPLES, BestOf, Choosing
from selfverify.serving.upstream import Upstream
from selfverify.serving.visual import AT_ONCE, Looked, look_once
from selfverify.tasks.answering import SECOND_TURN
from selfverify.tasks.base import Task, Verdict
from selfverify.verifiers.base import Verifier, verify
from selfverify.verifiers.make_verifier import Fused, make_verifier
from selfverify.visual.config import VisualToolConfig
from selfverify.visual.episode import steps_of
from selfverify.visual.task import VisualToolTask


class QuestionConfig(CommandConfig):
    """What is asked: a question with images, or a problem of a built-in task."""

    question: str | None = Field(None, json_schema_extra={"argument": True})
    """The question."""

    image: list[Path] = []
    """The file of an image; repeat the option for several images, in order."""

    task: str | None = None
    """Ask a problem of this built-in task instead, such as `digits-pick`."""

    index: int = Field(0, ge=0)
    """With --task: the number of the problem in the test split."""

    save_image: Path | None = None
    """With --task: write the problem's image to this file, print its question, and stop."""

    @model_validator(mode="after")
    def _one_question(self) -> QuestionConfig:
        if self.task is not None and (self.question is not None or self.image):
            raise ValueError("--task brings its own question and image; leave yours out")
        if self.task is None and (not (self.question or "").strip() or self.save_image is not None):
            raise ValueError("a question is missing: give one, or take a task's problem with --task NAME")
        return self


class AnswererConfig(CommandConfig):
    """What answers: a model that is loaded here, or one behind a server."""

    model: str | None = None
    """The model that answers: `builtin:NAME`, a folder, or a hub id. By default `builtin:digits`."""

    server: str | None = None
    """Ask this OpenAI-compatible server instead; --model is the model's name there."""

    timeout: float = Field(120.0, ge=0.1)
    """With --server: the most seconds to wait."""


class DrawsConfig(CommandConfig):
    """How one candidate is sampled."""

    temperature: float = Field(1.0, ge=0.0)
    """The sampling temperature; 0 always takes the likeliest token."""

    top_p: float = Field(0.99, ge=0.01, le=1.0)
    """Sample only from the likeliest tokens that together have this probability."""

    max_new_tokens: int = Field(256, ge=1)
    """The most tokens of a candidate."""

    seed: Seed = 0
    """The seed of the sampling."""

    turns: int = Field(1, ge=1, le=2)
    """2: the model re-examines every answer, and its second answer counts."""

    second_turn: str | None = None
    """With --turns 2: the request to re-examine the answer, as in training. By default AdaPO's sentence."""

    def sampling(self, n: int) -> SamplingConfig:
        """How ``n`` candidates are sampled."""
        return SamplingConfig(
            group_size=n,
            temperature=self.temperature,
            top_p=self.top_p,
            max_new_tokens=self.max_new_tokens,
        )


class CandidateConfig(Choosing):
    """How candidates are verified and chosen from."""

    n: int = Field(8, ge=1, le=1024)
    """The most candidates: sampled answers, of which one is chosen."""

    verifier: str = "soft"
    """What gives each candidate a score: `inline` (the model wrote it), `soft` or `greedy` (what the
    probabilities of the model's tokens expect, or the likeliest score), `repeated:K` (the mean of K sampled
    scores), `turns:K` (how often K second turns keep the answer), `judge:MODEL` or `ask:MODEL`; `fused` or
    `fused:A` (soft + a·log-prob, with the weight of a calibration or this one)."""

    calibration: Path | None = None
    """A file of `selfverify eval --calibrate`. By default the one in the model's folder, if it fits."""

    @property
    def all_samples(self) -> bool:
        """Whether all ``n`` candidates are drawn, as those were that a calibration is fitted on."""
        return self.stop == "never" and self.budget_tokens is None


class SolveConfig(CommandConfig):
    """One question, who answers it, and how its answer is chosen."""

    asked: QuestionConfig
    answerer: AnswererConfig = AnswererConfig()
    choosing: CandidateConfig = CandidateConfig()
    drawing: DrawsConfig = DrawsConfig()
    looking: VisualToolConfig = VisualToolConfig()

    @model_validator(mode="after")
    def _together(self) -> SolveConfig:
        choosing, looking = self.choosing, self.looking
        if looking.look and self.drawing.turns == 2:
            raise ValueError("--turns 2 and --look are two ways of going on; take one")
        if self.answerer.server is None:
            if choosing.calibration is not None and not choosing.all_samples:
                raise ValueError(
                    f"{choosing.calibration} was fitted on full sets of samples, which early stopping does "
                    "not draw"
                )
            return self
        if looking.look and (choosing.verifier not in ("soft", "inline") or not choosing.all_samples):
            raise ValueError("--look with a --server draws all candidates and reads the scores they write")
        if self.drawing.turns == 2:
            raise ValueError("--turns 2 needs a model that runs here, not a --server")
        if choosing.n > MOST_SAMPLES:
            raise ValueError(f"-n: a server is asked for at most {MOST_SAMPLES} candidates")
        return self


OnCandidate = Callable[[Candidate], None]
"""Called with each candidate when it is there."""


@dataclass(frozen=True, slots=True)
class Solution:
    """What `solve` found.

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
        correct: Whether the chosen answer is right; None where nobody knows.
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
    def of(
        cls,
        found: Selection,
        tokens: int,
        begun: float,
        correct: bool | None,
        looks: Sequence[Sequence[Mapping[str, Any]]] = (),
    ) -> Solution:
        """Return the solution that a selection of one answer is.

        Args:
            found: The selection.
            tokens: The number of tokens written in all.
            begun: When it was asked, by `time.perf_counter`.
            correct: Whether the chosen candidate is right. A consensus of several candidates was not judged.
            looks: By candidate what it looked at.
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
            looks=looks,
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
    choosing: Choosing,
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
        sampling, seeds = drawing.sampling(n), [drawing.seed * 1_000_003 + len(trajectories)]
        words = (drawing.second_turn or SECOND_TURN) if drawing.turns == 2 else None
        rollout = roll_out(policy, task, [problem], seeds, sampling, words)
        verify(rollout.groups, verifier)
        drawn = rollout.groups[0].trajectories
        trajectories.extend(drawn)
        found = [reply_of(t, verifier.name, task.kind == "continuous") for t in drawn]
        for candidate in found:
            if on_candidate:
                on_candidate(candidate)
        return found

    candidates, stopped = sample_adaptively(draw, choosing.stopping, choosing.strategy, choosing.options)
    fusion = verifier.fusion if isinstance(verifier, Fused) else None
    chosen = choose(candidates, choosing.strategy, choosing.options)
    choice = with_known_confidence(chosen, choosing.strategy, fusion)
    selected = with_probability(choice, candidates[choice.index], calibration)
    found = Selection([selected], candidates, stopped, 0, verifier.name, calibration is not None)
    correct = bool(trajectories[choice.index].rewards["correct"]) if task.judges else None
    tokens = sum(candidate.tokens for candidate in candidates)
    looks = [steps_of(trajectory) for trajectory in trajectories]
    return Solution.of(found, tokens, begun, correct, looks)


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
    words, fitted = drawing.second_turn or SECOND_TURN, find_fusion(choosing, model)
    verifier = make_verifier(choosing.verifier, policy, task, words, fitted)
    calibration = find_calibration(choosing, model)
    return solve(policy, task, problem, verifier, choosing, drawing, calibration, on_candidate)


def find_fusion(choosing: CandidateConfig, model: str) -> Fusion | None:
    """Return what the verifier ``fused`` makes its scores with: from the calibration that was asked for, or
    the model folder's. A fusion holds for any strategy and number of candidates.

    Raises:
        DataError: The calibration cannot be read.
    """
    file = choosing.calibration or Path(model) / CALIBRATION_FILE
    if choosing.verifier != FUSED or not (choosing.calibration or file.is_file()):
        return None
    return Calibration.load(file).fusion


def find_calibration(choosing: CandidateConfig, model: str) -> Calibration | None:
    """Return the calibration that was asked for, or the model folder's if it was fitted for these settings.

    Raises:
        ConfigError: The calibration that was asked for was fitted for something else.
        DataError: The calibration cannot be read.
    """
    asked, beside = choosing.calibration, Path(model) / CALIBRATION_FILE
    if asked is None and not (choosing.all_samples and beside.is_file()):
        return None
    found = Calibration.load(asked or beside)
    misfit = found.misfit(use_of(choosing, choosing.verifier))
    if misfit and asked is not None:
        raise ConfigError(f"{asked} was fitted with {misfit}")
    return None if misfit else found


def solve_on_server(
    settings: SolveConfig, task: Task, problem: Problem, on_candidate: OnCandidate | None = None
) -> Solution:
    """Draw candidates from a server and choose one, as `solve` does with a policy.

    Args:
        settings: The server, and how the answer is chosen. The seed is sent with the request, but some
            servers ignore it.
        task: Reads the answers and says which are the same.
        problem: The question.
        on_candidate: Called with each candidate when it is there.

    Raises:
        ConfigError: The server has several models and none is named, or servers do not have the verifier.
        ServerError: The server gave no candidate at all.
    """

    def judged(text: str) -> Verdict:
        return task.verdict(problem, parse_tagged(text, task.tags))

    def read(text: str) -> Reading:
        if isinstance(task, FreeQuestion):
            return read_text(text, task.answers)
        found = judged(text)
        key = None if task.kind == "continuous" else found.key
        return Reading(found.answer, key, read_text(text).score)

    begun = time.perf_counter()
    ask, found = asyncio.run(_ask(settings, problem, read, on_candidate))
    [best] = found.selected
    correct = judged(best.reply.text).correct if task.judges else None
    tokens = ask.usage.candidate_tokens + ask.usage.verification_tokens
    return Solution.of(found, tokens, begun, correct)


async def _ask(
    settings: SolveConfig, problem: Problem, read: Reader, on_candidate: OnCandidate | None
) -> tuple[AnswerRequest, Selection]:
    """Ask the server; return the question with what it cost, and what was found."""
    answerer, drawing, choosing = settings.answerer, settings.drawing, settings.choosing
    assert answerer.server is not None
    calibration = Calibration.load(choosing.calibration) if choosing.calibration else None
    server = ServerConfig(answerer.server, timeout_s=answerer.timeout)
    async with Upstream(OpenAIClient(server)) as backend:
        check_verifier(backend, choosing.verifier, calibration)
        model = answerer.model or await _only_model(backend.client)
        body = {
            "model": model,
            "messages": openai_messages(problem),
            "temperature": drawing.temperature,
            "top_p": drawing.top_p,
            "max_tokens": drawing.max_new_tokens,
            "seed": drawing.seed,
        }
        best_of = BestOf.model_validate(choosing.model_dump(exclude={"calibration"}))
        deadline = asyncio.get_running_loop().time() + answerer.timeout
        ask = AnswerRequest(body, [], best_of, deadline, streams=True)
        tell = None if on_candidate is None else lambda place, candidate: on_candidate(candidate)
        return ask, await select(backend, ask, calibration=calibration, tell=tell, read=read)


def only_model(server: ServerConfig) -> str:
    """The name of a server's only model.

    Raises:
        ConfigError: It has several, or none.
        ServerError: It cannot be reached.
    """

    async def ask() -> str:
        async with OpenAIClient(server) as client:
            return await _only_model(client)

    return asyncio.run(ask())


async def _only_model(client: OpenAIClient) -> str:
    names = [str(model["id"]) for model in await client.models()]
    if len(names) != 1:
        known = ", ".join(names) or "none"
        raise ConfigError(f"which model is meant? {client.settings.url} has: {known}; say --model NAME")
    return names[0]


def look_on_server(
    settings: SolveConfig, task: Task, problem: Problem, on_candidate: OnCandidate | None = None
) -> Solution:
    """Hold conversations with a server's model, and choose one of their answers.

    Args:
        settings: The server, how it looks, how the answer is chosen. Each conversation has a seed of its own,
            which some servers ignore.
        task: Reads the answers and says which are the same.
        problem: The question.
        on_candidate: Called with each candidate, in order.

    Raises:
        ConfigError: The server has several models and none is named, or a tool is not available here.
        DataError: An image cannot be looked at.
        ServerError: The server cannot be reached or refuses.
    """
    begun = time.perf_counter()
    answerer, choosing = settings.answerer, settings.choosing
    if answerer.server is None:
        raise ConfigError("there is no server to ask")
    server = ServerConfig(answerer.server, timeout_s=answerer.timeout)
    fields = {
        "model": answerer.model or only_model(server),
        "temperature": settings.drawing.temperature,
        "top_p": settings.drawing.top_p,
        "max_tokens": settings.drawing.max_new_tokens,
    }
    looking = VisualToolTask(task, settings.looking.settings())
    asked = looking.asked(problem)

    lock = Lock()

    def one(number: int) -> Looked:
        return look_once(looking, asked, server, fields | {"seed": settings.drawing.seed + number}, lock)

    found: list[Looked] = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for looked in pool.map(one, range(choosing.n)):
            found.append(looked)
            if on_candidate:
                on_candidate(looked.reply)
    replies = [looked.reply for looked in found]
    choice = choose(replies, choosing.strategy, choosing.options)
    calibration = Calibration.load(choosing.calibration) if choosing.calibration else None
    if calibration is not None and calibration.misfit(use_of(choosing, "inline")):
        calibration = None
    selected = with_probability(choice, replies[choice.index], calibration)
    selection = Selection([selected], list(replies), "samples", 0, "inline", calibration is not None)
    correct = found[choice.index].judged.correct if task.judges else None
    tokens = sum(reply.tokens for reply in replies)
    return Solution.of(selection, tokens, begun, correct, [looked.steps for looked in found])
