"""Samplers of turns that are given, as tokens or as texts, and demonstrated conversations as trajectories."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, Observation, PolicyTurn
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.events import note
from selfverify.core.problem import Problem
from selfverify.core.trajectory import CONTEXT, OBSERVATION, Finish, SampleIndex, Segment, Trajectory
from selfverify.policy.chat import turn_end
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.kv_sessions import KVSession
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.rollouts.episode_runner import outcome
from selfverify.rollouts.policy_sampler import ForeignQuestions, PolicySampler
from selfverify.rollouts.rollout import rollout
from selfverify.rollouts.sampler import Encoded, SampledTurn
from selfverify.tasks.base import DemonstratedTurn, Task

logger = logging.getLogger(__name__)


class ScriptSampler(PolicySampler):
    """Says given turns and computes nothing; no limit of tokens holds.

    Args:
        policy: Its tokenizer and chat template are used.
        turns: By conversation what is said in turn.
    """

    def __init__(self, policy: Policy, turns: Mapping[SampleIndex, Sequence[Sample]]) -> None:
        super().__init__(policy, SamplingConfig())
        self.turns = turns

    def _begin(
        self, problems: Sequence[Problem], seeds: Sequence[int], group_size: int, limits: RolloutLimits
    ) -> KVSession:
        return _Script(self.turns)

    def _limit(self, limits: RolloutLimits) -> int | None:
        return None


class _Script:
    """A `KVSession` that keeps nothing."""

    def __init__(self, turns: Mapping[SampleIndex, Sequence[Sample]]) -> None:
        self.turns = turns

    def generate(self, turns: Mapping[SampleIndex, int], more: bool = True) -> dict[SampleIndex, Sample]:
        return {index: self.turns[index][turn] for index, turn in turns.items()}

    def append(
        self, pieces: Mapping[SampleIndex, Continuation], score: bool = False
    ) -> dict[SampleIndex, Tensor]:
        return {}

    def mark(self, places: object) -> Callable[[], None]:
        return lambda: None

    def begin(self, places: object) -> None:
        return

    def end(self, places: object) -> None:
        return


class TextSampler:
    """Says given texts, without a model and its tokens; behind their end it says nothing.

    Args:
        turns: By conversation what is said in turn.
    """

    lock_step = False
    at_once: int | None = None
    prompts: Sequence[Prompt] = ()

    def __init__(self, turns: Mapping[SampleIndex, Sequence[str]]) -> None:
        self.turns = turns

    @property
    def outage(self) -> SelfVerifyError | None:
        return None

    def session(
        self, problems: Sequence[Problem], seeds: Sequence[int], group_size: int, limits: RolloutLimits
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def check(self, problem: Problem, expected: Sequence[Observation]) -> None:
        """Accept everything: there is no chat template here."""

    def open(self, indices: Sequence[SampleIndex]) -> None:
        """Do nothing: given texts have no state."""

    def observe(
        self, shown: Mapping[SampleIndex, Observation | None]
    ) -> Mapping[SampleIndex, Encoded | DataError | None]:
        return {i: None if o is None else Encoded([], o.text, list(o.images)) for i, o in shown.items()}

    def say(
        self, turns: Mapping[SampleIndex, int]
    ) -> Mapping[tuple[SampleIndex, ...], Future[Mapping[SampleIndex, SampledTurn]]]:
        found = {}
        for index, turn in turns.items():
            text = "".join(self.turns[index][turn : turn + 1])
            segment = Segment(OBSERVATION, [], [], text, finish=Finish.STOP)
            found[index] = SampledTurn(PolicyTurn(text, [], Finish.STOP, turn), segment, [])
        said = Future[Mapping[SampleIndex, SampledTurn]]()
        said.set_result(found)
        return {tuple(found): said}

    def undo(self, indices: Sequence[SampleIndex]) -> None:
        """Do nothing: given texts have no state."""

    def close(self, indices: Sequence[SampleIndex]) -> Mapping[SampleIndex, Future[float | None]]:
        return {}


def recite(policy: Policy, problem: Problem, episode: Episode, turns: Sequence[Sample]) -> Trajectory:
    """Hold one conversation in which the policy's turns are given, as many as the episode lets.

    Raises:
        ConfigError: The chat template cannot continue a conversation.
        DataError: A reply cannot be shown to the policy.
    """
    made = rollout(
        ScriptSampler(policy, {(0, 0): turns}),
        ForeignQuestions(),
        [problem],
        [0],
        group_size=1,
        open_episode=lambda problem, seed: episode,
        limits=RolloutLimits(turns=len(turns)),
    )
    for error in made.errors.values():
        raise error
    return made.groups[0].trajectories[0]


def encode_demonstration(
    policy: Policy, problem: Problem, open_episode: Callable[[], Episode], turns: Sequence[DemonstratedTurn]
) -> Trajectory:
    """The conversation in which the policy says these turns; one whose episode fails takes no part.

    Turns that are not taught are context.

    Raises:
        ConfigError: The chat template cannot continue a conversation.
        DataError: There are no texts, a reply cannot be shown, or the conversation is over before they end.
    """
    if not turns:
        raise DataError(f"problem {problem.id}: its demonstration has no turns")
    samples, end = [], turn_end(policy.loaded, policy.stop_tokens)
    for turn in turns:
        ids: list[int] = policy.tokenizer(turn.text, add_special_tokens=False)["input_ids"]
        samples.append(Sample([*ids, end], [], Finish.STOP))
    told = outcome(lambda: recite(policy, problem, open_episode(), samples))
    if isinstance(told, Exception):
        if isinstance(told, ConfigError | DataError):
            raise told
        return lost(problem, told)
    own = [segment for segment in told.segments if segment.author == "policy"]
    if (said := own[-1].turn + 1 if own else 0) < len(turns):
        raise DataError(
            f"problem {problem.id}: its demonstration has {len(turns)} turns, "
            f"and its episode is over after {said}"
        )
    for segment in own:
        if not turns[segment.turn].taught:
            segment.channel = CONTEXT
    told.rewards["turns"] = float(len(turns))
    return told


def within_limits(
    policy: Policy, task: Task, problem: Problem, prompt: int, told: Sequence[Trajectory]
) -> list[Trajectory]:
    """Mark as lost all trajectories that are longer than ``episode.tokens``, and return all.

    Args:
        policy: The model whose context bounds them.
        task: Has the limit of tokens.
        problem: Their problem.
        prompt: Tokens of the prompt.
        told: The trajectories.

    Raises:
        DataError: There is no such limit, and one is longer than the model's context.
    """
    limit, room = task.limits.tokens, longest_row(policy.model)
    lengths = [prompt + len(trajectory.tokens) for trajectory in told]
    if limit is not None:
        why = f"tokens with its prompt, and episode.tokens is {limit}"
        return [
            one if length <= limit else lost(problem, DataError(f"it has {length} {why}"))
            for one, length in zip(told, lengths, strict=True)
        ]
    if room is not None and max(lengths) > room:
        raise DataError(
            f"problem {problem.id}: a demonstration has {max(lengths)} tokens with its prompt, and the "
            f"model reads {room}; demonstrate shorter conversations"
        )
    return list(told)


def lost(problem: Problem, error: Exception) -> Trajectory:
    """Return a trajectory that stands for a demonstration that cannot be learnt from."""
    reason = f"{type(error).__name__}: {error}"
    message = f"problem {problem.id}: its demonstration takes no part: {reason}"
    note(logger, "episode_failed", message, problem=problem.id, turn=0, reason=reason)
    nothing = Segment(OBSERVATION, [], author="environment", finish=Finish.ERROR)
    return Trajectory([nothing], rewards={"turns": 1.0})
