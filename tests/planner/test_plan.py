"""What a plan says of given shapes, GPUs and wrong input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, Qwen2_5_VLConfig
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.episode import Reply
from selfverify.core.episode_settings import EpisodeConfig, EpisodeLimits
from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_task
from selfverify.planner.memory import memory_of
from selfverify.planner.meter import Meter
from selfverify.planner.plan import Plan, make_plan
from selfverify.planner.plan_settings import PlanSettings
from selfverify.planner.shapes import shapes_of
from selfverify.policy import loading
from selfverify.policy.flash import CpuFlash, CudaFlash
from selfverify.policy.policy import Policy
from selfverify.policy.replies import ReplyEncoder
from selfverify.policy.tiny import tiny_image_processor, tiny_tokenizer
from selfverify.tasks.digits.digits_pick import DigitsPick

SETTINGS = ["method.name=grpo", "learner.groups_per_step=8", "learner.micro_batch_groups=2"]
LENGTHS: dict[str, Any] = {"prompt_tokens": 90, "image_tokens": 64, "response_tokens": 10}
TWO = PlanSettings(gpu="h200", gpus=2, shard="fsdp", **LENGTHS)


@pytest.fixture(scope="module")
def planned(tiny_folder: Path) -> Plan:
    """The tiny model in bfloat16 on two GPUs, four problems on each."""
    recipe = load_recipe("adpo-digits", [f"policy.path={tiny_folder}", "policy.dtype=bfloat16", *SETTINGS])
    return make_plan(recipe, TWO)


def test_tokens_and_lengths(planned: Plan) -> None:
    """8 (P + G R) against 8 G (P + R), with prompts exactly as long as asked."""
    tokens = planned.as_json()["tokens"]
    assert tokens["longest_prompt"] == 90 and tokens["images"] == 8 * 64
    assert tokens["shared"] == 8 * (90 + 8 * 10) and tokens["plain"] == 8 * 8 * (90 + 10)


def test_parameters_and_states(planned: Plan) -> None:
    """Two bytes a weight; for what learns a master and two moments of four; a copy for the reference."""
    p, update = planned.measured.parameters, planned.measured.phases["update"].peak
    assert p.weight_bytes == 2 * p.total
    assert update["reference"] == pytest.approx(2 * p.total, rel=0.001)  # and rotary tables
    assert update["optimiser"] == pytest.approx(12 * p.trainable, rel=0.01)  # and a step count each
    assert update["gradients"] == 2 * p.trainable < 2 * p.total


def test_sharding(planned: Plan) -> None:
    """FSDP halves what two GPUs keep and gathers layers; DDP keeps all of it."""
    measured, fsdp = planned.measured, planned.memory.phases["update"]
    ddp = memory_of(measured, PlanSettings(gpus=2), planned.hardware).phases["update"]
    for item in ("weights", "reference", "gradients", "optimiser"):
        assert fsdp[item] == pytest.approx(ddp[item] / 2, abs=1)
    assert fsdp["activations"] == ddp["activations"]
    whole, root = measured.parameters.weight_bytes, measured.parameters.root_bytes
    assert planned.memory.phases["sampling"]["gathered"] == whole
    assert fsdp["gathered"] == root + 3 * measured.parameters.block_bytes


def test_flops_of_the_decoder(planned: Plan) -> None:
    """Prefill makes two operations per weight of the decoder's matrices and token, and attention's."""
    p, shapes = planned.measured.parameters, planned.measured.shapes
    head = planned.measured.phases["sampling"]
    matrices = sum(len(prompt.ids) for prompt in shapes.prompts) * p.block_bytes  # 2 x (bytes / 2)
    # Of two layers the last one's feed-forward block sees one token per prompt.
    assert matrices < head.flops < 2.2 * matrices


def test_the_reference_computes_one_forward_pass(planned: Plan) -> None:
    """An update is a forward pass and a backward pass of twice the work. Neither has what is checked once."""
    reference, update = (planned.measured.phases[name].flops for name in ("reference", "update"))
    assert 2.9 * reference < update < 3.2 * reference


def test_eight_bit_moments_and_offload(tiny_folder: Path, planned: Plan) -> None:
    """Fewer bytes of state; what backward needs does not stay on the GPU; the work is the same."""
    overrides = ["policy.dtype=bfloat16", *SETTINGS, "learner.optimizer=adamw_8bit"]
    recipe = load_recipe(
        "adpo-digits", [f"policy.path={tiny_folder}", "policy.activation_offload=true", *overrides]
    )
    less = make_plan(recipe, TWO).measured.phases["update"]
    full = planned.measured.phases["update"]
    p = planned.measured.parameters
    # A master, two bytes and a little, but for this model's many small tensors.
    assert 6 * p.trainable < less.peak["optimiser"] < 6.4 * p.trainable < full.peak["optimiser"]
    assert less.peak["activations"] < 0.7 * full.peak["activations"]
    assert less.flops == full.flops


def test_vllm_takes_its_share(tiny_folder: Path) -> None:
    """Beside everything else; its work is not planned."""
    recipe = load_recipe("adpo-digits", [f"policy.path={tiny_folder}", "sampling.engine=vllm", *SETTINGS])
    made = make_plan(recipe, PlanSettings(gpu="h100", **LENGTHS))
    assert made.memory.phases["update"]["vllm"] == round(0.3 * 80e9)
    assert "sampling" not in made.memory.phases and "vLLM" in made.assumptions[1]


def test_kernels_are_the_gpus(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan takes the kernels that CUDA would, although this machine may have none."""
    taken: list[str] = []
    for kernels in (CpuFlash, CudaFlash):
        inner = kernels.forward

        def forward(self: Any, *args: Any, inner: Any = inner) -> Any:
            taken.append(type(self).__name__)
            return inner(self, *args)

        monkeypatch.setattr(kernels, "forward", forward)
    overrides = [f"policy.path={tiny_folder}", "policy.dtype=bfloat16", *SETTINGS]
    recipe = load_recipe("adpo-digits", [*overrides, "policy.gradient_checkpointing=true"])
    for gpu, name in (("a100", "CudaFlash"), ("cpu", "CpuFlash")):
        taken.clear()
        make_plan(recipe, PlanSettings(gpu=gpu, **LENGTHS))
        assert {*taken} == {name}


