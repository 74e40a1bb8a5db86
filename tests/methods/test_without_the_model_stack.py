"""Another trainer takes the methods' credits: no policy of ours, no transformers, and the same numbers.

The groups are written down here, and all numbers are worked out by hand. A second process, in which the model
stack cannot be imported, runs this file for its numbers.
"""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import selfverify.methods
from selfverify.core.problem import Problem
from selfverify.core.score_tokens import SCORE_TEXTS, ScoreReading, ScoreTree
from selfverify.core.trajectory import Credit, Finish, Group, Segment, Trajectory, valid_trajectories
from selfverify.methods.base import Method

PROGRAM = """
import json, runpy, sys

sys.modules |= dict.fromkeys(("transformers", "selfverify.policy"))  # what is None there cannot be imported
refused = []
for name in ("transformers", "selfverify.policy.policy", "selfverify.experiments.registry"):
    try:
        __import__(name)
    except ImportError as error:
        refused.append(error.name.removesuffix(".policy"))
print(json.dumps([refused, runpy.run_path(sys.argv[1])["all_numbers"]()]))
"""

Numbers = dict[str, dict[str, Any]]
Case = dict[str, Any]
CASES: dict[str, Case] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def methods() -> dict[str, type[Method]]:
    """All methods by name, from the modules themselves: the registry lists tasks, which need the policy."""
    found = {}
    for info in pkgutil.iter_modules(selfverify.methods.__path__, "selfverify.methods."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            own = isinstance(value, type) and value.__module__ == info.name
            if own and issubclass(value, Method) and "name" in vars(value):
                found[value.name] = value
    return found


def group_of(case: Case) -> Group:
    found = [answered(*row) for row in case.get("answered", [])]
    found += [turns(*row) for row in case.get("turns", [])] + [acted(**row) for row in case.get("acted", [])]
    return Group(Problem("p", []), found, case.get("step", 0))


def answered(
    quality: float,
    score: float | str | None,
    one: float | None = None,
    tags: bool = True,
    finish: str = "stop",
) -> Trajectory:
    """An answer of this quality, in its tags or not, and its score, whose characters are tokens; a text is
    malformed."""
    segments = [Segment("answer", [7, 8, 9])]
    if score is not None:
        written = [ord(character) for character in f"{score}</score>"]
        segments.append(Segment("score", written, parsed=None if one is None else read(one)))
    segments[-1].finish = Finish(finish)
    known = isinstance(score, float)
    rewards = {"answer": quality, "correct": float(quality > 0.5), "answer_format": float(tags)}
    rewards |= {"score_format": float(known), "score_opened": float(score is not None)}
    scores = {"sampled": score} if known else {}
    return Trajectory(segments, scores if one is None else scores | {"soft": read(one).soft}, rewards)


def read(one: float) -> ScoreReading:
    """The score is 1 with the probability ``one``, and else 0.0 for certain."""
    tree = ScoreTree()
    for text in SCORE_TEXTS:
        tree.add([ord(character) for character in text], float(text))
    tenths = {ord(str(digit)): float(digit == 0) for digit in range(10)}
    return ScoreReading(tree, {(): {ord("0"): 1 - one, ord("1"): one}, (ord("0"), ord(".")): tenths})


def turns(
    first: int, second: int, score: float | None = None, finish: str = "stop", tags: Sequence[float] = (1, 1)
) -> Trajectory:
    """An answer and its re-examination, in their tags or not, and maybe a score; 1 is right.

    ``finish`` is the end of the last one.
    """
    said = [Segment("turn_1", [5, 6]), Segment("observation", [7], author="environment", turn=1)]
    said.append(Segment("turn_2", [8, 9, 9], turn=1))
    said += [] if score is None else [Segment("score", [3, 2], turn=1)]
    said[-1].finish = Finish(finish)
    rewards = {"answer": float(second), "correct": float(second), "correct_1": float(first)}
    rewards |= {"answer_format_1": float(tags[0]), "answer_format": float(tags[1])}
    rewards |= {"score_format": 1.0, "score_opened": 1.0}
    return Trajectory(said, {} if score is None else {"sampled": score}, rewards)


def acted(channels: dict[str, Any], rewards: Any = (), finish: str = "stop") -> Trajectory:
    """A conversation with one segment for each channel, which has this author."""
    said = [Segment(channel, [7], author=author) for channel, author in channels.items()]
    said[-1].finish = Finish(finish)
    return Trajectory(said, rewards=dict(rewards))


def normalised(*rewards: float | None) -> list[float]:
    """(R - mean) / (unbiased std + 1e-4), spelled out; 0 for who takes no part."""
    known = [reward for reward in rewards if reward is not None]
    mean = sum(known) / len(known)
    std = math.sqrt(sum((r - mean) ** 2 for r in known) / (len(known) - 1))
    return [0.0 if r is None else (r - mean) / (std + 1e-4) for r in rewards]


def expected(case: Case) -> Numbers:
    """What each channel is to get, with a number for each trajectory."""
    found = {}
    for channel, given in case["learns"].items():
        values = {"kl": 0.0, "weight": 1.0, "valid": True, **given}
        if "normalised" in values:
            values["advantage"] = normalised(*values.pop("normalised"))
        size = len(values["advantage"])
        found[channel] = {k: v if isinstance(v, list) else [v] * size for k, v in values.items()}
    return found


def numbers_of(credit: Credit) -> dict[str, Any]:
    """A credit as lists of numbers, one per trajectory, and its choices as lists by name."""
    size = len(credit.advantage)

    def spread(value: Any) -> list[Any]:
        return torch.as_tensor(value).double().expand(size).tolist()

    found = {"advantage": credit.advantage.tolist(), "kl": spread(credit.kl_coef)}
    found |= {"weight": spread(credit.weight), "valid": (credit.valid > 0).tolist()}
    if credit.choices is not None:
        for name in ("rows", "places", "tokens", "probability", "advantage"):
            found[f"choices.{name}"] = getattr(credit.choices, name).flatten().tolist()
    return found


def numbers(case: Case) -> Numbers:
    """A case's credits by channel."""
    method = methods()[case["method"]]
    made = group_of(case)
    valid = valid_trajectories(made, case.get("drop_truncated", False))
    found = method(method.config_class(**case.get("options", {}))).credit(made, valid)
    assert len({credit.channel for credit in found}) == len(found)
    return {credit.channel: numbers_of(credit) for credit in found}


def all_numbers() -> dict[str, Numbers]:
    """What the other process is asked for."""
    return {name: numbers(case) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_credits_by_hand(name: str) -> None:
    wanted, found = expected(CASES[name]), numbers(CASES[name])
    assert {c: {*given} for c, given in found.items()} == {c: {*given} for c, given in wanted.items()}
    for channel, values in wanted.items():
        for what, value in values.items():
            assert found[channel][what] == pytest.approx(value, abs=1e-6), (channel, what)


def test_every_method_is_here() -> None:
    """Each method of the registry gives credits, so none is left out."""
    from selfverify.experiments.registry import METHODS

    assert methods() == METHODS and {case["method"] for case in CASES.values()} == {*METHODS}


def test_the_same_numbers_without_the_model_stack() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, __file__], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    refused, told = json.loads(done.stdout)
    # They really could not be imported there, nor could the registry, whose tasks need the policy.
    assert refused == ["transformers", "selfverify.policy", "selfverify.policy"]
    assert told == all_numbers()
