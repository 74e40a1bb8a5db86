"""What a run tells when it goes on with other settings, when it is over, and where its metrics cannot go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfverify.core import ranks
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, SelfVerifyError
from selfverify.core.events import read_events, story
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.registry import make_method, make_task
from selfverify.experiments.run import learn
from selfverify.methods.base import Training
from selfverify.policy.policy import Policy
from selfverify.trainer.rollout_source import RolloutSource
from selfverify.trainer.trainer import check_processes
from updating import trainer_config


def run(
    folder: Path, tmp_path: Path, sampling: SamplingConfig | None = None, **changes: Any
) -> list[dict[str, Any]]:
    """Train, or go on, and return the run's events so far."""
    settings = {"steps": 1, "groups_per_step": 1, "optim__learning_rate": 1e-3} | changes
    learn(
        Policy.load(str(folder)), make_task("digits-pick"), make_method("sft"), trainer_config(**settings),
        sampling, output=tmp_path, resume=(tmp_path / "checkpoints").exists(),
    )  # fmt: skip
    return read_events(tmp_path / "events.jsonl")


def test_what_has_changed_is_told_once(
    tiny_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings, and what prepares images."""
    [begun] = [event for event in run(tiny_folder, tmp_path) if event["event"] == "started"]
    assert begun["image_backend"] == "Qwen2VLImageProcessorPil"
    same = {
        "steps": 2,
        "checkpoint__every": 1,
        "checkpoint__keep_last": 9,
        "log__every": 2,
        "time_limit_s": 1e9,
    }
    told = {event["event"] for event in run(tiny_folder, tmp_path, **same)}
    assert not told & {"settings_changed", "image_backend_changed"}
    monkeypatch.setattr(Policy, "image_backend", "Qwen2VLImageProcessor")
    changed = {"steps": 3, "optim__learning_rate": 5e-4, "optim__betas": (0.9, 0.95)}
    events = run(tiny_folder, tmp_path, SamplingConfig(temperature=0.5), **changed)
    [settings] = [event for event in events if event["event"] == "settings_changed"]
    assert settings["changed"] == [
        "learner.optim.betas was [0.9, 0.99] and is now [0.9, 0.95]",
        "learner.optim.learning_rate was 0.001 and is now 0.0005",
        "sampling.temperature was 1.0 and is now 0.5",
    ]
    assert settings["step"] == 2 and "learner.optim.learning_rate was 0.001 and is now 0.0005" in caplog.text
    assert any("is now 0.0005" in line for line in story(events))
    [backend] = [event for event in events if event["event"] == "image_backend_changed"]
    assert (backend["before"], backend["now"]) == ("Qwen2VLImageProcessorPil", "Qwen2VLImageProcessor")
    assert "torchvision" in backend["message"]
    again = run(tiny_folder, tmp_path, SamplingConfig(temperature=0.5), **changed | {"steps": 4})
    assert [event["event"] for event in again].count("settings_changed") == 1


def test_a_run_with_more_steps_than_are_asked_for_is_finished(tiny_folder: Path, tmp_path: Path) -> None:
    run(tiny_folder, tmp_path, steps=2)
    assert [e["event"] for e in run(tiny_folder, tmp_path, steps=1)][-2:] == ["resumed", "finished"]
    assert run(tiny_folder, tmp_path, steps=4, time_limit_s=1e-9)[-1]["event"] == "time_limit"


def test_trackers_that_would_be_left_out_are_refused(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[str] = []
    monkeypatch.setattr("selfverify.trainer.parallel.get_available_trackers", lambda: installed)
    with pytest.raises(ConfigError, match=r"learner\.log\.trackers: there is no tracker 'wandbb'.*wandb"):
        run(tiny_folder, tmp_path, log__trackers=["wandbb"])
    for name in ("wandb", "all"):
        with pytest.raises(ConfigError, match=rf"learner\.log\.trackers: .*{name}.* installed"):
            run(tiny_folder, tmp_path, log__trackers=[name])


def test_processes_that_disagree_are_stopped(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainerConfig(steps=1)
    training = Training(
        policy, make_task("digits-pick"), make_method("sft"), config, SamplingConfig(), tmp_path
    )
    source = RolloutSource(training)
    monkeypatch.setattr(ranks, "count", lambda: 2)
    monkeypatch.setattr(ranks, "gather", lambda own: [own, own | {"seed": 4}])
    with pytest.raises(SelfVerifyError, match=r"process 1 has another seed \(4\) than process 0 \(0\)"):
        check_processes(training, source, 0)
