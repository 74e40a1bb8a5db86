"""Conversations held to the cap: what is stored of them, and what rules that end looking come to."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampled_threads import drawn, sampled_threads

from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.evaluation import visual_metrics
from selfverify.evaluation.visual_metrics import (
    CappedArrays,
    CappedProblem,
    StopOutcome,
    always,
    as_arrays,
    compared,
    never,
    outcomes,
    own_end,
    run_to_cap,
    shuffled,
    stopped,
    verifier_steps,
)
from selfverify.experiments.registry import make_task
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.visual.digits_far import DigitsFar

CONFIG = EvaluationConfig(problems=6, samples=2, split="validation", batch_problems=4)
WRONG = {1: 2}


def far(**options: Any) -> DigitsFar:
    """The task; the model may not end looking by itself unless it says so."""
    return make_task("digits-far", **{"terminate": "refuse", **options})


def teach(policy: Policy, task: DigitsFar) -> list[str]:
    """Let the policy say what the teacher says; told to answer too early, it answers wrongly."""
    asked: list[str] = []

    def sample(prompts: Sequence[Prompt], sampling: SamplingConfig, *, seeds: Sequence[int]) -> Any:
        made = []
        for prompt in prompts:
            words = policy.tokenizer.decode(prompt.ids)
            _, split, _, index = prompt.problem_id.split("/")
            problem = task.problem(split, 0, int(index))  # type: ignore[arg-type]
            texts = [turn.text for turn in task.demonstrate_turns(problem, np.random.default_rng(0))]
            turn, target = words.count("</think>"), problem.target
            text = texts[min(turn, len(texts) - 1)]
            if "Answer." in words[-80:]:
                answer = target if turn >= problem.meta["looks"] else WRONG.get(target, 1)
                text = f"<think>0</think><answer>{answer}</answer>"
                asked.append(prompt.problem_id)
            made.append([drawn(policy, text)] * sampling.group_size)
        return made

    policy.threads = sampled_threads(policy, sample)  # type: ignore[method-assign, assignment]
    return asked


def test_a_taught_reasoner(load_policy: Callable[..., Policy], tmp_path: Path) -> None:
    """Its answers are right from the look on that it needs, and then it wants to answer by itself."""
    policy, task, store = load_policy(), far(), tmp_path / "looked.jsonl"
    asked = teach(policy, task)
    rows = run_to_cap(policy, task, CONFIG, store)
    looked = as_arrays(rows)
    assert looked.problems == 6 and len(looked.lengths) == 12 and looked.left_out == 0
    needed = [task.problem("validation", 0, index).meta["looks"] for index in looked.problem]
    assert looked.enough.tolist() == needed and len(set(needed)) > 2
    for row, looks in enumerate(needed):
        length = looked.lengths[row]
        known = looked.correct[row, : length + 1]
        assert known.tolist() == [float(h >= looks) for h in range(length + 1)]
        # It asks to answer right behind its last look; three times in a row end the conversation.
        wants = np.flatnonzero(~np.isnan(looked.own[row])) + 1
        assert length == min(looks + 3, 9) and wants.tolist() == [*range(looks + 1, length + 1)]
        shares = looked.seen[row, : length + 1] if looked.seen is not None else np.zeros(0)
        assert shares[0] == 0 and (np.diff(shares) >= 0).all() and np.argmax(shares == 1) == looks
    assert np.isnan(looked.delta_r).all() and looked.final.all()
    steps = rows[0].talks[0].steps
    assert steps[0].tool == "crop" and steps[-1].error and steps[0].tokens > 5
    # A thumbnail has one token, each crop has four.
    assert looked.visual[0, :2].tolist() == [1, 5] and looked.visual[0, -1] > 0
    found = outcomes(looked, {})
    stops = found["self-stop"]
    assert stops["accuracy"].all() and stops["steps"].tolist() == needed
    assert found["oracle"]["steps"].tolist() == needed and found["oracle"]["accuracy"].all()
    assert always(looked, 2)["accuracy"].mean() == np.mean([looks <= 2 for looks in needed])
    # Again it is read, not held; under other settings it is refused.
    count = len(asked)
    again = run_to_cap(policy, task, CONFIG, store)
    assert again == rows and len(asked) == count
    with pytest.raises(ConfigError, match=r"looking\.max_steps"):
        run_to_cap(policy, far(max_steps=3), CONFIG, store)


def test_where_the_model_may_end_looking(load_policy: Callable[..., Policy], tmp_path: Path) -> None:
    """Its own answer ends the conversation, and what is asked for after the last look is known, too."""
    policy, task = load_policy(), far(terminate="accept")
    teach(policy, task)
    looked = as_arrays(run_to_cap(policy, task, CONFIG, tmp_path / "looked.jsonl"))
    assert looked.lengths.tolist() == looked.enough.tolist()
    assert looked.final.all() and np.isnan(looked.own).all()
    assert always(looked, 9)["steps"].tolist() == looked.enough.tolist()
    short = far(max_steps=1)
    teach(policy, short)
    capped = as_arrays(run_to_cap(policy, short, CONFIG, tmp_path / "short.jsonl"))
    assert (capped.lengths == 1).all() and (capped.final == (capped.enough == 1)).all()
    assert (capped.correct[:, 1] == capped.final).all()


def test_what_nobody_can_judge_is_left_out(load_policy: Callable[..., Policy], tmp_path: Path) -> None:
    """Conversations that failed and such without a verdict are counted; none left is an error."""
    policy, task = load_policy(), far()
    teach(policy, task)
    config = CONFIG.model_copy(update={"problems": 2, "samples": 1})
    rows = dict(run_to_cap(policy, task, config, tmp_path / "looked.jsonl"))
    [talk] = rows[0].talks

    def with_talk(**changes: Any) -> CappedProblem:
        return replace(rows[0], talks=[replace(talk, **changes)])

    steps = [replace(talk.steps[0], correct=None), *talk.steps[1:]]
    for broken in (
        with_talk(lost=True),
        with_talk(final=None),
        with_talk(before=None),
        with_talk(steps=steps),
    ):
        looked = as_arrays({**rows, 0: broken})
        assert looked.left_out == 1 and looked.problems == 1 and looked.problem.tolist() == [0]
        with pytest.raises(DataError, match="all 1 conversations failed"):
            as_arrays({0: broken})
    empty = as_arrays({0: with_talk(steps=[]), 1: rows[1]})
    assert empty.lengths.tolist()[0] == 0 and np.isnan(empty.correct[0, 1:]).all()


def test_an_own_answer_without_a_verdict_is_no_wish_to_look_on(
    load_policy: Callable[..., Policy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the model would seem to stop later than it wanted to."""
    policy, task, talk = load_policy(), far(), visual_metrics._talk
    teach(policy, task)

    def unjudged(task: Any, problem: Any, trajectory: Any, *more: Any) -> Any:
        for segment in trajectory.segments:
            if isinstance(segment.parsed, dict) and segment.parsed.get("own"):
                segment.parsed["own"]["correct"] = None
        return talk(task, problem, trajectory, *more)

    monkeypatch.setattr(visual_metrics, "_talk", unjudged)
    rows = run_to_cap(policy, task, CONFIG.model_copy(update={"problems": 2}), tmp_path / "looked.jsonl")
    with pytest.raises(DataError, match="conversations failed"):
        as_arrays(rows)


