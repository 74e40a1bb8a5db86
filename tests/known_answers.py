"""What tasks make of known answers, as stored samples."""

from __future__ import annotations

from typing import Any

from PIL import Image

from samples import sample
from selfverify.core.problem import Problem
from selfverify.core.tags import parse_tagged
from selfverify.evaluation.samples import StoredSample

Answers = list[list[tuple[str, float | None]]]


def judged(task: Any, answers: Answers) -> tuple[list[StoredSample], dict[str, Problem]]:
    """What the task makes of whole responses: per problem (inside of the answer's tag, score)."""
    task.set_coordinate_space(lambda size: (1000, 1000))
    problems = [task.problem("test", 0, index) for index in range(len(answers))]
    tag = task.tags[-2]
    think = "<think>t</think>" if tag == "answer" else ""
    rows = []
    for problem, row in zip(problems, answers, strict=True):
        for number, (text, score) in enumerate(row):
            tagged = parse_tagged(f"{think}<{tag}>{text}</{tag}><score>0.5</score>", task.tags)
            assert tagged.answer_ok
            found = task.judge(problem, tagged)
            rows.append(
                sample(
                    problem.id,
                    number,
                    found.correct,
                    score,
                    answer=found.answer,
                    key=None if task.kind == "continuous" else found.key,
                    rewards={**found.parts, "answer": found.reward, "format": 1.0},
                )
            )
    return rows, {problem.id: problem for problem in problems}


def grounding_rows() -> list[dict[str, Any]]:
    """Targets 40 x 20 of 100 x 50 (short) and 100 x 10 of 100 x 100 (long, its mask's lower half ignored)."""
    return [
        {
            "question": "a",
            "images": [Image.new("RGB", (100, 50))],
            "box": [20, 20, 60, 40],
            "category": "short",
        },
        {
            "question": "b",
            "images": [Image.new("RGB", (100, 100))],
            "box": [0, 0, 100, 10],
            "category": "long",
            "polygons": [[[0, 0], [99, 0], [99, 9], [0, 9]]],
            "ignored": [[[0, 5], [99, 5], [99, 9], [0, 9]]],
        },
    ]


GROUNDED = [
    # IoU 1 (score .2) and 400 / 1200 (score .9).
    [("[200, 400, 600, 800]", 0.2), ("[400, 400, 800, 800]", 0.9)],
    # unreadable (.1), and the target with as much below it: 1000 / 2000 (.8); IoU .5 is not above .5.
    [("nothing", 0.1), ("[0, 0, 1000, 200]", 0.8)],
]
