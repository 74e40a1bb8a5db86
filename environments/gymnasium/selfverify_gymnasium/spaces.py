"""Gymnasium's spaces as JSON: which actions there are, an action from a call, an observation to be shown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from PIL import Image
from pydantic_core import to_json

from selfverify.core.errors import ConfigError

LONGEST_ARRAY = 4096
"""Numbers of an array that are shown in full."""


class Misfit(Exception):
    """A value is none of a space; the message is for the agent."""


def schema_of(space: spaces.Space[Any]) -> dict[str, Any]:
    """Return the JSON schema of a space's values.

    Raises:
        ConfigError: The space is of a kind that has no values in JSON.
    """
    match space:
        case spaces.Discrete():
            low = int(space.start)
            return {"type": "integer", "minimum": low, "maximum": low + int(space.n) - 1}
        case spaces.MultiBinary():
            return _nested(space.shape, {"type": "integer", "enum": [0, 1]})
        case spaces.MultiDiscrete():
            return _places(space.start, space.nvec)
        case spaces.Box():
            number: dict[str, Any] = {"type": "integer" if space.dtype.kind in "iu" else "number"}
            low, high = (space.low.min().item(), space.high.max().item()) if space.low.size else (0, 0)
            number |= {"minimum": low} if math.isfinite(low) else {}
            number |= {"maximum": high} if math.isfinite(high) else {}
            return _nested(space.shape, number)
        case spaces.Text():
            return {"type": "string", "minLength": space.min_length, "maxLength": space.max_length}
        case spaces.Dict():
            properties = {name: schema_of(inner) for name, inner in space.spaces.items()}
            return {"type": "object", "properties": properties, "required": list(properties)}
        case spaces.Tuple():
            count = len(space.spaces)
            items = [schema_of(inner) for inner in space.spaces]
            return {"type": "array", "prefixItems": items, "minItems": count, "maxItems": count}
    raise ConfigError(f"actions of {type(space).__name__} cannot be written as JSON; wrap the environment")


def value_of(space: spaces.Space[Any], given: Any, place: str = "action") -> Any:
    """Return a JSON value as the space's value.

    Raises:
        Misfit: It is none.
    """
    match space:
        case spaces.Dict():
            if not isinstance(given, Mapping) or set(given) != set(space.spaces):
                raise Misfit(f"{place} has to be an object with {', '.join(space.spaces)}")
            return {name: value_of(inner, given[name], name) for name, inner in space.spaces.items()}
        case spaces.Tuple():
            if not isinstance(given, list) or len(given) != len(space.spaces):
                raise Misfit(f"{place} has to be a list of {len(space.spaces)}")
            return tuple(
                value_of(s, g, f"{place}[{i}]")
                for i, (s, g) in enumerate(zip(space.spaces, given, strict=True))
            )
        case spaces.Text():
            value = given
        case spaces.Discrete():
            value = np.int64(given) if type(given) is int and abs(given) < 2**62 else None
        case _:
            value = _array(space, given)
    if value is None or not space.contains(value):
        raise Misfit(f"{place} does not fit; it has to be {to_json(schema_of(space)).decode()}")
    return value


def _array(space: spaces.Space[Any], given: Any) -> Any:
    try:
        plain = np.asarray(given)
        if plain.dtype.kind not in "iuf" or plain.shape != space.shape:
            return None
        value = plain.astype(space.dtype)
    except (ValueError, TypeError, OverflowError):
        return None
    return (
        value
        if space.dtype is not None and (space.dtype.kind == "f" or np.array_equal(value, plain))
        else None
    )


def shown(value: Any) -> tuple[str, list[Image.Image]]:
    """Return an observation's text and images. Arrays of 8 bits ``[H, W, 1, 3 or 4]`` are images."""
    if isinstance(value, str):
        return value, []
    if (picture := _picture(value)) is not None:
        return "", [picture]
    if not isinstance(value, Mapping):
        return to_json(plain(value)).decode(), []
    pictures = [picture for inner in value.values() if (picture := _picture(inner)) is not None]
    rest = {name: plain(inner) for name, inner in value.items() if _picture(inner) is None}
    return to_json(rest).decode() if rest else "", pictures


def _picture(value: Any) -> Image.Image | None:
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or value.ndim != 3:
        return None
    if value.shape[2] not in (1, 3, 4) or not value.size:
        return None
    return Image.fromarray(np.ascontiguousarray(value[..., 0] if value.shape[2] == 1 else value))


def plain(value: Any) -> Any:
    """Return a value as plain JSON; of what is none, its type."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case np.generic():
            return plain(value.item())
        case np.ndarray():
            if value.size > LONGEST_ARRAY or value.dtype.kind not in "biuf":
                return f"array of {value.dtype}, {list(value.shape)}"
            return plain(value.tolist())
        case Mapping():
            return {str(name): plain(inner) for name, inner in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(inner) for inner in value]
    return f"({type(value).__name__})"


def _places(low: np.ndarray, count: np.ndarray) -> dict[str, Any]:
    """A schema of integers, each place with limits of its own."""
    if not low.ndim:
        return {"type": "integer", "minimum": int(low), "maximum": int(low) + int(count) - 1}
    items = [_places(*place) for place in zip(low, count, strict=True)]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _nested(shape: tuple[int, ...], inner: dict[str, Any]) -> dict[str, Any]:
    for size in reversed(shape):
        inner = {"type": "array", "items": inner, "minItems": size, "maxItems": size}
    return inner
