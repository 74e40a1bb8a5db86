"""A run records what prepares its images, and says when that changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfverify import Policy, make_method, make_task
from selfverify.core.config import SamplingConfig
from selfverify.core.events import read_events
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.run import learn


def run(policy: Policy, folder: Path, steps: int, resume: bool) -> list[dict[str, Any]]:
    config = TrainerConfig(steps=steps, groups_per_step=1)
    sampling = SamplingConfig(group_size=2, max_new_tokens=2)
    learn(
        policy, make_task("digits-pick"), make_method("grpo"), config, sampling, output=folder, resume=resume
    )
    return read_events(folder / "events.jsonl")


def test_a_change_of_what_prepares_images_is_told(
    load_policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [begun] = [e for e in run(load_policy(), tmp_path, 1, False) if e["event"] == "started"]
    assert begun["image_backend"] == "Qwen2VLImageProcessorPil"
    events = run(load_policy(), tmp_path, 2, True)
    assert "resumed" in {e["event"] for e in events}
    assert "image_backend_changed" not in {e["event"] for e in events}
    monkeypatch.setattr(Policy, "image_backend", "Qwen2VLImageProcessor")
    [told] = [e for e in run(load_policy(), tmp_path, 3, True) if e["event"] == "image_backend_changed"]
    assert (told["before"], told["now"]) == ("Qwen2VLImageProcessorPil", "Qwen2VLImageProcessor")
    assert "torchvision" in told["message"]
