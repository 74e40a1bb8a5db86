"""Runs one training step without weights, and measures the memory and the operations of each phase."""

from __future__ import annotations

import torch

from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe import Recipe
from selfverify.experiments.registry import make_method
from selfverify.planner.conversation import samples
from selfverify.planner.dry_run import DryRun
from selfverify.planner.learning import Learning
from selfverify.planner.measured import MeasuredPass
from selfverify.planner.meter import Meter
from selfverify.planner.parameters import parameters_of
from selfverify.planner.plan_settings import PlanSettings
from selfverify.planner.rollout import converse, encode_images, read_scores
from selfverify.planner.shapes import shapes_of
from selfverify.policy.families import FAMILIES
from selfverify.policy.flash import assume_cuda
from selfverify.policy.loading import load_structure
from selfverify.policy.policy import Policy


def measure(recipe: Recipe, device: str, groups: int, lengths: PlanSettings) -> MeasuredPass:
    """Return what one step of ``recipe`` with ``groups`` problems takes; no weights are loaded.

    Raises:
        ConfigError: The model is not there, or it samples without sharing prompts.
        DataError: The task cannot make its problems.
    """
    dry, meter = DryRun(torch.device(device)), Meter()
    # The plan takes offloaded activations off a GPU itself, in `_learn`. On a CPU they stay in its memory.
    settings = recipe.policy.model_copy(update={"device": device, "activation_offload": False})
    with assume_cuda(), dry.running(), meter:
        with dry.weights(), meter.span("weights"):
            policy = Policy(load_structure(settings), settings)
        if not policy.loaded.family.shares_prompts:
            raise ConfigError(
                f"policy.path={recipe.policy.path}: models of type {policy.model.config.model_type!r} sample "
                "by transformers' own generate, which cannot be planned; vision-language families that can: "
                + ", ".join(FAMILIES)
            )
        if recipe.policy.gradient_checkpointing:
            policy.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dry.checkpointing)
        meter.vocabulary = policy.model.get_output_embeddings().weight.shape[0]
        shapes = shapes_of(recipe, policy, groups, lengths)
        measured = MeasuredPass({}, parameters_of(policy), shapes, policy.shares_prefix is not False)
        _run(recipe, policy, meter, measured)
        return measured


def _run(recipe: Recipe, policy: Policy, meter: Meter, measured: MeasuredPass) -> None:
    """Run the phases in the order of a real step."""
    method = make_method(recipe.method.name, **recipe.method.options)
    policy.model.eval()
    # Once a run, and before the reference is made, as in training: no step pays for it.
    policy.check_gradients()
    measured.shared = bool(policy.shares_prefix)
    with meter.span("reference"):
        reference = policy.frozen_copy() if method.config.needs_reference else None
    learning = Learning(recipe, policy, method, meter, measured)
    with torch.no_grad():
        encode_images(policy, measured, meter)
        if samples(recipe, method):
            if recipe.sampling.engine == "own":
                if not measured.shared:
                    raise ConfigError(
                        f"policy.path={recipe.policy.path}: where prompts are not shared (because of "
                        "policy.shared_prefix=off, or of the model as a warning says) sampling cannot be "
                        "planned; plan with sampling.engine=vllm, or a model of docs/models.md"
                    )
                converse(policy, measured, meter, policy.voice(recipe.sampling))
            if method.config.reads_scores:
                read_scores(policy, measured, meter)
    learning.run(reference)
