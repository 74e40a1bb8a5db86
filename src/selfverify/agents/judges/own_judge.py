"""The policy as judge of its own evidence: in a conversation of its own, in which it sees nothing else."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.agents.cases import Awaited, Ballot, Case, Juror
from selfverify.agents.fenced import Rendered, render
from selfverify.agents.judges.judge_settings import OwnJudgeConfig
from selfverify.agents.judges.opinions import read_opinion
from selfverify.core import ranks
from selfverify.core.episode import Reply, Said
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.core.trajectory import Finish
from selfverify.policy.policy import Policy
from selfverify.rollouts.answers_to import answers_to
from selfverify.tasks.base import user_turn


@dataclass(slots=True)
class _Request:
    """A case that waits to be judged."""

    case: Case
    rendered: Rendered
    numbers: list[int]
    ballots: list[Ballot] | None = None


class OwnJudge(Juror):
    """Lets the policy, as it is at the moment, vote on its own submissions.

    Nothing is sampled while conversations go on: the first who waits for votes has those of all who asked
    sampled together. The same case has the same votes as long as the weights are the same.

    Args:
        config: How it is sampled.
        prompt: What it is told (`prompting.judge_prompt`).

    Raises:
        ConfigError: Several processes train: each would ask at another time.
    """

    def __init__(self, config: OwnJudgeConfig, prompt: str) -> None:
        if ranks.count() > 1:
            raise ConfigError(
                "the policy can judge itself in a run of one process only; take judge.kind=model"
            )
        self.config, self.prompt = config, prompt
        self.policy: Policy | None = None
        """Who judges."""
        self._waiting: list[_Request] = []
        self._lock = threading.Lock()

    def ask(self, case: Case, numbers: Sequence[int]) -> Awaited:
        """See `Juror`."""
        request = _Request(case, render(case), list(numbers))
        with self._lock:
            self._waiting.append(request)

        def wait() -> list[Ballot]:
            with self._lock:
                if request.ballots is None:
                    self._judge_all()
            assert request.ballots is not None
            return request.ballots

        return wait

    def use_policy(self, policy: object) -> None:
        """See `Juror`."""
        assert isinstance(policy, Policy)
        self.policy = policy

    def _judge_all(self) -> None:
        """Sample the votes of everything that waits, one batch for each number of votes."""
        waiting, self._waiting = self._waiting, []
        assert self.policy is not None, "the task was not told who answers (Task.use_policy)"
        for count in sorted({max(request.numbers) + 1 for request in waiting}):
            batch = [request for request in waiting if max(request.numbers) + 1 == count]
            sampling = SamplingConfig(
                group_size=count,
                temperature=self.config.temperature,
                top_p=1.0,
                max_new_tokens=self.config.max_new_tokens,
            )
            asked = [(self._question(request), _shown(request.rendered)) for request in batch]
            seeds = [zlib.crc32(request.rendered.text.encode()) for request in batch]
            for request, said in zip(batch, answers_to(self.policy, asked, seeds, sampling), strict=True):
                request.ballots = [self._ballot(request, number, said[number]) for number in request.numbers]

    def _question(self, request: _Request) -> Problem:
        return Problem(f"{request.case.name}/judged", user_turn(self.prompt, images=0))

    def _ballot(self, request: _Request, number: int, said: Said | None) -> Ballot:
        if said is None:
            return Ballot(number, None, "outage: the case cannot be shown to the policy", {"outage": True})
        about = {"completion_tokens": len(said.tokens)}
        if said.finish != Finish.STOP:
            return Ballot(number, None, f"the answer ended with {str(said.finish)!r}", about)
        opinion = read_opinion(said.text, request.rendered, self.config.quotations)
        return Ballot(number, opinion.vote, opinion.missing, about)


def _shown(rendered: Rendered) -> Reply:
    first, *others = rendered.pieces
    parts = [{"type": "text", "text": first}]
    for piece in others:
        parts.append({"type": "image"})
        if piece:
            parts.append({"type": "text", "text": piece})
    return Reply(parts, list(rendered.images))
