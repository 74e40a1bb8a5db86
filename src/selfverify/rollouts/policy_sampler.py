"""The sampler of a model that runs here or in vLLM, and questions to it that quote others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from selfverify.core import ranks
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import ConfigError, DataError, SelfVerifyError
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Finish, SampleIndex
from selfverify.policy.chat import TooLongError, read_message
from selfverify.policy.encoding import Prompt, longest_row
from selfverify.policy.kv_sessions import KVSession
from selfverify.policy.observation_encoding import ReplyEncoder, without_written_end
from selfverify.policy.packing import Continuation
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import rollout
from selfverify.rollouts.sampler import ContextFull, Encoded, SampledTurn, sampled_turn
from selfverify.tasks.base import Task, Verdict


@dataclass(slots=True)
class _Position:
    """Where a conversation stands.

    Args:
        used: Its tokens, the prompt's among them.
        turns: How often the policy has spoken, turns that were undone not counted.
        said: The tokens of its last turn.
        began: Whether it has ever spoken.
        back: Takes the KV session to before what was shown last.
        before: ``used``, ``turns`` and ``said`` there.
    """

    used: int
    back: Callable[[], None]
    turns: int = 0
    said: Sequence[int] = ()
    began: bool = False
    before: tuple[int, int, Sequence[int]] = field(default=(0, 0, ()))


class PolicySampler:
    """Samples all conversations of a round in one batch, behind prompts that are read once.

    vLLM samples for all processes of a run at once: each turn is a call that all of them make together, and
    leaving a session goes on with these calls until no process has anything left to say, also after an error.

    Args:
        policy: Speaks.
        sampling: Temperature; ``max_new_tokens`` is each turn's limit.
    """

    lock_step = True
    at_once: int | None = None
    outage: SelfVerifyError | None = None

    def __init__(self, policy: Policy, sampling: SamplingConfig) -> None:
        self.policy, self.sampling = policy, sampling
        self.prompts: list[Prompt] = []
        self._problems: Sequence[Problem] = []
        self._positions: dict[SampleIndex, _Position] = {}
        self._turns = 0
        self._room: int | None = None

    @contextmanager
    def session(
        self, problems: Sequence[Problem], seeds: Sequence[int], group_size: int, limits: RolloutLimits
    ) -> Iterator[None]:
        self._problems, self._turns = problems, limits.turns
        self._writer = ReplyEncoder(self.policy.encoder)
        self._room = self._limit(limits)
        self._kv = self._begin(problems, seeds, group_size, limits)
        together = self.sampling.engine != "own"
        try:
            yield
        finally:
            while together and any(ranks.gather(False)):
                self._kv.generate({})
            del self._kv
            self._positions.clear()

    def _begin(
        self, problems: Sequence[Problem], seeds: Sequence[int], group_size: int, limits: RolloutLimits
    ) -> KVSession:
        self.prompts = self.policy.encode(problems)
        sampling = self.sampling.model_copy(update={"group_size": group_size})
        if limits.concurrent is None or limits.concurrent >= len(problems) * group_size:
            return self.policy.threads(self.prompts, sampling, seeds=seeds)
        return self.policy.threads(self.prompts, sampling, seeds=seeds, rows=limits.concurrent)

    def _limit(self, limits: RolloutLimits) -> int | None:
        """Return the longest conversation in tokens, prompt included; None if none is known."""
        known = [n for n in (longest_row(self.policy.model), limits.tokens) if n is not None]
        return min(known, default=None)

    def check(self, problem: Problem, expected: Sequence[Observation]) -> None:
        for observation in expected:
            self._writer.check(problem, observation)

    def open(self, indices: Sequence[SampleIndex]) -> None:
        self._kv.begin(indices)
        for index in indices:
            used = len(self.prompts[index[0]].ids) if self.prompts else 0
            start = partial(self._kv.begin, [index])
            self._positions[index] = _Position(used, start, before=(used, 0, ()))

    def observe(
        self, shown: Mapping[SampleIndex, Observation | None]
    ) -> Mapping[SampleIndex, Encoded | DataError | None]:
        """Show observations to the policy, all in one pass.

        Raises:
            ConfigError: An episode shows something before the policy speaks, and `Problem.environment_begins`
                is not set; or the chat template cannot show it.
        """
        found: dict[SampleIndex, Encoded | DataError | None] = {}
        pieces: dict[SampleIndex, Continuation] = {}
        for index, observation in shown.items():
            here = self._positions[index]
            try:
                piece = self._encoded(self._problems[index[0]], here, observation)
            except DataError as error:
                found[index] = error
                continue
            here.before = here.used, here.turns, here.said
            here.back = self._kv.mark([index])
            found[index] = None
            if piece is not None:
                pieces[index] = piece
                here.used += len(piece.tokens)
                read = piece.unexpanded or list(piece.tokens)
                text = self.policy.tokenizer.decode(read, clean_up_tokenization_spaces=False)
                found[index] = Encoded(list(piece.tokens), text, list(piece.pictures))
        self._kv.append(pieces)
        return found

    def _encoded(
        self, problem: Problem, here: _Position, observation: Observation | None
    ) -> Continuation | None:
        begins = problem.environment_begins
        if observation is not None and not (begins or here.began):
            raise ConfigError(
                f"problem {problem.id}: its episode shows something before the policy speaks; make the "
                "problem with environment_begins=True"
            )
        if observation is None and not begins:
            return None
        try:
            if begins and not here.turns:
                piece = self._writer.opening(problem, observation)
            else:
                assert observation is not None
                piece = self._writer.encode(problem, observation, here.turns)
                piece = without_written_end(here.said, piece)
        except TooLongError:
            raise self._full(here.used) from None
        if self._is_full(here.used + len(piece.tokens)):
            raise self._full(here.used)
        return piece

    def _is_full(self, tokens: int) -> bool:
        return self._room is not None and tokens >= self._room

    def _full(self, used: int) -> ContextFull:
        room = self._room if self._room is not None else longest_row(self.policy.model)
        return ContextFull(f"its limit of {room} tokens", used)

    def say(
        self, turns: Mapping[SampleIndex, int]
    ) -> Mapping[tuple[SampleIndex, ...], Future[Mapping[SampleIndex, SampledTurn]]]:
        """Let the policy speak in some conversations, all in one batch.

        Raises:
            SamplingError: The engine has failed, or the model's logits are not finite.
        """
        if self.sampling.engine != "own":
            ranks.gather(True)
        more = any(turn + 1 < self._turns for turn in turns.values())
        found = {}
        for index, sample in self._kv.generate(turns, more).items():
            here, tools = self._positions[index], self._problems[index[0]].tools
            said = sampled_turn(self.policy.tokenizer, sample)
            said.turn.message = read_message(self.policy.loaded, said.segment.text, tools)
            here.used, here.turns, here.said = here.used + len(sample.tokens), here.turns + 1, sample.tokens
            here.began = True
            if sample.finish == Finish.LENGTH and self._is_full(here.used):
                said.full = self._full(here.used)
            found[index] = said
        spoken = Future[Mapping[SampleIndex, SampledTurn]]()
        spoken.set_result(found)
        return {tuple(found): spoken}

    def close(self, indices: Sequence[SampleIndex]) -> Mapping[SampleIndex, Future[float | None]]:
        self._kv.end(indices)
        return {}

    def undo(self, indices: Sequence[SampleIndex]) -> None:
        for index in indices:
            here = self._positions[index]
            here.back()
            here.used, here.turns, here.said = here.before


def ask_policy(
    policy: Policy,
    asked: Sequence[tuple[Problem, Observation]],
    seeds: Sequence[int],
    sampling: SamplingConfig,
) -> list[list[PolicyTurn | None]]:
    """Ask the policy each question ``sampling.group_size`` times.

    Args:
        policy: Answers.
        asked: A problem, and what is shown behind it. Words that are shown mean nothing to the tokenizer,
            markup among them; the words of the problem itself do.
        seeds: One per question.
        sampling: How often each is asked, temperature, length.

    Returns:
        Each question's answers; None where there is none, as of a question that is too long for the model.

    Raises:
        ConfigError: The chat template lets nothing be shown behind a problem.
    """
    if not asked:
        return []
    problems = [replace(problem, environment_begins=True) for problem, _ in asked]
    heard: list[_Once] = []

    def begin(problem: Problem, seed: int) -> Episode:
        # Conversations are opened problem by problem.
        heard.append(_Once(asked[len(heard) // sampling.group_size][1]))
        return heard[-1]

    size = sampling.group_size
    limits = RolloutLimits(turns=1)
    sampler, task = PolicySampler(policy, sampling), ForeignQuestions()
    rollout(sampler, task, problems, seeds, size, open_episode=begin, limits=limits)
    return [[once.said for once in heard[b * size : (b + 1) * size]] for b in range(len(problems))]


class _Once(Episode):
    """An episode that shows one observation and keeps the policy's first turn."""

    def __init__(self, shown: Observation) -> None:
        self.shown = shown
        self.said: PolicyTurn | None = None

    def reset(self) -> Observation:
        return self.shown

    def step(self, said: PolicyTurn) -> Observation:
        self.said = said
        return Observation(done=True)

    def result(self) -> EpisodeResult:
        return EpisodeResult()


class ForeignQuestions(Task):
    """Has no problems of its own."""

    name = "questions"
    summary = "questions that others ask"

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        raise DataError("questions are asked, not made")

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        raise DataError("answers to questions are not judged")
