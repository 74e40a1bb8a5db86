"""The box of what an expression refers to: IoU by hand, the spaces models write in, and a run end to end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from tests.tasks.row_data import box_answer, grounding, grounding_row

from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.tags import parse_tagged
from selfverify.core.trainer_config import TrainerConfig
from selfverify.data.grounding import IGNORED
from selfverify.evaluation.evaluate import evaluate
from selfverify.experiments.registry import make_method
from selfverify.experiments.run import learn
from selfverify.policy.policy import Policy
from selfverify.selection.rules import box_iou
from selfverify.tasks.base import Floats
from selfverify.tasks.grounding import MAX_CHARS, Grounding, box_overlap, mask_overlap, parse_box
from selfverify.tasks.row_task import clip_box, convert
from selfverify.tasks.tool_calls import read_json
from tables import read_tables, yaml_cases


@yaml_cases
def test_reward_is_iou_in_pixels(space: tuple[int, int], text: str, iou: float) -> None:
    """The target is [20, 20, 60, 40], 800 pixels of an image of 100 x 50."""
    task = grounding(space=space)
    judged = task.judge(task.problem("test", 0, 0), box_answer(text))
    assert judged.reward == pytest.approx(iou)
    assert judged.correct == (iou > 0.5)


@yaml_cases
def test_boxes_without_area_are_unreadable(text: str) -> None:
    """Swapped corners, a line, a box outside the image: no reward and no vote."""
    task = grounding()
    judged = task.judge(task.problem("test", 0, 0), box_answer(text))
    assert (judged.reward, judged.correct, judged.answer, judged.key) == (0.0, False, None, None)


def test_answers_are_pixels_of_the_image() -> None:
    """So boxes of different models, and targets, can be compared and clustered."""
    task = grounding(grounding_row(box=[33, 10, 66, 30]), space=(112, 56))
    judged = task.judge(task.problem("test", 0, 0), box_answer("[37, 11, 74, 34]"))
    assert judged.answer == [33.04, 9.82, 66.07, 30.36] and judged.key == "33.04 9.82 66.07 30.36"


def test_an_untold_task_refuses_to_make_problems() -> None:
    with pytest.raises(ConfigError, match=r"task\.set_coordinate_space\("):
        Grounding(rows={"test": [grounding_row()]}).problem("test", 0, 0)


@pytest.mark.parametrize("space", [(1000, 1000), (112, 56)])
@pytest.mark.parametrize(
    "box", [[20, 20, 60, 40], [0, 0, 100, 50], [0, 0, 30, 20], [60, 20, 100, 50], [1, 45, 90, 50]]
)
def test_demonstrations_are_read_back(box: list[float], space: tuple[int, int]) -> None:
    """A right one is the target up to rounding; a wrong one is wrong and what it claims to be."""
    task = grounding(grounding_row(box=box, question="the <score>dog</score>"), space=space)
    problem, rng = task.problem("train", 0, 0), np.random.default_rng(0)
    for wrong in [False] + [True] * 20:
        shown = task.demonstrate(problem, rng, wrong)
        tagged = parse_tagged("".join(text for _, text in shown.pieces) + "<score>0.5</score>")
        judged = task.judge(problem, tagged)
        assert tagged.answer_ok and tagged.score_ok and judged.answer is not None
        assert judged.reward == pytest.approx(shown.quality)
        assert judged.correct == (not wrong)
        assert (shown.pieces[0][0] == "context") == wrong


def test_trains_and_is_measured(load_policy: Callable[..., Policy], tmp_path: Path) -> None:
    """A cold start, ADPO with a margin, and an evaluation: the policy's own space reaches the task."""
    rows = [grounding_row(id=str(i), box=[10 * i, 5, 10 * i + 40, 45]) for i in range(3)]
    task = Grounding(rows={"train": rows, "test": rows})
    policy = load_policy()
    learner = TrainerConfig(steps=1, groups_per_step=2)
    learn(policy, task, make_method("sft"), learner, output=tmp_path / "sft")
    assert task.problem("train", 0, 0).meta["space"] == policy.coordinate_space((100, 50)) == (96, 48)
    sampling = SamplingConfig(group_size=2, max_new_tokens=8)
    learn(policy, task, make_method("adpo", gamma=0.1), learner, sampling, output=tmp_path / "adpo")
    found = evaluate(policy, task, EvaluationConfig(problems=3, samples=2), max_new_tokens=8)
    assert found["problems"] == 3 and found["rewards"]["answer"] == 0.0


BOX = [10.0, 20.0, 30.5, 40.0]


@yaml_cases
def test_every_form_is_read(text: str) -> None:
    assert parse_box(text) == BOX


