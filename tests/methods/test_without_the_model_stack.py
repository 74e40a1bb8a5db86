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
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

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


def group(*trajectories: Trajectory, step: int = 0) -> Group:
    return Group(Problem("p", []), list(trajectories), step)


def answered(correct: float, score: float, reading: ScoreReading | None = None) -> Trajectory:
    """One well-formed answer with a score behind it, each of whose characters is a token."""
    written = [ord(character) for character in f"{score}</score>"]
    segments = [Segment("answer", [7, 8, 9]), Segment("score", written, finish=Finish.STOP, parsed=reading)]
    rewards = {"answer": correct, "correct": correct, "answer_format": 1.0}
    scores = {"sampled": score} | ({"soft": reading.soft} if reading else {})
    return Trajectory(segments, scores, rewards | {"score_format": 1.0, "score_opened": 1.0})


def reading(one: float) -> ScoreReading:
    """The score is 1 with the probability ``one``, and else 0.0 for certain."""
    tree = ScoreTree()
    for text in SCORE_TEXTS:
        tree.add([ord(character) for character in text], float(text))
    tenths = {ord(str(digit)): float(digit == 0) for digit in range(10)}
    return ScoreReading(tree, {(): {ord("0"): 1 - one, ord("1"): one}, (ord("0"), ord(".")): tenths})


def turns(first: int, second: int, score: float | None = None, finish: Finish = Finish.STOP) -> Trajectory:
    """An answer and its re-examination, and maybe a score; 1 is right, and ``finish`` ends the last one."""
    said = [Segment("turn_1", [5, 6]), Segment("observation", [7], author="environment", turn=1)]
    said.append(Segment("turn_2", [8, 9, 9], turn=1))
    said += [] if score is None else [Segment("score", [3, 2], turn=1)]
    said[-1].finish = finish
    rewards = {"answer": float(second), "correct": float(second), "correct_1": float(first)}
    formats = dict.fromkeys(("answer_format", "score_format", "score_opened"), 1.0)
    return Trajectory(said, {} if score is None else {"sampled": score}, rewards | formats)


def acted(rewards: dict[str, float], finish: Finish = Finish.STOP, **channels: str) -> Trajectory:
    """A conversation with one segment for each channel, which has this author."""
    said = [Segment(channel, [7], author=author) for channel, author in channels.items()]  # type: ignore[arg-type]
    said[-1].finish = finish
    return Trajectory(said, rewards=rewards)


def normalised(*rewards: float) -> list[float]:
    """(R - mean) / (unbiased std + 1e-4), spelled out."""
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (std + 1e-4) for r in rewards]


def learns(advantage: list[float], kl: Any = 0.0, weight: Any = 1.0, valid: Any = True) -> dict[str, Any]:
    """What a channel is expected to get; one number or bool stands for one per trajectory."""

    def spread(value: Any) -> list[Any]:
        return value if isinstance(value, list) else [value] * len(advantage)

    return {"advantage": advantage, "kl": spread(kl), "weight": spread(weight), "valid": spread(valid)}


class Case(NamedTuple):
    """A method's name, its options, its group, and each channel's credit."""

    method: str
    options: dict[str, Any]
    group: Callable[[], Group]
    expected: Numbers


