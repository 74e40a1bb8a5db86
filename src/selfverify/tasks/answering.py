"""Verdicts on answers and the rewards that come of them, and conversations that consist of answers.

The policy answers once (`SingleTurn`), or again after a request to re-examine (`SelfCorrection`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged, parse_tagged
from selfverify.core.trajectory import ANSWER, SCORE, Finish

RULES = "rules"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A task's verdict on one answer.

    Args:
        reward: The reward of the answer channel without any part for the format: 0 or more, in most tasks at
            most 1.
        correct: Whether the answer counts as right in accuracy, AUC and AP.
        answer: The parsed answer as a JSON value, None when it cannot be read.
        key: A text that is equal for equivalent answers; None when the answer cannot be read.
        unjudged: Why there is no verdict (the judge hung twice, or its data is gone); else empty. A
            trajectory without a verdict takes no part in training. A malformed answer is wrong instead.
        quality: The value that decides whether two answers contrast (ADPO Eq. 6 and 7); None means
            ``reward``.
        parts: Components by name, which become rewards of the trajectory beside ``answer`` and are logged as
            ``reward/NAME``: a mean over the answers that have it.
        error: The class of error of a wrong answer that could be read, one of `Task.errors`; else None.
        read_by: The reader of the answer: the task's `RULES`, or in evaluations an extractor's name.
    """

    reward: float
    correct: bool
    answer: Any = None
    key: str | None = None
    unjudged: str = ""
    quality: float | None = None
    parts: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    read_by: str = RULES


UNREADABLE = Verdict(reward=0.0, correct=False)


def worth_imitating(rewards: Mapping[str, float]) -> bool:
    """Whether rewards (`answer_rewards`) are those of what is right and came to a proper end."""
    return rewards.get("correct", 0.0) > 0 and ended_properly(rewards)


def ended_properly(rewards: Mapping[str, float]) -> bool:
    """Whether rewards (`answer_rewards`, or those of a stored sample) are those of a well-formed answer.

    An agent may reach its goal and hand in nothing proper, or be cut off: it is no example to learn from.
    """
    return rewards.get("answer_format", rewards.get("format", 1.0)) > 0


def answer_rewards(tagged: Tagged, judged: Verdict) -> dict[str, float]:
    """A judged answer's rewards by name.

    ``answer`` (the task's, without format), ``correct``, ``answer_format`` (0 or 1), where a score is
    asked for ``score_format`` and ``score_opened``, the task's ``parts`` and, where it is not the answer's
    reward, the ``quality`` that decides contrast. An answer whose tags are malformed earns 0.
    """
    rewards = judged.parts | {
        "answer": judged.reward,
        "correct": float(judged.correct),
        "answer_format": float(tagged.answer_ok),
    }
    if tagged.score_asked:
        rewards |= {
            "score_format": float(tagged.score_ok),
            "score_opened": float(tagged.score_start is not None),
        }
    return rewards if judged.quality is None else rewards | {"quality": judged.quality}


JudgeAnswer = Callable[[Problem, Tagged], Verdict]
"""`Task.verdict`."""

SECOND_TURN = (
    "There might be an error in the solution, please evaluate the previous solution and provide a final "
    "answer."
)
"""AdaPO's fixed self-evaluation prompt (its section on implementation details)."""


