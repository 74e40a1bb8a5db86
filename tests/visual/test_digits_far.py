"""`digits-far`: what is shown, how many looks are needed, and that its teacher gets there."""

from __future__ import annotations

import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from selfverify.core.config import EvaluationConfig
from selfverify.core.episode import Observation, PolicyTurn
from selfverify.core.errors import ConfigError
from selfverify.core.trajectory import Finish
from selfverify.evaluation.visual_metrics import run_to_cap
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.visual import digits_far
from selfverify.visual.digits_far import DigitsFar, cell_box, closer
from selfverify.visual.episode import VisualEpisode
from tables import yaml_cases


@pytest.fixture(scope="module")
def task() -> DigitsFar:
    return make_task("digits-far")


def taught(task: DigitsFar, index: int) -> tuple[VisualEpisode, list[Observation], list[str]]:
    """What the teacher says, and what it is shown."""
    problem = task.problem("train", 3, index)
    episode = task.look(problem)
    episode.reset()
    texts = [turn.text for turn in task.demonstrate_turns(problem, np.random.default_rng(index))]
    replies = [episode.step(PolicyTurn(text, [], Finish.STOP, turn)) for turn, text in enumerate(texts)]
    return episode, replies, texts


def test_a_problem_is_repeatable(task: DigitsFar) -> None:
    """The same arguments give the same thumbnail and canvas; other splits other ones."""
    first, again = task.problem("test", 0, 5), task.problem("test", 0, 5)
    assert first.images[0].tobytes() == again.images[0].tobytes() and first.meta == again.meta
    assert first.images[0].size == (16, 16) and task.canvas("test", 0, 5).size == (576, 576)
    assert task.canvas("test", 0, 5).tobytes() != task.canvas("validation", 0, 5).tobytes()


@pytest.mark.parametrize("index", range(20))
def test_the_teacher_gets_there(task: DigitsFar, index: int) -> None:
    """Each of its looks shows something, it needs as many as the problem says, and its answer is right."""
    episode, replies, texts = taught(task, index)
    assert replies[-1].done and not any(reply.done for reply in replies[:-1])
    ending, problem = episode.result(), episode.problem
    assert ending.rewards["correct"] == 1 and ending.rewards["tool_errors"] == 0
    assert ending.rewards["steps"] == problem.meta["looks"] == len(texts) - 1
    looks = ending.turns[:-1]
    assert task.enough(problem, looks) == len(looks) and task.enough(problem, looks[:-1]) == 0
    assert all(reply.channels[0][0] == "plan" and reply.channels[1][0] == "action" for reply in replies[:-1])
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
    assert lengths == {1, 2, 3} and targets == set(range(1, 10)) and {*range(1, 8)} <= looks


