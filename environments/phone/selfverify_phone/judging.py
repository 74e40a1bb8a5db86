"""`phone-judging`: read what an agent has handed in, and say whether its task is done.

A small judge is trained on it with `conversations-sft` (recipe `judge-phone`), and measured as any policy is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from pydantic import Field, model_validator

from selfverify.agents.evidence import Source
from selfverify.agents.judges.case import Rendered
from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem, Split
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import ANSWER
from selfverify.tasks.answering import UNREADABLE, answer_rewards
from selfverify.tasks.base import DemonstratedTurn, Metric, Task, TaskConfig, Verdict, user_turn
from selfverify_phone.environment import PhoneConfig
from selfverify_phone.mistakes import Finished, drawn_task, erring_session
from selfverify_phone.phone_tasks import Start
from selfverify_phone.short_form import QUESTION, read_short, short_case, short_verdict
from selfverify_phone.task import PhoneAgentsConfig

TWICE = 2
"""How many problems each session makes; each lets the judge read something else of it."""


class PhoneJudgingConfig(TaskConfig):
    phone: PhoneAgentsConfig = Field(
        default_factory=lambda: PhoneAgentsConfig.model_validate(
            {"text": "terse", "agent": {"first_screen": "given"}}
        )
    )
    """Whose work is judged: options of the task `phone`, for its kinds of tasks, splits and screens."""

    reads: dict[Source, float] = {"chosen": 0.4, "all": 0.3, "last": 0.2, "message": 0.1}
    """What the judge reads beside the message, and how often each: shares that add up to 1."""

    @model_validator(mode="after")
    def _check(self) -> PhoneJudgingConfig:
        if any(share < 0 for share in self.reads.values()) or abs(sum(self.reads.values()) - 1) > 1e-6:
            raise ValueError("reads: the shares have to be 0 or more, and to add up to 1")
        return self


class PhoneJudging(Task):
    """A verdict is right where it says whether the goal holds in the end, whatever evidence there is.

    Agents are experts that make mistakes (`mistakes`), or none.
    """

    name = "phone-judging"
    summary = "say whether an agent's task on the phone is done"
    config_class = PhoneJudgingConfig
    config: PhoneJudgingConfig
    tags = ("answer",)
    limits = RolloutLimits(turns=1)
    metrics = (
        Metric("judge-precision", "true_positive", "judged_positive"),
        Metric("judge-recall", "true_positive", "judged_true"),
        Metric("judge-false-positives", "false_positive", "judged_untrue"),
    )

    def problem(self, split: Split, seed: int, index: int) -> Problem:
        """See `Task.problem`. Kinds of tasks take turns."""
        c = self.config
        kind, drawn = drawn_task(c.phone, split, seed, index // TWICE)
        finished = _session(kind.name, drawn, c.phone.start, c.phone.hostile, c.phone.options)
        # Two problems about one session never let the judge read the same.
        order = np.random.default_rng([drawn, 2])
        known = [read for read, share in c.reads.items() if share]
        shares = [c.reads[read] for read in known]
        chosen = order.choice(len(known), size=min(TWICE, len(known)), replace=False, p=shares)
        read = known[int(chosen[index % TWICE % len(chosen)])]
        case = finished.case(read)
        target = {
            "case": short_case(case).text,
            "rounds": [exhibit.seen.round for exhibit in case.submission.evidence],
            "verdict": short_verdict(case),
            "done": finished.truth.complete,
        }
        return Problem(
            id=f"{self.name}/{split}/{seed}/{index}",
            messages=user_turn(QUESTION, images=0),
            target=target,
            meta={
                "question": finished.instruction,
                "category": kind.app,
                "categories": {"read": [read], "template": [kind.name], "kind": [kind.kind]},
            },
            environment_begins=True,
        )

    def open(self, problem: Problem, seed: int) -> Episode:
        """See `Task.open`."""
        return _Judging(self, problem)

    def demonstrate_turns(self, problem: Problem, rng: np.random.Generator) -> Sequence[DemonstratedTurn]:
        """The one right verdict, with its reasons."""
        return [DemonstratedTurn(problem.target["verdict"])]

    def opinion(self, problem: Problem, text: str) -> Verdict:
        """What a verdict is worth: 1 where it is right."""
        target = problem.target
        vote = read_short(text, Rendered(target["case"], [], frozenset(target["rounds"]))).vote
        if vote is None:
            return UNREADABLE
        says, done = vote.success, target["done"]
        parts = {
            "judged_positive": float(says),
            "judged_true": float(done),
            "judged_untrue": float(not done),
            "true_positive": float(says and done),
            "false_positive": float(says and not done),
        }
        return Verdict(float(says == done), says == done, says, str(says), parts=parts)

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        """Nothing stands between tags here; see `opinion`."""
        return UNREADABLE


class _Judging(Episode):
    """Shows a case, and hears one verdict."""

    channel = ANSWER

    def __init__(self, task: PhoneJudging, problem: Problem) -> None:
        self.task, self.problem = task, problem
        self._judged = UNREADABLE

    def reset(self) -> Observation:
        return Observation(self.problem.target["case"])

    def step(self, said: PolicyTurn) -> Observation:
        self._judged = self.task.opinion(self.problem, said.text)
        return Observation(done=True)

    def result(self) -> EpisodeResult:
        read = Tagged(answer_ok=self._judged.key is not None)
        return EpisodeResult(answer_rewards(read, self._judged), parsed=self._judged)


@lru_cache(maxsize=8)
def _session(template: str, drawn: int, start: Start, hostile: bool, options: PhoneConfig) -> Finished:
    """`erring_session`; it is asked for `TWICE` in a row."""
    return erring_session(template, drawn, start, hostile, options)
