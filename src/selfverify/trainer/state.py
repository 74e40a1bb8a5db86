"""The state of optimizers, schedulers and random generators without pickles; loading of weights.

A pickle can run code when it is read; JSON and safetensors cannot. JSON keeps Python's floats exactly
(``repr`` round-trips), and safetensors keeps tensors bit by bit, so no value changes.

`load_matching` loads saved weights into a live model, or says what does not match: no initial weight stays
silently.
"""

from __future__ import annotations

import copy
import json
import logging
import math
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from selfverify.core.errors import CheckpointError
from selfverify.policy import adapters
from selfverify.policy.loading import misfits
from selfverify.trainer.logging import no_bars_of_transformers

logger = logging.getLogger(__name__)

_TENSOR, _TUPLE, _MAP = "__tensor__", "__tuple__", "__map__"


def pack(value: Any, tensors: dict[str, Tensor], name: str) -> Any:
    """Return ``value`` as JSON. Its tensors go into ``tensors``, under names that begin with ``name``.

    `unpack` restores tuples, and keys that are not strings, which plain JSON would lose.

    Raises:
        CheckpointError: A part is neither a plain value nor a tensor. The message names the part.
    """
    if isinstance(value, Tensor):
        while name in tensors:
            name += "_"
        dense = value.detach().cpu().contiguous()
        # safetensors refuses views that may share memory; all others go to the file without a copy.
        tensors[name] = dense.clone() if dense.untyped_storage().nbytes() != dense.nbytes else dense
        return {_TENSOR: name}
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(value)
    if isinstance(value, tuple):
        return {_TUPLE: [pack(item, tensors, f"{name}.{i}") for i, item in enumerate(value)]}
    if isinstance(value, list):
        return [pack(item, tensors, f"{name}.{i}") for i, item in enumerate(value)]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("__") for key in value):
            return {key: pack(item, tensors, f"{name}.{key}") for key, item in value.items()}
        pairs = [
            [pack(key, tensors, f"{name}.key"), pack(item, tensors, f"{name}.{key}")]
            for key, item in value.items()
        ]
        return {_MAP: pairs}
    raise CheckpointError(
        f"{name}: a {type(value).__name__} cannot be part of a checkpoint; plain values can"
    )


def unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the value that `pack` was given."""
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {_TENSOR}:
        return tensors[value[_TENSOR]]
    if set(value) == {_TUPLE}:
        return tuple(unpack(item, tensors) for item in value[_TUPLE])
    if set(value) == {_MAP}:
        return {unpack(key, tensors): unpack(item, tensors) for key, item in value[_MAP]}
    return {key: unpack(item, tensors) for key, item in value.items()}


class Savable(Protocol):
    """A torch optimizer, or an object that stands for one whose state several processes share."""

    param_groups: list[dict[str, Any]]
    state: Any

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's whole state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put back what `state_dict` returned."""


def parameter_names(optimizer: Savable) -> list[list[str | None]]:
    """Return the name of each parameter of each group; None where the optimizer was given no names."""
    return [
        list(group.get("param_names") or [None] * len(group["params"])) for group in optimizer.param_groups
    ]


def parameter_shapes(optimizer: Savable) -> list[list[list[int]]]:
    """Return the shape of each parameter of each group."""
    return [[list(p.shape) for p in group["params"]] for group in optimizer.param_groups]


def optimizer_misfits(
    optimizer: Savable, shapes: list[list[list[int]]], names: list[list[str | None]]
) -> list[str]:
    """Say why a saved state with these ``shapes`` and ``names`` does not fit; empty if it fits."""
    saved = [pair for group in zip(names, shapes, strict=True) for pair in zip(*group, strict=True)]
    groups = zip(parameter_names(optimizer), parameter_shapes(optimizer), strict=True)
    own = [pair for group in groups for pair in zip(*group, strict=True)]
    if len(saved) != len(own):
        return [
            f"{len(saved)} parameters were saved, the optimizer has {len(own)} (is the same part of the "
            "model trained?)"
        ]
    faults = []
    for place, ((old, before), (name, now)) in enumerate(zip(saved, own, strict=True)):
        label = name or f"parameter {place}"
        if before != now:
            faults.append(f"{label}: shape {before} was saved, the model has {now}")
        elif old and name and old != name:
            faults.append(f"{label}: in its place {old} was saved")
    return faults


