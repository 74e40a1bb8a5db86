"""The plan of a small run against the same run: bytes that its tensors hold, phase by phase."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from selfverify.core.config import RolloutLimits
from selfverify.core.episode import Episode, EpisodeResult, Observation, PolicyTurn
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Finish
from selfverify.experiments.dry_run import Meter
from selfverify.experiments.plan import make_plan
from selfverify.experiments.recipe import Recipe, load_recipe
from selfverify.experiments.registry import make_method, make_task
from selfverify.methods.base import Training
from selfverify.policy.decoding import TokenSampler
from selfverify.policy.encoding import Encoder
from selfverify.policy.features import ByteCache, tensor_bytes
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.policy import Policy
from selfverify.tasks.answering import answer_rewards
from selfverify.tasks.base import user_turn
from selfverify.tasks.digits_pick import DigitsPick
from selfverify.trainer.trainer import Trainer

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
    meter = Meter(policy.model.get_output_embeddings().weight.shape[0])
    meter.relabel(policy.model.parameters(), "weights")
    meter.relabel(policy.model.buffers(), "weights")
    method = make_method(recipe.method.name, **recipe.method.options)
    task = make_task(recipe.task.name, **recipe.task.options)
    peaks: dict[str, int] = {}
    with meter:
        learner = Trainer(Training(policy, task, method, recipe.learner, recipe.sampling, recipe.folder))
        roll_out = learner.source.roll_out

        def watched(step: int) -> Any:
            if policy.cache is not None:
                # As after many steps: this step's images push the old ones out.
                policy.cache = policy.forward.cache = ByteCache(policy.config.vision_cache_mb, tensor_bytes)
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
    peaks["step"] = whole.total
    return peaks


@pytest.fixture
def chatty(monkeypatch: pytest.MonkeyPatch) -> Callable[[Recipe], None]:
    """Makes `digits-pick` a conversation of 3 turns; a call lets the policy end each at its limit."""
    monkeypatch.setattr(DigitsPick, "limits", RolloutLimits(turns=3))
    monkeypatch.setattr(DigitsPick, "open", lambda self, problem, seed: Chat(self, problem, seed))
    choose = TokenSampler.choose
    calls = count(1)

    def ends_at_the_limit(
        voice: TokenSampler, hidden: torch.Tensor, uniform: torch.Tensor, most: int | None = None
    ) -> tuple[torch.Tensor, ...]:
        tokens, logprobs, sure = choose(voice, hidden, uniform, None)
        left = -next(calls) % voice.sampling.max_new_tokens
        going = torch.where(torch.isin(tokens, voice.stop), 9, tokens)
        if left == 0:
            going[:] = voice.stop[0]
        elif left == 2:  # one of four ends earlier, so that the others go on without it
            going[:, 3] = voice.stop[0]
        return going, logprobs, sure

    return lambda recipe: monkeypatch.setattr(TokenSampler, "choose", ends_at_the_limit)


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
def test_memory_of_conversations(
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
    assert len(made.lengths.trained) == 3 * 24 + (2 + begins) * heard
    chatty(recipe)
    torch.manual_seed(0)
    real = measured_run(recipe)
    rolled = max(sum(made.memory[name].values()) for name in ("images", "sampling"))
    assert rolled == pytest.approx(real["rollout"], rel=0.05)
    assert made.total == pytest.approx(real["step"], rel=0.05)


@pytest.mark.parametrize(
    "more",
    [
        ("method.verification_credit=normalised",),
        ("policy.gradient_checkpointing=true", "method.kl=0", "method.name=grpo"),
        ("policy.lora={rank: 4}", "method.name=grpo"),
        ("policy.dtype=bfloat16", "learner.optim.channels=separate", "method.name=sft"),
    ],
    ids=["full", "checkpointing", "lora", "masters and channels"],
)
def test_memory_is_that_of_a_run(tiny_folder: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    """Within 5 %, for the whole step and for sampling; a plan reads no weights and runs no kernel."""
    recipe = recipe_of(tiny_folder, tmp_path, *more)
    planned = make_plan(recipe)
    torch.manual_seed(0)
    real = measured_run(recipe)
    assert planned.total == pytest.approx(real["step"], rel=0.05)
    if "sampling" in planned.memory:
        before = planned.memory.keys() & {"images", "sampling"}
        rolled = max(sum(planned.memory[name].values()) for name in before)
        assert rolled == pytest.approx(real["rollout"], rel=0.05)
