"""The plan of a step against the same step, and what it says of given lengths, GPUs and wrong input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from commands import command
from memory_meter import Meter
from selfverify.core.config import EpisodeConfig, RolloutLimits
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Finish
from selfverify.experiments.plan import Plan, Shapes, make_plan
from selfverify.experiments.recipe import Recipe, load_recipe
from selfverify.experiments.registry import make_method, make_task
from selfverify.methods.base import Training
from selfverify.policy.decoding import TokenSampler
from selfverify.policy.encoding import Encoder
from selfverify.policy.families import family_of
from selfverify.policy.features import ByteCache
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.policy import Policy
from selfverify.tasks.answering import answer_rewards
from selfverify.tasks.base import user_turn
from selfverify.tasks.digits_pick import DigitsPick
from selfverify.trainer.trainer import Trainer
from tables import yaml_cases

STEPS = 2
"""The second step is the first with the optimiser's state; that is what is planned."""


def recipe_of(folder: Path, tmp_path: Path, *more: str) -> Recipe:
    """A few problems; groups that teach nothing stay, since a model with random weights earns nothing."""
    learner = {
        "steps": STEPS, "optim.warmup": 0, "groups_per_step": 6, "batch.micro_batch_groups": 3,
        "loss.drop_zero_advantage": "false",
    }  # fmt: skip
    settings = [f"learner.{name}={value}" for name, value in learner.items()]
    settings += [f"policy.path={folder}", "policy.device=cpu", f"output={tmp_path}/run"]
    sizes = ["sampling.group_size=4", "sampling.max_new_tokens=24"]
    return load_recipe("adpo-digits", [*settings, *sizes, *more])


def measured_run(recipe: Recipe) -> dict[str, int]:
    """Peaks of a real second training step: of everything, and of rolling out alone."""
    policy = Policy.load(recipe.policy)
    meter = Meter()
    meter.hold([*policy.model.parameters(), *policy.model.buffers()])
    method = make_method(recipe.method.name, **recipe.method.options)
    task = make_task(recipe.task.name, **recipe.task.options)
    peaks: dict[str, int] = {}
    with meter:
        learner = Trainer(Training(policy, task, method, recipe.learner, recipe.sampling, recipe.folder))
        roll_out = learner.source.roll_out

        def watched(step: int) -> Any:
            if policy.cache is not None:
                # As after many steps: this step's images push the old ones out.
                policy.cache = policy.forward.cache = ByteCache(policy.config.vision_cache_mb)
                policy.encoder = Encoder(policy.loaded, policy.config.pixel_cache_mb)
            with meter.span() as span:
                made = roll_out(step)
            peaks["rollout"] = span.total
            return made

        learner.source.roll_out = watched  # type: ignore[method-assign]
        for _ in range(STEPS):
            with meter.span() as whole:
                learner.train_step()
            learner.step += 1
    return peaks | {"step": whole.total}


CLOSE = 0.08
"""How near a plan comes to a step; docs/scaling.md says so."""


def agrees(plan: Plan, real: dict[str, int]) -> None:
    """The bytes of the whole step, and of sampling."""
    assert plan.total == pytest.approx(real["step"], rel=CLOSE)
    if "sampling" in plan.memory and "scores" not in plan.memory:
        assert sum(plan.memory["sampling"].values()) == pytest.approx(real["rollout"], rel=CLOSE)


@yaml_cases
def test_a_plan_is_near_to_a_step(tiny_folder: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    recipe = recipe_of(tiny_folder, tmp_path, *more)
    planned = make_plan(recipe)
    torch.manual_seed(0)
    agrees(planned, measured_run(recipe))


@pytest.fixture
def chatty(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recipe], None]:
    """Makes `digits-pick` a conversation of 3 turns; a call lets the policy end each at its limit."""
    monkeypatch.setattr(DigitsPick, "limits", RolloutLimits(turns=3))
    monkeypatch.setattr(DigitsPick, "open", lambda self, problem, seed: Chat(self, problem, seed))
    pick = TokenSampler.pick
    calls = count(1)

    def ends_at_the_limit(voice: TokenSampler, *args: Any) -> tuple[torch.Tensor, ...]:
        tokens, logprobs, _ = pick(voice, *args)
        left = -next(calls) % voice.sampling.max_new_tokens
        going = torch.where(torch.isin(tokens, voice.stop), 9, tokens)
        if left == 0:
            going[:] = voice.stop[0]
        elif left == 2:  # one of four ends earlier, so that the others go on without it
            going[:, 3] = voice.stop[0]
        return going, logprobs, torch.isin(going, voice.stop)

    return lambda recipe: monkeypatch.setattr(TokenSampler, "pick", ends_at_the_limit)


