"""The box of what an expression refers to: IoU by hand, the spaces models write in, and a run end to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tasks.row_data import box_answer, grounding, grounding_row

from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.core.tags import parse_tagged
from selfverify.core.trainer_config import TrainerConfig
from selfverify.evaluation.evaluate import evaluate
from selfverify.experiments.registry import make_method
from selfverify.experiments.run import learn
from selfverify.policy.policy import Policy
from selfverify.tasks.grounding import Grounding


@pytest.mark.parametrize(
    ("space", "text", "iou"),
    [
        ((1000, 1000), '{"bbox_2d": [200, 400, 600, 800]}', 1.0),
        ((1000, 1000), "(400,400),(800,800)", 1 / 3),  # [40, 20, 80, 40]: 400 of 1200
        ((1000, 1000), "[200, 400, 2000, 800]", 1 / 2),  # clipped to [20, 20, 100, 40]: 800 of 1600
        ((1000, 1000), "[-500, -500, 3000, 3000]", 0.16),  # the whole image: 800 of 5000
        ((1000, 1000), "[20, 20, 60, 40]", 0.0),  # pixels where thousandths are meant
        ((100, 50), "[20, 20, 60, 40]", 1.0),
        ((112, 56), "[22.4, 22.4, 67.2, 44.8]", 1.0),  # the image resized to multiples of 28
        ((112, 56), "[22.4, 22.4, 44.8, 44.8]", 1 / 2),
    ],
)
def test_reward_is_iou_in_pixels(space: tuple[int, int], text: str, iou: float) -> None:
    """The target is [20, 20, 60, 40], 800 pixels of an image of 100 x 50."""
    task = grounding(space=space)
    judged = task.judge(task.problem("test", 0, 0), box_answer(text))
    assert judged.reward == pytest.approx(iou)
    assert judged.correct == (iou > 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "[600, 400, 200, 800]", "[200, 800, 600, 400]", "[200, 400, 200, 800]", "[1000, 0, 1200, 500]",
        "no box", "",
    ],
)  # fmt: skip
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
    with pytest.raises(ConfigError, match="use_space"):
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


@settings(max_examples=200, deadline=None)
@given(st.text("[]{}()<>box_2d|start\"',.:0123456789 -+eE\n", max_size=80))
def test_judging_never_raises(text: str) -> None:
    task = grounding()
    judged = task.judge(task.problem("test", 0, 0), box_answer(text))
    assert 0 <= judged.reward <= 1 and (judged.reward == 0 or judged.answer is not None)


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