def test_verdict_names_the_largest(planned: Plan) -> None:
    """With no memory at all nothing fits, and a way out is offered."""
    assert planned.memory.fits and planned.memory.verdict.startswith("fits: ")
    none = replace(planned.memory, limit=1e3)
    assert not none.fits and "try policy.gradient_checkpointing=true" in none.verdict


def write_config(folder: Path) -> Path:
    """Qwen2.5-VL-3B as published, without weights, beside our tokenizer and image processor."""
    tokenizer = tiny_tokenizer()
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 151936,
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "max_position_embeddings": 128000,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": 3420,
            "num_heads": 16,
            "patch_size": 14,
            "out_hidden_size": 2048,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        video_token_id=2**30,
        tie_word_embeddings=True,
    )
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor = tiny_image_processor()
    processor.patch_size, processor.temporal_patch_size = 14, 2
    processor.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_real_size(tmp_path: Path) -> None:
    """A folder without any weights is enough; the count is the published one."""
    overrides = [
        f"policy.path={write_config(tmp_path)}",
        "policy.dtype=bfloat16",
        "policy.gradient_checkpointing=true",
    ]
    recipe = load_recipe("adpo-digits", [*overrides, "learner.micro_batch_groups=1", "method.name=grpo"])
    made = make_plan(recipe, PlanSettings(prompt_tokens=600, image_tokens=400, response_tokens=200))
    assert made.measured.parameters.total == 3_754_622_976
    assert made.memory.fits


def test_meter_counts_live_bytes() -> None:
    """Storages count once, views not at all, and leave when they are freed."""
    with Meter(vocabulary=7) as meter, meter.span() as span:
        x = torch.ones(10, 100)
        view = x.t()
        logits = torch.zeros(2, 7)
        assert meter.live == {"activations": 4000, "logits": 56}
        y = x @ view
        del x
        assert meter.live["activations"] == 4000 + y.nbytes
        del view, logits
        assert meter.live["activations"] == y.nbytes and meter.live["logits"] == 0
    assert span.total == 4000 + 56 + y.nbytes
    assert span.flops == 2 * 10 * 10 * 100


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def test_command_prints_json_and_a_table(tiny_folder: Path) -> None:
    """Both say the same."""
    arguments = [
        "adpo-digits",
        f"policy.path={tiny_folder}",
        *SETTINGS,
        "--gpu",
        "cpu",
        "--prompt-tokens",
        "60",
    ]
    shown = json.loads(run(*arguments, "--json"))
    assert shown["memory"]["total"] == sum(shown["memory"]["phases"]["update"].values())
    assert shown["flops"]["decoding"] > 0 and shown["flops"]["update"] > shown["flops"]["prefill"]
    table = run(*arguments)
    assert shown["verdict"].split(";")[0][:20] in table and "operations per step" in table


