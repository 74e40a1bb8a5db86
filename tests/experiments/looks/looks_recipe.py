"""A recipe of `digits-far` with a small fresh policy, and traces made by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from PIL import Image

from selfverify.experiments.recipe import Recipe
from selfverify.experiments.visual_data import image_keeper
from selfverify.visual.pairs import Balance, Pair, Pairing, problem_pairs
from selfverify.visual.traces import VisualTrace


def far_recipe(**more: Any) -> Recipe:
    """The recipe."""
    return Recipe.model_validate(
        {
            "name": "far",
            "policy": {"path": "builtin:digits"},
            "task": {"name": "digits-far"},
            "method": {"name": "conversations-sft"},
            "sampling": {"max_new_tokens": 12},
            "learner": {"steps": 1},
            **more,
        }
    )


def trace(
    folder: Path, name: str, *said: str, right: bool = True, problem: str = "p", **more: Any
) -> VisualTrace:
    """A trace in which every turn but the last is replied to with an image of its own."""
    keep = image_keeper(folder)
    words, image = {"type": "text", "text": f"What is {problem}?"}, keep(Image.new("L", (8, 8), 9))
    asked = [{"type": "image", "image": image}, words]
    messages: list[dict[str, Any]] = [{"role": "user", "content": asked}]
    for turn in said[:-1]:
        shade = sum(turn.encode()) % 251
        messages += [
            {"role": "assistant", "content": turn},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "2:"},
                    {"type": "image", "image": keep(Image.new("L", (8, 8), shade))},
                ],
            },
        ]
    messages.append({"role": "assistant", "content": said[-1]})
    cuts: list[list[list[Any]]] = [[["plan", 0], ["action", 1]] for _ in said[:-1]] + [[["answer", 0]]]
    rewards = {"correct": float(right), "answer_format": 1.0, "tool_calls": float(len(said) - 1)}
    return VisualTrace(name, problem, messages, cuts, rewards, **more)


def make_pairs(traces: Iterable[VisualTrace], how: Pairing) -> tuple[list[Pair], Counter[str]]:
    """The pairs that sets would have, and what was left out."""
    dropped = Counter[str]()
    by_problem = groupby(sorted(traces, key=lambda one: one.problem), key=lambda one: one.problem)
    pairs = [pair for _, few in by_problem for pair in problem_pairs([*few], how, dropped)]
    balance = Balance()
    for pair in pairs:
        balance.count(pair)
    kept = [pair for pair in pairs if not how.match_lengths or balance.keeps(pair, dropped)]
    return kept, +dropped
