"""Conversations in evaluations: `selfverify eval` holds them, the store keeps them message by message."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from commands import command
from selfverify.core.config import EvaluationConfig, RolloutLimits
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.data.images import read_image
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.samples import (
    StoredSample,
    StoredVerdict,
    read_samples,
)
from selfverify.experiments.registry import TASKS
from selfverify.policy.policy import Policy
from selfverify.reports.report import write_report
from selfverify.tasks.answering import answer_rewards
from selfverify.tasks.base import Task, Verdict
from tiny_models import boosted

LEFT, RIGHT = Image.new("RGB", (56, 56), "navy"), Image.new("RGB", (84, 56), "darkorange")


class Walk(Episode):
    """Shows two screens in turn, until the third turn."""

    def __init__(self) -> None:
        self.turns: list[Verdict] = []

    def step(self, said: PolicyTurn) -> Observation:
        said.values["doubt"] = said.turn / 4
        self.turns.append(Verdict(0.0, said.turn == 1, said.text, said.text))
        screen = RIGHT if said.turn % 2 else LEFT
        parts = [{"type": "text", "text": f"Screen {said.turn}:"}, {"type": "image"}]
        return Observation(parts, [screen], done=said.turn == 2)

    def result(self) -> EpisodeResult:
        judged = Verdict(1.0, True, "there", "there")
        return EpisodeResult(
            answer_rewards(Tagged(answer_ok=True), judged), parsed=judged, turns=[*self.turns]
        )


class Walks(Task):
    """Problems without an answer: what is stored of the conversations is what a test looks at."""

    name = "walks"
    summary = "test"
    limits = RolloutLimits(turns=4)

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        return self.posed(split, seed, index, f"Walk {index}.", None, LEFT)

    def judge(self, problem: Problem, tagged: Tagged) -> Verdict:
        return Verdict(0.0, False)

    def open(self, problem: Problem, seed: int) -> Episode:
        return Walk()


@pytest.fixture
def walker(load_policy: Callable[..., Policy]) -> Policy:
    """A policy whose turns end soon."""
    return boosted(load_policy(), 9.0)


CONFIG = EvaluationConfig(problems=3, samples=2, batch_problems=2)


def whole(samples: list[StoredSample]) -> list[StoredSample]:
    """Those that went through all turns."""
    return [sample for sample in samples if len(sample.steps) == 5]


def test_conversations_are_stored(walker: Policy, tmp_path: Path) -> None:
    """Texts, authors, values, verdicts, and each distinct image once, as a file."""
    store = tmp_path / "samples.jsonl"
    summary = evaluate(walker, Walks(), CONFIG, store, max_new_tokens=8)
    assert summary["pass@1"] == 1.0 and summary["problems"] == 3
    samples = read_samples(store)[1]
    turns = [sum(step.author == "policy" for step in sample.steps) for sample in samples]
    ended = [sample.finish for sample in samples]
    assert summary["conversations"] == pytest.approx(
        {"turns": sum(turns) / 6, "lost": 0.0, "retries": 0.0}
        | {kind: ended.count(kind) / 6 for kind in ("stop", "length", "error")}
    )
    low, high = summary["intervals"]["pass@1"]
    assert 0.1 < low < 0.2 and high == 1.0, "three of three"
    found = whole(samples)
    assert len(found) > 2
    for sample in found:
        assert [step.author for step in sample.steps] == ["policy", "environment"] * 2 + ["policy"]
        assert [step.turn for step in sample.steps] == [0, 1, 1, 2, 2]
        assert [step.values.get("doubt") for step in sample.steps] == [0.0, None, 0.25, None, 0.5]
        assert [step.finish for step in sample.steps] == ["stop", None, "stop", None, "stop"]
        first, shown, second, _, _ = sample.steps
        assert isinstance(first.verdict, StoredVerdict) and isinstance(second.verdict, StoredVerdict)
        assert (first.verdict.correct, second.verdict.correct) == (False, True)
        assert "Screen 0:" in shown.text and shown.text.count("<|image_pad|>") == 1
        assert sample.text == "".join(step.text for step in sample.steps)
    files = sorted((tmp_path / "images").iterdir())
    assert len(files) == 2 and {name for s in found for step in s.steps for name in step.images} == {
        file.name for file in files
    }
    assert {read_image(file).size for file in files} == {(56, 56), (84, 56)}


class Arrive(Walk):
    """Shows a screen of its own first; every third is there before the policy has spoken."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def reset(self) -> Observation | None:
        parts = [{"type": "text", "text": f"Start {self.number}:"}, {"type": "image"}]
        return Observation(parts, [LEFT if self.number % 2 else RIGHT], done=self.number % 3 == 0)


