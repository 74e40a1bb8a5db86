"""g7: phone: what each template asks, its screens, the expert's calls, and the verdicts, for some seeds.

Screens are stored as words of the first and last one, and as digests of words and pictures of all. The number
of seeds stands in `settings.yaml`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from goldens.tree import HERE, Tree, digest, image_digest, read_yaml

PHONE = "selfverify.agents.phone"


def run(tree: Tree) -> None:
    """Let the expert work on every template."""
    seeds = read_yaml(HERE / "settings.yaml")["phone_seeds"]
    templates = sorted(tree.get(f"{PHONE}.templates:TEMPLATES"))
    for number, name in enumerate(templates):
        for seed in range(seeds):
            hostile, start = (seed + number) % 3 == 2, ("home", "app")[(seed + number) % 2]
            tree.row(f"{name} {seed}", **worked(tree, name, seed, start, hostile))
    for split in ("train", "validation", "test"):
        for held_out in ("seeds", "templates"):
            for text in ("xml", "terse"):
                problems(tree, split, {"held_out": held_out, "text": text})


def worked(tree: Tree, name: str, seed: int, start: str, hostile: bool) -> dict[str, Any]:
    """Return what the expert does and sees, and the verdicts after nothing and after all of it."""
    task = tree.get(f"{PHONE}.phone_tasks:make_task")(name, seed, start=start, hostile=hostile)
    calls = tree.get(f"{PHONE}.expert:carry_out")(task.phone(), [*task.solve, *task.prove])
    shown = {"show": "both", "first_screen": "given", "text": "xml" if seed % 2 else "terse"}
    options = tree.get(f"{PHONE}.phone_environment:PhoneOptions")(**tree.options("task", shown))
    environment = tree.get(f"{PHONE}.phone_environment:PhoneEnvironment")(options)

    async def session() -> tuple[list[Any], list[Any]]:
        seen = [await environment.reset({"task": task.record()}, seed)]
        states = [await environment.state()]
        for call in calls:
            seen.append(await tree.attr(environment, "act")(call))
        states.append(await environment.state())
        await environment.close()
        return seen, states

    seen, states = asyncio.run(session())
    verdicts = [task.goal.on_state(state["facts"], said) for state in states for said in ("", task.message)]
    return {
        "instruction": task.instruction,
        "record": digest(text(task.record())),
        "goal": task.goal.model_dump(mode="json"),
        "message": task.message,
        "length": [task.length, task.proving, task.hidden, task.exhibits],
        "calls": [[call.name, dict(call.arguments)] for call in calls],
        "first": seen[0].text,
        "last": seen[-1].text,
        "words": [digest(one.text.encode()) for one in seen],
        "errors": [one.error for one in seen],
        "facts": [digest(text(one.info)) for one in seen],
        "pictures": [image_digest(image) for one in seen for image in one.images],
        "states": [digest(text(state)) for state in states],
        "verdicts": verdicts,
    }


def text(value: Any) -> bytes:
    """Return plain JSON as bytes."""
    return json.dumps(value, default=str).encode()


def problems(tree: Tree, split: str, options: dict[str, Any]) -> None:
    """Store the first problems of the task with some options."""
    task = tree.get("selfverify.experiments.registry:make_task")("phone", **tree.options("task", options))
    for index in range(4):
        problem = task.problem(split, 0, index)
        tree.row(f"task {split} {' '.join(options.values())} {index}", problem=problem)
