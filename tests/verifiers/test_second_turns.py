"""Second turns as a verifier: shares by hand, what they are shown, what has no score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from sampled_threads import drawn
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Group
from selfverify.experiments.registry import make_task
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import recite
from selfverify.tasks.answering import SingleTurn
from selfverify.verifiers.base import verify
from selfverify.verifiers.make_verifier import make_verifier
from selfverify.verifiers.policy_verifiers import SecondTurns
from serving_servers import tagged

WORDS = "Check the answer."
CLOSE = Image.effect_mandelbrot((84, 56), (-2, -1, 1, 1), 20).convert("RGB")


def said(policy: Policy, answer: str, ends: bool = True) -> Sample:
    return drawn(policy, tagged(answer), ends)


def ask(
    policy: Policy,
    monkeypatch: pytest.MonkeyPatch,
    task_name: str,
    candidates: Sequence[Sample],
    second: Sequence[Sequence[Sample]],
) -> tuple[list[float | None], list[str]]:
    """Scores of candidates whose second turns are given, and the prompts that these were asked with."""
    task = make_task(task_name)
    problem = task.problem("test", 0, 0)
    told = [recite(policy, problem, task.open(problem, 0), [sample]) for sample in candidates]
    group = Group(problem, told)
    asked: list[str] = []

    def sample(prompts: Any, sampling: SamplingConfig, *, seeds: list[int]) -> Any:
        assert len(prompts) == len(second) == len(set(seeds)) and sampling.group_size == 3
        asked.extend(policy.tokenizer.decode(prompt.ids) for prompt in prompts)
        return second

    monkeypatch.setattr(policy, "sample", sample)
    [scores] = verify([group], SecondTurns(policy, task, WORDS, repeats=3, name="turns:3"))
    kept = [trajectory.scores.get("turns:3") for trajectory in group.trajectories]
    assert kept == scores
    return scores, asked


def test_shares_by_hand(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept by 2 of 3, also in another order; by 1 of the 2 that can be read; by none that says anything."""
    candidates = [said(policy, a) for a in ("1 2 3", "4 5 6", "7 8 9")]
    cut, unreadable = said(policy, "1", False), said(policy, "nonsense")
    second = [
        [said(policy, "1 2 3"), said(policy, "3 2 1"), said(policy, "1 2 4")],
        [said(policy, "4 5 6"), said(policy, "1 1 1"), unreadable],
        [cut, unreadable, cut],
    ]
    scores, asked = ask(policy, monkeypatch, "digits-pick", candidates, second)
    assert scores == [pytest.approx(2 / 3), 0.5, None]
    assert asked[0].count(WORDS) == 1 and "<answer>1 2 3</answer>" in asked[0]
    assert asked[0].index("1 2 3") < asked[0].index(WORDS)


def test_candidates_without_an_answer_are_not_asked(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = [said(policy, "nonsense"), said(policy, "1 2 3", False), said(policy, "1 2 3")]
    scores, asked = ask(policy, monkeypatch, "digits-pick", candidates, [[said(policy, "1 2 3")] * 3])
    assert scores == [None, None, 1.0] and len(asked) == 1


def test_boxes_are_the_same_from_half_an_overlap(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    box = "0 0 10 10"
    near, far = "0 0 10 6", "0 0 10 4"
    second = [[said(policy, answer) for answer in (box, near, far)]]
    scores, _ = ask(policy, monkeypatch, "digits-locate", [said(policy, box)], second)
    assert scores == [pytest.approx(2 / 3)]


class Closer(SingleTurn):
    """Shows an image before the answer that counts."""

    def step(self, said: PolicyTurn) -> Observation:
        if said.turn == 0:
            return Observation([{"type": "image"}, {"type": "text", "text": "Closer."}], [CLOSE])
        return super().step(said)


def test_second_turns_see_what_the_environment_has_shown(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is the whole conversation, as the chat template writes it, with both images."""
    task = make_task("digits-pick")
    problem = task.problem("test", 0, 0)
    turns = [said(policy, "4 5 6"), said(policy, "1 2 3")]
    told = recite(policy, problem, Closer(problem, task.tags, task.verdict), turns)
    asked: list[Prompt] = []

    def sample(prompts: list[Prompt], sampling: SamplingConfig, *, seeds: list[int]) -> Any:
        asked.extend(prompts)
        return [[said(policy, "1 2 3")]]

    monkeypatch.setattr(policy, "sample", sample)
    assert SecondTurns(policy, task, WORDS, repeats=1).score([Group(problem, [told])]) == [[1.0]]
    messages = [*problem.messages]
    looked: list[dict[str, Any]] = [{"type": "image"}, {"type": "text", "text": "Closer."}]
    for turn, heard in zip(turns, (looked, [{"type": "text", "text": WORDS}]), strict=True):
        words = policy.tokenizer.decode(turn.tokens[:-1])
        messages.append({"role": "assistant", "content": [{"type": "text", "text": words}]})
        messages.append({"role": "user", "content": heard})
    [whole] = policy.encode([replace(problem, messages=messages, images=[*problem.images, CLOSE])])
    [prompt] = asked
    assert prompt.ids.tolist() == whole.ids.tolist() and prompt.unexpanded == whole.unexpanded
    assert torch.equal(prompt.positions, whole.positions) and prompt.next_position == whole.next_position
    assert [image.key for image in prompt.images] == [image.key for image in whole.images]
    assert [picture.size for picture in prompt.pictures] == [problem.images[0].size, CLOSE.size]


def test_its_spec_needs_a_task(policy: Policy) -> None:
    task = make_task("digits-pick")
    made = make_verifier("turns:2", policy, task, WORDS)
    assert isinstance(made, SecondTurns) and (made.repeats, made.words, made.name) == (2, WORDS, "turns:2")
    for spec, given in (("turns:2", None), ("turns:0", task), ("turns:x", task)):
        with pytest.raises(ConfigError, match="verifiers: inline, soft"):
            make_verifier(spec, policy, given)