NONE = [
    *read_tables(Path(__file__).with_suffix(".yaml"))["no_box"],
    *(f"[10, 20, {'9' * 400}, 40]", "[10, 20, 30.5, 40]" + "x" * MAX_CHARS),
    " " * MAX_CHARS + "[10, 20, 30.5, 40" + " " * MAX_CHARS,
    *("[10, 20, 30.5, 40]" * 60_000, "[" * 4000, '{"a":' * 600, "(1, 2" * 200_000, "1 " * 500_000),
    *("<box>" * 200_000, '"' * 1_000_000),
]


@pytest.mark.parametrize("text", NONE, ids=lambda text: text[:40])
def test_what_is_no_box(text: str) -> None:
    assert parse_box(text) is None


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200) | st.text("[]{}()<>box_2d|start\"',.:0123456789 -+eE\n`", max_size=80))
def test_reading_never_raises(text: str) -> None:
    found = parse_box(text)
    assert found is None or (len(found) == 4 and all(abs(v) <= 100_000 for v in found))
    task = grounding()
    judged = task.judge(task.problem("test", 0, 0), box_answer(text))
    assert 0 <= judged.reward <= 1 and (judged.reward == 0 or judged.answer is not None)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-2000, 9000) | st.floats(-2000, 9000, width=32), min_size=4, max_size=4))
def test_json_is_read_exactly(values: list[float]) -> None:
    assert parse_box(json.dumps({"bbox_2d": values})) == [float(v) for v in values]


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 1}', "[NaN]", "[-Infinity]", "1e400", "1" * 16, "[" * 100_000, "1 2", "", "{'a': 1}"],
)
def test_strict_json_refuses(text: str) -> None:
    with pytest.raises(ValueError):
        read_json(text)


def test_conversion() -> None:
    """Thousandths of 640 x 480; Qwen2.5-VL's 1092 x 2408 pixels of a screen of 1080 x 2400."""
    assert convert([500, 250, 1000, 1000], (1000, 1000), (640, 480)) == [320, 120, 640, 480]
    assert convert([546, 602], (1092, 2408), (1080, 2400)) == [540, 600]
    assert convert(convert([3, 7], (640, 480), (1000, 1000)), (1000, 1000), (640, 480)) == [3, 7]


@yaml_cases
def test_clipping(box: list[float], inside: list[float] | None) -> None:
    """To an image of 100 x 50. What is swapped, flat or outside has no area in it."""
    assert clip_box(box, (100, 50)) == inside


def slow_overlap(mask: ArrayLike | None, target: ArrayLike) -> Floats:
    """Pixels of intersection and union ``[2]`` of one problem's mask ``[H, W]`` with its target.

    Pixels where the target is 255 are left out. No mask (an unreadable answer) covers nothing.
    """
    target = np.asarray(target)
    counted, wanted = target != IGNORED, (target != 0) & (target != IGNORED)
    found = np.zeros_like(wanted) if mask is None else np.asarray(mask, dtype=bool) & counted
    return np.array([(found & wanted).sum(), (found | wanted).sum()], dtype=np.float64)


def box_mask(box: ArrayLike, size: tuple[int, int]) -> NDArray[np.bool_]:
    """The pixels ``[H, W]`` of an image of ``size`` (width, height) whose middle lies in a box."""
    x1, y1, x2, y2 = np.asarray(box, dtype=np.float64)
    x, y = np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5
    return ((y >= y1) & (y < y2))[:, None] & ((x >= x1) & (x < x2))[None]


def test_boxes() -> None:
    """IoU 50/150 on a small target, 1 on a large one, 0 for an unreadable answer and for swapped corners."""
    nan = float("nan")
    boxes = [[5, 0, 15, 10], [0, 0, 100, 10], [nan] * 4, [10, 10, 0, 0]]
    targets = [[0, 0, 10, 10], [0, 0, 100, 10], [0, 0, 10, 10], [0, 0, 10, 10]]
    found = box_overlap(boxes, targets)
    assert found.tolist() == [[50, 150], [1000, 1000], [0, 100], [0, 100]]
    assert found[:, 0] / found[:, 1] == pytest.approx(box_iou(boxes, targets))


def test_running_sums_count_what_pixels_do() -> None:
    rng = np.random.default_rng(0)
    target = rng.choice([0, 1, 255], (37, 53), p=[0.5, 0.3, 0.2])
    whole = (target == 1).astype(np.int64)
    boxes = rng.uniform(-10, 70, (200, 4))
    boxes[:3] = [[0, 0, 53, 37], [5.5, 5.5, 6.5, 6.5], [np.nan] * 4]
    boxes[3:50, 2:] = boxes[3:50, :2] + rng.uniform(0, 40, (47, 2))
    for mask in (target, whole):
        slow = [slow_overlap(None if np.isnan(b).any() else box_mask(b, (53, 37)), mask) for b in boxes]
        assert mask_overlap(boxes, mask).tolist() == np.array(slow).tolist()