def test_a_far_digit_lies_in_the_quarters_that_are_cropped(task: DigitsFar) -> None:
    """Wherever it is in its cell; and its frame fills the second one, and is not below the digit."""
    for index in range(100):
        canvas = np.asarray(task.canvas("train", 0, index).convert("L"))
        for cell, one in enumerate(task.scene("train", 0, index)[1]):
            if one.far:
                left, top, side = 0.0, 0.0, 192.0
                for x1, y1, x2, y2 in closer(one, 192):
                    left, top, side = left + x1 * side / 6, top + y1 * side / 6, side / 2
                    assert x2 - x1 == y2 - y1 == 3
                    assert left <= one.left and one.left + one.size <= left + side
                    assert top <= one.top and one.top + one.size <= top + side
                assert side == 48
                x, y = int(cell % 3 * 192 + left), int(cell // 3 * 192 + top)
                framed = canvas[y : y + 48, x : x + 48].astype(float)
                inside = framed[4:-4, 4:-4].copy()
                inside[one.top - int(top) - 4 :][: one.size, one.left - int(left) - 4 :][:, : one.size] = 0
                assert framed[:4].mean() > 120 and framed[:, -4:].mean() > 120 and inside.mean() < 20


def test_no_digit_is_cut_where_an_image_is_cut_into_tokens(task: DigitsFar) -> None:
    """A near digit lies within a quarter of its cell, a far one within a quarter of its frame."""
    quarters, fields = set(), set()
    for index in range(200):
        for one in task.scene("train", 0, index)[1]:
            side = 192 // 8 if one.far else 192 // 2
            for start in (one.left, one.top):
                part = start // side
                assert part * side <= start and start + one.size <= (part + 1) * side
                (fields if one.far else quarters).add(part)
    assert quarters == {0, 1} and fields == set(range(8))


def test_a_demonstration_may_look_on_after_the_0() -> None:
    """At one to three parts of the 0's cell; its thoughts stay with the 0, and its answer is right."""
    task, more = make_task("digits-far", wander=1.0), set()
    for index in range(20):
        episode, _, texts = taught(task, index)
        ending, problem = episode.result(), episode.problem
        wasted = len(texts) - 1 - problem.meta["looks"]
        more.add(wasted)
        assert ending.rewards["correct"] == 1 and ending.rewards["tool_errors"] == 0
        assert task.enough(problem, ending.turns[:-1]) == problem.meta["looks"]
        assert all(text.startswith("<think>0</think>") for text in texts[-1 - wasted :])
        # The cell of the 0 is the last that was cropped from the canvas, whatever is looked at in vain.
        last = [step["arguments"]["image_index"] for step in ending.turns[-1 - wasted : -1]]
        assert len(set(last)) <= 1 and 1 not in last and ending.rewards["duplicate_calls"] == 0
    assert {1, 2, 3} <= more <= {0, 1, 2, 3}


def test_without_thoughts_a_look_in_vain_is_like_one_that_is_needed() -> None:
    """Its words are a call alone, at a cell not visited yet; how many looks there were hardly tells."""
    task = make_task("digits-far", think="none", wander=1.0, ends=0.2, longest=9, far_share=0.0)
    vain, steps = {False: 0, True: 0}, {False: 0, True: 0}
    for index in range(60):
        episode, _, texts = taught(task, index)
        ending, looks = episode.result(), episode.problem.meta["looks"]
        boxes = [step["arguments"]["bounding_box"] for step in ending.turns[:-1]]
        assert ending.rewards["correct"] == 1 and task.enough(episode.problem, ending.turns[:-1]) == looks
        assert all(re.fullmatch(r"crop 1( \d){4}", text) for text in texts[:-1])
        assert re.fullmatch(r"<answer>\d</answer>", texts[-1]) and len({*map(tuple, boxes)}) == len(boxes)
        for step in range(3, len(texts)):
            vain[step > 5] += step > looks
            steps[step > 5] += 1
    assert vain[True] / steps[True] == pytest.approx(vain[False] / steps[False], abs=0.15)


def test_a_way_may_lead_on_behind_its_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks in vain follow digits, too; the answer is the framed cell, which only a crop of it shows."""
    task = make_task("digits-far", think="none", ends=0.3, longest=9, far_share=0.0, end="frame", told=1.0)
    plain, more = make_task("digits-far", think="none", ends=0.3, longest=9, far_share=0.0, told=1.0), set()
    for index in range(20):
        episode, _, texts = taught(task, index)
        ending, problem = episode.result(), episode.problem
        way, digits = problem.meta["way"], problem.meta["digits"]
        calls = [[*cell_box(cell)] for cell in range(1, 10)]
        cells = [calls.index([int(x) for x in text.split()[2:]]) + 1 for text in texts[:-1]]
        more.add(len(cells) - len(way))
        assert ending.rewards["correct"] == 1 and ending.rewards["tool_errors"] == 0
        assert cells[: len(way)] == way and problem.target == way[-1]
        assert all(digits[one - 1] == following for one, following in pairwise(cells))
        framed = np.asarray(task.canvas("train", 3, index), dtype=np.float64)
        other = np.asarray(task.canvas("train", 3, index, framed=False), dtype=np.float64)
        changed = np.argwhere((framed - other) > 64) // task.config.cell  # the grey of the frame is .6
        assert {(way[-1] - 1) // 3} == {*changed[:, 0]} and {(way[-1] - 1) % 3} == {*changed[:, 1]}
        assert plain.problem("train", 3, index).meta["way"] == way
    assert more >= {0, 1, 2, 3}
    thin, canvas = task.problem("train", 3, 0).images[0], task.canvas("train", 3, 0)
    monkeypatch.setattr(digits_far, "RIM", 60)
    # A frame five times as wide is seen on the canvas, and not in the thumbnail.
    assert np.array_equal(thin, task.problem("train", 3, 0).images[0])
    assert not np.array_equal(canvas, task.canvas("train", 3, 0))


def test_a_model_is_told_when_to_answer() -> None:
    """At the 0 or at a look behind it; what it says before is refused, and its teacher looks on."""
    task, more, refusals, tries = make_task("digits-far", told=1.0), set(), set(), set()
    for index in range(60):
        episode, replies, texts = taught(task, index)
        ending, looks = episode.result(), episode.problem.meta["looks"]
        steps = len(texts) - 1
        more.add(steps - looks)
        refusals.add(ending.rewards["tool_errors"])
        assert ending.rewards["correct"] == 1 and ending.rewards["steps"] == steps <= 9
        assert ending.turns[-2]["stopped"] in ("rule", "cap") and replies[-1].done
        assert {"type": "text", "text": "\nAnswer."} in replies[-2].content
        if ending.rewards["tool_errors"]:
            assert texts.count(texts[-1]) == 2 and steps >= looks + 2
            tries.add(texts.index(texts[-1]) - looks)
    assert more >= {*range(7)} and refusals == {0, 1} and tries == {0, 1, 2, 3}
    held_out = task.problem("test", 0, 0)
    episode = task.look(held_out)
    assert episode.settings == task.settings and episode.rule == task.stopping.rule


@pytest.mark.parametrize(
    ("think", "tags"), [("way", ("think", "answer")), ("none", ("answer",))], ids=["way", "none"]
)
def test_without_tools(task: DigitsFar, think: str, tags: tuple[str, ...]) -> None:
    """The same problems, answered at once: the thumbnail is all that is shown, and the teacher is right."""
    blind = make_task("digits-far", tools="none", think=think)
    assert blind.tags == tags and blind.limits.turns == 1
    for index in range(8):
        problem = blind.problem("train", 3, index)
        assert problem == task.problem("train", 3, index)
        [turn] = blind.demonstrate_turns(problem, np.random.default_rng(0))
        way = [problem.meta["digits"][cell - 1] for cell in problem.meta["way"]]
        thought = f"<think>{' '.join(map(str, way))}</think>" if think == "way" else ""
        assert turn.text == f"{thought}<answer>{problem.target}</answer>"
        for text, right in ((turn.text, 1.0), ("<think>5</think>crop 1 3 3 6 6", 0.0)):
            episode = blind.open(problem, 0)
            assert episode.reset() is None and episode.step(PolicyTurn(text, [], Finish.STOP, 0)).done
            assert episode.result().rewards["correct"] == right
    with pytest.raises(ConfigError, match=r"tools=none"):
        blind.looking_by({"stop": "after:1"})


def test_what_looks_show_can_be_taken_away() -> None:
    """Blanked images have one colour, swapped ones are those of the next problem; nothing needed is seen."""

    def shown(results: str, index: int) -> list[np.ndarray]:
        task = make_task("digits-far", results=results)
        problem = task.problem("train", 3, index)
        episode = task.look(problem)
        episode.reset()
        texts = ["<think>1</think>crop 1 0 0 3 3", "<think>?</think>zoom_in 2 0 0 4 4"]
        replies = [episode.step(PolicyTurn(text, [], Finish.STOP, turn)) for turn, text in enumerate(texts)]
        seen = task.seen(problem, [asdict(step) for step in episode.steps])
        assert len(seen) == 2 and (results == "shown" or seen == [0.0, 0.0])
        return [np.asarray(reply.images[0]) for reply in replies]

    mine, blank, swapped = (shown(results, 4) for results in ("shown", "blanked", "swapped"))
    following = shown("shown", 5)
    for number in range(2):
        assert mine[number].std() > 1 and blank[number].std() == 0
        assert blank[number].shape == mine[number].shape
        assert (swapped[number] == following[number]).all() and (swapped[number] != mine[number]).any()


@pytest.mark.parametrize("said", ["crop 1 0 0 3", "crop(1, 0, 0, 3, 3)", "Action: crop 1 0 0 3 3", "crop"])
def test_what_cannot_be_read_is_told_this_tasks_form(task: DigitsFar, said: str) -> None:
    episode = task.look(task.problem("test", 0, 0))
    episode.reset()
    reply = episode.step(PolicyTurn(said, [], Finish.STOP, 0))
    assert not reply.done and "JSON" not in str(reply.content)
    form = reply.content[0]["text"].rpartition(": ")[2]
    assert not episode.step(PolicyTurn(f"<think>7</think>{form}", [], Finish.STOP, 1)).done
    assert [bool(step.error) for step in episode.steps] == [True, False]


@yaml_cases
def test_options_that_cannot_work(options: dict[str, Any], said: str) -> None:
    """They are refused with the setting's name."""
    with pytest.raises(ValueError, match=said):
        make_task("digits-far", **options)


@pytest.mark.parametrize("problems", [5, pytest.param(128, marks=pytest.mark.slow)])
def test_it_looks_to_the_0_and_answers_whenever_it_is_told_to(problems: int, tmp_path: Path) -> None:
    task = make_task("digits-far", terminate="refuse")
    config = EvaluationConfig(problems=problems, samples=1, temperature=0.0, split="test")
    policy = Policy.load("builtin:looking", device="cpu")
    rows = run_to_cap(policy, task, config, tmp_path / "looked.jsonl", max_new_tokens=32)
    talks = [talk for row in rows.values() for talk in row.talks]
    found = [talk for talk in talks if talk.enough]
    assert len(found) >= 0.7 * problems and len({talk.enough for talk in found}) > 1
    behind = [step.correct for talk in found for step in talk.steps[talk.enough - 1 :]]
    assert sum(right == 1 for right in behind) >= 0.9 * len(behind)