CASES = {
    # Rewards: 1 and 0 and for the tags .1 each.
    "grpo": Case(
        "grpo",
        {},
        lambda: group(answered(1, 0.9), answered(0, 0.2), answered(0, 0.4)),
        dict.fromkeys(("answer", "score"), learns(normalised(1.1, 0.1, 0.1), kl=0.01)),
    ),
    # Right .9 and .4, wrong .2 and .5. The shares of the other class on the right side: 1, 1/2, 1 and 1/2.
    "adpo": Case(
        "adpo",
        {"score_kl": 0.03, "score_weight": 2.0},
        lambda: group(answered(1, 0.9), answered(1, 0.4), answered(0, 0.2), answered(0, 0.5)),
        {
            "answer": learns(normalised(1.1, 1.1, 0.1, 0.1), kl=0.01),
            "score": learns(normalised(1.0, 0.5, 1.0, 0.5), kl=0.03, weight=2.0),
        },
    ),
    # The right answer's score is 1 with 1/2 and the wrong one's with 1/4; else they are 0. A score is worth
    # four times half of: how likely the other's is on the right side, less how likely on the wrong one. That
    # is -.5, 1 and 1.5 for 0.0, the tenths and 1.0 of the right answer, and 1, 0 and -1 for the wrong one's.
    # So 0 against 1 is -.5 against 1.5 for the first token there, mean .5, and 1 against -1 here, mean .5.
    # Behind "0." the wrong answer's 0 is certain: worth 1, and each other digit 1 less.
    "adpo, expected": Case(
        "adpo",
        {"verification_credit": "expected", "kl": 0.0},
        lambda: group(answered(1, 1.0, reading(0.5)), answered(0, 0.0, reading(0.25))),
        {
            "answer": learns(normalised(1.1, 0.1)),
            "score": learns([0.0, 0.0])
            | {
                "choices.rows": [0, 1, 1],
                "choices.places": [3, 3, 5],
                "choices.tokens": [*b"01", *[0] * 8, *b"01", *[0] * 8, *b"0123456789"],
                "choices.probability": [0.5, 0.5, *[0] * 8, 0.75, 0.25, *[0] * 8, 1.0, *[0] * 9],
                "choices.advantage": [-1.0, 1.0, *[0] * 8, 0.5, -1.5, *[0] * 8, 0.0, *[-1.0] * 9],
            },
        },
    ),
    # P = 1/2 and theta = .6: 0->1 earns 1 - .1, 1->1 1 + .1, 1->0 -1 + .25 and 0->0 -1 - .25. The gap of the
    # first two, .2, times lambda = .01 is added to the second turn's KL coefficient of .001.
    "adapo": Case(
        "adapo",
        {},
        lambda: group(turns(0, 1), turns(1, 1), turns(1, 0), turns(0, 0)),
        {
            "turn_1": learns(normalised(0.9, 1.1, -0.75, -1.25), kl=0.001),
            "turn_2": learns(normalised(0.9, 1.1, -0.75, -1.25), kl=0.003),
        },
    ),
    # Both of the above: right second answers score .9 and .4, wrong ones .2 and .5.
    "adapo-adpo": Case(
        "adapo-adpo",
        {},
        lambda: group(turns(0, 1, 0.9), turns(1, 1, 0.4), turns(1, 0, 0.2), turns(0, 0, 0.5)),
        {
            "turn_1": learns(normalised(0.9, 1.1, -0.75, -1.25), kl=0.001),
            "turn_2": learns(normalised(0.9, 1.1, -0.75, -1.25), kl=0.003),
            "score": learns(normalised(1.0, 0.5, 1.0, 0.5), kl=0.001),
        },
    ),
    # Stage I: both turns earn the second reward. Stage II: r1, and r2 + 10 (r2 - r1) = 11, 1, -10, 0.
    "score, stage I": Case(
        "score",
        {},
        lambda: group(turns(0, 1), turns(1, 1), turns(1, 0), turns(0, 0)),
        {"turn_1": learns([0.5, 0.5, -0.5, -0.5], kl=0.1), "turn_2": learns([0.5, 0.5, -0.5, -0.5], kl=0.01)},
    ),
    "score, stage II": Case(
        "score",
        {},
        lambda: group(turns(0, 1), turns(1, 1), turns(1, 0), turns(0, 0), step=50),
        {
            "turn_1": learns([-0.5, 0.5, 0.5, -0.5], kl=0.01),
            "turn_2": learns([10.5, 0.5, -10.5, -0.5], kl=0.01),
        },
    ),
    # The third conversation was lost, and takes no part.
    "smartsnap": Case(
        "smartsnap",
        {},
        lambda: group(
            acted({"answer": 1.5}, action="policy"),
            acted({"answer": 0.5}, action="policy"),
            acted({}, Finish.ERROR, action="policy"),
        ),
        {"action": learns([*normalised(1.5, 0.5), 0.0], valid=[True, True, False])},
    ),
    "self-imitation": Case(
        "self-imitation",
        {},
        lambda: group(
            acted({"judged_success": 1.0}, action="policy"), acted({"judged_success": 0.0}, action="policy")
        ),
        {"action": learns([1.0, 0.0], valid=[True, False])},
    ),
    # Two and four turns. What the environment said is taught at half weight; the context is not.
    "conversations-sft": Case(
        "conversations-sft",
        {"share_turns": True, "observed": 0.5},
        lambda: group(
            acted({"turns": 2.0}, context="policy", observed="policy", action="policy"),
            acted({"turns": 4.0}, observation="environment", action="policy"),
        ),
        {
            "observed": learns([1.0, 1.0], weight=[0.25, 0.125]),
            "action": learns([1.0, 1.0], weight=[0.5, 0.25]),
        },
    ),
    "sft": Case(
        "sft",
        {"score_weight": 3.0},
        lambda: group(acted({}, context="policy", answer="policy", score="policy")),
        {"answer": learns([1.0]), "score": learns([1.0], weight=3.0)},
    ),
    # 0->1 is learnt, and 1->1, but no wrong end; the fourth is a demonstration that is rehearsed.
    "turns-sft": Case(
        "turns-sft",
        {"rehearsal": {}},
        lambda: group(
            turns(0, 1), turns(1, 1), turns(1, 0), acted({"quality": 1.0}, answer="policy", score="policy")
        ),
        {
            "turn_2": learns([1.0, 1.0, 0.0, 0.0], valid=[True, True, False, False]),
            "answer": learns([1.0] * 4),
            "score": learns([1.0] * 4),
        },
    ),
    # Corrected in the second turn, and in the third.
    "star": Case(
        "star",
        {},
        lambda: group(
            acted({}, turn_1="policy", observation="environment", turn_2="policy"),
            acted({}, turn_1="policy", turn_2="policy", turn_3="policy"),
        ),
        {
            "turn_2": learns([1.0, 1.0], valid=[True, False]),
            "turn_3": learns([1.0, 1.0], valid=[False, True]),
        },
    ),
    "dpo": Case(
        "dpo",
        {"eta": 0.2},
        lambda: group(
            acted({}, context="policy", action="policy", observation="environment", answer="policy"),
            acted({}, context="policy", answer="policy"),
        ),
        {"action": learns([1.0, -1.0], kl=0.2), "answer": learns([1.0, -1.0], kl=0.2)},
    ),
}


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
    method = methods()[case.method]
    made = case.group()
    found = method(method.config_class(**case.options)).credit(made, valid_trajectories(made, False))
    assert len({credit.channel for credit in found}) == len(found)
    return {credit.channel: numbers_of(credit) for credit in found}


def all_numbers() -> dict[str, Numbers]:
    """What the other process is asked for."""
    return {name: numbers(case) for name, case in CASES.items()}


@pytest.mark.parametrize("name", CASES)
def test_credits_by_hand(name: str) -> None:
    expected, found = CASES[name].expected, numbers(CASES[name])
    assert {c: [*values] for c, values in found.items()} == {c: [*v] for c, v in expected.items()}
    for channel, values in expected.items():
        for what, value in values.items():
            assert found[channel][what] == pytest.approx(value, abs=1e-6), (channel, what)


def test_every_method_is_here() -> None:
    """Each method of the registry gives credits, so none is left out."""
    from selfverify.experiments.registry import METHODS

    assert methods() == METHODS and {case.method for case in CASES.values()} == {*METHODS}


def test_the_same_numbers_without_the_model_stack() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, __file__], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    refused, told = json.loads(done.stdout)
    # They really could not be imported there, nor could the registry, whose tasks need the policy.
    assert refused == ["transformers", "selfverify.policy", "selfverify.policy"]
    assert told == all_numbers()
