"""A policy as judge, mostly of its own work: in a conversation of its own, in which it sees nothing else."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from selfverify.agents.judges.case import (
    IMAGE,
    Awaited,
    Ballot,
    Case,
    Judge,
    Opinion,
    Rendered,
    read_opinion,
    render,
)
from selfverify.agents.judges.config import OwnJudgeConfig
from selfverify.core import ranks
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import ask_policy
from selfverify.tasks.base import user_turn

AT_ONCE = 64
"""Cases that are judged in one batch."""


@dataclass(frozen=True, slots=True)
class ShortForm:
    """How cases are shown to a judge too small to follow a prompt, and how its answers are read.

    Args:
        question: The words before a case.
        shown: A case in few words.
        read: The opinion in what the judge has said of what it has read.
    """

    question: str
    shown: Callable[[Case], Rendered]
    read: Callable[[str, Rendered], Opinion]


@dataclass(slots=True)
class _Request:
    """A case that waits to be judged."""

    case: Case
    rendered: Rendered
    numbers: list[int]
    ballots: list[Ballot] | None = None


class OwnJudge(Judge):
    """Lets the policy, as it is at the moment, vote on its own submissions, or another policy do so.

    Nothing is sampled while conversations go on: the first who waits for votes has those of all who asked
    sampled together. The same case has the same votes as long as the weights are the same.

    Args:
        config: How it is sampled.
        prompt: Its prompt (`make_judge.judge_prompt`).
        short: How it is asked with `form: short`; None where cases in few words are not known.

    Raises:
        ConfigError: Several processes train: each would ask at another time. Or there is no short form.
    """

    def __init__(self, config: OwnJudgeConfig, prompt: str, short: ShortForm | None = None) -> None:
        if ranks.count() > 1:
            raise ConfigError("judge.kind=own works in a run of one process only; take judge.kind=model")
        if config.form == "short" and short is None:
            raise ConfigError("judge.own.form=short: this task has no cases in few words; take form=full")
        self.config, self.prompt = config, prompt
        self.short = short if config.form == "short" else None
        self.policy: Policy | None = None
        """The judge's settings."""
        self._waiting: list[_Request] = []
        self._lock = threading.Lock()

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        rendered = render(case) if self.short is None else self.short.shown(case)
        request = _Request(case, rendered, list(numbers))
        with self._lock:
            self._waiting.append(request)

        def wait() -> list[Ballot]:
            with self._lock:
                if request.ballots is None:
                    self._judge_all()
            assert request.ballots is not None
            return request.ballots

        return wait

    def set_policy(self, policy: object) -> None:
        """Take the policy; a judge with weights of its own is loaded now, if there is one.

        Raises:
            ConfigError: It cannot be loaded.
        """
        if self.config.path is None:
            assert isinstance(policy, Policy)
            self.policy = policy
        elif self.policy is None:
            self.policy = Policy.load(self.config.path, device=self.config.device)

    def _judge_all(self) -> None:
        """Sample the votes of everything that waits: cases of like length, with as many votes, together."""
        waiting, self._waiting = self._waiting, []
        waiting.sort(key=lambda request: (max(request.numbers), len(request.rendered.text)))
        for count, group in groupby(waiting, key=lambda request: max(request.numbers) + 1):
            alike = [*group]
            for first in range(0, len(alike), AT_ONCE):
                self._judge(alike[first : first + AT_ONCE], count)

    def _judge(self, batch: Sequence[_Request], count: int) -> None:
        assert self.policy is not None, "the task was not told who answers (Task.set_policy)"
        sampling = SamplingConfig(
            group_size=count,
            temperature=self.config.temperature,
            top_p=1.0,
            max_new_tokens=self.config.max_new_tokens,
        )
        words = user_turn(self.prompt if self.short is None else self.short.question, images=0)
        asked = []
        for case, shown in [(request.case, request.rendered) for request in batch]:
            parts = shown.parts([{"type": "image"}] * shown.text.count(IMAGE))
            asked.append((Problem(f"{case.name}/judged", words), Observation(parts, list(shown.images))))
        seeds = [zlib.crc32(request.rendered.text.encode()) for request in batch]
        for request, said in zip(batch, ask_policy(self.policy, asked, seeds, sampling), strict=True):
            read = len(self.policy.tokenizer(request.rendered.text, add_special_tokens=False)["input_ids"])
            request.ballots = [self._ballot(request, n, said[n], read) for n in request.numbers]

    def _ballot(self, request: _Request, number: int, said: PolicyTurn | None, read: int) -> Ballot:
        if said is None:
            return Ballot(number, None, "outage: the case cannot be shown to the policy", {"outage": True})
        about = {"prompt_tokens": read, "completion_tokens": len(said.tokens)}
        if said.finish != Finish.STOP:
            return Ballot(number, None, f"the answer ended with {str(said.finish)!r}", about)
        if self.short is not None:
            opinion = self.short.read(said.text, request.rendered)
        else:
            opinion = read_opinion(said.text, request.rendered, self.config.quotations)
        return Ballot(number, opinion.vote, opinion.missing, about)
