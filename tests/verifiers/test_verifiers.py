"""Verifiers on a tiny policy: what they see, and that they agree where they must."""

from __future__ import annotations

import math

import pytest

from rounding import assert_close
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.trajectory import Group, Segment, Trajectory
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.policy.scores import read_scores
from selfverify.selection.calibration import Fusion
from selfverify.tasks.base import Verdict
from selfverify.verifiers.base import OPENING, verify
from selfverify.verifiers.make_verifier import make_verifier
from selfverify.verifiers.policy_verifiers import Inline, PolicyJudge, Repeated, Soft, _continue


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
    with pytest.raises(ConfigError, match="--verifier fused"):
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
    literal = policy.encoder._placeholder()
    groups[0].trajectories[0].segments[0].text = f"<answer>{literal}</answer>{OPENING}"
    found = PolicyJudge(policy, "ask", "ask").score(groups)
    assert found[0][0] is None and found[0][1] is not None and found[1][0] is not None
    assert groups[0].problem.id in caplog.text


def test_an_answer_is_continued_where_it_stands(policy: Policy, groups: list[Group]) -> None:
    """A token has the same probability behind the lengthened prompt as behind prompt and answer apart."""
    prefix = groups[0].trajectories[0].segments[0].tokens
    asked = _continue(policy, groups[:1])
    assert [place for *place, _ in asked] == [[0, 0], [0, 1]]
    plain = policy.logprobs(policy.encode([groups[0].problem]), [[[*prefix, 7]]])[..., -1:]
    assert_close(policy.logprobs([asked[0][2]], [[[7]]]), plain)


def test_repeated_averages_what_can_be_read(
    policy: Policy, groups: list[Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written scores 0.2, 0.4, nonsense, unclosed: the mean of the first two."""
    from selfverify.policy.decoding import Sample

    texts = ["0.2</score>", "0.4</score>", "much</score>", "0.9"]
    tokens = [policy.tokenizer(t, add_special_tokens=False)["input_ids"] for t in texts]
    drawn = [Sample(ids, [0.0] * len(ids), "stop") for ids in tokens]
    monkeypatch.setattr(policy, "sample", lambda prompts, sampling, seeds: [drawn] * len(prompts))
    found = Repeated(policy, 4).score(groups)
    assert found[0][0] == pytest.approx(0.3)
    assert found[0][2] is None
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
    for wrong in ("softly", "repeated:0", "repeated:x", "judge:", "soft:2"):
        with pytest.raises(ConfigError, match="verifiers: inline, soft"):
            make_verifier(wrong, policy)
