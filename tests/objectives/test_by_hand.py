"""The papers' formulas on small numbers that are worked out by hand; the table says why."""

from __future__ import annotations

from typing import Any

import torch

from selfverify import objectives
from tables import yaml_cases


def value(given: Any) -> Any:
    """Lists become tensors, of float64 or of truth values; ``{log: ...}`` are the logarithms of a list."""
    if isinstance(given, dict):
        return value(given["log"]).log()
    if not isinstance(given, list):
        return given
    made = torch.tensor(given)
    return made if made.dtype == torch.bool else made.double()


@yaml_cases
def test_by_hand(name: str, arguments: list[Any], options: dict[str, Any], expected: Any) -> None:
    """Of a function with several results the table names those that it knows."""
    options = {key: value(given) for key, given in options.items()}
    found = getattr(objectives, name)(*map(value, arguments), **options)
    for part, wanted in (expected if isinstance(expected, dict) else {"": expected}).items():
        got = torch.as_tensor(getattr(found, part) if part else found).double()
        torch.testing.assert_close(
            got, torch.as_tensor(value(wanted)).double(), rtol=0, atol=1e-6, equal_nan=True
        )