def test_wrong_input(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends in a line that says what to do."""
    here = f"policy.path={tiny_folder}"
    assert "did you mean h100? known: b200, h200" in run("adpo-digits", "--gpu", "h10", code=2)
    assert "there is no such key" in run("adpo-digits", "policy.pathh=x", code=2)
    assert "template and the image alone take" in run("adpo-digits", here, "--prompt-tokens", 2, code=2)
    assert "demonstrations" in run("adpo-digits", here, "method.name=sft", "--prompt-tokens", 60, code=2)

    def offline(*_: Any, **__: Any) -> Any:
        raise OSError("no connection")

    monkeypatch.setattr(AutoConfig, "from_pretrained", offline)
    assert loading.AutoConfig is AutoConfig
    assert "give a local folder" in run("adpo-digits", "policy.path=org/name", code=2)


def test_text_models_have_no_images(text_folders: dict[str, Path]) -> None:
    """They are planned as well, without a vision phase; asking for images is an error."""
    recipe = load_recipe("adpo-digits", [f"policy.path={text_folders['llama']}", *SETTINGS])
    made = make_plan(recipe, PlanSettings(gpu="a100", prompt_tokens=40, response_tokens=8))
    assert "images" not in made.memory.phases and made.measured.shapes.image_tokens == 0
    with pytest.raises(ConfigError, match="reads text only"):
        make_plan(recipe, PlanSettings(gpu="a100", image_tokens=8))


def test_sampling_without_shared_prompts_is_not_planned(tiny_folder: Path) -> None:
    """Its caches are transformers' own. What does not sample is planned, with prompts written out."""
    here = [f"policy.path={tiny_folder}", "policy.shared_prefix=off", *SETTINGS]
    with pytest.raises(ConfigError, match=r"policy\.shared_prefix=off.*sampling\.engine=vllm"):
        make_plan(load_recipe("adpo-digits", here), PlanSettings(gpu="a100"))
    made = make_plan(load_recipe("adpo-digits", [*here, "method.name=sft"]), PlanSettings(gpu="a100"))
    assert not made.measured.shared


def test_lengths_of_replies(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They have to be given where nobody knows them, and are exactly as long; images count as well."""
    here = [f"policy.path={tiny_folder}", *SETTINGS]
    given = {"reply_tokens": 70, "reply_image_tokens": 36, "response_tokens": 20}
    one = load_recipe("adpo-digits", here)
    with pytest.raises(ConfigError, match="no conversations of several turns"):
        make_plan(one, PlanSettings(**given))
    monkeypatch.setattr(DigitsPick, "limits", EpisodeLimits(turns=30))
    recipe = load_recipe("adpo-digits", [*here, "episode.turns=5", "policy.dtype=bfloat16"])
    with pytest.raises(ConfigError, match=r"up to 5 turns.*give --reply-tokens"):
        make_plan(recipe, PlanSettings())
    with pytest.raises(ConfigError, match="--reply-tokens 5: the chat template and the image alone take"):
        make_plan(recipe, PlanSettings(reply_tokens=5))
    made = make_plan(recipe, PlanSettings(**given))
    assert made.measured.shapes.response_tokens == 5 * 20 + 4 * 70
    prompts = sum(image.placeholders for prompt in made.measured.shapes.prompts for image in prompt.images)
    assert made.as_json()["tokens"]["images"] == prompts + 8 * 8 * 4 * 36
    assert made.measured.steps == 100 and "5 turns" in made.measured.shapes.stated
    # Twice as many turns hold about twice as many keys, and hearing in smaller chunks takes less.
    caches = made.measured.phases["sampling"].peak["caches"]
    longer = make_plan(recipe.model_copy(update={"episode": EpisodeConfig(turns=10)}), PlanSettings(**given))
    assert 1.5 < longer.measured.phases["sampling"].peak["caches"] / caches < 2.5
    small = recipe.policy.model_copy(update={"prefill_chunk": 256})
    less = make_plan(recipe.model_copy(update={"policy": small}), PlanSettings(**given))
    sampling = made.measured.phases["sampling"]
    assert less.measured.phases["sampling"].total < 0.8 * sampling.total
    assert less.measured.phases["sampling"].flops == pytest.approx(sampling.flops, rel=0.1)


def test_first_screens_are_planned(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample hears its own, also where the policy speaks once."""
    make = DigitsPick.problem
    monkeypatch.setattr(DigitsPick, "problem", lambda *p: replace(make(*p), environment_begins=True))
    recipe = load_recipe("adpo-digits", [f"policy.path={tiny_folder}", *SETTINGS])
    with pytest.raises(ConfigError, match=r"begin with what is shown.*give --reply-tokens"):
        make_plan(recipe, PlanSettings())
    given = {"reply_tokens": 70, "reply_image_tokens": 36, "response_tokens": 20}
    for more in ({}, {"prompt_tokens": 50}):
        made = make_plan(recipe, PlanSettings(**given, **more))
        assert made.measured.shapes.response_tokens == 20 + 70
        assert "a turn behind a first screen" in made.measured.shapes.stated
        images = sum(i.placeholders for prompt in made.measured.shapes.prompts for i in prompt.images)
        assert made.as_json()["tokens"]["images"] == images + 8 * 8 * 36


@pytest.mark.parametrize("method", ["adapo", "turns-sft"])
def test_second_turns_are_planned(method: str) -> None:
    """Both turns at their longest, and what is put between them."""
    words = ["method.second_turn=Check the answer.", "evaluation.second_turn=Check the answer."]
    recipe = load_recipe("adpo-digits", [f"method.name={method}", *words, "sampling.max_new_tokens=20"])
    policy = Policy.load("builtin:digits", device="cpu")
    shapes = shapes_of(recipe, policy, 2, PlanSettings())
    problem, request = make_task("digits-pick").problem("train", 0, 0), Reply("Check the answer.")
    between = ReplyEncoder(policy.encoder).encode(problem, request, 1)
    assert shapes.response_tokens == 40 + len(between.tokens)
