"""Killed or interrupted, runs end with the bits of one that was left alone; a long one keeps its memory."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from killed_runs import begin, finish_killed, rows, same_figures, same_weights, train
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import read_events
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import ANSWER
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.methods.base import Training
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import write_tiny
from selfverify.tasks.answering import SingleTurn
from selfverify.tasks.digits import DigitsSum, DigitsSumConfig
from selfverify.trainer.rollout_source import wants_log
from tables import yaml_cases
from updating import trainer_config

CHANCE = random.SystemRandom()
"""What no seed decides."""


class Moody(SingleTurn):
    """Replies after a while, up to three times, with words and images that are drawn anew every time.

    It may show something first, and may be over at once.
    """

    def reset(self) -> Observation | None:
        if not self.problem.environment_begins or CHANCE.random() < 0.2:
            return None
        image = Image.frombytes("L", (32, 32), CHANCE.randbytes(1024))
        parts = [{"type": "text", "text": str(CHANCE.randrange(1000))}, {"type": "image"}]
        return Observation(parts, [image], done=CHANCE.random() < 0.2)

    def step(self, said: PolicyTurn) -> Observation:
        time.sleep(CHANCE.uniform(0.0, 0.02))
        # Generators that others share are moved on, too.
        torch.rand(CHANCE.randrange(3))
        random.random()
        if CHANCE.random() < 0.05:
            raise OSError("the environment is gone")
        done = said.turn == 3 or CHANCE.random() < 0.4
        cuts = self._read(said, ANSWER, split=done)
        words = " ".join(str(CHANCE.randrange(10)) for _ in range(CHANCE.randrange(1, 6)))
        if CHANCE.random() < 0.5:
            image = Image.frombytes("L", (32, 32), CHANCE.randbytes(1024))
            return Observation(
                [{"type": "text", "text": words}, {"type": "image"}], [image], done=done, channels=cuts
            )
        return Observation(words, done=done, channels=cuts)

    def result(self) -> EpisodeResult:
        ending = super().result()
        ending.rewards["answer"] = CHANCE.random()
        if self._answers:
            ending.turns = [ending.parsed, *[{"turn": n} for n in range(1, len(self._answers))]]
        return ending


class Random(DigitsSum):
    """`digits-sum` with a moody environment."""

    name = "random-sum"
    limits = RolloutLimits(turns=4, step_threads=2, step_timeout_s=10.0)
    repeatable = False

    def problem(self, split: Any, seed: int, index: int) -> Problem:
        if index == 3:
            raise DataError("this problem is gone")
        return replace(super().problem(split, seed, index), environment_begins=index % 2 == 0)

    def open(self, problem: Problem, seed: int) -> Episode:
        return Moody(problem, self.tags, self.verdict)


def run(steps: int, output: Path, replay: Path | None = None, **changes: Any) -> None:
    settings: dict[str, Any] = {
        "steps": steps,
        "groups_per_step": 2,
        "batch__micro_batch_groups": 2,
        "optim__learning_rate": 1e-3,
        "checkpoint__every": 3,
        "loss__drop_zero_advantage": False,
        "checkpoint__rollout_log": "all",
    }
    learn(
        Policy.load("builtin:digits"),
        Random(DigitsSumConfig(count=2)),
        make_method("adpo", verification_credit="expected"),
        trainer_config(**settings | changes),
        SamplingConfig(group_size=3, max_new_tokens=20),
        output=output,
        seed=5,
        resume=True,
        on_step=lambda step, steps, metrics, timing: print("step", step, flush=True),
        replay=replay,
    ).save(output / "model")


def assert_same(one: Path, other: Path) -> None:
    assert same_weights(one, other) and same_figures(one, other)


def check(steps: int, kills: int, folder: Path) -> None:
    """Kill a run at random moments; then replay its log at one go, which has to end the same."""
    broken = folder / "broken"
    hit = finish_killed(run, steps, kills, broken, pause_s=0.6)
    assert hit >= kills - 1, "the run ended before it could be killed"
    resumed = [e for e in read_events(broken / "events.jsonl") if e["event"] in ("started", "resumed")]
    assert len(resumed) == kills + 1

    run(steps, folder / "whole", broken)
    assert_same(broken, folder / "whole")
    logged = rows(broken)
    assert len(logged) == steps and any(row["conversation/turns"] > 1 for row in logged)
    assert "time/reply_s" in (broken / "timing.jsonl").read_text()
    assert list((broken / "rollouts").glob("*/*.png"))


def test_killed_and_replayed_is_the_same(tmp_path: Path) -> None:
    check(4, 1, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_sixty_steps_and_ten_kills(tmp_path: Path) -> None:
    check(60, 10, tmp_path)


def test_steps_without_a_complete_log_are_sampled_anew(tmp_path: Path) -> None:
    """Damaged steps and all behind them; the rest is replayed. Old steps go with the checkpoints."""
    output = tmp_path / "run"
    run(4, output, checkpoint__rollout_log="recent", checkpoint__every=1, checkpoint__keep_last=2)
    log = output / "rollouts"
    assert sorted(p.name[:11] for p in log.glob("*.jsonl")) == ["step-000004"]
    run(6, output, checkpoint__rollout_log="recent", checkpoint__every=0)
    fifth, sixth = (log / f"step-00000{n}.process-0-of-1.jsonl" for n in (5, 6))
    # No checkpoint behind step 4 but the last one, which is lost.
    before = {path: path.read_bytes() for path in (fifth, sixth)}
    (output / "checkpoints" / "checkpoint-000006" / "state.json").unlink()
    run(6, output, checkpoint__rollout_log="recent", checkpoint__every=0)
    assert {path: path.read_bytes() for path in before} == before
    (output / "checkpoints" / "checkpoint-000006" / "state.json").unlink()
    fifth.write_bytes(before[fifth][:-20])
    run(6, output, checkpoint__rollout_log="recent", checkpoint__every=0)
    assert all(path.read_bytes() != content for path, content in before.items())
    events = [e["reason"] for e in read_events(output / "events.jsonl") if e["event"] == "rollout_log_unused"]
    assert len(events) == 1 and "step-000005" in events[0]


def test_a_log_of_other_settings_is_not_replayed(tmp_path: Path) -> None:
    run(2, tmp_path / "run", checkpoint__every=0)
    with pytest.raises(
        ConfigError, match=r"belongs to other settings: learner.optim.learning_rate was 0.001 and is"
    ):
        run(2, tmp_path / "other", tmp_path / "run", optim__learning_rate=1e-4)
    with pytest.raises(
        ConfigError, match=r"holds steps 1 to 2, and step 3 is to be replayed; .*rollout_log=all"
    ):
        run(3, tmp_path / "other", tmp_path / "run")
    with pytest.raises(ConfigError, match="holds no step of a rollout log"):
        run(3, tmp_path / "other", tmp_path)
    [image, *_] = (tmp_path / "run" / "rollouts").glob("*/*.png")
    image.write_bytes(b"no image")
    with pytest.raises(DataError, match=image.stem):
        run(2, tmp_path / "other", tmp_path / "run")
    before = sorted((tmp_path / "run" / "rollouts").iterdir())
    (first,) = (path for path in before if path.name == "step-000002.process-0-of-1.jsonl")
    first.rename(first.with_name("step-000002.process-0-of-2.jsonl"))
    with pytest.raises(ConfigError, match=r"holds steps 1 to 1, and step 2 is to be replayed"):
        run(2, tmp_path / "other", tmp_path / "run")
    first.with_name("step-000002.process-0-of-2.jsonl").rename(first)
    assert sorted((tmp_path / "run" / "rollouts").iterdir()) == before
    # Bookkeeping is no other setting, and a run without a log goes on from the settings it was given.
    image.unlink()
    run(3, tmp_path / "run", optim__learning_rate=1e-4, log__every=2)


def test_logging_changes_nothing(tmp_path: Path) -> None:
    """A method that draws from the global generators, on a task that can be repeated, with and without."""

    def train(folder: str, **changes: Any) -> Path:
        config = trainer_config(steps=2, groups_per_step=2, loss__drop_zero_advantage=False, **changes)
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
    assert_same(plain, train("logged", checkpoint__rollout_log="all"))
    assert_same(plain, train("again"))
    assert not (tmp_path / "again" / "rollouts").exists()


@yaml_cases
def test_who_logs_by_default(
    wanted: Any, repeatable: bool, limits: dict[str, Any], logged: bool, tmp_path: Path
) -> None:
    task = make_task("digits-sum")
    task.repeatable, task.limits = repeatable, RolloutLimits(turns=3, **limits)
    learner = trainer_config(checkpoint__rollout_log=wanted)
    policy: Any = None
    training = Training(policy, task, make_method("grpo"), learner, SamplingConfig(), tmp_path)
    assert wants_log(training) == logged


# --- Ctrl-C, and what an adapter drops ----------------------------------------------------------------------


def plain_run(steps: int, output: Path, model: Path, lora: AdapterConfig | None = None) -> None:
    config = TrainerConfig(
        steps=steps,
        groups_per_step=3,
        optim={"learning_rate": 1e-3, "schedule": "constant" if lora else "cosine", "warmup": 1},
        loss={"drop_zero_advantage": False},
        batch={"updates_per_rollout": 2, "micro_batch_groups": 2},
        checkpoint={"every": 3, "keep_last": 2},
    )
    # Random weights earn nothing, of which an adapter would learn nothing.
    method, sampling = make_method("sft" if lora else "adpo"), SamplingConfig(group_size=4, max_new_tokens=8)
    policy = Policy.load(str(model), lora=lora)
    train(policy, make_task("digits-pick"), method, config, sampling, output, resume=True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "start", seed=1, hidden=96, layers=2)


def test_interrupted_and_killed_at_random_moments(model: Path, tmp_path: Path) -> None:
    """Ctrl-C lets the step end and writes a checkpoint; SIGKILL comes between steps or inside them."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    plain_run(6, whole, model)
    process, said = begin(plain_run, 6, broken, model)
    next(line for line in said if line.startswith("step"))
    os.kill(process.pid, signal.SIGINT)
    said.read()
    process.join()
    assert process.exitcode != 0
    assert (broken / "checkpoints" / f"checkpoint-{len(rows(broken)):06d}").is_dir()
    hit = finish_killed(plain_run, 6, 2, broken, model, pause_s=0.15)
    assert hit, "the run always ended before it could be killed"
    assert same_weights(whole, broken) and same_figures(whole, broken)


