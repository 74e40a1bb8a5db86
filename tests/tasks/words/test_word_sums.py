"""Word problems: numbers and sentences that are their split's own, and demonstrations that add up."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from selfverify.core.problem import SPLITS, Problem, Split
from selfverify.core.tags import parse_tagged
from selfverify.tasks.word_sums import WORDS, WordSums, WordSumsConfig
from tables import yaml_cases

HARD = {"largest": 50, "operations": (1, 3), "asides": 0.5}
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
}


def problems(split: Split, count: int = 300, **options: Any) -> Iterator[tuple[WordSums, Problem]]:
    task = WordSums(WordSumsConfig(**options))
    for index in range(count):
        yield task, task.problem(split, 0, index)


def equations(text: str) -> list[tuple[int, str, int, int]]:
    found = re.findall(r"(\d+)([-+*])(\d+)=(\d+)", text)
    return [(int(a), operation, int(b), int(c)) for a, operation, b, c in found]


def judged(task: WordSums, problem: Problem, text: str) -> float:
    tagged = parse_tagged(f"{text}<score>0.5</score>", task.tags)
    return task.judge(problem, tagged).reward if tagged.answer_ok else 0.0


def test_splits_share_neither_numbers_nor_sentences() -> None:
    said = {split: {s for kind in WORDS["sentences"][split].values() for s in kind} for split in SPLITS}
    assert not any(said[a] & said[b] for a, b in combinations(SPLITS, 2))
    assert {split: len(sentences) for split, sentences in said.items()} == {
        "train": 23,
        "validation": 10,
        "test": 10,
    }
    sums = {
        split: {repr((p.meta["start"], p.meta["steps"])) for _, p in problems(split, **HARD)}
        for split in SPLITS
    }
    assert not any(sums[a] & sums[b] for a, b in combinations(SPLITS, 2))
    assert all(len(found) > 100 for found in sums.values())


def test_turned_around_a_sum_stays_in_its_split() -> None:
    for operation in "+*":
        found: dict[tuple[int, ...], set[Split]] = {}
        for split in SPLITS:
            for _, problem in problems(split, operations=(1, 1), products=float(operation == "*")):
                [(own, number)] = problem.meta["steps"]
                if own == operation:
                    found.setdefault(tuple(sorted((problem.meta["start"], number))), set()).add(split)
        assert len(found) > 10
        assert all(len(splits) == 1 for splits in found.values())


@pytest.mark.parametrize("split", SPLITS)
def test_the_story_says_all_numbers_and_nothing_else(split: Split) -> None:
    """With the smallest settings too, where few sums are left for a split."""
    for options in (HARD, {"largest": 9, "operations": (1, 1), "products": 0.0}):
        for task, problem in problems(split, 100, **options):
            meta = problem.meta
            own = [meta["start"], *(number for _, number in meta["steps"])]
            told = sorted([*own, *([meta["aside"]] if meta["aside"] else [])])
            assert sorted(map(int, re.findall(r"\d+", meta["question"]))) == told
            assert all(2 <= number <= task.config.largest for number in own)
            fewest, most = task.config.operations
            assert fewest <= len(meta["steps"]) <= most
            assert "{" not in meta["question"]
            assert problem.images == []
            assert problem.target >= 0


def test_right_demonstrations_are_right() -> None:
    for task, problem in problems("train", **HARD):
        shown = task.demonstrate(problem, np.random.default_rng(0), wrong=False)
        text = "".join(text for _, text in shown.pieces)
        assert judged(task, problem, text) == shown.quality == 1.0
        assert {channel for channel, _ in shown.pieces} == {"answer"}
        assert len(equations(text)) == len(problem.meta["steps"])


def test_wrong_demonstrations_are_wrong_and_what_they_teach_is_true() -> None:
    """Only context may hold a sum that does not add up; the answer is always the last result written."""
    rng, miscalculated, forgotten = np.random.default_rng(0), 0, 0
    for task, problem in problems("train", **HARD):
        shown = task.demonstrate(problem, rng, wrong=True)
        (context, slip), (answer, taught) = shown.pieces
        assert (context, answer) == ("context", "answer")
        text = slip + taught
        assert judged(task, problem, text) == shown.quality == 0.0
        written = equations(text)
        assert text.endswith(f"<answer>{written[-1][3]}</answer>")
        false = [e for e in written if ARITHMETIC[e[1]](e[0], e[2]) != e[3]]
        assert all("{}{}{}={}".format(*e) in slip for e in false)
        assert all(one[3] == two[0] for one, two in pairwise(written))
        miscalculated += bool(false)
        forgotten += len(written) < len(problem.meta["steps"])
    assert miscalculated > 30
    assert forgotten > 10


def rules(task: WordSums, problem: Problem, text: str) -> list[float]:
    return [*task.text_rules(problem, parse_tagged(f"{text}<score>0.5</score>", task.tags)).values()]


def test_rules_read_the_words_and_not_the_target() -> None:
    rng, seen = np.random.default_rng(0), set()
    for task, problem in problems("train", 150, **HARD):
        right = "".join(text for _, text in task.demonstrate(problem, rng, wrong=False).pieces)
        assert rules(task, problem, right) == [1.0, 1.0]
        wrong = "".join(text for _, text in task.demonstrate(problem, rng, wrong=True).pieces)
        adds_up = all(ARITHMETIC[o](a, b) == c for a, o, b, c in equations(wrong))
        passes, reads = rules(task, problem, wrong)
        assert passes == adds_up >= reads, "another number, or another operation, adds up as well"
        seen.add((passes, reads))
    assert seen == {(0.0, 0.0), (1.0, 0.0), (1.0, 1.0)}


@pytest.mark.parametrize(
    ("work", "answer", "passes"),
    [
        ("3+4=7; 7-2=5", "5", [1.0, 1.0]),
        ("3-2=1; 1+4=5", "5", [1.0, 1.0]),  # another way that uses the story's numbers
        ("3+4=7", "7", [1.0, 0.0]),  # forgets one
        ("3+4=7; 7-3=4", "4", [1.0, 0.0]),  # not a number of the story
        ("3+4=7; 7-2=5", "6", [0.0, 0.0]),
        ("3+4=8; 8-2=6", "6", [0.0, 0.0]),
        ("3+4=7; 8-2=6", "6", [0.0, 0.0]),  # goes on from nowhere
        ("3+4=7;7-2=5", "5", [0.0, 0.0]),
        ("", "5", [0.0, 0.0]),
    ],
)
def test_rules_by_hand(work: str, answer: str, passes: list[float]) -> None:
    meta = {"question": "Ann has 3 eggs. She gets 4 and gives 2 away. How many?"}
    problem = Problem("p/0", [], target=5, meta=meta)
    text = f"<think>{work}</think><answer>{answer}</answer>"
    assert rules(WordSums(WordSumsConfig()), problem, text) == passes


@yaml_cases
def test_malformed_answers_earn_nothing(text: str) -> None:
    [(task, problem)] = problems("validation", 1)
    assert judged(task, problem, f"<think></think><answer>{problem.target}</answer>") == 1.0
    assert judged(task, problem, text.format(problem.target)) == 0.0
