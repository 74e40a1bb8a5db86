"""What a rollout log holds of a group is all of it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from selfverify.core.errors import DataError
from selfverify.core.jsonl_store import read_journal, write_journal
from selfverify.core.problem import Problem
from selfverify.core.score_tokens import ScoreReading
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory
from selfverify.policy.policy import Policy
from selfverify.policy.scores import score_tree
from selfverify.rollouts.recording import RecordedGroup, play, record
from selfverify.tasks.answering import Verdict


def written_and_read(group: Group, policy: Policy, path: Path) -> Group:
    images: dict[str, Image.Image] = {}
    write_journal(path, RecordedGroup, {"step": 1}, [record(7, group, images)])
    settings, rows = read_journal(path, RecordedGroup)
    assert settings == {"step": 1} and list(rows) == [7]
    [made] = play([rows[7]], [group.problem], policy, images.__getitem__)
    return made


def reading(policy: Policy) -> ScoreReading:
    tree, rng = score_tree(policy.tokenizer), random.Random(1)
    return ScoreReading(tree, {p: {t: rng.random() for t in node.children} for p, node in tree.branchings()})


def test_everything_comes_back_bit_by_bit(load_policy: Any, tmp_path: Path) -> None:
    policy, rng = load_policy(), random.Random(0)
    picture = Image.frombytes("RGBA", (3, 2), rng.randbytes(24))
    verdict = Verdict(0.1 + 0.2, True, [1, "a", None], "k", "", 1 / 3, {"part": 1e-17}, "wrong sum", "reader")
    logprobs = [-rng.expovariate(1.0) * 10.0 ** rng.randint(-9, 3) for _ in range(500)]
    segments = [
        Segment("answer", [*range(500)], logprobs, "é\n\u2028", turn=0, finish=Finish.STOP, parsed=verdict),
        Segment("observation", [4], [0.0], "seen", "environment", 1, images=[picture, picture]),
        Segment("score", [5], [-0.0], "0.5", turn=1, finish=Finish.LENGTH, parsed=reading(policy)),
    ]
    segments[2].values = {"doubt": 1 / 3}
    whole = Trajectory(
        segments, {"sampled": 0.5, "soft": 1 / 7}, {"answer": 2 / 3}, {"own": [1, {"x": None}]}
    )
    lost = Trajectory([Segment("observation", [], author="environment", finish=Finish.ERROR)])
    group = Group(Problem("p/1", [], target="t"), [whole, lost])
    made = written_and_read(group, policy, tmp_path / "log.jsonl")
    assert made == group
    assert repr(made.trajectories[0].logprobs) == repr([*logprobs, 0.0, -0.0])
    score = made.trajectories[0].segments[2].parsed
    assert type(score) is ScoreReading and score.soft == reading(policy).soft
    assert list(score.probabilities) == list(reading(policy).probabilities)


def test_numbers_of_other_types_are_floats(load_policy: Any, tmp_path: Path) -> None:
    rewards: Any = {"answer": np.float32(0.5), "correct": True, "count": 3}
    judged = Verdict(1, np.bool_(True), quality=2, parts=rewards)  # type: ignore[arg-type]
    group = Group(Problem("p", []), [Trajectory([], rewards=rewards, parsed=judged)])
    [made] = written_and_read(group, load_policy(), tmp_path / "log.jsonl").trajectories
    assert made.rewards == {"answer": 0.5, "correct": 1.0, "count": 3.0}
    assert made.parsed == Verdict(1.0, True, quality=2.0, parts=made.rewards)
    assert {type(value) for value in made.rewards.values()} == {float}


def test_what_cannot_be_written_is_named(load_policy: Any, tmp_path: Path) -> None:
    group = Group(Problem("p/4", []), [Trajectory([], parsed={"number": float("nan")})])
    with pytest.raises(DataError, match=r"problem p/4: what its task has parsed cannot be logged"):
        record(0, group, {})
    group.trajectories[0].parsed = object()
    with pytest.raises(DataError, match="`Verdict` or JSON values"):
        record(0, group, {})


def test_another_problem_is_refused(load_policy: Any) -> None:
    row = record(0, Group(Problem("p", [], target=1), []), {})
    with pytest.raises(DataError, match=r"problem p is .* the data has changed"):
        play([row], [Problem("p", [], target=2)], load_policy(), {}.__getitem__)
