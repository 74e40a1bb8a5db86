"""What a plan says of given lengths, GPUs and wrong input."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from selfverify.cli.main import app
from selfverify.core.config import EpisodeConfig, RolloutLimits
from selfverify.core.episode import Observation
from selfverify.core.errors import ConfigError
from selfverify.experiments.dry_run import Meter
from selfverify.experiments.plan import Plan, make_plan
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_task
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.policy import Policy
from selfverify.tasks.digits_pick import DigitsPick

SETTINGS = [
    "method.name=grpo", "learner.groups_per_step=8", "learner.batch.micro_batch_groups=2",
    "sampling.max_new_tokens=10",
]  # fmt: skip


def recipe_of(folder: Path, *more: str) -> Any:
    return load_recipe("adpo-digits", [f"policy.path={folder}", "policy.dtype=bfloat16", *SETTINGS, *more])


@pytest.fixture(scope="module")
def planned(tiny_folder: Path) -> Plan:
    """The tiny model in bfloat16 on one GPU."""
    return make_plan(recipe_of(tiny_folder))


@pytest.fixture(scope="module")
def halved(tiny_folder: Path) -> Plan:
    """The same on two GPUs, four problems and half a model on each."""
    return make_plan(recipe_of(tiny_folder), 2, sharded=True)


def test_tokens(planned: Plan, halved: Plan) -> None:
    """P + G R against G (P + R), and half of it on each of two GPUs."""
    at, prompts = planned.lengths, [len(prompt.ids) for prompt in planned.lengths.prompts]
    assert len(prompts) == 8 and len(at.trained) == at.sampled == 10
    tokens = sum(prompts) + 8 * 8 * 10, 8 * (sum(prompts) + 80)
    assert "tokens of a pass: {:,}; with prompts written out {:,}".format(*tokens) in planned.lines()
    assert halved.lengths.prompts[0].ids.equal(at.prompts[0].ids) and len(halved.lengths.prompts) == 4
    own = sum(len(prompt.ids) for prompt in halved.lengths.prompts) + 4 * 8 * 10
    assert f"tokens of a pass: {2 * own:,};" in "".join(halved.lines())


def test_parameters_and_states(planned: Plan) -> None:
    """Two bytes a weight; for what learns a sum, a master, two moments of four; a copy for the reference."""
    (total, learning), update = planned.parameters, planned.memory["update"]
    assert update["reference"] == pytest.approx(2 * total, rel=0.001)  # and rotary tables
    assert update["optimiser"] == pytest.approx(12 * learning, rel=0.01)  # and a step count each
    assert update["gradients"] == 4 * learning < 4 * total


def test_sharding(planned: Plan, halved: Plan, tiny_folder: Path) -> None:
    """FSDP halves what two GPUs keep and gathers layers; DDP keeps all of it."""
    fsdp, ddp = halved.memory["update"], make_plan(recipe_of(tiny_folder), 2).memory["update"]
    learning = planned.parameters[1]
    assert ddp["gradients"] == (2 + 4) * learning  # buckets, and sums in float32
    assert fsdp["gradients"] == pytest.approx(2 * learning / 2, abs=1)
    for item in ("weights", "reference", "optimiser"):
        assert fsdp[item] == pytest.approx(ddp[item] / 2, abs=1)
        assert ddp[item] == planned.memory["update"][item]
    assert fsdp["activations"] == ddp["activations"]
    assert halved.memory["sampling"]["gathered"] == 2 * planned.parameters[0]
    assert "gathered" in fsdp and "gathered" not in ddp


def test_operations(planned: Plan, halved: Plan) -> None:
    """An update is a forward pass and a backward pass of twice the work; the reference is the first."""
    assert 2.9 * planned.flops["reference"] < planned.flops["update"] < 3.2 * planned.flops["reference"]
    for phase in ("reading", "drawing", "images", "update"):
        assert halved.flops[phase] == pytest.approx(planned.flops[phase] / 2, rel=0.02), phase


def test_eight_bit_moments_and_offload(tiny_folder: Path, planned: Plan) -> None:
    """Fewer bytes of state; what backward needs does not stay on the GPU; the work is the same."""
    more = ("policy.activation_offload=true", "policy.device=cuda", "learner.optim.name=adamw_8bit")
    less, full = make_plan(recipe_of(tiny_folder, *more)), planned.memory["update"]
    learning = planned.parameters[1]
    # A master, two bytes and a little, but for this model's many small tensors.
    assert 6 * learning < less.memory["update"]["optimiser"] < 6.4 * learning < full["optimiser"]
    assert less.memory["update"]["activations"] < 0.7 * full["activations"]
    assert less.flops["update"] == planned.flops["update"]


def test_vllm_is_told_apart(tiny_folder: Path) -> None:
    """Its work is not planned."""
    vllm = ("sampling.engine=vllm", "sampling.vllm.server_base_url=http://127.0.0.1:9")
    made = make_plan(recipe_of(tiny_folder, *vllm))
    assert "sampling" not in made.memory and "sampling by vLLM is not planned" in made.lines()[-1]


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


def test_a_dry_run_says_it(tiny_folder: Path) -> None:
    """As comments; what cannot be planned is said in a line, and the recipe is printed all the same."""

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, ["train", "adpo-digits", "--dry-run", *map(str, arguments)])
        assert result.exit_code == 0, result.output
        return result.stdout

    shown = run(f"policy.path={tiny_folder}", "policy.dtype=bfloat16", *SETTINGS, "--gpus", 2, "--sharded")
    assert "# plan: GB that tensors hold on each of 2 GPUs (the model sharded)" in shown
    assert "# plan: TFLOP of a step" in shown and "\nname: adpo-digits\n" in shown
    for more, reason in (("policy.path=org/name", "org/name is not on this machine"),
                         ("task.name=mobile", "task.train")):  # fmt: skip
        assert "# plan: none" in (shown := run(more)) and reason in shown


def test_without_shared_prompts(tiny_folder: Path) -> None:
    """Sampling is not planned: its caches are transformers' own. What does not sample is."""
    with pytest.raises(ConfigError, match="prompts are not shared"):
        make_plan(recipe_of(tiny_folder, "policy.shared_prefix=off"))
    made = make_plan(recipe_of(tiny_folder, "policy.shared_prefix=off", "method.name=sft"))
    assert "demonstrations" in made.lengths.stated and "sampling" not in made.memory


