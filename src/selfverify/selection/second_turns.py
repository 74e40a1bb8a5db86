"""Self-evaluation in a second turn as a verifier: how often does the model keep an answer it re-examines?"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.policy.turns import SECOND_TURN, follow_up, inserted_tokens, longer_prompt
from selfverify.rollouts.single_turn import read_response, verdict
from selfverify.rollouts.types import Group
from selfverify.selection.rules import box_iou
from selfverify.tasks import Task
from selfverify.tasks.base import Judged

SAME_BOX = 0.5
"""IoU above which two boxes count as one answer, as in votes."""


@dataclass(frozen=True, slots=True)
class SecondTurns:
    """The share of K second turns (AdaPO Eq. 1) whose answer is the candidate's own.

    That estimates π(y₂ = y₁ | q, y₁, x), the confidence that a policy has which keeps right answers (a low
    M₁→₀) and changes wrong ones (M₀→₁): only such a policy's shares say anything. One that repeats whatever
    it said gives every candidate 1, and a choice by score is one at random; look at its M₀→₁ first. Second
    turns that were cut off or cannot be read say nothing and are left out; a candidate with none but those
    has no score, nor has one that was cut off itself.

    Args:
        policy: Answers the second turns.
        task: Reads them.
        words: What they are asked.
        repeats: K.
        temperature: Of the sampling.
        max_new_tokens: Length limit of a second turn.
        seed: Of the sampling.
        name: What the scores are stored under.
    """

    policy: Policy
    task: Task
    words: str = SECOND_TURN
    repeats: int = 4
    temperature: float = 1.0
    max_new_tokens: int = 256
    seed: int = 0
    name: str = "turns"

    def score(self, groups: Sequence[Group]) -> list[list[float | None]]:
        """See `selfverify.selection.verifiers.Verifier`; every conversation is prefilled once for its K."""
        found: list[list[float | None]] = [[None] * len(group.trajectories) for group in groups]
        asked, prompts = [], []
        encoded = self.policy.encode([group.problem for group in groups])
        for b, (group, prompt) in enumerate(zip(groups, encoded, strict=True)):
            between = follow_up(self.policy.loaded, group.problem, self.words)
            for g, trajectory in enumerate(group.trajectories):
                if trajectory.finish == "stop" and trajectory.parsed and trajectory.parsed.answer is not None:
                    inserted = inserted_tokens(trajectory.segments[-1].tokens, between)
                    asked.append((b, g))
                    prompts.append(longer_prompt(self.policy, prompt, trajectory.tokens + inserted))
        sampling = SamplingConfig(
            group_size=self.repeats,
            temperature=self.temperature,
            top_p=1.0,
            max_new_tokens=self.max_new_tokens,
        )
        seeds = [zlib.crc32(f"{self.seed}/{groups[b].problem.id}/{g}".encode()) for b, g in asked]
        for (b, g), samples in zip(asked, self.policy.sample(prompts, sampling, seeds=seeds), strict=True):
            group = groups[b]
            again = [
                verdict(self.task, group.problem, read_response(self.policy, self.task, sample)[1])
                for sample in samples
                if sample.finish == "stop"
            ]
            first = group.trajectories[g].parsed
            kept = [self._same(first, judged) for judged in again if judged.answer is not None]
            found[b][g] = sum(kept) / len(kept) if kept else None
        return found

    def _same(self, first: Judged, second: Judged) -> bool:
        if self.task.kind == "continuous":
            return bool(box_iou(first.answer, second.answer) > SAME_BOX)
        return first.key == second.key
