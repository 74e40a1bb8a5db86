"""g12: verdicts and vote keys of 2,000 answers, and what is read in 200 texts: tags and tool calls."""

from __future__ import annotations

import json
import random
from typing import Any

from goldens.tree import CASES, Tree

TARGETS, FORMS, PIECES, CLICKS = (CASES[name] for name in ("targets", "forms", "pieces", "clicks"))


def run(tree: Tree) -> None:
    """Judge answers of four tasks, and read texts."""
    rng, folder = random.Random(0), tree.scratch
    asked = [{"id": f"m{n}", "question": "?", "answer": target} for n, target in enumerate(TARGETS)]
    asked.append({"id": "choice", "question": "?", "options": ["cat", "dog", "7"], "answer": "B"})
    asked.append({"id": "whole", "question": "?", "answer": "7", "answer_type": "integer"})
    asked.append({"id": "rounded", "question": "?", "answer": "1.25", "answer_type": "float", "precision": 2})
    path = folder / "math.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in asked))
    math = tree.get("selfverify.experiments.registry:make_task")("math", test=str(path))
    for index in range(len(asked)):
        near = [rng.choice(FORMS).format(rng.choice(TARGETS)) for _ in range(48)]
        own = [form.format(asked[index]["answer"]) for form in FORMS]
        judge(tree, f"math {asked[index]['id']}", math, index, [*own, *near])
    digits(tree, rng)
    places(tree, rng)
    read(tree, rng)


def judge(tree: Tree, row: str, task: Any, index: int, texts: list[str]) -> None:
    """Store the verdicts on answers to a problem."""
    problem, tag = task.problem("test", 0, index), task.tags[-2]
    thought = "<think>.</think>" if tag == "answer" else ""
    parse = tree.get("selfverify.core.tags:parse_tagged")
    found = {}
    for number, text in enumerate(texts):
        tagged = parse(f"{thought}<{tag}>{text}</{tag}><score>0.5</score>", task.tags)
        found[f"{number} {text}"] = task.verdict(problem, tagged)
    tree.row(row, **found)


def digits(tree: Tree, rng: random.Random) -> None:
    """Judge answers of the tasks with digits."""
    for name in ("digits-pick", "digits-sum", "digits-shown", "digits-locate", "word-sums", "digits-far"):
        task = tree.get("selfverify.experiments.registry:make_task")(name)
        tree.attr(task, "use_space")(lambda size: (1000, 1000))
        for index in range(4):
            drawn = [
                " ".join(str(rng.randrange(10)) for _ in range(rng.choice((1, 2, 3, 4)))) for _ in range(10)
            ]
            boxes = [str([rng.randrange(500), rng.randrange(500), 400, 700]) for _ in range(4)]
            judge(tree, f"{name} {index}", task, index, [*drawn, *boxes, "", "7,8,9", "x"])


def places(tree: Tree, rng: random.Random) -> None:
    """Judge boxes and actions on phones."""
    rows = tree.get("tests.tasks.row_data")
    boxes = [[rng.randrange(1000) for _ in range(4)] for _ in range(30)] + [[200, 400, 600, 800]]
    judge(
        tree, "grounding", rows.grounding(), 0, [*map(str, boxes), "[1, 2]", "here", "[[200, 400, 600, 800]]"]
    )
    for number, wanted in enumerate(CLICKS[:-3]):
        task = rows.mobile(rows.mobile_row(action=wanted))
        calls = [{"name": "mobile_use", "arguments": call} for call in CLICKS]
        judge(tree, f"mobile {number}", task, 0, [f"\n{json.dumps(call)}\n" for call in calls])


def read(tree: Tree, rng: random.Random) -> None:
    """Read tags, and calls in texts that are put together at random."""
    said, finish = tree.get("selfverify.core.episode:Said"), tree.get("selfverify.core.trajectory:Finish")
    read_calls = tree.get("selfverify.tasks.tool_calls:read_calls")
    parse = tree.get("selfverify.core.tags:parse_tagged")
    whole = f"<tool_call>\n{PIECES[0]}\n</tool_call>"
    texts = [whole, f"I look.\n{whole}{whole}", PIECES[0], f"```json\n{PIECES[0]}\n```"]
    texts += ["".join(rng.choices([*PIECES, whole], k=rng.randint(1, 7))) for _ in range(196)]
    for number, text in enumerate(texts):
        calls = [read_calls(said(text, [], end, 0), [CASES["zoom"]]) for end in (finish.STOP, finish.LENGTH)]
        tree.row(f"text {number}", text=text, calls=calls, tags=parse(text))
