"""Says in words which weights do not fit a model, from what transformers reports about loading them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHOWN = 5
"""The most names that are listed of each kind of misfit."""

_KINDS = {
    "missing_keys": "not in the folder",
    "unexpected_keys": "not in the model",
    "mismatched_keys": "of another shape",
    "error_msgs": "in error",
}


def misfits(report: Mapping[str, Any]) -> list[str]:
    """Return one phrase for each kind of misfit, such as ``2 not in the folder: a, b``; none if all fits.

    Args:
        report: What ``from_pretrained(..., output_loading_info=True)`` returns beside the model.
    """
    found = []
    for kind, words in _KINDS.items():
        names = sorted(_named(entry) for entry in report.get(kind) or ())
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        if names:
            found.append(f"{len(names)} {words}: {', '.join(names[:SHOWN])}{more}")
    return found


def _named(entry: Any) -> str:
    """Return the name in an entry of the report, with both shapes where transformers tells them."""
    name, *shapes = (entry,) if isinstance(entry, str) else entry
    return f"{name} ({', model '.join(str(list(shape)) for shape in shapes)})" if shapes else str(name)
