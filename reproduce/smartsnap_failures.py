"""What goes wrong in a run's conversations on the phone, and whether their groups had anything to tell.

    selfverify train smartsnap-phone learner.checkpoint.rollout_log=all
    python -m reproduce.smartsnap failures runs/smartsnap-phone failures.json
    python -m reproduce.smartsnap chances chances.json before=builtin:phone after=runs/smartsnap-phone/model

A failed conversation is held against the expert's shortest way: its first call that differs is its slip. And
models are asked for their chance of each of the expert's calls, where everything before it is the expert's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reproduce.smartsnap_gains import FIRST, RECIPE, done
from selfverify.core.episode import Call
from selfverify.core.errors import ConfigError
from selfverify.core.jsonl_store import read_journal
from selfverify.experiments.recipe import load_recipe, recipe_task
from selfverify.methods.sft import ConversationSFT
from selfverify.policy.policy import Policy
from selfverify.rollouts.recording import RecordedGroup, RecordedTrajectory, RecordedValue
from selfverify.rollouts.script_sampler import encode_demonstration
from selfverify_phone.expert import carry_out
from selfverify_phone.phone_tasks import PhoneTask, make_task

SHOWN = 256
"""Tasks whose expert's calls are looked at, from the first that counts for gains."""
PARTS = 4
"""A run's steps fall into as many parts of equal length; the first and the last are compared."""


def failures(run: Path) -> dict[str, Any]:
    """Return, of the first and of the last quarter of a run's steps, what groups told and how they failed.

    Raises:
        ConfigError: The run has kept no rollouts.
    """
    files = sorted((run / "rollouts").glob("step-*.jsonl"))
    if len(files) < PARTS:
        raise ConfigError(f"{run}: no rollouts are kept; train with learner.checkpoint.rollout_log=all")
    recipe = load_recipe(run)
    task, size = recipe_task(recipe), len(files) // PARTS
    found = {}
    for name, part in (("first", files[:size]), ("last", files[-size:])):
        outcomes: list[list[bool]] = []
        slips: dict[str, Counter[str]] = {"mixed": Counter(), "none done": Counter()}
        for file in part:
            for row in read_journal(file, RecordedGroup, warn=False)[1].values():
                if row.skipped:
                    continue
                problem = task.problem("train", recipe.seed, int(row.problem.rpartition("/")[2]))
                if problem.digest() != row.digest:
                    raise ConfigError(f"{file}: problem {row.problem} is not what this version makes of it")
                begun = problem.target["reset"]
                made = make_task(begun["template"], problem.target["seed"], begun["start"])
                way = carry_out(made.phone(), made.solve, "ids")
                outcomes.append([bool(done(one.rewards)) for one in row.trajectories])
                kind = "mixed" if any(outcomes[-1]) else "none done"
                failed = [t for t, right in zip(row.trajectories, outcomes[-1], strict=True) if not right]
                slips[kind].update(first_slip(made, way, calls_of(one)) for one in failed)
        right = np.array(outcomes, dtype=np.float64)
        some, every = right.max(1), right.min(1)
        found[name] = {
            "groups": len(right),
            "done": float(right.mean()),
            "one of the group is done": float(some.mean()),
            "mixed": float((some - every).mean()),
            "slips": {kind: dict(counted.most_common()) for kind, counted in slips.items()},
        }
    return found


def calls_of(conversation: RecordedTrajectory) -> list[Call | None]:
    """The calls of a conversation in order; None for a message in which none could be read."""
    found: list[Call | None] = []
    for said in conversation.segments:
        if said.author == "policy":
            of = said.parsed.value if isinstance(said.parsed, RecordedValue) else None
            call = (of or {}).get("call")
            found.append(Call(call["name"], call["arguments"]) if call else None)
    return found


def first_slip(task: PhoneTask, way: Sequence[Call], calls: Sequence[Call | None]) -> str:
    """The first thing that an unsuccessful conversation does otherwise than the expert, in a few words.

    Args:
        task: What was to be done.
        way: The expert's calls to the goal.
        calls: The conversation's.
    """
    for place, wanted in enumerate(way):
        made = calls[place] if place < len(calls) else None
        if made is None:
            return "no call"
        if made.name == "submit":
            return "hands in early"
        if made.name != wanted.name:
            return "another kind of call"
        for name, value in wanted.arguments.items():
            if str(made.arguments.get(name)).strip() != str(value).strip():
                return f"{wanted.name} with another {name}"
    return "another answer" if task.goal.kind == "query" else "after the expert's way"


def chances(models: Mapping[str, str], shown: int = SHOWN) -> dict[str, Any]:
    """Return each model's chance of the expert's next call, and its logarithm: means over calls, by tool.

    The call that hands in is left out, since how it says what it hands in is a matter of taste.

    Args:
        models: The models' folders by name.
        shown: The number of tasks.
    """
    task, method, found = recipe_task(load_recipe(RECIPE)), ConversationSFT(), dict[str, Any]()
    for name, path in models.items():
        policy, logs = Policy.load(path), defaultdict[str, list[float]](list)
        for index in range(FIRST, FIRST + shown):
            problem = task.problem("validation", 0, index)
            turns = task.demonstrate_turns(problem, np.random.default_rng(index))
            told = encode_demonstration(policy, problem, partial(method.open, task, problem, index), turns)
            with torch.no_grad():
                values = policy.logprobs(policy.encode([problem]), [[told.tokens]])[0, 0].tolist()
            for segment in told.segments:
                own, values = values[: len(segment.tokens)], values[len(segment.tokens) :]
                if segment.author == "policy" and segment.parsed["call"]["name"] != "submit":
                    logs[segment.parsed["call"]["name"]].append(sum(own))
        logs["all"] = [one for of in logs.values() for one in of]
        found[name] = {
            tool: {"calls": len(of), "chance": float(np.exp(of).mean()), "log": float(np.mean(of))}
            for tool, of in logs.items()
        }
    return found