class Chat(Episode):
    """Says much in every turn."""

    def __init__(self, task: DigitsPick, problem: Problem, seed: int) -> None:
        self.task, self.problem, self.seed = task, problem, seed

    def step(self, said: PolicyTurn) -> Observation:
        return Observation(" ".join(["Look again."] * 12))

    def result(self) -> EpisodeResult:
        judged = self.task.verdict(self.problem, Tagged())
        return EpisodeResult(answer_rewards(Tagged(), judged), parsed=judged)


class Opening(Chat):
    """Speaks before the first turn, too."""

    def reset(self) -> Observation | None:
        return self.step(PolicyTurn("", [], Finish.STOP, -1))


@pytest.mark.parametrize("begins", [False, True], ids=["policy first", "environment first"])
def test_conversations_take_what_is_planned(
    tiny_folder: Path, tmp_path: Path, chatty: Callable[[Recipe], None], begins: bool, monkeypatch: Any
) -> None:
    """Kept keys, and replies that are heard in chunks."""
    if begins:
        monkeypatch.setattr(DigitsPick, "open", lambda self, problem, seed: Opening(self, problem, seed))
        make = DigitsPick.problem
        begun = lambda *place: replace(make(*place), environment_begins=True)  # noqa: E731
        monkeypatch.setattr(DigitsPick, "problem", begun)
    sizes = ("learner.groups_per_step=1", "learner.batch.micro_batch_groups=1", "policy.prefill_chunk=100")
    recipe = recipe_of(tiny_folder, tmp_path, "method.name=grpo", *sizes)
    problem = Problem("x", user_turn("", 0))
    reply = Chat(DigitsPick(), problem, 0).step(PolicyTurn("", [], Finish.STOP, 0))
    writer = ReplyEncoder(Policy.load(recipe.policy).encoder)
    heard = len(writer.encode(problem, reply, 1).tokens) - 1  # the policy writes the first one itself
    made = make_plan(recipe, heard=heard)
    assert made.lengths.own == 3 * 24 + (2 + begins) * heard
    chatty(recipe)
    torch.manual_seed(0)
    agrees(made, measured_run(recipe))


def test_operations_of_a_pass(text_folders: dict[str, Path], tmp_path: Path) -> None:
    """As torch counts them; an update is a forward pass, and a backward pass of twice the work."""
    folder, tokens = text_folders["llama"], 100
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(1, tokens, dtype=torch.long))
    shapes = Shapes(model, family_of(model))
    counted = shapes.forward([tokens], 0, 0) + 2 * shapes.head * tokens
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.01)
    flops = make_plan(recipe_of(folder, tmp_path, "task.name=word-sums", "method.kl=0.1")).flops
    assert flops["update"] == pytest.approx(3 * flops["reference"], rel=0.01)


def test_written_scores(text_folders: dict[str, Path], tmp_path: Path) -> None:
    """Where a window is narrower than a row, no flash kernel attends."""
    task = ("task.name=word-sums", "method.name=grpo", "sampling.max_new_tokens=60")
    recipe = recipe_of(text_folders["gemma3_text"], tmp_path, *task)
    assert make_plan(recipe).total == pytest.approx(measured_run(recipe)["step"], rel=CLOSE)


SIZES = [
    "method.name=grpo", "policy.dtype=bfloat16", "learner.groups_per_step=8", "sampling.group_size=8",
    "learner.batch.micro_batch_groups=2", "sampling.max_new_tokens=10",
]  # fmt: skip


def test_what_is_counted(tiny_folder: Path, tmp_path: Path) -> None:
    """Tokens, parameters and states; half of them on each of two GPUs, with FSDP and with DDP."""
    recipe = recipe_of(tiny_folder, tmp_path, *SIZES)
    one, fsdp, ddp = make_plan(recipe), make_plan(recipe, 2, sharded=True), make_plan(recipe, 2)
    asked, half = sum(one.lengths.prompts), sum(fsdp.lengths.prompts)
    tokens = asked + 8 * 8 * 10, 8 * (asked + 80)  # P + G R against G (P + R)
    assert "tokens of a pass: {:,}; with prompts written out {:,}".format(*tokens) in one.lines()
    assert len(fsdp.lengths.prompts) == 4 and one.lengths.prompts[:4] == fsdp.lengths.prompts
    assert f"tokens of a pass: {2 * (half + 4 * 8 * 10):,};" in "".join(fsdp.lines())
    (total, learning), held = one.parameters, one.memory["update"]
    assert held["weights"] == held["reference"] == 2 * total and held["gradients"] == 4 * learning < 4 * total
    assert held["optimiser"] == 12 * learning  # a master and two moments of four bytes
    assert ddp.memory["update"]["gradients"] == (2 + 4) * learning  # buckets, and sums in float32
    assert fsdp.memory["update"]["gradients"] == pytest.approx(learning, abs=1)
    for item in ("weights", "reference", "optimiser"):
        assert fsdp.memory["update"][item] == pytest.approx(held[item] / 2, abs=1)
        assert ddp.memory["update"][item] == held[item]
    assert fsdp.memory["sampling"]["gathered"] == 2 * total and "gathered" not in ddp.memory["update"]
    assert fsdp.memory["update"]["gathered"] == 2 * total  # of two layers, no part goes away
    for phase in ("reading", "drawing", "images", "update"):
        assert fsdp.flops[phase] == pytest.approx(one.flops[phase] / 2, rel=0.02), phase
    more = ("policy.activation_offload=true", "policy.device=cuda", "learner.optim.name=adamw_8bit")
    less = make_plan(recipe_of(tiny_folder, tmp_path, *SIZES, *more))
    assert 6 * learning < less.memory["update"]["optimiser"] < 6.1 * learning  # two bytes and a little
    assert "activations" not in less.memory["update"]  # what a layer needs is less than the logits
    assert less.flops == one.flops


