"""Verifiers on a tiny policy: what they see, that they agree where they must, and second turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image

from rounding import assert_close
from sampled_threads import drawn
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.trajectory import Group, Segment, Trajectory
from selfverify.experiments.registry import make_task
from selfverify.policy.decoding import Sample
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.policy.scores import read_scores
from selfverify.rollouts.script_sampler import recite
from selfverify.selection.calibration import Fusion
from selfverify.tasks.answering import SingleTurn
from selfverify.tasks.base import Verdict
from selfverify.verifiers.base import OPENING, verify
from selfverify.verifiers.make_verifier import make_verifier
from selfverify.verifiers.policy_verifiers import Inline, PolicyJudge, Repeated, SecondTurns, Soft
from serving_servers import tagged


@pytest.fixture
def groups(policy: Policy) -> list[Group]:
    """Two problems: two readable answers and an unreadable one each; the first wrote 0.5 for itself."""
    task = make_task("digits-pick")

    def trajectory(picks: str, own: float | None) -> Trajectory:
        text = f"<think>1+2</think><answer>{picks}</answer>{OPENING}"
        tokens = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        scores = {} if own is None else {"sampled": own}
        return Trajectory(
            [Segment("answer", tokens, text=text)], scores, parsed=Verdict(0, False, [1], picks)
        )

    def broken() -> Trajectory:
        return Trajectory([Segment("answer", [5], text="?")], parsed=None)

    return [
        Group(task.problem("test", 0, i), [trajectory("1 2 3", 0.5), trajectory("4 5 6", None), broken()])
        for i in range(2)
    ]


def test_inline_is_what_was_written(groups: list[Group]) -> None:
    assert Inline().score(groups) == [[0.5, None, None]] * 2


def test_soft_is_the_reading_of_evaluations(policy: Policy, groups: list[Group]) -> None:
    prefixes = [[group.trajectories[0].segments[0].tokens] for group in groups]
    readings = read_scores(policy, policy.encode([g.problem for g in groups]), prefixes, bare=True)
    found = Soft(policy).score(groups)
    assert [row[1:] for row in found] == [[None, None]] * 2
    assert_close([row[0] for row in found], [row[0].soft for row in readings if row[0]])
    assert {row[0] for row in Soft(policy, "greedy").score(groups)} <= {i / 10 for i in range(11)}


def test_fused_adds_the_answers_log_probability_to_soft(policy: Policy, groups: list[Group]) -> None:
    segment = groups[0].trajectories[0].segments[0]
    segment.logprobs = [-0.5] * (len(segment.tokens) - 1) + [-2.5]
    nats = -0.5 - 2.0 / len(segment.tokens)
    [[soft, *_], _] = Soft(policy).score(groups)
    plain = make_verifier("fused:2", policy)
    assert plain.name == "fused:2"
    assert soft is not None and plain.score(groups) == [
        [pytest.approx(soft + 2 * nats, abs=1e-4), None, None],
        [None] * 3,  # the engine gave no log-probabilities
    ]
    fitted = Fusion(2.0, 3.0, 1.0)
    [[found, *_], _] = verify(groups, make_verifier("fused", policy, fitted=fitted))
    assert_close(found, 1 / (1 + math.exp(-(3 * (soft + 2 * nats) + 1))))
    assert groups[0].trajectories[0].scores["fused"] == found
    with pytest.raises(ConfigError, match="say the weight, as in fused:2"):
        make_verifier("fused", policy)


def test_a_policy_as_its_own_judge_agrees_with_soft(policy: Policy, groups: list[Group]) -> None:
    """It reads the text again instead of the tokens, and judges answers without a score of their own too."""
    soft, judged = Soft(policy).score(groups), PolicyJudge(policy).score(groups)
    for mine, other in zip(soft, judged, strict=True):
        assert_close(other[0], mine[0])
        assert other[1] is not None and other[2] is None


def test_what_ends_an_answer_is_not_judged(policy: Policy, groups: list[Group]) -> None:
    """The same answer, once with its score opened, once ended without one."""
    before = PolicyJudge(policy).score(groups)
    for end in ("<|im_end|>", "</s>", "\n"):
        segment = groups[0].trajectories[0].segments[0]
        segment.text = segment.text.partition("</answer>")[0] + "</answer>" + end
        assert PolicyJudge(policy).score(groups) == before


def test_asking_sees_the_answer_and_not_its_score(policy: Policy, groups: list[Group]) -> None:
    """Scores differ between answers, and not with what the writer thought of itself."""
    judge = PolicyJudge(policy, "ask", "ask")
    first = judge.score(groups)
    assert first[0][0] != first[0][1]
    groups[0].trajectories[0].scores["sampled"] = 0.9
    assert judge.score(groups) == first
    assert first[0][2] is None


def test_an_answer_that_cannot_be_encoded_costs_only_its_own_score(
    policy: Policy, groups: list[Group], caplog: pytest.LogCaptureFixture
) -> None:
    groups[0].trajectories[0].segments[0].text = f"<answer><|image_pad|></answer>{OPENING}"
    found = PolicyJudge(policy, "ask", "ask").score(groups)
    assert found[0][0] is None and found[0][1] is not None and found[1][0] is not None
    assert groups[0].problem.id in caplog.text


def test_repeated_averages_what_can_be_read(
    policy: Policy, groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written scores 0.2, 0.4, nonsense, unclosed: the mean of the first two.

    A token has the same probability behind the lengthened prompt as behind prompt and answer apart.
    """
    said = [drawn(policy, t, ends=False) for t in ("0.2</score>", "0.4</score>", "much</score>", "0.9")]
    asked: list[Prompt] = []

    def sample(prompts: list[Prompt], sampling: SamplingConfig, seeds: list[int]) -> list[list[Sample]]:
        asked.extend(prompts)
        return [said] * len(prompts)

    monkeypatch.setattr(policy, "sample", sample)
    assert Repeated(policy, 4).score(groups[:1]) == [[pytest.approx(0.3), pytest.approx(0.3), None]]
    prefix = groups[0].trajectories[0].segments[0].tokens
    plain = policy.logprobs(policy.encode([groups[0].problem]), [[[*prefix, 7]]])[..., -1:]
    assert_close(policy.logprobs(asked[:1], [[[7]]]), plain)
    assert Repeated(policy, 4, "ask").score(groups)[0] == [None] * 3