def test_text_models_have_no_images(text_folders: dict[str, Path]) -> None:
    made = make_plan(recipe_of(text_folders["llama"], "task.name=word-sums"))
    assert "images" not in made.memory and "0 of them for images" in "".join(made.lines())


def test_conversations(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on to their limits; what environments say is as long as given, or left out and said so."""
    monkeypatch.setattr(DigitsPick, "limits", RolloutLimits(turns=30))
    recipe = recipe_of(tiny_folder, "episode.turns=5")
    assert len(make_plan(recipe).lengths.trained) == 5 * 10
    assert "NOT counted: say how long it is" in make_plan(recipe).lengths.stated
    made = make_plan(recipe, heard=70)
    assert (len(made.lengths.trained), made.lengths.sampled) == (5 * 10 + 4 * 70, 50)
    assert made.lengths.trained[9:11] == made.lengths.trained[80:78:-1] == [True, False]
    # Twice as many turns hold about twice as many keys.
    longer = recipe.model_copy(update={"episode": EpisodeConfig(turns=10)})
    assert (
        1.5
        < make_plan(longer, heard=70).memory["sampling"]["caches"] / made.memory["sampling"]["caches"]
        < 2.5
    )
    short = recipe.model_copy(update={"episode": EpisodeConfig(turns=5, tokens=100)})
    at = make_plan(short, heard=70).lengths
    assert len(at.trained) + min(len(prompt.ids) for prompt in at.prompts) == 100
    make = DigitsPick.problem
    monkeypatch.setattr(DigitsPick, "problem", lambda *p: replace(make(*p), environment_begins=True))
    assert len(make_plan(recipe, heard=70).lengths.trained) == 5 * 10 + 5 * 70


@pytest.mark.parametrize("method", ["adapo", "turns-sft"])
def test_second_turns(method: str) -> None:
    """Both turns at their longest, and what is put between them."""
    words = ["method.second_turn=Check the answer.", "evaluation.second_turn=Check the answer."]
    sizes = ["sampling.max_new_tokens=20", "learner.groups_per_step=2", "learner.batch.micro_batch_groups=1"]
    made = make_plan(load_recipe("adpo-digits", [f"method.name={method}", *words, *sizes]))
    policy = Policy.load("builtin:digits", device="cpu")
    problem, request = make_task("digits-pick").problem("train", 0, 0), Observation("Check the answer.")
    between = ReplyEncoder(policy.encoder).encode(problem, request, 1)
    assert len(made.lengths.trained) == 40 + len(between.tokens)
