"""Compare what a golden has stored of the two trees, value by value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

from goldens.tree import flat

NOTHING = "(nothing)"
TENSORS = "tensors.safetensors"


class Difference(NamedTuple):
    """The first value that differs: which golden, row and key, and both values, cut to where they part."""

    golden: str
    row: str
    key: str
    before: str
    after: str

    def __str__(self) -> str:
        pairs = enumerate(zip(self.before, self.after, strict=False))
        start = next((i for i, (a, b) in pairs if a != b), 0)
        one, other = (text[max(0, start - 80) :][:300] for text in (self.before, self.after))
        return f"{self.golden} differs: {self.row}, {self.key}\n  before: {one}\n  after:  {other}"


def is_allowed(found: Difference, allowed: Mapping[str, Any]) -> bool:
    """Return whether a difference is on the list; an entry without a key allows all of a row."""
    way = "added" if found.before == NOTHING else "deleted" if found.after == NOTHING else "changed"
    wanted = {"golden": found.golden, "row": found.row, "key": found.key}
    return any(
        all(fnmatchcase(value, entry.get(name, "*")) for name, value in wanted.items())
        for entry in allowed.get(way, ())
    )


def first_difference(golden: str, before: Path, after: Path, allowed: Mapping[str, Any]) -> Difference | None:
    """Return the first difference between the two stores of a golden that is not on the list ``allowed``."""
    ones, others = read_values(before), read_values(after)
    for row, key in [*ones, *(others.keys() - ones.keys())]:
        one, other = (values.get((row, key), NOTHING) for values in (ones, others))
        found = Difference(golden, row, key, one, other)
        if one != other and not is_allowed(found, allowed):
            return found
    one_store, other_store = (load_file(folder / TENSORS) for folder in (before, after))
    for name in sorted(one_store.keys() & other_store.keys()):
        apart = _in_tensor(golden, name, one_store[name], other_store[name])
        if apart and not is_allowed(apart, allowed):
            return apart
    return None


def _in_tensor(golden: str, name: str, one: torch.Tensor, other: torch.Tensor) -> Difference | None:
    """Return where the bits of two tensors of one form begin to differ."""
    sizes = (one.numel(), one.element_size())
    bits = [each.contiguous().reshape(-1).view(torch.uint8).reshape(sizes) for each in (one, other)]
    places = (bits[0] != bits[1]).any(-1).reshape(one.shape).nonzero()
    if not len(places):
        return None
    place, gap = tuple(places[0].tolist()), (one.double() - other.double()).abs().max()
    key = f"value {list(place)} (up to {gap:.3g} apart)"
    return Difference(golden, name, key, str(one[place].item()), str(other[place].item()))


def read_values(folder: Path) -> dict[tuple[str, str], str]:
    """Return as JSON the leaves of each row by its id and their keys, and the forms of the tensors.

    Raises:
        OSError: The golden has stored nothing.
    """
    found = {}
    for line in (folder / "rows.jsonl").read_text(encoding="utf-8").split("\n")[:-1]:
        record = json.loads(line)
        for key, value in flat(record["values"]).items():
            found[record["id"], key] = json.dumps(value, ensure_ascii=False)
    for name, tensor in sorted(load_file(folder / TENSORS).items()):
        found[name, "dtype and shape"] = f"{tensor.dtype} {list(tensor.shape)}"
    return found
