"""Naming nested settings by dots, and listing what differs between two sets of settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LONGEST = 200
"""Characters of a value in a phrase."""


def flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Put nested values under dotted names: ``{"a": {"b": 1}}`` becomes ``{"a.b": 1}``."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return one phrase for each value that differs. A name that is missing counts as None."""
    before, after = flatten(old), flatten(new)
    return [
        f"{name} was {_short(before.get(name))} and is now {_short(after.get(name))}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def _short(value: Any) -> str:
    """A value as Python writes it; of one that is long, such as a list of names, the beginning."""
    text = repr(value)
    if len(text) <= LONGEST:
        return text
    return text[:LONGEST] + (f"... ({len(value)} in all)" if isinstance(value, list) else "...")
