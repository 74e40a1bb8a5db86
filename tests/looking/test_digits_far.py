"""`digits-far`: what is shown, how many looks are needed, and that its teacher gets there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from selfverify.core.episode import Reply, Said
from selfverify.core.trajectory import Finish
from selfverify.experiments.registry import make_task
from selfverify.looking.look_episode import LookEpisode
from selfverify.looking.tasks.digits_far import DigitsFar, around
from selfverify.tasks.digits.canvas import digit_bank


@pytest.fixture(scope="module")
def task() -> DigitsFar:
    made = make_task("digits-far")
    assert isinstance(made, DigitsFar)
    return made


def taught(task: DigitsFar, index: int) -> tuple[LookEpisode, list[Reply], list[str]]:
    """What the teacher says, and what it is shown."""
    problem = task.problem("train", 3, index)
    episode = task.look(problem)
    episode.begin()
    texts = [turn.text for turn in task.demonstrate_turns(problem, np.random.default_rng(0))]
    replies = [episode.reply(Said(text, [], Finish.STOP, turn)) for turn, text in enumerate(texts)]
    return episode, replies, texts


def test_a_problem_is_repeatable(task: DigitsFar) -> None:
    """The same arguments give the same thumbnail and canvas; other splits other ones."""
    first, again = task.problem("test", 0, 5), task.problem("test", 0, 5)
    assert first.images[0].tobytes() == again.images[0].tobytes() and first.meta == again.meta
    assert first.images[0].size == (32, 32) and task.canvas("test", 0, 5).size == (576, 576)
    assert task.canvas("test", 0, 5).tobytes() != task.canvas("validation", 0, 5).tobytes()


@pytest.mark.parametrize("index", range(20))
def test_the_teacher_gets_there(task: DigitsFar, index: int) -> None:
    """Each of its looks shows something, it needs as many as the problem says, and its answer is right."""
    episode, replies, texts = taught(task, index)
    assert replies[-1].done and not any(reply.done for reply in replies[:-1])
    ending, problem = episode.ending(), episode.problem
    assert ending.rewards["correct"] == 1 and ending.rewards["tool_errors"] == 0
    assert ending.rewards["steps"] == problem.meta["looks"] == len(texts) - 1
    looks = ending.turns[:-1]
    assert task.enough(problem, looks) == len(looks) and task.enough(problem, looks[:-1]) == 0
    assert all(reply.cuts[0][0] == "plan" and reply.cuts[1][0] == "action" for reply in replies[:-1])
    assert replies[0].content == [{"type": "text", "text": "2:"}, {"type": "image"}]
    assert all(len(reply.images) == 1 and max(reply.images[0].size) <= 32 for reply in replies[:-1])


def test_the_way_ends_at_the_zero(task: DigitsFar) -> None:
    """Digits lead from cell to cell; all lengths and all cells occur, also as the answer."""
    lengths, targets, looks = set(), set(), set()
    for index in range(120):
        problem = task.problem("train", 0, index)
        way, digits = problem.meta["way"], problem.meta["digits"]
        assert [digits[cell - 1] for cell in way] == [*way[1:], 0] and problem.target == way[-1]
        assert f"cell {way[0]}." in problem.meta["question"]
        lengths.add(len(way))
        targets.add(problem.target)
        looks.add(problem.meta["looks"])
    assert lengths == {1, 2, 3, 4} and targets == set(range(1, 10)) and {1, 2, 3, 4, 5, 6} <= looks


def test_a_far_digit_lies_in_its_box(task: DigitsFar) -> None:
    """Wherever it is in its cell."""
    for index in range(100):
        for one in task.scene("train", 0, index)[1]:
            if one.far:
                x1, y1, x2, y2 = (value * 192 / 9 for value in around(one, 192))
                assert x1 <= one.left and one.left + one.size <= x2
                assert y1 <= one.top and one.top + one.size <= y2


def test_the_scans_are_those_of_the_split(task: DigitsFar, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations show digits that were never trained on."""
    asked: list[Any] = []

    def bank(split: Any) -> Any:
        asked.append(split)
        return digit_bank(split)

    monkeypatch.setattr("selfverify.looking.tasks.digits_far.digit_bank", bank)
    task.canvas("validation", 0, 0)
    assert asked == ["validation"]


@pytest.mark.parametrize("options", [{"far": (8, 40)}, {"near": (30, 20)}, {"near": (2, 9)}, {"cell": 50}])
def test_sizes_that_cannot_be(options: dict[str, Any]) -> None:
    """They are refused with the setting's name."""
    with pytest.raises(ValueError, match=next(iter(options))):
        make_task("digits-far", **options)
