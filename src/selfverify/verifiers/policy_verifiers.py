"""Verifiers that run a policy of this library: the one that wrote the answers, or another one."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation
from selfverify.core.errors import DataError
from selfverify.core.problem import Problem
from selfverify.core.score_tokens import ScoreReading
from selfverify.core.tags import CHECK, RATE, SCORE_TAG, parse_score, parse_tagged, token_ends
from selfverify.core.trajectory import Finish, Group, Trajectory
from selfverify.objectives.advantage import step_log_ratios
from selfverify.policy.chat import TooLongError
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.policy.scores import read_scores
from selfverify.rollouts.rollout import Rollout
from selfverify.rollouts.sampler import sampled_turn
from selfverify.rollouts.score_reading import read_rollout_scores, with_images
from selfverify.selection.rules import box_iou
from selfverify.tasks.answering import SECOND_TURN
from selfverify.tasks.base import Task, Verdict
from selfverify.verifiers.base import CLOSING, OPENING, Scores, answers, no_scores
from selfverify.visual.stopping import LOG_RATIO

logger = logging.getLogger(__name__)

Form = Literal["continue", "ask"]
"""How a judge sees an answer. ``continue``: as its own words, and the score comes next; this fits policies
that were trained to rate themselves. ``ask``: as a turn of the conversation, followed by a request."""


@dataclass(frozen=True, slots=True)
class Inline:
    """The score that the policy wrote after its answer: free, coarse, and noisy if it was sampled."""

    name: str = "inline"

    def score(self, groups: Sequence[Group]) -> Scores:
        return [[t.scores.get("sampled") for t in group.trajectories] for group in groups]


@dataclass(frozen=True, slots=True)
class Soft:
    """The expected score (or the likeliest one) after the policy's own answer.

    This takes one forward pass of the answers on their shared prompt and no sampling; ties practically
    disappear. An answer whose own score is malformed has none, as in training and evaluation.
    """

    policy: Policy
    decoding: Literal["soft", "greedy"] = "soft"

    @property
    def name(self) -> str:
        """``soft`` or ``greedy``."""
        return self.decoding

    def score(self, groups: Sequence[Group]) -> Scores:
        problems = [group.problem for group in groups]
        rollout = Rollout(self.policy.encode(problems), list(groups))
        read_rollout_scores(self.policy, rollout, as_written=True)
        return [[t.scores.get(self.decoding) for t in group.trajectories] for group in groups]


@dataclass(frozen=True, slots=True)
class PolicyJudge:
    """The expected score that any policy, the judge, gives to answers which another one wrote.

    The judge reads the text up to the score, never the score that the writer gave itself. ``continue`` shares
    the prompt among a problem's answers; ``ask`` has one prompt per answer.
    """

    policy: Policy
    name: str = "judge"
    form: Form = "continue"

    def score(self, groups: Sequence[Group]) -> Scores:
        """Read the judge's soft score of every answer; answers that it cannot read have none."""
        return [[reading.soft if reading else None for reading in row] for row in self.readings(groups)]

    def readings(self, groups: Sequence[Group]) -> list[list[ScoreReading | None]]:
        """Read the judge's distribution over the scores of every answer."""
        if self.form == "ask":
            found: list[list[ScoreReading | None]] = [[None] * len(group.trajectories) for group in groups]
            opened = [self.policy.encoder.words(OPENING, "the beginning of a score")]
            asked = _ask(self.policy, groups, RATE)
            prompts = [prompt for _, _, prompt in asked]
            rows = read_scores(self.policy, prompts, [opened] * len(asked), bare=True)
            for (b, g, _), [reading] in zip(asked, rows, strict=True):
                found[b][g] = reading
            return found
        prefixes: list[list[list[int] | None]] = [[None] * len(group.trajectories) for group in groups]
        prompts = self.policy.encode(_questions(groups))
        for b, g, text in answers(groups):
            prefixes[b][g] = _opened(self.policy, prompts[b], g, text)
        return read_scores(self.policy, prompts, prefixes, bare=True)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The mean of K sampled scores of each answer.

    ``continue`` samples nothing but the score again. With many samples it becomes `Soft`, which costs less:
    it is for engines that show no probabilities. With ``ask`` each sample may think first, so that K
    different trains of thought are averaged (GenRM, arXiv:2408.15240).
    """

    policy: Policy
    repeats: int = 4
    form: Form = "continue"
    max_new_tokens: int = 64
    name: str = "repeated"

    def score(self, groups: Sequence[Group]) -> Scores:
        """Return the mean of each answer's readable scores; an answer without any has none."""
        asked = _ask(self.policy, groups, CHECK) if self.form == "ask" else _continue(self.policy, groups)
        length = 8 if self.form == "continue" else self.max_new_tokens

        def read(sample: Sample, group: Group, g: int) -> float | None:
            text = token_ends(self.policy.tokenizer, sample.tokens)[0]
            if self.form == "continue":
                return parse_score(text.partition(CLOSING)[0]) if CLOSING in text else None
            return parse_tagged(text.partition(CLOSING)[0] + CLOSING, ("think", SCORE_TAG)).score

        return mean_of_samples(self.policy, groups, asked, self.repeats, length, read)