@dataclass(eq=False)
class SingleTurn(Episode):
    """Over after the first answer, in the channels ``answer`` and ``score``.

    Args:
        problem: The problem.
        tags: The tags of an answer, in order.
        verdict: Judges it.
    """

    channel = ANSWER
    problem: Problem
    tags: Sequence[str]
    verdict: JudgeAnswer

    def __post_init__(self) -> None:
        self._answers: list[Tagged] = []
        self._judged: dict[int, Verdict] = {}

    def step(self, said: PolicyTurn) -> Observation:
        return Observation(done=True, channels=self._read(said, self.channel, split=True))

    def answers(self) -> Sequence[Tagged]:
        return self._answers

    def result(self) -> EpisodeResult:
        """The answer's rewards and score; an answer without a verdict is lost: an outage is no failure.

        A conversation without an answer ends wrong.
        """
        if not self._answers:
            nothing = parse_tagged("", self.tags)
            judged = self.verdict(self.problem, nothing)
            return EpisodeResult(answer_rewards(nothing, judged), parsed=judged)
        tagged, judged = self._answers[-1], self._judge(len(self._answers) - 1)
        return EpisodeResult(
            answer_rewards(tagged, judged), _scores(tagged), judged, [judged], bool(judged.unjudged)
        )

    def _read(self, said: PolicyTurn, channel: str, split: bool) -> list[tuple[str, int]]:
        """Keep the answer that was given; with ``split`` its score is a channel of its own."""
        tagged = parse_tagged(said.text, self.tags)
        self._answers.append(tagged)
        if tagged.score_start is None or not split:
            return [(channel, 0)]
        return [(channel, 0), (SCORE, tagged.score_start)]

    def _judge(self, turn: int) -> Verdict:
        """The verdict on the answer of a turn; each answer is judged once."""
        if turn not in self._judged:
            self._judged[turn] = self.verdict(self.problem, self._answers[turn])
        return self._judged[turn]


@dataclass(eq=False)
class SelfCorrection(SingleTurn):
    """Asks the policy to re-examine its answer (AdaPO Eq. 1); the last answer counts.

    Channels are ``turn_1``, ``turn_2`` and so on. Rewards are those of the last answer, with ``correct_1``
    and ``answer_format_1`` of the first. A trajectory whose first turn was cut off ends wrong. A score, where
    the task asks for one, belongs to its turn.

    Args:
        problem: The problem.
        tags: The tags of an answer, in order.
        verdict: Judges answers.
        words: The request to re-examine.
        rounds: How often it is made at most.
        split_score: Whether the score behind the second answer is a channel of its own.
        while_wrong: Whether requests after the first are made only while all answers are wrong (STaR).
    """

    words: str = SECOND_TURN
    rounds: int = 1
    split_score: bool = False
    while_wrong: bool = False

    def expected_observations(self) -> Sequence[Observation]:
        return [Observation(self.words)]

    def step(self, said: PolicyTurn) -> Observation:
        cuts = self._read(said, turn_channel(said.turn), split=self.split_score and said.turn == 1)
        cut_off = said.finish != Finish.STOP
        done = said.turn >= self.rounds or cut_off or (said.turn > 0 and self._is_settled())
        return Observation(self.words, done=done, channels=cuts)

    def _is_settled(self) -> bool:
        """Whether nothing is left to correct, or to be said about it."""
        if not self.while_wrong:
            return False
        verdicts = [self._judge(turn) for turn in (0, len(self._answers) - 1)]
        return any(judged.correct or judged.unjudged for judged in verdicts)

    def result(self) -> EpisodeResult:
        """Return the verdicts on the answers; one answer without a verdict loses the trajectory."""
        if not self._answers:
            nothing = super().result()
            return replace(nothing, rewards=nothing.rewards | {"correct_1": 0.0, "answer_format_1": 0.0})
        verdicts = [self._judge(turn) for turn in range(len(self._answers))]
        first = verdicts[0]
        tagged, last = self._answers[-1], verdicts[-1]
        if len(verdicts) == 1:
            # There is no second answer.
            tagged = parse_tagged("", self.tags)
            last = self.verdict(self.problem, tagged)
        rewards = answer_rewards(tagged, last) | {
            "correct_1": float(first.correct),
            "answer_format_1": float(self._answers[0].answer_ok),
        }
        lost = [turn for turn, judged in enumerate(verdicts) if judged.unjudged]
        parsed = first if first.unjudged else last
        if lost:
            rewards["correct"] = 0.0  # one answer has no verdict
        return EpisodeResult(rewards, _scores(tagged), parsed, list(verdicts), bool(lost), lost)


def turn_channel(turn: int) -> str:
    """The channel of what the policy says in turn ``turn``, from 0: ``turn_1`` and so on."""
    return f"turn_{turn + 1}"


def _scores(tagged: Tagged) -> dict[str, float]:
    return {} if tagged.score is None else {"sampled": tagged.score}
