"""The built-in tasks: real digits, disjoint splits, honest demonstrations, rewards that can't be crashed."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import SPLITS, Problem, Split
from selfverify.core.tags import Tagged, parse_tagged
from selfverify.experiments.registry import TASKS, make_task
from selfverify.selection.rules import box_iou
from selfverify.tasks.base import Task, read_integers
from selfverify.tasks.digits import digit_bank
from tables import yaml_cases

OWN = sorted(
    name
    for name, task in TASKS.items()
    if "train" not in task.config_class.model_fields and task.demonstrate is not Task.demonstrate
)
"""The tasks that make their problems and demonstrations of one answer themselves."""
DIGITS = sorted(name for name, task in TASKS.items() if ".tasks.digits." in task.__module__)


def answer(text: str) -> Tagged:
    return Tagged(fields={"answer": text}, answer_ok=True)


def showing(name: str, target: Any, **options: Any) -> tuple[Any, Problem]:
    """A task, and a problem of it that shows 1 2 3 4 4 9."""
    task = make_task(name, **options)
    problem = task.problem("train", 0, 0)
    problem.meta["digits"], problem.target = [1, 2, 3, 4, 4, 9], target
    return task, problem


def test_splits_share_no_scan() -> None:
    """1,797 scans: 450 for the test, 200 for validation, the rest for training, no image in two of them."""
    banks = {split: digit_bank(split) for split in SPLITS}
    assert [sum(map(len, banks[split])) for split in SPLITS] == [1147, 200, 450]
    seen: Counter[bytes] = Counter()
    for bank in banks.values():
        seen.update({scan.tobytes() for scans in bank for scan in scans})
    assert max(seen.values()) == 1


@pytest.mark.parametrize("name", sorted({*OWN, *DIGITS}))
@pytest.mark.parametrize("split", SPLITS)
def test_same_arguments_same_problem(name: str, split: Split) -> None:
    a, b, other = (make_task(name).problem(split, seed, 14) for seed in (3, 3, 4))
    seen, again, elsewhere = ([image.tobytes() for image in problem.images] for problem in (a, b, other))
    assert (a.id, a.target, a.messages, seen) == (b.id, b.target, b.messages, again)
    assert seen != elsewhere if seen else a.messages != other.messages


@pytest.mark.parametrize("name", OWN)
def test_demonstrations_are_read_back(name: str) -> None:
    """A right demonstration earns the full reward; a wrong one exactly the quality it claims."""
    task, rng = make_task(name), np.random.default_rng(0)
    for index in range(60):
        problem = task.problem("train", 0, index)
        for wrong in (False, True):
            shown = task.demonstrate(problem, rng, wrong)
            tagged = parse_tagged("".join(text for _, text in shown.pieces) + "<score>0.5</score>", task.tags)
            assert tagged.answer_ok and tagged.score_ok
            assert task.judge(problem, tagged).reward == pytest.approx(shown.quality)
            assert wrong or shown.quality == 1.0
            assert any(c == "context" for c, _ in shown.pieces) == (wrong or task.name == "digits-shown")


def test_pick_demonstrations_add_up_honestly() -> None:
    """The sum written is the sum of the digits written, also in wrong demonstrations."""
    task, rng = make_task("digits-pick"), np.random.default_rng(1)
    for index in range(100):
        shown = task.demonstrate(task.problem("train", 1, index), rng, wrong=True)
        thought = "".join(text for _, text in shown.pieces).split("<think>")[1].split("</think>")[0]
        terms, total = thought.split("=")
        assert sum(map(int, terms.split("+"))) == int(total)


@yaml_cases
def test_pick_judges_shown_digits_and_their_sum(picks: str, error: str | None, key: str | None) -> None:
    """Of a target of 11, in any order. What cannot be read is of no class of errors."""
    task, problem = showing("digits-pick", 11)
    judged = task.judge(problem, answer(picks))
    assert (judged.error, judged.key, judged.correct) == (error, key, key == "3 4 4")
    assert error is None or error in task.errors


@pytest.mark.parametrize("reasoning", ["read", "marked"])
@pytest.mark.parametrize("wrong", [False, True])
def test_pick_demonstrations_may_name_all_digits_first(wrong: bool, reasoning: str) -> None:
    task, plain = make_task("digits-pick", reasoning=reasoning), make_task("digits-pick")
    marks = 0
    for index in range(30):
        problem = task.problem("train", 0, index)
        shown = task.demonstrate(problem, np.random.default_rng(index), wrong)
        told = "".join(text for _, text in shown.pieces)
        read, sums = told.removeprefix("<think>").split(":")
        assert [int(digit) for digit in read] == problem.meta["digits"]
        short = plain.demonstrate(problem, np.random.default_rng(index), wrong)
        assert f"<think>{sums.replace('?', '')}" == "".join(text for _, text in short.pieces)
        judged = task.judge(problem, parse_tagged(told, ("think", "answer")))
        assert judged.reward == shown.quality
        assert ("?" in sums) == (reasoning == "marked" and "not shown" in (judged.error or ""))
        marks += sums.count("?")
        mixed = make_task("digits-mix", pick=1, sum=0, locate=0, pick_reasoning=reasoning)
        assert mixed.demonstrate(problem, np.random.default_rng(index), wrong).pieces == shown.pieces
    assert (marks > 0) == (wrong and reasoning == "marked")


def test_pick_marks_are_taught_behind_picks_that_are_not() -> None:
    """Of 4+4+4 the third is not there any more, nor is 0. Wrong picks are context."""
    task, problem = showing("digits-pick", 11, reasoning="marked")
    found = {}
    for seed in range(400):
        pieces = task.demonstrate(problem, np.random.default_rng(seed), wrong=True).pieces
        found["".join(text for channel, text in pieces if channel == "context")] = pieces
    taught = "".join(text for channel, text in found["249"] if channel == "answer")
    assert taught == "<think>123449:++=15</think><answer>2 4 9</answer>"
    taught = "".join(text for channel, text in found["444"] if channel == "answer")
    assert taught == "<think>123449:++?=12</think><answer>4 4 4</answer>"


@pytest.mark.parametrize("ways", [(1, 1), (10, 20)])
def test_pick_draws_targets_that_can_be_had_in_so_many_ways(ways: tuple[int, int]) -> None:
    """Counted anew, place by place; the same problem each time; without the option nothing else is drawn."""
    task, plain = make_task("digits-pick", ways=ways), make_task("digits-pick")
    for index in range(20):
        problem = task.problem("train", 0, index)
        counted = sum(sum(c) == problem.target for c in combinations(problem.meta["digits"], 3))
        assert ways[0] <= counted <= ways[1]
        assert task.problem("train", 0, index).digest() == problem.digest()
    drawn = [plain.problem("train", 0, index).meta["digits"] for index in (0, 1)]
    assert drawn == [[8, 6, 5, 2, 3, 0], [8, 4, 0, 3, 7, 5]]  # as before there was such an option


def test_pick_says_when_a_target_cannot_be_had_in_so_many_ways() -> None:
    """Two digits of two: one way, never two; all of twelve that are equal: a chance of 1e-11."""
    task = make_task("digits-pick", count=12, picks=6, ways=(924, 924))
    with pytest.raises(DataError, match=r"924 to 924 ways; widen task.ways"):
        task.problem("train", 0, 0)


def test_pick_rechecks_what_stands_in_an_answer() -> None:
    """Of a target of 11 3+4+4 passes, and 1+1+9, of which one 1 is not shown; 2+4+9 is 15."""
    (task, problem), rng = showing("digits-pick", 11, score=False), np.random.default_rng(0)
    for kept in ("3 4 4", "1 1 9"):
        sums = kept.replace(" ", "+")
        assert task.recheck(problem, answer(kept), rng) == f"<think>{sums}=11</think><answer>{kept}</answer>"
    redone = task.recheck(problem, answer("2 4 9"), rng)
    assert redone.startswith("<think>2+4+9=15;")
    tagged = parse_tagged(redone, task.tags)
    assert tagged.answer_ok and task.judge(problem, tagged).correct
    assert tagged.fields["think"].split(";")[1].endswith("=11")
    for unreadable in (answer("3 8"), Tagged(fields={"answer": "2 4 9"})):
        anew = task.recheck(problem, unreadable, rng)
        assert ";" not in anew and task.judge(problem, parse_tagged(anew, task.tags)).correct
    reading = make_task("digits-pick", score=False, reasoning="read")
    first = Tagged({"think": "123449:1+1+9=11", "answer": "1 1 9"}, answer_ok=True)
    redone = reading.recheck(problem, first, rng)
    assert redone.startswith("<think>1+1?+9=11;123449:")
    assert reading.judge(problem, parse_tagged(redone, task.tags)).correct
    misread = Tagged({"think": "113449:1+1+9=11", "answer": "1 1 9"}, answer_ok=True)
    assert reading.recheck(problem, misread, rng) == "<think>1+1+9=11</think><answer>1 1 9</answer>"
    with pytest.raises(ConfigError, match="digits-sum has no check"):
        make_task("digits-sum").recheck(problem, answer("3"), rng)


def test_locate_rewards_overlap() -> None:
    """Target [0,0,10,10], answer [5,0,15,10]: overlap 50, union 150, IoU 1/3, so wrong at 0.5."""
    task = make_task("digits-locate")
    problem = task.problem("train", 0, 0)
    problem.target = [0, 0, 10, 10]
    judged = task.judge(problem, answer("5 0 15 10"))
    assert judged.reward == pytest.approx(1 / 3) and not judged.correct
    assert task.judge(problem, answer("10 0 5 10")).answer is None
    assert box_iou([0, 0, 2, 2], [2, 2, 4, 4]) == 0


@pytest.mark.parametrize(
    "text", ["", "1 2", "1 2 3 4", "1 2 x", "-1 2 3", "1.5 2 3", "１ 2 3", "1 2 99999", "1" * 9999]
)
def test_unreadable_integers(text: str) -> None:
    assert read_integers(text, 3, 9) is None


JUDGED = [(task, task.problem("validation", 0, 1)) for task in map(make_task, OWN)]


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
def test_judging_never_raises(text: str) -> None:
    for task, problem in JUDGED:
        assert 0 <= task.judge(problem, answer(text)).reward <= 1
        assert 0 <= task.judge(problem, parse_tagged(text, task.tags)).reward <= 1


@yaml_cases
def test_options_that_cannot_work_are_refused(name: str, options: dict[str, Any]) -> None:
    """When they are read, not when the first problem is made."""
    with pytest.raises(ValidationError):
        TASKS[name].config_class(**options)


def test_shown_judges_the_digits_that_are_not_shown() -> None:
    """Not shown are 0 5 6 7 8, in any order, each once."""
    task, problem = showing("digits-shown", [0, 5, 6, 7, 8])
    assert task.judge(problem, answer("8 0 5 6 7")).correct
    assert task.judge(problem, answer("8 0 5 6 7")).key == task.judge(problem, answer("0,5,6,7,8")).key
    assert not task.judge(problem, answer("0 5 6 7")).correct and not task.judge(problem, answer("")).correct
    assert task.judge(problem, answer("")).key is not None
    assert all(task.judge(problem, answer(text)).key is None for text in ("0 5 6 7 8 8", "0 11", ",", "none"))
    problem.target = []
    assert task.judge(problem, answer("")).correct


def test_shown_marks_digits_as_picks_are_marked() -> None:
    """All ten digits come; their order is context, and so is a mark that is wrong."""
    task, problem = showing("digits-shown", [0, 5, 6, 7, 8])
    for wrong in (False, True):
        shown = task.demonstrate(problem, np.random.default_rng(2), wrong)
        assert shown.quality == (not wrong)
        first, *marks, (_, rest) = shown.pieces
        assert first == ("answer", "<think>123449:") and len(marks) == 20
        order = [text for _, text in marks[::2]]
        assert sorted(order) == list("0123456789") and {c for c, _ in marks[::2]} == {"context"}
        marked = [digit for digit, (_, mark) in zip(order, marks[1::2], strict=True) if mark == "?+"]
        assert rest == f"</think><answer>{' '.join(marked)}</answer>"
        odd = {digit for digit, (channel, _) in zip(order, marks[1::2], strict=True) if channel == "context"}
        assert set(marked) ^ set("05678") == odd and len(odd) == wrong


def test_the_mix_has_as_many_problems_of_each_task_as_it_has_shares() -> None:
    task = make_task("digits-mix", pick=2, sum=1, locate=0, shown=3)
    names = Counter(task.problem("train", 0, index).id.split("/")[0] for index in range(12))
    assert names == {"digits-pick": 4, "digits-sum": 2, "digits-shown": 6}
