"""Checkpoints: exact round trips, all that a disk or a kill can interrupt, and weights into a live model."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from selfverify.core.errors import CheckpointError
from selfverify.trainer import checkpoint
from selfverify.trainer.checkpoint import (
    MODEL_FOLDER,
    CheckpointManager,
    best_checkpoint,
    latest_checkpoint,
    restore_rng,
)
from selfverify.trainer.state import load_matching, pack, unpack
from tables import read_tables


class Training:
    """A small model with everything that a checkpoint holds."""

    def __init__(self, width: int = 6, named: bool = True) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
        parameters: Any = self.model.named_parameters() if named else self.model.parameters()
        self.optimizer = torch.optim.AdamW(parameters, lr=3e-3, betas=(0.9, 0.99))
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda n: 1 / (1 + 0.1 * n))

    def step(self) -> float:
        loss = self.model(torch.randn(8, 4) + random.random() + np.random.rand()).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step()
        return loss.item()

    def write_model(self, folder: Path) -> None:
        save_file(self.model.state_dict(), folder / "model.safetensors")

    def save(self, manager: CheckpointManager, step: int, best: float | None = None) -> Path:
        progress = {"step": step, "nested": {"a": [1, None]}}
        return manager.save(step, self.write_model, self.optimizer, self.scheduler, progress, best)

    def load(self, manager: CheckpointManager, path: Path) -> dict[str, Any]:
        self.model.load_state_dict(load_file(path / MODEL_FOLDER / "model.safetensors"))
        progress = manager.load(path, self.optimizer, self.scheduler)
        restore_rng(path)
        return progress


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def assert_equal_state(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal_state(one[key], other[key])
    else:
        assert type(one) is type(other)
        assert one == other


@pytest.mark.parametrize("named", [True, False])
def test_a_resumed_run_is_bit_identical_to_an_unbroken_one(tmp_path: Path, named: bool) -> None:
    manager = CheckpointManager(tmp_path, keep_last=2)
    unbroken = Training(named=named)
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    np.random.standard_normal()  # leaves half a pair inside NumPy's generator
    for _ in range(5):
        unbroken.step()
    path = unbroken.save(manager, 5)
    saved = unbroken.optimizer.state_dict(), unbroken.scheduler.state_dict()
    saved = unpack(*packed(saved))
    losses = [unbroken.step() for _ in range(5)]
    normal = np.random.standard_normal()

    resumed = Training(named=named)
    assert resumed.load(manager, path) == {"step": 5, "nested": {"a": [1, None]}}
    assert_equal_state(resumed.optimizer.state_dict(), saved[0])
    assert_equal_state(resumed.scheduler.state_dict(), saved[1])
    assert [resumed.step() for _ in range(5)] == losses
    assert np.random.standard_normal() == normal
    assert_equal_state(resumed.model.state_dict(), unbroken.model.state_dict())


def packed(value: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    tensors: dict[str, torch.Tensor] = {}
    plain = json.loads(json.dumps(pack(value, tensors, "x")))
    return plain, {name: tensor.clone() for name, tensor in tensors.items()}


def test_state_keeps_types_that_json_loses() -> None:
    base = torch.arange(6.0).to(torch.bfloat16)
    value = {
        0: {"step": torch.tensor(3.0), "view": base[2:4], "row": base.view(2, 3).T},
        "betas": (0.9, 0.1 + 0.2, float("inf")),
        "__tuple__": [1],
        "none": None,
        "big": 2**70,
        "a": {"b": torch.ones(1)},
        "a.b": torch.zeros(1),
    }
    assert_equal_state(unpack(*packed(value)), value)
    with pytest.raises(CheckpointError, match=r"x\.what: a set cannot be part"):
        pack({"what": {1}}, {}, "x")


def test_old_ones_go_and_the_best_stays(tmp_path: Path) -> None:
    manager, training = CheckpointManager(tmp_path, keep_last=2), Training()
    for step, metric in [(1, 0.2), (2, 0.9), (3, float("nan")), (4, 0.3), (5, None), (6, None)]:
        training.save(manager, step, metric)
    assert names(tmp_path) == ["checkpoint-000002", "checkpoint-000005", "checkpoint-000006"]
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-000006"
    assert best_checkpoint(tmp_path) == tmp_path / "checkpoint-000002"
    training.save(manager, 7, 0.95)
    assert best_checkpoint(tmp_path) == tmp_path / "checkpoint-000007"
    assert "checkpoint-000002" not in names(tmp_path)


def test_the_newest_good_one_stays_beside_altered_ones_of_later_steps(tmp_path: Path) -> None:
    """A run that has passed a damaged checkpoint over writes older ones, which must not leave for it."""
    manager, training = CheckpointManager(tmp_path, keep_last=1), Training()
    flip(training.save(manager, 5) / "optimizer.safetensors")
    for step in (2, 3):
        training.save(manager, step)
        assert latest_checkpoint(tmp_path, verify=True) == tmp_path / f"checkpoint-{step:06d}"
        assert manager.oldest(step) == step
    assert names(tmp_path) == ["checkpoint-000003", "checkpoint-000005"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: (path / "complete.json").unlink(), "there is no complete.json"),
        (lambda path: (path / MODEL_FOLDER / "model.safetensors").unlink(), "there is no model.safetensors"),
        (
            lambda path: os.truncate(path / "optimizer.safetensors", 10),
            "optimizer.safetensors has 10 bytes instead of",
        ),
        (lambda path: (path / "complete.json").write_text("{"), "is damaged"),
        (lambda path: (path / "complete.json").write_text('{"format": 9}'), "has format 9"),
    ],
)
def test_damaged_ones_are_passed_over_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], Any], reason: str
) -> None:
    manager, training = CheckpointManager(tmp_path, keep_last=3), Training()
    training.save(manager, 1)
    newest = training.save(manager, 2)
    damage(newest)
    with caplog.at_level(logging.WARNING):
        assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-000001"
    assert "checkpoint-000002" in caplog.text
    assert reason in caplog.text
    with pytest.raises(CheckpointError, match="checkpoint-000002"):
        manager.load(newest, training.optimizer, training.scheduler)
    training.save(manager, 2)
    assert latest_checkpoint(tmp_path) == newest


@pytest.mark.parametrize("file", ["model/model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_flipped_bit_is_noticed_before_it_is_resumed_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str
) -> None:
    manager, training = CheckpointManager(tmp_path, keep_last=3), Training()
    first = training.save(manager, 1, best=0.5)
    flip(training.save(manager, 2, best=0.6) / file)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-000002"  # nothing was read
    assert latest_checkpoint(tmp_path, verify=True) == best_checkpoint(tmp_path, verify=True) == first
    assert f"checkpoint-000002 is passed over: it is damaged: {file} is as long as it was" in caplog.text
    manifest = first / "complete.json"
    manifest.write_text(manifest.read_text().replace("0.5", "0.75"))
    assert best_checkpoint(tmp_path, verify=True) is None


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def test_a_state_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    manager, training = CheckpointManager(tmp_path, keep_last=1), Training()
    training.step()
    training.save(manager, 1)
    training.optimizer.state[training.model[0].weight]["exp_avg_sq"][2, 3] = float("-inf")
    with pytest.raises(CheckpointError, match=r"step 2 .*state\.0\.exp_avg_sq .*checkpoint-000001"):
        training.save(manager, 2)
    assert names(tmp_path) == ["checkpoint-000001"]


def test_what_a_killed_process_left_is_tidied_up(tmp_path: Path) -> None:
    manager, training = CheckpointManager(tmp_path, keep_last=9), Training()
    for step in (1, 2, 3):
        training.save(manager, step)
    half = tmp_path / "checkpoint-000009.partial"
    half.mkdir()
    (half / "state.json").write_text("{")
    os.replace(tmp_path / "checkpoint-000001", tmp_path / "checkpoint-000001.deleted")
    # Killed between the two renames of a replacement: both are complete, neither is in place.
    shutil.copytree(tmp_path / "checkpoint-000002", tmp_path / "checkpoint-000002.partial")
    os.replace(tmp_path / "checkpoint-000002", tmp_path / "checkpoint-000002.replaced")
    os.replace(tmp_path / "checkpoint-000003", tmp_path / "checkpoint-000003.replaced")
    assert latest_checkpoint(tmp_path) is None  # reading alone changes nothing
    assert half.exists()
    CheckpointManager(tmp_path, keep_last=9)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoint-000003"
    assert names(tmp_path) == ["checkpoint-000002", "checkpoint-000003"]


@pytest.mark.parametrize("victim", ["save_file", "sync_file", "sync_folder", "write_json"])
def test_a_full_disk_leaves_nothing_behind_and_the_earlier_one_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    manager, training = CheckpointManager(tmp_path, keep_last=2), Training()
    training.save(manager, 1)
    before = training.optimizer.state_dict()

    def full(path: Any, *rest: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, victim, full)
    with pytest.raises(CheckpointError) as caught:
        training.save(manager, 2)
    message = str(caught.value)
    for part in ("step 2", "disk is full", "needs at least", "are free", "checkpoint-000001 remains valid"):
        assert part in message
    assert names(tmp_path) == ["checkpoint-000001"]
    assert_equal_state(training.optimizer.state_dict(), before)
    monkeypatch.undo()
    assert training.save(manager, 2) == latest_checkpoint(tmp_path)


def test_a_failed_replacement_puts_the_old_one_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager, training = CheckpointManager(tmp_path, keep_last=1), Training()
    path = training.save(manager, 1)
    replace = os.replace

    def refuse(source: Path, target: Path) -> None:
        if str(source).endswith(".partial") and Path(source).is_dir():
            raise OSError(errno.EDQUOT, "Disk quota exceeded")
        replace(source, target)

    monkeypatch.setattr(checkpoint.os, "replace", refuse)
    with pytest.raises(CheckpointError, match=r"quota exceeded.*checkpoint-000001 remains valid"):
        training.save(manager, 1)
    assert latest_checkpoint(tmp_path) == path
    assert names(tmp_path) == ["checkpoint-000001"]


def test_a_fault_that_is_not_the_disks_stays_what_it_is(tmp_path: Path) -> None:
    manager, training = CheckpointManager(tmp_path, keep_last=1), Training()

    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        manager.save(1, interrupted, training.optimizer, training.scheduler, {})
    assert names(tmp_path) == []


def test_a_state_that_does_not_fit_names_the_parameter(tmp_path: Path) -> None:
    manager, training = CheckpointManager(tmp_path, keep_last=1), Training()
    training.step()
    path = training.save(manager, 1)
    wider = Training(width=7)
    with pytest.raises(CheckpointError, match=r"0\.weight: shape \[6, 4\] was saved, the model has \[7, 4\]"):
        manager.load(path, wider.optimizer, wider.scheduler)
    assert wider.optimizer.state_dict()["state"] == {}
    frozen = torch.optim.AdamW(list(training.model.named_parameters())[:2])
    with pytest.raises(CheckpointError, match="4 parameters were saved, the optimizer has 2"):
        manager.load(path, frozen, training.scheduler)
    renamed = torch.optim.AdamW([(f"new.{n}", p) for n, p in training.model.named_parameters()])
    with pytest.raises(CheckpointError, match=r"new\.0\.weight: in its place 0\.weight was saved"):
        manager.load(path, renamed, training.scheduler)


def save_for_ever(folder: Path) -> None:
    torch.set_num_threads(1)
    manager, training = CheckpointManager(folder, keep_last=1), Training()
    latest = latest_checkpoint(folder)
    step = training.load(manager, latest)["step"] if latest else 0
    while True:
        step += 1
        training.step()
        training.save(manager, step, best=float(step % 5))
        training.save(manager, step)  # replaces it, with its own moments to be killed in


def newer_than(step: int, folder: Path) -> bool:
    latest = latest_checkpoint(folder)
    return latest is not None and int(latest.name.split("-")[1]) > step


def test_killed_at_any_moment_the_newest_one_loads(tmp_path: Path) -> None:
    draw = random.Random(0)
    context = multiprocessing.get_context("fork")
    last = 0
    for _ in range(8):
        child = context.Process(target=save_for_ever, args=(tmp_path,))
        child.start()
        deadline = time.monotonic() + 20
        # Progress first, however slow the machine is, then the kill at any moment of what follows.
        while not newer_than(last, tmp_path) and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(draw.uniform(0.0, 0.1))
        child.kill()
        child.join()
        manager, training = CheckpointManager(tmp_path, keep_last=1), Training()
        path = latest_checkpoint(tmp_path)
        assert path is not None
        step = training.load(manager, path)["step"]
        assert path.name == f"checkpoint-{step:06d}"
        assert all(state["step"] == step for state in training.optimizer.state.values())
        assert training.scheduler.last_epoch == step
        assert step > last  # what was once complete is never lost
        assert best_checkpoint(tmp_path) is not None
        last = step
    assert not [name for name in names(tmp_path) if not name.startswith("checkpoint-0")]


# --- weights into a live model ------------------------------------------------------------------------------


SMALL = read_tables(Path(__file__).with_suffix(".yaml"))["small"]


def llama(seed: int, **changes: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**(SMALL | changes)))


def assert_same(one: Any, other: Any) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert list(first) == list(second)
    for name in first:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("kind", ["tiny", "llama", "qwen2"])
def test_every_weight_arrives_and_parameters_stay_the_same_objects(
    load_policy: Any, tmp_path: Path, kind: str
) -> None:
    saved, live = load_policy(kind).model, load_policy(kind).model
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter.mul_(1.1)
    saved.save_pretrained(tmp_path)
    parameters = list(live.parameters())
    load_matching(live, tmp_path)
    assert_same(live, saved)
    assert all(before is now for before, now in zip(parameters, live.parameters(), strict=True))


def test_mixed_precision_is_kept_exactly(tmp_path: Path) -> None:
    saved, live = llama(1).to(torch.bfloat16), llama(2).to(torch.bfloat16)
    for model in (saved, live):
        model.model.norm.to(torch.float32)
    with torch.no_grad():
        saved.model.norm.weight.add_(1e-6)
    saved.save_pretrained(tmp_path)
    load_matching(live, tmp_path)
    assert live.model.norm.weight.dtype == torch.float32
    assert_same(live, saved)


def test_names_that_do_not_match_are_listed_and_nothing_changes(tmp_path: Path) -> None:
    llama(1).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    weights["stranger.weight"] = weights.pop("model.norm.weight")
    weights["model.embed_tokens.weight"] = torch.zeros(41, 16)
    save_file(weights, file, metadata={"format": "pt"})
    live = llama(2)
    with pytest.raises(CheckpointError) as caught:
        load_matching(live, tmp_path)
    message = str(caught.value)
    assert "1 not in the folder: model.norm.weight" in message
    assert "1 not in the model: stranger.weight" in message
    assert "1 of another shape: model.embed_tokens.weight" in message
    assert "[41, 16]" in message
    assert str(tmp_path) in message
    assert_same(live, llama(2))


def test_another_type_of_model_is_refused_though_names_and_shapes_fit(tmp_path: Path) -> None:
    torch.manual_seed(0)
    MistralForCausalLM(MistralConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="of type 'mistral', the model is 'llama'"):
        load_matching(llama(1), tmp_path)