def training_bytes(optimizer: Savable) -> int:
    """Return the bytes of the trained parameters and of the optimizer's state."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    kept = [v for state in optimizer.state.values() for v in state.values() if isinstance(v, Tensor)]
    return sum(tensor.nbytes for tensor in (*parameters, *kept))


def refuse_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse tensors that hold NaN or infinity, before a checkpoint replaces a good one with them.

    Raises:
        CheckpointError: One does; the message names it.
    """
    for name, tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            # Unlike `isfinite`, this makes no copy; NaN is the least and the largest of what it is among.
            least, largest = tensor.detach().aminmax()
            if not (math.isfinite(least) and math.isfinite(largest)):
                raise CheckpointError(f"{name} is not finite: it has values from {least:g} to {largest:g}")


def _accelerator() -> tuple[str, Any]:
    """Return the kind of the devices beside the CPU (``cuda``) and torch's module of it; "" without any."""
    kind = torch.accelerator.current_accelerator(check_available=True)
    # Apple's one device has one generator, and a module of other functions.
    if kind is None or kind.type == "mps":
        return "", None
    return kind.type, torch.get_device_module(kind)


def rng_state() -> dict[str, Any]:
    """Return the states of the generators of Python, NumPy and torch (CPU and every CUDA device).

    The states of devices have the devices' kind as their name: ``cuda``.
    """
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
    }
    kind, module = _accelerator()
    if kind:
        state[kind] = module.get_rng_state_all()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    """Put back the states that `rng_state` returned."""
    random.setstate(state["python"])
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    kind, module = _accelerator()
    saved = {name: states for name, states in state.items() if name not in ("python", "numpy", "torch")}
    here = module.device_count() if kind else 0
    if {name: len(states) for name, states in saved.items()} != ({kind: here} if kind else {}):
        logger.warning(
            "the checkpoint holds generators of %s and this machine has %s: random draws on devices will "
            "differ from an unbroken run's",
            ", ".join(f"{len(states)} {name} devices" for name, states in saved.items()) or "no device",
            f"{here} {kind} devices" if kind else "none",
        )
    for device, device_state in enumerate(saved.get(kind, [])[:here]):
        module.set_rng_state(device_state, device)


def load_matching(model: Any, folder: Path) -> None:
    """Load a folder that ``save_pretrained`` wrote into ``model``, in place.

    The weights go through ``type(model).from_pretrained``, because a saved file need not have the live
    model's names: Qwen2.5-VL is saved under its older ones, and a tied output head is not saved at all.
    A plain ``load_state_dict`` keeps initial weights wherever names differ.

    Parameters stay the same objects, so an optimizer that holds them goes on working. While this runs, it
    takes the memory of a second copy of the model. It may draw random numbers, so restore the generators
    afterwards.

    Args:
        model: A transformers model.
        folder: Holds ``config.json`` and safetensors files.

    Raises:
        CheckpointError: The folder holds another type of model, or names or shapes do not match. ``model`` is
            unchanged.
    """
    if adapters.is_adapted(model):
        adapters.load_weights(model, folder)
        return
    if (folder / adapters.CONFIG_FILE).is_file():
        raise CheckpointError(
            f"{folder}: holds an adapter, the model has none; set policy.lora as in its recipe"
        )
    _check_kind(model, folder)
    # Where types are mixed, float32 holds every narrower value exactly, and copying narrows it again.
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    try:
        with no_bars_of_transformers():
            loaded, info = type(model).from_pretrained(
                folder,
                config=copy.deepcopy(model.config),
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # they are listed below, all at once
                local_files_only=True,
                use_safetensors=True,  # never a pickle
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot load these weights: {error}") from error
    weights, live = loaded.state_dict(), model.state_dict()
    faults = misfits(info | {"missing_keys": {*info["missing_keys"], *(live.keys() - weights.keys())}})
    if faults:
        raise CheckpointError(
            f"{folder}: these weights do not match {type(model).__name__}: {'; '.join(faults)}"
        )
    model.load_state_dict(weights, strict=True)


def _check_kind(model: Any, folder: Path) -> None:
    """Refuse weights of another type of model: one of the same names and shapes may compute otherwise."""
    try:
        saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder}: cannot read the model's type in config.json: {error!r}") from None
    if saved != model.config.model_type:
        raise CheckpointError(
            f"{folder}: holds a model of type {saved!r}, the model is {model.config.model_type!r}"
        )
