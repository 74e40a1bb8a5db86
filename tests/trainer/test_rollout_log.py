"""A killed run ends with the bits of one that was left alone, whatever its environment says."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from killed_runs import finish, rows, same_figures, same_weights, start
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import read_events
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.methods.base import Training
from selfverify.policy.policy import Policy
from selfverify.trainer.rollout_source import wants_log
from trainer import random_episodes

SCRIPT = Path(random_episodes.__file__)


def assert_same(one: Path, other: Path) -> None:
    assert same_weights(one, other) and same_figures(one, other)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """As in the program that is killed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check(steps: int, kills: int, folder: Path) -> None:
    """Kill a run at random moments; then replay its log at one go, which has to end the same."""
    rng, hit, broken, log = random.Random(kills), 0, folder / "broken", folder / "broken.log"
    for kill in range(kills):
        process = start(SCRIPT, steps, broken, log=log)
        assert process.stdout is not None
        last = rng.randint(steps * kill // kills + 1, max(steps * (kill + 1) // kills - 1, 1))
        for line in process.stdout:
            if line.startswith("step") and int(line.split()[1]) >= last:
                break
        time.sleep(rng.uniform(0.0, 0.6))
        process.kill()
        process.communicate()
        hit += process.returncode < 0
    finish(start(SCRIPT, steps, broken, log=log), 600, log)
    assert hit >= kills - 1, "the run ended before it could be killed"
    resumed = [e for e in read_events(broken / "events.jsonl") if e["event"] in ("started", "resumed")]
    assert len(resumed) == kills + 1

    random_episodes.run(steps, folder / "whole", broken)
    assert_same(broken, folder / "whole")
    logged = rows(broken)
    assert len(logged) == steps and any(row["conversation/turns"] > 1 for row in logged)
    assert "time/reply_s" in (broken / "timing.jsonl").read_text()
    assert list((broken / "rollouts").glob("*/*.png"))


def test_killed_and_replayed_is_the_same(tmp_path: Path) -> None:
    check(6, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sixty_steps_and_ten_kills(tmp_path: Path) -> None:
    check(60, 10, tmp_path)


def test_steps_without_a_complete_log_are_sampled_anew(tmp_path: Path) -> None:
    """Damaged steps and all behind them; the rest is replayed. Old steps go with the checkpoints."""
    run = tmp_path / "run"
    random_episodes.run(4, run, rollout_log="recent", checkpoint_every=1, keep_last=2)
    log = run / "rollouts"
    assert sorted(p.name[:11] for p in log.glob("*.jsonl")) == ["step-000004"]
    random_episodes.run(6, run, rollout_log="recent", checkpoint_every=0)
    fifth, sixth = (log / f"step-00000{n}.process-0-of-1.jsonl" for n in (5, 6))
    # No checkpoint behind step 4 but the last one, which is lost.
    before = {path: path.read_bytes() for path in (fifth, sixth)}
    (run / "checkpoints" / "checkpoint-000006" / "state.json").unlink()
    random_episodes.run(6, run, rollout_log="recent", checkpoint_every=0)
    assert {path: path.read_bytes() for path in before} == before
    (run / "checkpoints" / "checkpoint-000006" / "state.json").unlink()
    fifth.write_bytes(before[fifth][:-20])
    random_episodes.run(6, run, rollout_log="recent", checkpoint_every=0)
    assert all(path.read_bytes() != content for path, content in before.items())
    events = [e["reason"] for e in read_events(run / "events.jsonl") if e["event"] == "rollout_log_unused"]
    assert len(events) == 1 and "step-000005" in events[0]


def test_a_log_of_other_settings_is_not_replayed(tmp_path: Path) -> None:
    random_episodes.run(2, tmp_path / "run", checkpoint_every=0)
    with pytest.raises(
        ConfigError, match=r"belongs to other settings: learner.learning_rate was 0.001 and is"
    ):
        random_episodes.run(2, tmp_path / "other", tmp_path / "run", learning_rate=1e-4)
    with pytest.raises(
        ConfigError, match=r"holds steps 1 to 2, and step 3 is to be replayed; .*rollout_log=all"
    ):
        random_episodes.run(3, tmp_path / "other", tmp_path / "run")
    with pytest.raises(ConfigError, match="holds no step of a rollout log"):
        random_episodes.run(3, tmp_path / "other", tmp_path)
    [image, *_] = (tmp_path / "run" / "rollouts").glob("*/*.png")
    image.write_bytes(b"no image")
    with pytest.raises(DataError, match=image.stem):
        random_episodes.run(2, tmp_path / "other", tmp_path / "run")
    before = sorted((tmp_path / "run" / "rollouts").iterdir())
    (first,) = (path for path in before if path.name == "step-000002.process-0-of-1.jsonl")
    first.rename(first.with_name("step-000002.process-0-of-2.jsonl"))
    with pytest.raises(ConfigError, match=r"holds steps 1 to 1, and step 2 is to be replayed"):
        random_episodes.run(2, tmp_path / "other", tmp_path / "run")
    first.with_name("step-000002.process-0-of-2.jsonl").rename(first)
    assert sorted((tmp_path / "run" / "rollouts").iterdir()) == before
    # Bookkeeping is no other setting, and a run without a log goes on from the settings it was given.
    image.unlink()
    random_episodes.run(3, tmp_path / "run", learning_rate=1e-4, log_every=2)


def test_logging_changes_nothing(tmp_path: Path) -> None:
    """A method that draws from the global generators, on a task that can be repeated, with and without."""

    def train(folder: str, **changes: Any) -> Path:
        config = TrainerConfig(steps=2, groups_per_step=2, drop_zero_advantage=False, **changes)
        sampling = SamplingConfig(group_size=2, max_new_tokens=24)
        method = make_method("adapo-adpo")
        trained = learn(
            Policy.load("builtin:digits-check"), make_task("digits-sum"), method, config, sampling,
            output=tmp_path / folder, replay=tmp_path / "logged" if folder == "again" else None,
        )  # fmt: skip
        trained.save(tmp_path / folder / "model")
        return tmp_path / folder

    plain = train("plain")
    assert not (plain / "rollouts").exists()
    assert_same(plain, train("logged", rollout_log="all"))
    assert_same(plain, train("again"))
    assert not (tmp_path / "again" / "rollouts").exists()


@pytest.mark.parametrize(
    ("wanted", "repeatable", "limits", "logged"),
    [
        ("auto", True, {}, False),
        ("auto", False, {}, True),
        ("auto", True, {"step_threads": 1}, True),
        ("auto", True, {"rollout_timeout_s": 9.0}, True),
        ("never", False, {"step_threads": 1}, False),
        ("recent", True, {}, True),
    ],
)
def test_who_logs_by_default(
    wanted: Any, repeatable: bool, limits: dict[str, Any], logged: bool, tmp_path: Path
) -> None:
    task = make_task("digits-sum")
    task.repeatable, task.limits = repeatable, RolloutLimits(turns=3, **limits)
    learner = TrainerConfig(steps=1, rollout_log=wanted)
    policy: Any = None
    training = Training(policy, task, make_method("grpo"), learner, SamplingConfig(), tmp_path)
    assert wants_log(training) == logged