@pytest.mark.parametrize(
    "engine",
    [("sampling.engine=vllm", "sampling.vllm.server_base_url=http://127.0.0.1:9"),
     ("policy.shared_prefix=off",)],
)  # fmt: skip
def test_sampling_of_others_is_not_planned(tiny_folder: Path, tmp_path: Path, engine: Any) -> None:
    """vLLM's and transformers' own; fine-tuning samples nothing."""
    made = make_plan(recipe_of(tiny_folder, tmp_path, *SIZES, *engine))
    assert "sampling" not in made.memory and "is not planned" in made.lines()[-1]
    made = make_plan(recipe_of(tiny_folder, tmp_path, *SIZES, "method.name=sft"))
    assert "demonstrations" in made.lengths.stated and not made.notes


def test_a_dry_run_says_it(tiny_folder: Path, text_folders: dict[str, Path]) -> None:
    """As comments; what cannot be planned is said in a line, and the recipe is printed all the same."""

    def run(*arguments: object) -> str:
        result = command("train", "adpo-digits", "--dry-run", *arguments)
        return result.stdout

    shown = run(f"policy.path={tiny_folder}", *SIZES, "--gpus", 2, "--sharded")
    assert "# plan: GB that tensors hold on each of 2 GPUs (the model sharded)" in shown
    assert "# plan: TFLOP of a step" in shown and "\nname: adpo-digits\n" in shown
    shown = run(f"policy.path={text_folders['llama']}", *SIZES, "task.name=word-sums")
    assert " 0 of them for images" in shown and "images 0" not in shown
    for more, reason in (("policy.path=org/name", "org/name is not on this machine"),
                         ("task.name=mobile", "task.train")):  # fmt: skip
        assert "# plan: none" in (shown := run(more)) and reason in shown


def test_lengths_of_conversations(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They go on to their limits; what environments say is as long as given, or left out and said so."""
    monkeypatch.setattr(DigitsPick, "limits", RolloutLimits(turns=30))
    recipe = recipe_of(tiny_folder, tmp_path, *SIZES, "episode.turns=5")
    unsaid, made = make_plan(recipe).lengths, make_plan(recipe, heard=70)
    assert unsaid.own == 5 * 10 and "NOT counted: say how long it is" in unsaid.stated
    assert (made.lengths.own, made.lengths.said) == (5 * 10 + 4 * 70, 50)
    longer = recipe.model_copy(update={"episode": EpisodeConfig(turns=10)})
    kept = [one.memory["sampling"]["caches"] for one in (made, make_plan(longer, heard=70))]
    assert 1.5 < kept[1] / kept[0] < 2.5  # twice as many turns hold about twice as many keys
    short = recipe.model_copy(update={"episode": EpisodeConfig(turns=5, tokens=100)})
    at = make_plan(short, heard=70).lengths
    assert at.own + min(at.prompts) == 100 and at.said == 50 * at.own // 330
    make = DigitsPick.problem
    monkeypatch.setattr(DigitsPick, "problem", lambda *p: replace(make(*p), environment_begins=True))
    assert make_plan(recipe, heard=70).lengths.own == 5 * 10 + 5 * 70


@pytest.mark.parametrize("method", ["adapo", "turns-sft"])
def test_second_turns(method: str) -> None:
    """Both turns at their longest, and what is put between them."""
    words = ["method.second_turn=Check the answer.", "evaluation.second_turn=Check the answer."]
    sizes = ["sampling.max_new_tokens=20", "learner.groups_per_step=2", "learner.batch.micro_batch_groups=1"]
    made = make_plan(load_recipe("adpo-digits", [f"method.name={method}", *words, *sizes]))
    policy = Policy.load("builtin:digits", device="cpu")
    problem, request = make_task("digits-pick").problem("train", 0, 0), Observation("Check the answer.")
    between = ReplyEncoder(policy.encoder).encode(problem, request, 1)
    assert made.lengths.own == 40 + len(between.tokens)
