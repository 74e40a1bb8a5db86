"""g12: verdicts and vote keys of 2,000 answers, and what is read in 200 texts: tags and tool calls."""

from __future__ import annotations

import json
import random
from typing import Any

from goldens.tree import Tree

TARGETS = [
    "42", "-7", "0", "1/2", "50%", "3.14", "0.001", "1,234", r"\frac{3}{4}", r"\sqrt{2}", "2x+1", "x^2-1",
    r"\pi", "1.5e3", "30°", "5 cm", "1:2", "2:30", "(1, 2)", "[0, 1)", r"\{1,2,3\}", "Yes", "blue", "1, 2, 3",
    r"2\sqrt{3}", "10^6", "-0.5", "1½", "3 + 4i", r"\infty", "12:05 pm", "100",
]  # fmt: skip
FORMS = [
    "{}",
    " {}\n",
    r"\boxed{{{}}}",
    "${}$",
    "**{}**",
    "The answer is {}.",
    "{} or 43",
    "not {}",
    "x = {}",
]
PIECES = [
    '{"name": "zoom", "arguments": {"box": [1, 2]}}', '{"name": "back", "arguments": {}}', "<tool_call>\n",
    "\n</tool_call>", "<think>", "</think>", "I look. ", "<function=zoom>",
    "<parameter=box>\n[1, 2]\n</parameter>",
    "</function>", "```json\n", "\n```", '{"name": "zoom", "parameters": {"label": "7"}}', "[", "]", ", ",
    '{"name": "zoom", "arguments": "{\\"box\\": 1}"}', "<answer>", "5", "</answer>",
    "<score>", "0.7", "</score>",
    '{"action_name": "crop", "action": {"image_index": 1}}', "é", '{"name": 3}', "NaN",
]  # fmt: skip
TOOL = {"type": "function", "function": {"name": "zoom", "parameters": {"type": "object", "properties": {
    "box": {"type": "array"}, "label": {"type": "string"}}}}}  # fmt: skip
CLICKS = [
    {"action": "click", "coordinate": [500, 500]}, {"action": "click", "coordinate": [10, 900]},
    {"action": "long_press", "coordinate": [500, 500]}, {"action": "type", "text": "Alarm"},
    {"action": "swipe", "coordinate": [500, 800], "coordinate2": [500, 200]},
    {"action": "open", "text": "clock"},
    {"action": "system_button", "button": "Back"}, {"action": "wait"},
    {"action": "terminate", "status": "success"},
    {"action": "click"}, {"action": "fly"}, "nothing",
]  # fmt: skip


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
        calls = [read_calls(said(text, [], end, 0), [TOOL]) for end in (finish.STOP, finish.LENGTH)]
        tree.row(f"text {number}", text=text, calls=calls, tags=parse(text))