Asked = list[tuple[int, int, Prompt]]
"""The places of a group and of a trajectory, and a prompt that asks about it."""


def mean_of_samples(
    policy: Policy,
    groups: Sequence[Group],
    asked: Asked,
    repeats: int,
    max_new_tokens: int,
    read: Callable[[Sample, Group, int], float | None],
) -> Scores:
    """Sample ``repeats`` answers to each prompt at temperature 1, and average what ``read`` finds in them.

    Samples in which it finds nothing are left out; a trajectory with none but those has no score.
    """
    found = no_scores(groups)
    sampling = SamplingConfig(group_size=repeats, temperature=1.0, top_p=1.0, max_new_tokens=max_new_tokens)
    seeds = [zlib.crc32(f"0/{prompt.problem_id}/{g}".encode()) for _, g, prompt in asked]
    drawn = policy.sample([prompt for _, _, prompt in asked], sampling, seeds=seeds)
    for (b, g, _), samples in zip(asked, drawn, strict=True):
        values = [value for sample in samples if (value := read(sample, groups[b], g)) is not None]
        found[b][g] = sum(values) / len(values) if values else None
    return found


def _opened(policy: Policy, prompt: Prompt, g: int, text: str) -> list[int] | None:
    """An answer's tokens up to where its score is written; None if the policy cannot read it."""
    limit = longest_row(policy.model)
    try:
        ids = policy.encoder.words(text + OPENING, f"answer {g} of problem {prompt.problem_id}")
        if limit is not None and len(prompt.ids) + len(ids) >= limit:
            raise TooLongError(f"it takes {len(prompt.ids) + len(ids)} tokens with its question, of {limit}")
    except DataError as error:
        logger.warning("answer %d of problem %s is not judged: %s", g, prompt.problem_id, error)
        return None
    return ids


def _questions(groups: Sequence[Group]) -> list[Problem]:
    """Return the problems; a judge reads an answer behind the question, without what was shown before it."""
    return [replace(group.problem, environment_begins=False) for group in groups]


def _continue(policy: Policy, groups: Sequence[Group]) -> Asked:
    """Return each answer's prompt followed by the answer, up to where the score is written."""
    prompts = policy.encode(_questions(groups))
    return [
        (b, g, policy.encoder.extended(prompts[b], Continuation(ids)))
        for b, g, text in answers(groups)
        if (ids := _opened(policy, prompts[b], g, text)) is not None
    ]


def _ask(policy: Policy, groups: Sequence[Group], request: str) -> Asked:
    """Return a conversation per answer: the problem, the answer, the request.

    An answer that cannot stand in a prompt, because it spells an image token or is too long, is left out.
    """
    asked, questions = [], _questions(groups)
    for b, g, text in answers(groups):
        turns: list[dict[str, Any]] = [
            {"role": "assistant", "content": [{"type": "text", "text": text}]},
            {"role": "user", "content": [{"type": "text", "text": request}]},
        ]
        problem = replace(questions[b], messages=[*questions[b].messages, *turns])
        try:
            [prompt] = policy.encode([problem])
        except DataError as error:
            logger.warning("answer %d of problem %s is not judged: %s", g, problem.id, error)
            continue
        asked.append((b, g, prompt))
    return asked


MAX_NEW_TOKENS = 256
"""The length limit of a second turn."""

SAME_BOX = 0.5
"""IoU above which two boxes count as one answer, as in votes."""


