"""g5: the requests that evaluations send to the fake server of the tests, and the rows that come of them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from goldens.g2_samples import store_evaluation
from goldens.tree import Tree

Body = dict[str, Any]
STEP = json.dumps(
    {"thought": "Closer.", "action_name": "crop",
     "action": {"image_index": 1, "bounding_box": [0, 0, 500, 500]}}
)  # fmt: skip
CALL = '<tool_call>\n{"name": "tap", "arguments": {"id": "ALARM"}}\n</tool_call>'
SUBMIT = '<tool_call>\n{"name": "submit", "arguments": {"message": "Done.", "evidence": [1]}}\n</tool_call>'


def answers(body: Body, number: int) -> str:
    """Answer by what was asked and the seed, so that candidates differ."""
    drawn = hashlib.sha256(json.dumps(body, sort_keys=True).encode() + bytes([number])).digest()
    digits = " ".join(str(value % 10) for value in drawn[:3])
    return f"<think>{digits}</think><answer>{digits}</answer><score>0.{drawn[3] % 10}</score>"


def looks(body: Body, number: int) -> str:
    """Look once, then answer."""
    turns = sum(message["role"] == "assistant" for message in body["messages"])
    return STEP if turns < 1 else answers(body, number)


def acts(body: Body, number: int) -> str:
    """Tap, then hand in."""
    turns = sum(message["role"] == "assistant" for message in body["messages"])
    return CALL if turns < 2 else SUBMIT


EVALUATIONS: dict[str, tuple[Any, list[str]]] = {
    "digits": (answers, ["adpo-digits", "evaluation.samples=4"]),
    "digits two turns": (
        answers, ["adapo-digits", "evaluation.samples=2", "evaluation.second_turn=Check the answer."]
    ),
    "far": (looks, ["grpo-digits-far", "evaluation.samples=2"]),
    "phone": (acts, ["smartsnap-phone", "evaluation.samples=2", "task.react=true", "task.calls=tagged"]),
}  # fmt: skip


def run(tree: Tree) -> None:
    """Evaluate the fake server, one request after another."""
    servers = tree.get("serving_servers")
    for name, (write, (recipe, *words)) in EVALUATIONS.items():
        loop, fake = servers.Loop(), servers.FakeUpstream(write=write)
        folder = tree.scratch / name.replace(" ", "-")
        settings = ["evaluation.problems=3", "policy.server.at_once=1", *words]
        try:
            url = loop.upstream(fake)
            tree.inline("eval", f"{url}#m", "--recipe", recipe, *settings, "--output", str(folder))
        finally:
            loop.close()
        bodies = sorted(json.dumps(body, sort_keys=True) for body in fake.seen)
        for number, body in enumerate(bodies):
            tree.row(f"{name} request {number}", body=json.loads(body))
        tree.row(f"{name} requests", count=len(bodies), keys=sorted(set(map(str, fake.keys))))
        store_evaluation(tree, name, folder)