def test_a_seed_decides_what_an_adapter_drops(model: Path, tmp_path: Path) -> None:
    """Not torch's generators, where they stand when a run begins or goes on."""
    whole, parts, lora = tmp_path / "whole", tmp_path / "parts", AdapterConfig(rank=2, dropout=0.3)
    plain_run(2, whole, model, lora)
    for steps in (1, 2):
        torch.manual_seed(steps)
        plain_run(steps, parts, model, lora)
    assert same_figures(whole, parts)
    one, other = (load_file(output / "model" / "adapter_model.safetensors") for output in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one | other)


# --- host memory stays flat over a long run -----------------------------------------------------------------


BOUND_MB = 10
"""Growth allowed over 400 steps, 25 KiB a step: less than the pixels of a step's two images (36 KiB), so that
anything that keeps its steps' tensors is over it."""


def resident_mb() -> float:
    """What is in use: garbage is collected and free memory given back first, which else comes and goes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measured_run(steps: int, output: Path) -> None:
    """Train on fresh images, and print the resident memory now and then."""

    def on_step(step: int, steps: int, metrics: dict[str, float], timing: dict[str, float]) -> None:
        if step % 50 == 0:
            print(step, f"{resident_mb():.1f}", flush=True)

    learn(
        # Fresh images fill both caches before step 100.
        Policy.load("builtin:digits", vision_cache_mb=1, pixel_cache_mb=1),
        make_task("digits-pick"),
        make_method("adpo", kl=0.01),
        TrainerConfig(
            steps=steps, groups_per_step=2, loss={"drop_zero_advantage": False}, checkpoint={"every": 50}
        ),
        SamplingConfig(group_size=4, max_new_tokens=40),
        output=output,
        on_step=on_step,
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and trims glibc's heap")
def test_memory_stays_flat_over_five_hundred_steps(tmp_path: Path) -> None:
    process, said = begin(measured_run, 500, tmp_path)
    printed = said.read()
    process.join()
    assert process.exitcode == 0, printed[-3000:]
    resident = {int(step): float(mb) for step, mb in re.findall(r"^(\d+) ([\d.]+)$", printed, re.MULTILINE)}
    print(resident)
    assert list(resident) == list(range(50, 501, 50))
    assert max(resident[step] for step in range(150, 501, 50)) - resident[100] < BOUND_MB
