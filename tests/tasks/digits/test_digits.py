"""The built-in tasks: real digits, disjoint splits, honest demonstrations, rewards that can't be crashed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from selfverify.core.errors import ConfigError
from selfverify.core.splits import SPLITS
from selfverify.core.tags import Tagged, parse_tagged
from selfverify.experiments.registry import TASKS, make_task
from selfverify.selection.rules import box_iou
from selfverify.tasks.base import Task, read_integers
from selfverify.tasks.digits.canvas import digit_bank

OWN = sorted(
    name
    for name, task in TASKS.items()
    if "train" not in task.config_class.model_fields and task.demonstrate is not Task.demonstrate
)
"""The tasks that make their problems and demonstrations of one answer themselves."""
DIGITS = sorted(name for name, task in TASKS.items() if ".tasks.digits." in task.__module__)


def answer(text: str) -> Tagged:
    return Tagged(fields={"answer": text}, answer_ok=True)


def test_splits_share_no_scan() -> None:
    """1,797 scans: 450 for the test, 200 for validation, the rest for training, no image in two of them."""
    banks = {split: digit_bank(split) for split in SPLITS}
    assert [sum(map(len, banks[split])) for split in SPLITS] == [1147, 200, 450]
    seen: Counter[bytes] = Counter()
    for bank in banks.values():
        seen.update({scan.tobytes() for scans in bank for scan in scans})
    assert max(seen.values()) == 1


@pytest.mark.parametrize("name", DIGITS)
@pytest.mark.parametrize("split", SPLITS)
def test_same_arguments_same_problem(name: str, split: str) -> None:
    a, b = (make_task(name).problem(split, 3, 14) for _ in range(2))  # type: ignore[arg-type]
    assert a.id == b.id and a.target == b.target and a.messages == b.messages
    assert a.images[0].tobytes() == b.images[0].tobytes()
    other = make_task(name).problem(split, 4, 14)  # type: ignore[arg-type]
    assert other.images[0].tobytes() != a.images[0].tobytes()


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
            assert any(channel == "context" for channel, _ in shown.pieces) == wrong


def test_pick_demonstrations_add_up_honestly() -> None:
    """The sum written is the sum of the digits written, also in wrong demonstrations."""
    task, rng = make_task("digits-pick"), np.random.default_rng(1)
    for index in range(100):
        shown = task.demonstrate(task.problem("train", 1, index), rng, wrong=True)
        thought = "".join(text for _, text in shown.pieces).split("<think>")[1].split("</think>")[0]
        terms, total = thought.split("=")
        assert sum(map(int, terms.split("+"))) == int(total)


def test_pick_judges_shown_digits_and_their_sum() -> None:
    """Shown 1 2 3 4 4 9, target 11: 3+4+4 is right in any order; 1+1+9 uses a digit twice; 2+4+9 is 15."""
    task = make_task("digits-pick")
    problem = task.problem("train", 0, 0)
    problem.meta["digits"], problem.target = [1, 2, 3, 4, 4, 9], 11
    assert task.judge(problem, answer("4 3 4")).correct
    assert task.judge(problem, answer("4 3 4")).key == task.judge(problem, answer("3,4,4")).key
    assert not task.judge(problem, answer("1 1 9")).correct
    assert not task.judge(problem, answer("2 4 9")).correct
    assert task.judge(problem, answer("3 8")).key is None


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


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80))
def test_judging_never_raises(text: str) -> None:
    for name in OWN:
        task = make_task(name)
        problem = task.problem("validation", 0, 1)
        assert 0 <= task.judge(problem, answer(text)).reward <= 1
        assert 0 <= task.judge(problem, parse_tagged(text, task.tags)).reward <= 1


def test_unknown_task_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="digits-pick"):
        make_task("digits-pik")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("digits-pick", {"picks": 8, "count": 4}),
        ("digits-pick", {"noise": (0.3, 0.1)}),
        ("digits-pick", {"noise": (-1, 0.5)}),
        ("digits-sum", {"fewest": 6}),
        ("digits-locate", {"size": (40, 60)}),
        ("digits-mix", {"pick": 0, "sum": 0, "locate": 0}),
        ("digits-mix", {"sum_digits": (4, 2)}),
    ],
)
def test_options_that_cannot_work_are_refused(name: str, options: dict[str, Any]) -> None:
    """When they are read, not when the first problem is made."""
    with pytest.raises(ValidationError):
        TASKS[name].config_class(**options)
