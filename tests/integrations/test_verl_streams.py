"""The streams for verl's rows are our own trainer's, and what verl cannot do is refused before it starts."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, Segment, Trajectory, valid_trajectories
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_method
from selfverify.integrations.verl.launch import verl_config
from selfverify.integrations.verl.streams import (
    ADVANTAGE,
    KL_COEF,
    WEIGHT,
    as_plain,
    as_trajectory,
    optimiser_batches,
    row_streams,
)
from selfverify.methods.base import Method
from selfverify.trainer.batch import batch_weights, make_streams


def answered(rng: random.Random, right: float, score: float) -> Trajectory:
    answer, behind = rng.randrange(3, 9), rng.randrange(2, 5)
    segments = [
        Segment("answer", [7] * answer, [-0.1] * answer),
        Segment("score", [8] * behind, [-0.2] * behind, finish=Finish.STOP),
    ]
    formats = {"answer_format": 1.0, "score_format": 1.0, "score_opened": 1.0}
    return Trajectory(segments, {"sampled": score}, {"answer": right, "correct": right, **formats})


def corrected(rng: random.Random, first: float, second: float) -> Trajectory:
    one, two = rng.randrange(3, 9), rng.randrange(2, 5)
    segments = [
        Segment("turn_1", [7] * one, [-0.1] * one, finish=Finish.STOP),
        Segment("observation", [9] * 3, [0.0] * 3, author="environment"),
        Segment("turn_2", [8] * two, [-0.2] * two, turn=1, finish=Finish.STOP),
    ]
    formats = {"answer_format": 1.0, "answer_format_1": 1.0}
    rewards = {"correct_1": first, "correct": second, "answer": second, **formats}
    return Trajectory(segments, {}, rewards)


def groups_of(name: str) -> tuple[Method, list[Group]]:
    """Four groups of four, of which the second teaches nothing and the third has lost a trajectory."""
    rng = random.Random(3)
    made = []
    for b in range(4):
        if name == "adpo":
            rows = [
                answered(rng, *((1.0, 0.5) if b == 1 else (float(g % 2), rng.randrange(10) / 10)))
                for g in range(4)
            ]
        else:
            rows = [corrected(rng, float(g < b), float(b != 1 and g % 2)) for g in range(4)]
        made.append(Group(Problem(f"p{b}", []), rows))
    made[2].trajectories[1].segments[-1].finish = Finish.ERROR
    made[2].trajectories[1].rewards.clear()
    options = {"kl": 0.2, "score_kl": 0.02, "verification_credit": "concordance"} if name == "adpo" else {}
    return make_method(name, **options), made


@pytest.mark.parametrize("name", ["adpo", "adapo"])
@pytest.mark.parametrize("denominator", ["sequence", "channel", "batch", "trajectory"])
def test_streams_are_those_of_our_trainer(name: str, denominator: Any) -> None:
    """Advantages, KL coefficients and final weights, over two optimiser batches, with JSON on the way."""
    method, groups = groups_of(name)
    rows = [json.loads(json.dumps(as_plain(t))) for group in groups for t in group.trajectories]
    uids = [group.problem.id for group in groups for _ in group.trajectories]
    lengths = [len(t.tokens) for group in groups for t in group.trajectories]
    mask = torch.zeros(18, max(lengths) + 2)
    flat = [t for group in groups for t in group.trajectories]
    for i, t in enumerate(flat):
        said = [s.author == "policy" for s in t.segments for _ in s.tokens]
        mask[i, : len(said)] = torch.tensor(said, dtype=torch.float32)
    batches = [[*range(8), 16], [*range(8, 16), 17]]
    padding: list[dict[str, Any] | None] = [None, None]
    streams, made = row_streams(method, [*rows, *padding], [*uids, "pad", "pad"], mask, batches, denominator)
    assert [len(group.trajectories) for group in made] == [4] * 4
    for first in (0, 2):
        own = []
        for b in (first, first + 1):
            credits = method.credit(groups[b], valid_trajectories(groups[b], False))
            if any(credit.acts for credit in credits):
                own.append((b, make_streams(None, groups[b], credits)))  # type: ignore[arg-type]
        assert [b for b, _ in own] == ([0] if name == "adpo" and first == 0 else [b for b, _ in own])
        weights = batch_weights([group for _, group in own], denominator)
        for (b, group), weight in zip(own, weights, strict=True):
            at, width = slice(4 * b, 4 * b + 4), group.width
            trained = group.trained_gr
            assert trained.any() and torch.equal(streams[WEIGHT][at, :width] != 0, trained & (weight != 0))
            for stream, value in (
                (ADVANTAGE, group.advantage_gr), (KL_COEF, group.kl_coef_gr), (WEIGHT, weight)
            ):  # fmt: skip
                torch.testing.assert_close(streams[stream][at, :width] * trained, value * trained)
        taught = {b for b, _ in own}
        for b in {first, first + 1} - taught:
            assert not streams[WEIGHT][4 * b : 4 * b + 4].any(), "a group that teaches nothing counts nowhere"
    assert not streams[WEIGHT][16:].any()


def test_a_trajectory_comes_back_but_for_its_tokens() -> None:
    _, groups = groups_of("adapo")
    for t in groups[2].trajectories:
        back = as_trajectory(json.loads(json.dumps(as_plain(t))))
        assert [(s.channel, s.author, s.turn, s.finish, len(s.tokens)) for s in back.segments] == [
            (s.channel, s.author, s.turn, s.finish, len(s.tokens)) for s in t.segments
        ]
        assert (back.scores, back.rewards, back.lost) == (t.scores, t.rewards, t.lost)


def test_rows_of_an_optimiser_step() -> None:
    """Two ranks with six rows each, four rows a step: each rank gives two."""
    assert optimiser_batches(12, 2, 4) == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    with pytest.raises(ValueError, match="do not divide"):
        optimiser_batches(12, 2, 5)


CREDIT = "method.verification_credit=concordance"
ENGINE = ["engine={name: verl, gpus_per_node: 2}", "policy.path=some/model"]


def test_the_configuration_of_a_recipe() -> None:
    recipe = load_recipe(
        "adpo-digits",
        [*ENGINE, CREDIT, "engine.options={trainer.nnodes: 3, data.seed: 7}", "learner.groups_per_step=8"],
    )
    made = verl_config(recipe)
    assert made["trainer"]["v1"]["trainer_mode"] == "selfverify" and made["trainer"]["nnodes"] == 3
    assert made["data"]["train_batch_size"] == 8 and made["data"]["seed"] == 7
    assert made["actor_rollout_ref"]["rollout"]["n"] == recipe.sampling.group_size
    assert made["algorithm"]["selfverify"]["method"]["name"] == "adpo"
    assert made["actor_rollout_ref"]["actor"]["use_kl_loss"] == (recipe.method.options.get("kl", 0) > 0)


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ("adpo-digits", ["method.verification_credit=expected"], "probabilities of all scores"),
        (
            "adpo-digits",
            [CREDIT, "learner.groups_per_step=9", "sampling.group_size=3"],
            "multiple of",
        ),
        ("adapo-math-sft", [], "learn by rewards"),
    ],
)
def test_what_verl_cannot_do_is_refused(recipe: str, changes: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        verl_config(load_recipe(recipe, [*ENGINE, *changes]))


def test_what_only_our_trainer_does_is_refused() -> None:
    words = ["train", "adpo-digits", "engine={name: verl}", CREDIT]
    for more in (["--resume"], ["--overwrite"]):
        shown = CliRunner().invoke(app, [*words, *more])
        assert shown.exit_code == 2 and "trainer.resume_mode" in " ".join(shown.output.split())
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 2 and "is not installed here" in " ".join(shown.output.split())
