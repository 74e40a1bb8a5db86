"""Learning from traces of looking again: Eq. 2-3 and 10 of VTS-V, what is learnt and what is only read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.experiments.looks.looks_files import write_looks

from killed_runs import rows
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Finish, valid_trajectories
from selfverify.experiments.registry import make_method, make_task
from selfverify.methods.base import Training
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.trainer.batch import TokenStreams, make_streams
from selfverify.trainer.trainer import Trainer

SAMPLING = SamplingConfig(group_size=1)


def streams_of(policy: Policy, method: Any, rollout: Rollout) -> list[TokenStreams]:
    found = []
    for prompt, group in zip(rollout.prompts, rollout.groups, strict=True):
        credits = method.credit(group, valid_trajectories(group, False))
        found.append(make_streams(prompt, group, credits))
        found[-1].prepare_images(policy.encoder)
    return found


def rolled(policy: Policy, task: Any, method: Any, count: int) -> tuple[Rollout, list[TokenStreams]]:
    """The first problems of the validation split, in the file's order."""
    problems = [task.problem("validation", 0, index) for index in range(count)]
    rollout = method.rollout(policy, task, problems, list(range(count)), SAMPLING)
    return rollout, streams_of(policy, method, rollout)


def pairs(folder: Path) -> Any:
    return make_task("pairs", validation=str(folder / "pairs.jsonl"), train=str(folder / "pairs.jsonl"))


def test_all_turns_behind_the_common_beginning_are_compared(policy: Policy, tmp_path: Path) -> None:
    """Plans, actions and answers of both sides; what tools show stands between them and is not learnt."""
    write_looks(tmp_path)
    rollout, [streams, _] = rolled(policy, pairs(tmp_path), make_method("dpo"), 2)
    chosen, rejected = rollout.groups[0].trajectories
    assert [s.channel for s in chosen.segments] == ["plan", "action", "observation", "answer"]
    assert [s.channel for s in rejected.segments] == ["plan", "action", "observation"] * 2 + ["answer"]
    # The prompt has the question, the common step and what it showed: two images.
    assert len(rollout.prompts[0].images) == 2
    for row, (told, sign) in enumerate(((chosen, 1.0), (rejected, -1.0))):
        own = torch.tensor([s.author == "policy" for s in told.segments for _ in s.tokens])
        length = len(own)
        assert bool((streams.trained_gr[row, :length] == own).all())
        assert bool((streams.advantage_gr[row, :length] == sign * own).all())
        assert bool((streams.kl_coef_gr[row, :length][own] == torch.tensor(0.1)).all())
        assert len(streams.pictures[row]) == sum(s.author == "environment" for s in told.segments)


def test_the_answers_alone_are_the_baseline(policy: Policy, tmp_path: Path) -> None:
    """Each side's last turn learns; its steps before are read."""
    write_looks(tmp_path)
    rollout, [streams, _] = rolled(policy, pairs(tmp_path), make_method("dpo", level="answer"), 2)
    for row, told in enumerate(rollout.groups[0].trajectories):
        *before, last = told.segments
        assert last.channel == "answer"
        assert {s.channel for s in before} == {"context", "observation"}
        own = streams.trained_gr[row].nonzero().flatten().tolist()
        start = len(told.tokens) - len(last.tokens)
        assert own == [*range(start, start + len(last.tokens))]


def test_a_side_that_is_too_long_takes_its_pair_out(policy: Policy, tmp_path: Path) -> None:
    """The pair has no weight, the other pairs learn."""
    write_looks(tmp_path)
    task, method = pairs(tmp_path), make_method("dpo")
    _, [first, _] = rolled(policy, task, method, 2)
    longest = len(first.prompt.ids) + max(len(row) for row in first.tokens)
    task.limits = task.limits.model_copy(update={"tokens": longest - 1})
    rollout, _ = rolled(policy, task, method, 2)
    assert [t.finish == Finish.ERROR for t in rollout.groups[0].trajectories] == [False, True]


def test_who_has_no_preferences_says_so(policy: Policy, tmp_path: Path) -> None:
    task = make_task("digits-far")
    problem = task.problem("train", 0, 0)
    with pytest.raises(ConfigError, match="task digits-far has no preferences"):
        make_method("dpo").rollout(policy, task, [problem], [0], SAMPLING)
    write_looks(tmp_path)
    lines = (tmp_path / "pairs.jsonl").read_text()
    (tmp_path / "pairs.jsonl").write_text(lines.replace("images/", "gone/", 1))
    [row] = [row for row in pairs(tmp_path).rows("validation") if row["id"].endswith("r0 > w0")]
    with pytest.raises(DataError, match=r"pairs\.jsonl, line 1: the image .* cannot be read"):
        row["prompt"][0]["content"][0]["image"].open(tries=1)


def test_training_on_pairs(load_policy: Any, tmp_path: Path) -> None:
    """Two steps with an adapter, whose reference is the model without it: the margin grows from 0."""
    pytest.importorskip("peft")
    write_looks(tmp_path)
    policy = load_policy(lora={"rank": 4})
    learner = TrainerConfig(
        steps=3, groups_per_step=2, optim={"learning_rate": 1e-2}, checkpoint={"every": 0}
    )
    Trainer(Training(policy, pairs(tmp_path), make_method("dpo"), learner, SAMPLING, tmp_path / "run")).run()
    lines = rows(tmp_path / "run")
    assert lines[0]["pairs/margin"] == pytest.approx(0, abs=1e-3)
    assert lines[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert lines[-1]["pairs/margin"] > 1e-2 and lines[-1]["loss"] < lines[0]["loss"]
    assert lines[0]["chosen/turns"] == 2 and lines[0]["rejected/turns"] == 3
