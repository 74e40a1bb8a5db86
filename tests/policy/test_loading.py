"""Loading and saving: what does not fit is an error that names it; what is saved is the policy that was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.families import KINDS, write_family
from safetensors.torch import load_file, save_file
from tests.policy.conftest import noise_image
from transformers import AutoImageProcessor

from commands import command
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import CheckpointError, ConfigError
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.policy.loading import pick_device
from selfverify.policy.policy import Policy
from selfverify.policy.tiny_models import write_tiny
from selfverify.tasks.base import user_turn

Tensors = dict[str, torch.Tensor]


def tensors(change: Callable[[Tensors], Any]) -> Callable[[Path], None]:
    """Change the tensors of a folder."""

    def apply(folder: Path) -> None:
        [file] = folder.glob("*.safetensors")
        found = load_file(file)
        change(found)
        save_file(found, file, metadata={"format": "pt"})

    return apply


def first(found: Tensors, part: str) -> str:
    """The name of the first tensor with ``part`` in its name."""
    return next(name for name in sorted(found) if part in name)


def drop(part: str) -> Callable[[Path], None]:
    return tensors(lambda found: found.pop(first(found, part)))


def shrink(found: Tensors) -> None:
    name = first(found, "layers.0.mlp.up_proj")
    found[name] = found[name][:-1].clone()


def settings(**values: Any) -> Callable[[Path], None]:
    """Change values of ``config.json``."""

    def apply(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return apply


def file(name: str, content: bytes | None) -> Callable[[Path], object]:
    """Write a file anew, or delete it."""
    return lambda folder: (
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    )


LAYERS = r"layers\.1\.mlp\.up_proj"
BROKEN: list[tuple[Callable[[Path], object], type[Exception], str]] = [
    (drop("layers.1.mlp.up_proj"), CheckpointError, rf"not in the folder: .*{LAYERS}"),
    (drop("visual.blocks.0"), CheckpointError, r"not in the folder: .*visual\.blocks\.0"),
    (tensors(lambda t: t.update(adapter=torch.zeros(3))), CheckpointError, "not in the model: .*adapter"),
    (tensors(shrink), CheckpointError, r"layers\.0\.mlp\.up_proj"),
    (settings(model_type="never-heard-of", architectures=["No"]), ConfigError, "'{}'.*never-heard-of"),
    (settings(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}), ConfigError,
     "'{}'.*bitsandbytes"),
    *((file("config.json", content), ConfigError, "altered") for content in (
        b"{", b"[]", b'{"model_type": "vit"}', None)),
    (file("model.safetensors", b"\x10"), CheckpointError, "altered"),
    *((file(name, None), ConfigError, "altered") for name in (
        "model.safetensors", "tokenizer.json", "preprocessor_config.json")),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "named"), BROKEN)
def test_a_broken_folder_is_named(
    tiny_folder: Path, tmp_path: Path, change: Any, error: type[Exception], named: str
) -> None:
    if "bitsandbytes" in named and find_spec("bitsandbytes") is not None:
        pytest.skip("it is installed")
    folder = shutil.copytree(tiny_folder, tmp_path / "altered")
    change(folder)
    with pytest.raises(error, match=named.format(folder)):
        Policy.load(str(folder))


def test_policies_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for path in (str(tmp_path / "nowhere"), "builtin:nowhere"):
        with pytest.raises(ConfigError, match="nowhere"):
            Policy.load(path)


@pytest.mark.parametrize("name", ["digits", "digits-blind", "digits-check", "looking"])
def test_image_and_video_marks_are_tokens_of_built_in_policies(name: str) -> None:
    """vLLM looks the marks up in the tokenizer when it starts; none of them is ever sampled."""
    policy = Policy.load(f"builtin:{name}", device="cpu")
    config, tokenizer = policy.model.config, policy.tokenizer
    marks = {"<|image_pad|>": config.image_token_id, "<|video_pad|>": config.video_token_id}
    assert {mark: tokenizer.convert_tokens_to_ids(mark) for mark in marks} == marks
    assert set(marks.values()) < set(policy.suppressed_tokens)
    assert tokenizer.encode("<|video_pad|>") == [config.video_token_id]
    assert len(tokenizer) <= config.text_config.vocab_size


# --- saving ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tiny", "llama", "qwen2"])
def test_save_and_load_is_the_same_policy(
    load_policy: Any, problems: list[Problem], tmp_path: Path, kind: str
) -> None:
    policy: Policy = load_policy(kind)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.1)
    policy.save(tmp_path / "saved")
    loaded = Policy.load(tmp_path / "saved")
    tied = kind != "llama"
    for model in (policy.model, loaded.model):
        shared = model.get_input_embeddings().weight is model.get_output_embeddings().weight
        assert shared == tied
    state = loaded.model.state_dict()
    assert state.keys() == policy.model.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in policy.model.state_dict().items())

    shown = problems if kind == "tiny" else problems[1:2]
    outputs = []
    for each in (policy, loaded):
        prompts = each.encode(shown)
        samples = each.sample(prompts, SamplingConfig(max_new_tokens=8), seeds=range(len(shown)))
        tokens = [[s.tokens for s in group] for group in samples]
        outputs.append((tokens, [[s.logprobs for s in g] for g in samples], each.logprobs(prompts, tokens)))
    assert outputs[0][:2] == outputs[1][:2]
    assert torch.equal(outputs[0][2], outputs[1][2])


def test_frozen_copy_stays_as_it_was(load_policy: Any, problems: list[Problem]) -> None:
    policy = load_policy()
    prompts, tokens = policy.encode(problems), [[[7, 8, 9]]] * 3
    reference = policy.frozen_copy()
    before = policy.logprobs(prompts, tokens).detach()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.2)
    kept = reference.logprobs(prompts, tokens)
    assert torch.equal(kept, before) and not kept.requires_grad
    assert (policy.logprobs(prompts, tokens) - before).abs().max() > 0.1


def test_a_fresh_tiny_policy_depends_on_its_seed_alone(tmp_path: Path) -> None:
    for name, noise, seed in (("a", 1, 0), ("b", 2, 0), ("c", 2, 1)):
        torch.manual_seed(noise)
        state = torch.get_rng_state()
        write_tiny(tmp_path / name, seed=seed, hidden=96, layers=1)
        assert torch.equal(torch.get_rng_state(), state)
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


def test_each_process_has_a_device_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher shows each process all devices of the machine, or its own alone."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "3")
    for seen, own in ((8, "cuda:3"), (1, "cuda:0")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda seen=seen: seen)
        assert {str(pick_device(wanted)) for wanted in ("auto", "cuda")} == {own}
    assert pick_device("cpu") == torch.device("cpu")


def test_a_missing_shard(load_policy: Any, tmp_path: Path) -> None:
    load_policy().model.save_pretrained(tmp_path, max_shard_size="100KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    shards[1].unlink()
    with pytest.raises(ConfigError, match=shards[1].name):
        Policy.load(str(tmp_path), device="cpu")


def test_sizes_that_a_processor_does_not_know(tmp_path: Path) -> None:
    folder = write_family("internvl", tmp_path)
    with pytest.raises(ConfigError, match=r"policy\.max_pixels: .* has no such setting"):
        Policy.load(str(folder), device="cpu", max_pixels=100)


# --- settings of image processors ---------------------------------------------------------------------------


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
    else:
        (start / VIDEO).write_text('{"size": {"longest_edge": 1234}}')
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
    else:
        assert read(saved, VIDEO) == {"size": {"longest_edge": 1234}}
    policy.save(start)
    assert seen(Policy.load(str(start), device="cpu")) == expected


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
    command("merge", str(adapter), str(whole))
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