@dataclass(frozen=True, slots=True)
class SecondTurns:
    """The share of K second turns (AdaPO Eq. 1) whose answer is the candidate's own.

    The share estimates π(y₂ = y₁ | q, y₁, x). It says something only for a policy that keeps right answers
    (low M₁→₀) and changes wrong ones (M₀→₁): look at the policy's M₀→₁ first. A policy that always repeats
    itself gives every candidate 1, and a choice by such scores is random. Second turns that were cut off or
    cannot be read are left out. A candidate with only such second turns has no score, nor has one that was
    cut off itself.

    Args:
        policy: Writes the second turns.
        task: Reads their answers.
        words: The request that opens a second turn.
        repeats: K, the number of second turns per candidate.
        name: The name that the scores are stored under.
    """

    policy: Policy
    task: Task
    words: str = SECOND_TURN
    repeats: int = 4
    name: str = "turns"

    def score(self, groups: Sequence[Group]) -> Scores:
        """Hold K second turns about every answer, behind one prefill of its conversation."""
        asked: Asked = []
        writer = ReplyEncoder(self.policy.encoder)
        encoded = self.policy.encode([group.problem for group in groups])
        for b, (group, prompt) in enumerate(zip(groups, encoded, strict=True)):
            request = writer.encode(group.problem, Observation(self.task.ask_again(self.words)), 1)
            for g, trajectory in enumerate(group.trajectories):
                readable = trajectory.parsed is not None and trajectory.parsed.answer is not None
                if readable and trajectory.finish == Finish.STOP:
                    said = trajectory.tokens
                    more = [*said, *without_written_end(said, request).tokens]
                    shown = with_images(self.policy, group.problem.id, trajectory, more)
                    asked.append((b, g, self.policy.encoder.extended(prompt, shown)))

        def kept(sample: Sample, group: Group, g: int) -> float | None:
            if sample.finish != Finish.STOP:
                return None
            text = sampled_turn(self.policy.tokenizer, sample).turn.text
            again = self.task.verdict(group.problem, parse_tagged(text, self.task.tags))
            return None if again.answer is None else self._same(group.trajectories[g].parsed, again)

        return mean_of_samples(self.policy, groups, asked, self.repeats, MAX_NEW_TOKENS, kept)

    def _same(self, first: Verdict, second: Verdict) -> bool:
        if self.task.kind == "continuous":
            return bool(box_iou(first.answer, second.answer) > SAME_BOX)
        return first.key == second.key


class TrajectoryRatio:
    """r(τ) = Σ log V_φ/V_φ0 over all that the policy wrote, the answer t_{H+1} among it; nats, any sign.

    It says how much likelier a trajectory is than before the verifier's training (VTS-V §3.3). η and Q(s_1)
    of the paper are left out: they are the same for all trajectories of a problem. Longer trajectories have
    more terms, and r(τ) is not divided by their number, as in the paper.

    Values that were measured while a trajectory was made (`visual.verifier.StepVerifier`) are taken as they
    are. Else the whole is read anew, for which the tokens have to be the verifier's. Trajectories that were
    lost have no score.

    Args:
        policy: V_φ, whose V_φ0 is itself without its adapter; None takes what was measured, and gives others
            no score.

    Raises:
        ConfigError: V_φ has no adapter.
    """

    def __init__(self, policy: Policy | None, name: str = "ratio") -> None:
        self.models = None if policy is None else (policy, policy.without_adapter())
        self.name = name

    def score(self, groups: Sequence[Group]) -> Scores:
        """Return the log-ratio of every trajectory that was not lost.

        Raises:
            DataError: A problem or an image cannot be encoded.
        """
        found = no_scores(groups)
        for b, group in enumerate(groups):
            for g, trajectory in enumerate(group.trajectories):
                if trajectory.finish == Finish.ERROR:
                    continue
                value = trajectory.scores.get(LOG_RATIO)
                if value is None and self.models is not None and trajectory.written:
                    value = self._read(self.models, group.problem, trajectory)
                found[b][g] = value
        return found

    @torch.no_grad()
    def _read(self, models: tuple[Policy, Policy], problem: Problem, trajectory: Trajectory) -> float:
        """r of a trajectory, read by each of both models in one pass."""
        written = torch.tensor([s.author == "policy" for s in trajectory.segments for _ in s.tokens])
        rows = []
        for model in models:
            piece = with_images(model, problem.id, trajectory, trajectory.tokens)
            needed = written[None, None]
            rows.append(model.logprobs(model.encode([problem]), [[piece]], needed=needed)[0, 0].cpu())
        return step_log_ratios(rows[0], rows[1], written.long() - 1, 1).item()
