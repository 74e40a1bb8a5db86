"""A saved model reads images as the policy that was saved does, wherever its folder keeps the settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from benchmarks.families import KINDS, write_family
from tests.policy.conftest import noise_image
from transformers import AutoImageProcessor
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.policy.policy import Policy
from selfverify.tasks.base import user_turn

IMAGES, WHOLE, VIDEO = "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"
LARGE = (128, 64)
"""An image of 32 tokens (16 x 16 pixels each), which policies below read as 8."""
FEW = {"max_pixels": 2048}
SHOWN = Problem("p", user_turn("Which digits are shown?"), [noise_image(1, *LARGE)])


def read(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name).read_text())
    return found


def nest(folder: Path, keep: bool = False) -> Path:
    """Put the settings where transformers 5 writes them; ``keep`` leaves the older file there, too."""
    settings = {"processor_class": "Qwen2_5_VLProcessor", "image_processor": read(folder, IMAGES)}
    settings["video_processor"] = {"size": {"longest_edge": 1234, "shortest_edge": 12}}
    (folder / WHOLE).write_text(json.dumps(settings))
    if not keep:
        (folder / IMAGES).unlink()
    return folder


def seen(policy: Policy) -> tuple[int, tuple[int, int]]:
    """How many tokens the large image takes, and the space of places in it."""
    return policy.encode([SHOWN])[0].images[0].placeholders, policy.coordinate_space(LARGE)


def assert_all_read_the_same(policy: Policy, folder: Path) -> None:
    """transformers reads the policy's settings from ``folder``, and no file there says anything else."""
    live = json.loads(policy.loaded.image_processor.to_json_string())
    assert json.loads(AutoImageProcessor.from_pretrained(folder).to_json_string()) == live
    assert read(folder, IMAGES) == live
    if (folder / WHOLE).is_file():
        assert read(folder, WHOLE).get("image_processor", live) == live


@pytest.mark.parametrize("kept_in", ["new", "both", "old"])
@pytest.mark.parametrize("sizes", [FEW, {"min_pixels": 2**15}], ids=lambda sizes: next(iter(sizes)))
def test_a_saved_model_reads_images_as_in_training(
    tiny_folder: Path, tmp_path: Path, kept_in: str, sizes: dict[str, int]
) -> None:
    start, saved = tmp_path / "start", tmp_path / "saved"
    shutil.copytree(tiny_folder, start)
    if kept_in != "old":
        nest(start, keep=kept_in == "both")
    assert seen(Policy.load(str(start), device="cpu")) == (32, (128, 64))
    policy = Policy.load(str(start), device="cpu", **sizes)
    expected = (8, (64, 32)) if sizes == FEW else (128, (256, 128))
    assert seen(policy) == expected
    policy.save(saved)
    assert seen(Policy.load(str(saved), device="cpu")) == expected
    assert seen(Policy.load(str(saved), device="cpu", max_pixels=512, min_pixels=256)) == (2, (32, 16))
    assert_all_read_the_same(policy, saved)
    if kept_in != "old":
        assert read(saved, WHOLE) == read(start, WHOLE) | {"image_processor": read(saved, IMAGES)}


def test_a_model_saved_over_itself(tiny_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder, tmp_path / "a")
    policy = Policy.load(str(nest(tmp_path / "a")), device="cpu", **FEW)
    policy.save(tmp_path / "a")
    assert seen(Policy.load(str(tmp_path / "a"), device="cpu")) == seen(policy) == (8, (64, 32))


def test_settings_of_videos_are_kept(tiny_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder, tmp_path / "a")
    (tmp_path / "a" / VIDEO).write_text('{"size": {"longest_edge": 1234}}')
    Policy.load(str(tmp_path / "a"), device="cpu", **FEW).save(tmp_path / "b")
    assert read(tmp_path / "b", VIDEO) == {"size": {"longest_edge": 1234}}


@pytest.mark.parametrize("nested", [True, False])
def test_adapters_and_what_they_are_merged_to(tiny_folder: Path, tmp_path: Path, nested: bool) -> None:
    """The base keeps its own sizes; the adapter, and a whole model made of both, have those of training."""
    base, adapter, again, whole = (tmp_path / name for name in ("base", "adapter", "again", "whole"))
    shutil.copytree(tiny_folder, base)
    if nested:
        nest(base)
    policy = Policy.load(str(base), device="cpu", lora=AdapterConfig(rank=2), **FEW)
    policy.save(adapter)
    loaded = Policy.load(str(adapter), device="cpu")
    loaded.save(again)
    assert seen(loaded) == seen(Policy.load(str(again), device="cpu")) == (8, (64, 32))
    assert seen(loaded.merged()) == (8, (64, 32))
    done = CliRunner().invoke(app, ["merge", str(adapter), str(whole)])
    assert done.exit_code == 0, done.output
    assert seen(Policy.load(str(whole), device="cpu")) == (8, (64, 32))
    for folder in (adapter, again, whole):
        assert_all_read_the_same(policy, folder)
    assert seen(Policy.load(str(base), device="cpu")) == (32, (128, 64))


def test_an_adapter_without_settings_of_images(tiny_folder: Path, tmp_path: Path) -> None:
    Policy.load(str(tiny_folder), device="cpu", lora=AdapterConfig(rank=2)).save(tmp_path)
    (tmp_path / IMAGES).unlink()
    assert seen(Policy.load(str(tmp_path), device="cpu")) == (32, (128, 64))


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"qwen2_vl", "qwen3_vl"}))
def test_other_families(kind: str, tmp_path: Path) -> None:
    """Their sizes are attributes of the processor, which a program may change before it saves the policy."""
    folder = nest(write_family(kind, tmp_path / kind))
    policy = Policy.load(str(folder), device="cpu")
    assert_all_read_the_same(policy, write_family(kind, tmp_path / "older"))
    processor = policy.loaded.image_processor
    processor.image_mean = [0.25, 0.25, 0.25]
    if kind in ("idefics3", "smolvlm"):
        processor.size = {"longest_edge": 96}
    if kind == "internvl":
        processor.max_patches = 2
    policy.save(tmp_path / "saved")
    assert_all_read_the_same(policy, tmp_path / "saved")
    again = Policy.load(str(tmp_path / "saved"), device="cpu")
    assert again.encode([SHOWN])[0].ids.tolist() == policy.encode([SHOWN])[0].ids.tolist()
