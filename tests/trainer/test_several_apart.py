"""Several processes of which one has a bad gradient, a reply that hangs, or nothing to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from killed_runs import rows
from selfverify.core.events import read_events
from selfverify.core.jsonl_store import read_journal
from selfverify.rollouts.recording import RecordedGroup
from trainer.launched import assert_same, trained


@pytest.mark.parametrize(
    ("way", "channels", "told"),
    [
        ("ddp", "joint", ["all"] * 2),
        ("fsdp", "separate", ["answer", "score"] * 2),
    ],
)
def test_one_bad_process_keeps_all_from_an_update(
    way: str, channels: str, told: list[str], tmp_path: Path
) -> None:
    """In the second of three steps. All make none together, and the others go on to learn."""
    last = trained(tmp_path, way, "bad=1", "steps=3", f"channels={channels}")
    first, second, third = (
        load_file(tmp_path / f"checkpoints/checkpoint-{step:06d}/model/model.safetensors")
        for step in (1, 2, 3)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(second[name], third[name]) for name in first)
    assert all(bool(tensor.isfinite().all()) for tensor in last.values())
    events = [e for e in read_events(tmp_path / "events.jsonl") if e["event"] == "update_skipped"]
    assert [(e["step"], e["channel"], e.get("process", 0)) for e in events] == [(1, name, 0) for name in told]
    assert [row.get("updates/skipped", 0) for row in rows(tmp_path)] == [0, len(told), 0]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_masters_go_from_wrapper_to_wrapper(way: str, tmp_path: Path) -> None:
    """A checkpoint holds whole masters, which are the saved weights before rounding; one process goes on."""
    saved = trained(tmp_path, way, "low=1", "steps=1")
    state = json.loads((tmp_path / "checkpoints/checkpoint-000001/state.json").read_text())
    tensors = load_file(tmp_path / "checkpoints/checkpoint-000001/optimizer.safetensors")
    masters = {n: t for n, t in tensors.items() if n.startswith("optimizer.") and n.endswith(".master")}
    assert len(masters) == len(state["names"][0])
    for number, name in enumerate(state["names"][0]):
        master = masters[f"optimizer.state.{number}.master"]
        assert master.dtype == torch.float32
        # The saved file has the family's older names.
        assert torch.equal(master.bfloat16(), saved[name.replace("language_model.", "")])
        assert tensors[f"optimizer.state.{number}.exp_avg"].dtype == torch.float32
    assert any(bool((t.bfloat16().float() != t).any()) for t in masters.values())
    trained(tmp_path, "alone", "low=1", "resume=1")


@pytest.mark.parametrize("way", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_ragged_conversations_and_one_that_hangs(way: str, tmp_path: Path) -> None:
    """Processes whose conversations end at different rounds stay in step, and learn what one learns."""
    settings = ("talk=1", "groups=2", "updates=1")
    weights = trained(tmp_path / way, way, *settings)
    assert_same(weights, trained(tmp_path / "alone", "alone", *settings, f"replay={tmp_path / way}"))
    # What two processes have logged is what one learns from.
    [file] = (tmp_path / "alone" / "again" / "model").glob("*.safetensors")
    assert_same(weights, load_file(file))
    for folder in (way, "alone", "alone/again"):
        first, second = rows(tmp_path / folder)
        assert (first["trajectories/invalid"], second["trajectories/invalid"]) == (1, 0)
        assert first["conversation/error"] == pytest.approx(1 / 8, abs=1e-6)
        assert first["conversation/turns"] > 1
    log = tmp_path / way / "rollouts"
    files = [*log.glob("step-00000[12].process-[01]-of-2.jsonl")]
    assert len(files) == 4 and [*log.glob("*/*.png")]
    logged = [row for file in files for row in read_journal(file, RecordedGroup)[1].values()]
    first = [t.segments[0] for row in logged for t in row.trajectories]
    # Some are shown something first, and some are over before the policy speaks.
    shown = [s for s in first if s.author == "environment" and s.tokens]
    assert any(s.images for s in shown) and len(shown) < len(first)
    assert any(s.finish == "stop" and not s.tokens for s in first)
    events = read_events(tmp_path / way / "events.jsonl")
    [failed] = [event for event in events if event["event"] == "episode_failed"]
    assert failed["process"] == 1 and "took longer than 2.0 s" in failed["reason"]


@pytest.mark.slow
def test_idle_processes_and_adapters(tmp_path: Path) -> None:
    """One group for two processes: the second has nothing of its own in any pass."""
    settings = ("groups=1", "updates=1", "lora=1")
    weights = trained(tmp_path / "fsdp", "fsdp", *settings)
    assert all("lora_" in name for name in weights)
    assert weights.keys() == trained(tmp_path / "ddp", "ddp", *settings).keys()