class Arrivals(Walks):
    """Walks that begin somewhere else in every sample."""

    opened = 0

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        return replace(super().problem(split, seed, index), environment_begins=True)

    def open(self, problem: Problem, seed: int) -> Episode:
        self.opened += 1
        return Arrive(self.opened)


def test_what_is_there_before_the_policy_speaks_is_stored(walker: Policy, tmp_path: Path) -> None:
    """The first screen is a message before the first turn; without a turn there is no message at all."""
    store = tmp_path / "samples.jsonl"
    summary = evaluate(walker, Arrivals(), CONFIG, store, max_new_tokens=8)
    samples = read_samples(store)[1]
    for number, sample in enumerate(samples, start=1):
        if number % 3 == 0:
            assert (sample.steps, sample.tokens, sample.text, sample.finish) == ([], 0, "", "stop")
            assert sample.correct and sample.logprob is None
            continue
        first, second = sample.steps[:2]
        assert (first.author, first.turn, first.finish) == ("environment", 0, None)
        assert (second.author, second.turn) == ("policy", 0)
        assert f"Start {number}:" in first.text and len(first.images) == 1
    own = [sum(step.author == "policy" for step in sample.steps) for sample in samples]
    assert own.count(0) == 2 and summary["conversations"]["turns"] == pytest.approx(sum(own) / 6)


def test_an_unfinished_store_is_continued(walker: Policy, tmp_path: Path) -> None:
    store, again = tmp_path / "samples.jsonl", tmp_path / "again.jsonl"
    expected = evaluate(walker, Walks(), CONFIG, store, max_new_tokens=8)
    again.write_bytes(b"".join(store.read_bytes().splitlines(keepends=True)[:2]) + b'{"index"')
    assert evaluate(walker, Walks(), CONFIG, again, max_new_tokens=8) == expected
    assert again.read_bytes() == store.read_bytes()


def test_single_answers_have_no_steps(policy: Policy, tmp_path: Path) -> None:
    """And stores that were written before there were any are read."""
    store = tmp_path / "samples.jsonl"
    evaluate(policy, TASKS["digits-pick"](), EvaluationConfig(problems=1, samples=2), store, max_new_tokens=4)
    assert all(sample.steps == [] for sample in read_samples(store)[1]) and not (tmp_path / "images").exists()
    header, *lines = store.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    for sample in rows[0]["samples"]:
        del sample["steps"]
    store.write_text("\n".join([header, *map(json.dumps, rows)]) + "\n")
    assert all(sample.steps == [] for sample in read_samples(store)[1])


def test_eval_and_report(walker: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command measures a task of conversations, and its page embeds each image once."""
    monkeypatch.setitem(TASKS, "walks", Walks)
    monkeypatch.setattr(Policy, "load", lambda path, **settings: walker)
    monkeypatch.setattr("selfverify.experiments.run.start_processes", lambda recipe: None)
    settings = ["task.name=walks", "evaluation.problems=3", "evaluation.samples=2"]
    settings += ["sampling.max_new_tokens=8"]
    command("eval", "adpo-digits", *settings, "--output", str(tmp_path / "run"))
    page = write_report([tmp_path / "run"], tmp_path / "page.html").read_text(encoding="utf-8")
    shown = whole(read_samples(tmp_path / "run" / "samples.jsonl")[1])
    assert shown and page.count('class="strip"') >= len(shown)
    assert page.count("<image ") == 2 and page.count("<use ") == 2 * len(shown) + 3
    next((tmp_path / "run" / "images").iterdir()).unlink()
    page = write_report([tmp_path / "run"], tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<use ") == len(shown) + 3 and page.count("is missing or unreadable") == len(shown)
