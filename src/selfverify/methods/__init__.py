"""Methods, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from selfverify.errors import ConfigError
from selfverify.methods.adapo import AdaPO, AdaPOConfig
from selfverify.methods.adapo_adpo import AdaPOADPO, AdaPOADPOConfig
from selfverify.methods.adpo import ADPO, ADPOConfig
from selfverify.methods.base import Method, MethodConfig
from selfverify.methods.grpo import GRPO, GRPOConfig
from selfverify.methods.score import SCoRe, SCoReConfig
from selfverify.methods.sft import SFT, SFTConfig
from selfverify.methods.star import STaR, STaRConfig
from selfverify.methods.turns_sft import TurnsSFT, TurnsSFTConfig


def _needs_a_group(recipe: Any) -> list[str]:
    if recipe.sampling.group_size < 2:
        return [f"sampling.group_size: {recipe.method.name} compares samples of one problem; use 2 or more"]
    return []


def _measures_what_it_trains(recipe: Any) -> list[str]:
    words, asked = recipe.method.options["second_turn"], recipe.evaluation.second_turn
    if asked is None or asked == words:
        return []
    return [
        f"evaluation.second_turn: {asked!r} is not what {recipe.method.name} trains with "
        f"(method.second_turn: {words!r})"
    ]


def _two_turns(recipe: Any) -> list[str]:
    faults = _needs_a_group(recipe) + _measures_what_it_trains(recipe)
    if recipe.evaluation.second_turn is None:
        words = recipe.method.options["second_turn"]
        faults.append(
            f"evaluation.second_turn: {recipe.method.name} trains second turns; measure them, too: {words!r}"
        )
    return faults


def _one_update(recipe: Any) -> list[str]:
    updates = recipe.learner.updates_per_rollout * recipe.learner.inner_epochs
    if updates > 1:
        return [
            f"learner: {recipe.method.name} is REINFORCE, with one update for each rollout, not {updates}"
        ]
    return []


def _two_stages(recipe: Any) -> list[str]:
    first, steps = recipe.method.options["first_stage"], recipe.learner.steps
    if first >= steps:
        return [f"method.first_stage={first} leaves nothing of learner.steps={steps} for stage II"]
    return []


def _own_engine(recipe: Any) -> list[str]:
    if recipe.sampling.engine != "own":
        return [
            f"sampling.engine={recipe.sampling.engine}: {recipe.method.name} samples before it trains: own"
        ]
    return []


def _all_problems(recipe: Any) -> list[str]:
    if recipe.learner.keep is not None:
        return [
            f"learner.keep={recipe.learner.keep}: {recipe.method.name} samples the problems that it learns "
            "from itself"
        ]
    return []


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """How to build a method: its options' class, the class itself, one line for people, a recipe check."""

    config: type[MethodConfig]
    build: Any
    summary: str
    check: Callable[[Any], list[str]] | None = None


METHODS: dict[str, MethodEntry] = {
    "adapo": MethodEntry(
        AdaPOConfig, AdaPO, "a second turn re-examines the first; adaptive rewards and KL (AdaPO)", _two_turns
    ),
    "adapo-adpo": MethodEntry(
        AdaPOADPOConfig,
        AdaPOADPO,
        "AdaPO whose second turn also writes a score, which learns as in ADPO",
        _two_turns,
    ),
    "adpo": MethodEntry(
        ADPOConfig, ADPO, "answers and scores learn from separate advantages (ADPO)", _needs_a_group
    ),
    "grpo": MethodEntry(GRPOConfig, GRPO, "group-relative policy optimisation of the answer", _needs_a_group),
    "score": MethodEntry(
        SCoReConfig,
        SCoRe,
        "two-turn REINFORCE in two stages (SCoRe)",
        lambda recipe: _two_turns(recipe) + _one_update(recipe) + _two_stages(recipe),
    ),
    "sft": MethodEntry(SFTConfig, SFT, "supervised fine-tuning on a task's demonstrations (cold start)"),
    "star": MethodEntry(
        STaRConfig,
        STaR,
        "collect what further turns correct, learn from it, repeat (STaR)",
        lambda recipe: _measures_what_it_trains(recipe) + _own_engine(recipe) + _all_problems(recipe),
    ),
    "turns-sft": MethodEntry(
        TurnsSFTConfig,
        TurnsSFT,
        "supervised fine-tuning on second turns (two-turn cold start)",
        _measures_what_it_trains,
    ),
}


def make_method(name: str, **options: Any) -> Method:
    """The method called ``name``.

    Raises:
        ConfigError: No such method; the message lists the ones there are.
    """
    if name not in METHODS:
        raise ConfigError(f"there is no method {name!r}; methods: {', '.join(METHODS)}")
    entry = METHODS[name]
    method: Method = entry.build(entry.config(**options))
    return method


__all__ = ["METHODS", "Method", "MethodConfig", "MethodEntry", "make_method"]
