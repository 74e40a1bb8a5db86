"""Answers that the rules cannot read: who reads them then, and what is not taken from an extractor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sampled_threads import drawn, sampled_threads
from selfverify.core.config import EvaluationConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.extraction import (
    PolicyExtractor,
    make_extractor,
    read_again,
    stands_in,
)
from selfverify.evaluation.samples import read_samples
from selfverify.policy.decoding import Sample as Drawn
from selfverify.policy.policy import Policy
from selfverify.rollouts.script_sampler import recite
from selfverify.tasks.base import UNREADABLE
from selfverify.tasks.math import Math

ROWS: list[dict[str, Any]] = [
    {"question": "How many?", "answer": "12"},
    {"question": "Which?", "options": ["red", "blue"], "answer": "B"},
]
TASK = Math(rows={"test": ROWS})
PROBLEMS = [TASK.problem("test", 0, 0), TASK.problem("test", 0, 1)]


@dataclass
class Scripted:
    """Says what it is told to, and remembers what it was shown."""

    answers: list[str | None]
    name: str = "script"
    seen: list[tuple[str, str]] = field(default_factory=list)

    def extract(self, problems: Sequence[Problem], responses: Sequence[str]) -> list[str | None]:
        self.seen += [(problem.id, text) for problem, text in zip(problems, responses, strict=True)]
        return self.answers[: len(problems)]


def groups(policy: Policy, texts: Sequence[Sequence[str]]) -> list[Group]:
    def said(problem: Problem, text: str) -> Trajectory:
        return recite(policy, problem, TASK.open(problem, 0), [drawn(policy, text, ends=False)])

    return [Group(p, [said(p, text) for text in row]) for p, row in zip(PROBLEMS, texts, strict=True)]


WELL = "<think>t</think><answer>12</answer><score>0.5</score>"


def test_rules_come_first_and_what_is_found_is_judged_by_them(policy: Policy) -> None:
    made = groups(policy, [[WELL, "So it must be 12 dots."], ["I take blue", "no idea, 7"]])
    extractor = Scripted(["12", "blue", "7"])
    read_again(TASK, made, extractor)
    # Never shown what the rules could read.
    assert [text for _, text in extractor.seen] == ["So it must be 12 dots.", "I take blue", "no idea, 7"]
    flat = [t for group in made for t in group.trajectories]
    assert [t.parsed.read_by for t in flat] == ["rules", "script", "script", "rules"]
    assert [t.parsed.answer for t in flat] == ["12", "12", "B", None]
    assert [t.rewards["correct"] for t in flat] == [1, 1, 1, 0]
    assert [t.rewards["answer_format"] for t in flat] == [1, 0, 0, 0]  # the format stays what it was
    assert flat[1].parsed.key == flat[0].parsed.key


def test_an_extractor_has_to_copy(policy: Policy) -> None:
    """One that solves the problem itself is not believed."""
    made = groups(policy, [["It is  A\nLarge number.", "I give up"], ["x", "y"]])
    read_again(TASK, made, Scripted(["a large NUMBER", "12", None, "B"]))
    assert [t.parsed.read_by for t in made[0].trajectories] == ["script", "rules"]
    assert made[0].trajectories[1].parsed is UNREADABLE
    assert all(t.parsed is UNREADABLE for t in made[1].trajectories)
    with pytest.raises(DataError, match="script read 1 answers in 4 responses"):
        read_again(TASK, groups(policy, [["a", "b"], ["c", "d"]]), Scripted(["a"]))


COPIED = [
    ("B", "I choose (B)."), ("b", "**b**"), ("5", "it is 5."), ("-5", "it is -5"), ("1.5", "x = 1.5, so"),
    (r"\frac{1}{2}", r"$x=\frac{1}{2}$"), ("new  York", "In New\nYork"), ("B", "答案是B。"),
    ('{"name": "x"}', 'call {"name": "x"} now'),
]  # fmt: skip
APART = [
    ("B", "Because it is blue"), ("A", "It is a square"), ("5", "it is 15"), ("5", "it is -5"),
    ("5", "it is 1.5"), ("1", "it is 1.5"), ("234", "it is 1,234"), ("york", "a yorkshire dog"),
    ("", "anything"), ("a" * 10, "a" * 100_000),
]  # fmt: skip


def test_a_copy_is_no_part_of_a_word_or_number() -> None:
    assert [pair for pair in COPIED if not stands_in(*pair)] == []
    assert [pair for pair in APART if stands_in(*pair)] == []


@pytest.mark.parametrize(("first", "right"), [("it is 3", 0), ("it is 12", 1)])
def test_both_of_two_turns_are_read(first: str, right: int) -> None:
    """Two equal ones are no correction, also where the rules can read neither of them."""
    segments = [
        Segment("turn_1", [1], text=first, parsed=UNREADABLE),
        Segment("observation", [1], text="Check it.", author="environment", turn=1),
        Segment("turn_2", [1], text="it is 12", turn=1, finish=Finish.STOP, parsed=UNREADABLE),
    ]
    rewards = {"correct": 0.0, "answer": 0.0, "correct_1": 0.0}
    trajectory = Trajectory(segments, rewards=rewards, parsed=UNREADABLE)
    extractor = Scripted([first.split()[-1], "12"])
    read_again(TASK, [Group(PROBLEMS[0], [trajectory])], extractor)
    assert {text for _, text in extractor.seen} == {first, "it is 12"}
    assert (trajectory.rewards["correct_1"], trajectory.rewards["correct"]) == (right, 1)
    # A first turn that was cut off is no second answer.
    cut = Segment("turn_1", [1], text="it is 12", finish=Finish.LENGTH, parsed=UNREADABLE)
    trajectory = Trajectory([cut], rewards=dict.fromkeys(rewards, 0.0), parsed=UNREADABLE)
    read_again(TASK, [Group(PROBLEMS[0], [trajectory])], Scripted(["12"]))
    assert (trajectory.rewards["correct_1"], trajectory.rewards["correct"]) == (1, 0)


def test_a_policy_is_asked_in_text_without_the_target(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def sample(prompts: Any, sampling: Any, seeds: Any = None) -> list[list[Drawn]]:
        assert (sampling.temperature, sampling.group_size) == (0, 1)
        asked.extend(policy.tokenizer.decode(prompt.ids) for prompt in prompts)
        said = ["<answer> blue</answer>", "<answer>none</answer>", "what?"]
        return [[drawn(policy, text)] for text in said]

    monkeypatch.setattr(policy, "sample", sample, raising=False)
    extractor = PolicyExtractor(policy, "tiny")
    texts = ["I think blue", "?", "what", "a picture: <|image_pad|>"]
    assert extractor.extract([PROBLEMS[1]] * 4, texts) == ["blue", None, None, None]
    assert len(asked) == 3 and "I think blue" in asked[0] and "B. blue" in asked[0]
    assert extractor.extract([], []) == []


def test_evaluations_store_who_read_what(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sample(prompts: Any, sampling: Any, seeds: Any = None) -> list[list[Drawn]]:
        rows = [[WELL, "12 it is"], ["blue", "?"]]
        return [[drawn(policy, text, ends=False) for text in row] for row in rows]

    monkeypatch.setattr(policy, "threads", sampled_threads(policy, sample))
    config, store = EvaluationConfig(problems=None, samples=2), tmp_path / "s.jsonl"
    found = evaluate(policy, TASK, config, store, extractor=Scripted(["12", "blue", "no"]))
    assert [s.read_by for s in read_samples(store)[1]] == ["rules", "script", "script", None]
    assert found["pass@1"] == 0.75 and found["format_rate"] == 0.25
    # Other readers are other settings.
    with pytest.raises(ConfigError, match="extractor was 'script' and is now None"):
        evaluate(policy, TASK, config, store)
    assert make_extractor("self", policy).name == "self"
    monkeypatch.undo()
    itself = config.model_copy(update={"extractor": "self"})
    assert evaluate(policy, TASK, itself, max_new_tokens=4)["samples"] == 4