def test_verify_keeps_scores_by_name(groups: list[Group]) -> None:
    class Mine:
        name = "mine"

        def score(self, groups: list[Group]) -> list[list[float | None]]:
            return [[0.1, None, 0.3]] * len(groups)

    verify(groups, Mine())
    assert [t.scores.get("mine") for t in groups[1].trajectories] == [0.1, None, 0.3]
    Mine.score = lambda self, groups: [[0.1]]  # type: ignore[method-assign,assignment]
    with pytest.raises(DataError, match="verifier mine"):
        verify(groups, Mine())


def test_specs(policy: Policy) -> None:
    assert [make_verifier(s, policy).name for s in ("inline", "soft", "greedy", "repeated:2")] == [
        "inline", "soft", "greedy", "repeated:2"
    ]  # fmt: skip
    judge = make_verifier(f"judge:{policy.config.path}", policy)
    assert isinstance(judge, PolicyJudge) and judge.policy is policy
    task = make_task("digits-pick")
    made = make_verifier("turns:2", policy, task, WORDS)
    assert isinstance(made, SecondTurns) and (made.repeats, made.words, made.name) == (2, WORDS, "turns:2")
    for wrong in ("softly", "repeated:0", "repeated:x", "judge:", "soft:2", "turns:0", "turns:x"):
        with pytest.raises(ConfigError, match="verifiers: inline, soft"):
            make_verifier(wrong, policy, task)
    with pytest.raises(ConfigError, match="verifiers: inline, soft"):
        make_verifier("turns:2", policy)


# --- second turns -------------------------------------------------------------------------------------------


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
    assert prompt.ids.tolist() == whole.ids.tolist()
    assert torch.equal(prompt.positions, whole.positions) and prompt.next_position == whole.next_position
    assert [image.key for image in prompt.images] == [image.key for image in whole.images]
    assert [picture.size for picture in prompt.pictures] == [problem.images[0].size, CLOSE.size]