# --- rules, by hand on four conversations -------------------------------------------------------------------


NAN = float("nan")


def four(**changes: object) -> CappedArrays:
    """Three conversations to the cap of three steps, and one that was cut off behind its first.

    The second wants to answer in its second step, rightly; the third in its first, wrongly.
    """
    given = {
        "problem": [0, 0, 1, 2],
        "lengths": [3, 3, 3, 1],
        "delta_r": [[2.0, 0.1, -3.0], [-1.0, NAN, 0.2], [NAN, 4.0, 0.3], [5.0, NAN, NAN]],
        "delta_r_plan": [[1.0, 0.0, -1.0], [0.0, NAN, 0.1], [NAN, 1.0, 0.1], [1.0, NAN, NAN]],
        "correct": [[0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, NAN, NAN]],
        "own": [[NAN] * 3, [NAN, 1.0, NAN], [0.0, NAN, NAN], [NAN] * 3],
        "final": [1, 0, 0, 0],
        "visual": [[4, 8, 12, 16], [4, 8, 8, 12], [4, 4, 8, 12], [4, 8, 8, 8]],
        "enough": [2, 1, 0, 0],
        "seen": [[0, 0.5, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0.5], [0, 0.5, NAN, NAN]],
    } | changes
    whole = ("problem", "lengths", "enough")
    arrays = {
        name: None if value is None else np.array(value, dtype=np.int64 if name in whole else np.float64)
        for name, value in given.items()
    }
    return CappedArrays(**arrays, left_out=0)  # type: ignore[arg-type]


def rows(outcome: StopOutcome) -> tuple[list[float], list[float], list[float]]:
    """Answers, steps and visual tokens."""
    accuracy, steps, visual_tokens = (outcome[name] for name in ("accuracy", "steps", "visual_tokens"))
    return accuracy.tolist(), steps.tolist(), visual_tokens.tolist()


def test_a_fixed_number_of_steps() -> None:
    """The answer after it; a step in which the model answers is no look; who has fewer ends as it did."""
    assert rows(always(four(), 0)) == ([0, 1, 0, 0], [0, 0, 0, 0], [4, 4, 4, 4])
    assert rows(always(four(), 1)) == ([0, 0, 0, 0], [1, 1, 0, 1], [8, 8, 4, 8])
    assert rows(always(four(), 2)) == ([1, 1, 1, 0], [2, 1, 2, 1], [12, 8, 8, 8])
    assert rows(always(four(), 3)) == ([1, 0, 0, 0], [3, 3, 3, 1], [16, 12, 12, 8])
    assert rows(always(four(), 9)) == rows(always(four(), 3))


