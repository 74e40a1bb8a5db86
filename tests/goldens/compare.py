"""Compare what a golden has stored of the two trees, value by value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file

from goldens.tree import HERE, flat, read_yaml

NOTHING = "(nothing)"


class Difference(NamedTuple):
    """The first value that differs: which golden, row and key, and both values."""

    golden: str
    row: str
    key: str
    before: str
    after: str

    def __str__(self) -> str:
        return (
            f"{self.golden} differs: {self.row}, {self.key}\n  before: {self.before}\n  after:  {self.after}"
        )


class Allowed:
    """What may be missing from the working tree, be new in it, or be another value (`deleted.yaml`)."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.rows = {way: list(table.get(way) or []) for way in ("deleted", "added", "changed")}

    @classmethod
    def read(cls, path: Path = HERE / "deleted.yaml") -> Allowed:
        """Read the list."""
        return cls(read_yaml(path))

    def has(self, way: str, golden: str, row: str, key: str | None) -> bool:
        """Return whether a row (``key`` None) or a key of a row is on the list."""
        return any(
            fnmatchcase(golden, entry.get("golden", "*"))
            and fnmatchcase(row, entry.get("row", "*"))
            and ("key" not in entry if key is None else fnmatchcase(key, entry.get("key", "*")))
            for entry in self.rows[way]
        )


def first_difference(golden: str, before: Path, after: Path, allowed: Allowed) -> Difference | None:
    """Return the first difference between the two stores of a golden."""
    ones, others = read_rows(before), read_rows(after)
    for row in [*ones, *(others.keys() - ones.keys())]:
        one, other = ones.get(row), others.get(row)
        if one is None or other is None:
            if not allowed.has("added" if one is None else "deleted", golden, row, None):
                seen = (NOTHING if one is None else "a row", NOTHING if other is None else "a row")
                return Difference(golden, row, "all of it", *seen)
            continue
        for key in [*one, *(other.keys() - one.keys())]:
            if key not in one or key not in other:
                if not allowed.has("added" if key not in one else "deleted", golden, row, key):
                    return Difference(golden, row, key, shown(one, key), shown(other, key))
            elif repr(one[key]) != repr(other[key]) and not allowed.has("changed", golden, row, key):
                return Difference(golden, row, key, *apart(shown(one, key), shown(other, key)))
    return _tensors(golden, before, after, allowed)


def first_stored_difference(before: Path, after: Path) -> Difference | None:
    """Return the first difference between two stores of one tree, in which nothing may be missing."""
    return first_difference("", before, after, Allowed({}))


def _tensors(golden: str, before: Path, after: Path, allowed: Allowed) -> Difference | None:
    ones, others = (load_file(folder / "tensors.safetensors") for folder in (before, after))
    for name in [*sorted(ones), *sorted(others.keys() - ones.keys())]:
        one, other = ones.get(name), others.get(name)
        if one is None or other is None:
            if not allowed.has("added" if one is None else "deleted", golden, name, None):
                return Difference(golden, name, "tensor", *map(_form, (one, other)))
        elif one.dtype != other.dtype or one.shape != other.shape:
            return Difference(golden, name, "dtype and shape", _form(one), _form(other))
        elif one.numel() and not _same_bits(one, other):
            apart = ~((one == other) | ((one != one) & (other != other)))
            if not bool(apart.any()):
                return Difference(golden, name, "bits of zeros or NaN", _form(one), _form(other))
            place = tuple(apart.nonzero()[0].tolist())
            gap = (one.double() - other.double()).abs().max()
            key = f"value {list(place)} (up to {gap:.3g} apart)"
            return Difference(golden, name, key, str(one[place].item()), str(other[place].item()))
    return None


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    ones, others = (each.reshape(-1).view(torch.uint8) for each in (one.contiguous(), other.contiguous()))
    return torch.equal(ones, others)


def _form(tensor: torch.Tensor | None) -> str:
    return NOTHING if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def read_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the leaves of each row by its id.

    Raises:
        OSError: The golden has stored nothing.
    """
    with (folder / "rows.jsonl").open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return {record["id"]: flat(record["values"]) for record in records}


def shown(row: Mapping[str, Any], key: str) -> str:
    """Return a value as it is printed."""
    return json.dumps(row[key], ensure_ascii=False) if key in row else NOTHING


def apart(one: str, other: str, around: int = 160) -> tuple[str, str]:
    """Cut two long texts to the place where they begin to differ."""
    if max(len(one), len(other)) <= 2 * around:
        return one, other
    pairs = zip(one, other, strict=False)
    start = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
    low = max(0, start - around // 2)
    head = f"… from character {low}: " if low else ""
    return head + one[low : low + around], head + other[low : low + around]
