"""Methods, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from selfverify.errors import ConfigError
from selfverify.methods.adpo import ADPO, ADPOConfig
from selfverify.methods.base import Method, MethodConfig
from selfverify.methods.grpo import GRPO, GRPOConfig
from selfverify.methods.sft import SFT, SFTConfig


def _needs_a_group(recipe: Any) -> list[str]:
    if recipe.sampling.group_size < 2:
        return [f"sampling.group_size: {recipe.method.name} compares samples of one problem; use 2 or more"]
    return []


@dataclass(frozen=True, slots=True)
class MethodEntry:
    """How to build a method: its options' class, the class itself, one line for people, a recipe check."""

    config: type[MethodConfig]
    build: Any
    summary: str
    check: Callable[[Any], list[str]] | None = None


METHODS: dict[str, MethodEntry] = {
    "adpo": MethodEntry(
        ADPOConfig, ADPO, "answers and scores learn from separate advantages (ADPO)", _needs_a_group
    ),
    "grpo": MethodEntry(GRPOConfig, GRPO, "group-relative policy optimisation of the answer", _needs_a_group),
    "sft": MethodEntry(SFTConfig, SFT, "supervised fine-tuning on a task's demonstrations (cold start)"),
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