def test_the_model_stops_itself() -> None:
    """With its first own answer, or at the cap."""
    assert own_end(four()).tolist() == [4, 2, 1, 4] and never(four()) == 4
    assert rows(outcomes(four(), {})["self-stop"]) == ([1, 1, 0, 0], [3, 1, 0, 1], [16, 8, 4, 8])


def test_the_verifier_stops() -> None:
    """By the first Δr that fulfils the rule; a step that was not measured does not; ``skip`` drops a step."""
    looked = four()
    assert verifier_steps(looked, "absolute", 0.5).tolist() == [2, 3, 3, 4]
    assert verifier_steps(looked, "signed", 0.5).tolist() == [2, 1, 3, 4]
    signed = verifier_steps(looked, "signed", 0.5)
    assert rows(stopped(looked, signed)) == ([1, 0, 0, 0], [2, 1, 3, 1], [12, 8, 12, 8])
    assert rows(stopped(looked, signed, "skip")) == ([0, 1, 1, 0], [1, 0, 2, 1], [8, 4, 8, 8])
    found = outcomes(looked, {"absolute": 0.5})
    # The second and the third end by themselves before the verifier stops them.
    assert rows(found["absolute, accept"]) == ([1, 1, 0, 0], [2, 1, 0, 1], [12, 8, 4, 8])
    assert set(found) == {
        *(f"always {n}" for n in range(4)), "self-stop", "oracle",
        "absolute", "absolute, skip", "absolute, accept", "absolute, random",
    }  # fmt: skip


def test_the_oracle_and_what_is_early_or_late() -> None:
    """It stops where everything has been shown; where it never has, at the end, which is early for all."""
    looked = four()
    found = outcomes(looked, {})["oracle"]
    assert rows(found) == ([1, 0, 0, 0], [2, 1, 3, 1], [12, 8, 12, 8])
    assert found["too_early"].tolist() == [0, 0, 1, 1] and found["too_late"].tolist() == [0, 0, 0, 0]
    last = always(looked, 3)
    assert last["too_early"].tolist() == [0, 0, 1, 1] and last["too_late"].tolist() == [1, 1, 0, 0]
    unknown = four(enough=None)
    assert "too_early" not in always(unknown, 3) and "oracle" not in outcomes(unknown, {})


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_random_stopping_is_the_mean_over_permutations(at: list[int]) -> None:
    """Against all 24 of them."""
    looked = four()
    every = [stopped(looked, np.array(order)) for order in itertools.permutations(at)]
    found = shuffled(looked, np.array(at))
    assert len(found) == 6
    for name, values in found.items():
        assert values == pytest.approx(np.mean([one[name] for one in every], axis=0)), name


def test_the_table() -> None:
    """Means over conversations, intervals over problems, the verifier against N = 2 and random stopping."""
    table = compared(four(), {"signed": 0.5})
    rules, [(rule, against)] = table["rules"], table["verifier"].items()
    assert rules["signed"]["accuracy"] == 0.25 and rules["signed"]["steps"] == 7 / 4
    assert rules["always 2"]["accuracy"] == 0.75 and rules["always 2"]["visual_tokens"] == 9
    assert rules["always 2"]["crop_hit"] == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert "crop_hit" not in compared(four(seen=None), {"signed": 0.5})["rules"]["always 2"]
    assert rules["always 3"]["too_early"] == 0.5 and rules["always 3"]["too_late"] == 0.5
    low, high = rules["always 2"]["interval"]
    assert 0.0 < low < 0.2 and high > 0.98
    assert rule == "signed" and (against["best_n"], against["smallest_n"]) == (2, 2)
    assert against["gap_to_smallest_n"]["mean"] == pytest.approx(-0.5)
    assert against["steps_share"] == pytest.approx(7 / 6)
    # Its times are 2, 1, 3 and never: each conversation gets each of them in a quarter of the permutations.
    random = np.array([3 / 4, 1 / 4, 1 / 4, 0]).mean()
    assert rules["signed, random"]["accuracy"] == pytest.approx(random)
    assert against["over_random"]["mean"] == pytest.approx(0.25 - random)
    assert against["over_self_stop"]["mean"] == pytest.approx(0.25 - 0.5)


def test_a_smaller_number_of_steps_that_is_nearly_as_good() -> None:
    """Of 200 conversations one is right only after the second step: one step is within a point."""
    count = 200
    correct = np.ones((count, 3))
    correct[0, 1] = 0
    looked = CappedArrays(
        problem=np.arange(count), lengths=np.full(count, 2), delta_r=np.ones((count, 2)),
        delta_r_plan=np.ones((count, 2)), correct=correct, own=np.full((count, 2), NAN), final=correct[:, 2],
        visual=np.ones((count, 3)), enough=None, left_out=0,
    )  # fmt: skip
    against = compared(looked, {"signed": -1.0})["verifier"]["signed"]
    assert (against["best_n"], against["smallest_n"]) == (2, 1)
    assert against["steps_share"] == 2.0 and against["gap_to_smallest_n"]["mean"] == pytest.approx(1 / 200)
