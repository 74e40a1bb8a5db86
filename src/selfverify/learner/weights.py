"""Loads saved weights into a live model, or says what does not match. No initial weight stays silently."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from selfverify.core.errors import CheckpointError
from selfverify.policy import adapters
from selfverify.policy.loading import misfits


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
        CheckpointError: The folder holds another architecture, or names or shapes do not match. ``model`` is
            unchanged.
    """
    if adapters.is_adapted(model):
        adapters.load_weights(model, folder)
        return
    if (folder / adapters.CONFIG_FILE).is_file():
        raise CheckpointError(
            f"{folder}: holds an adapter, the model has none; set policy.lora as in its recipe"
        )
    _check_architecture(model, folder)
    # Where types are mixed, float32 holds every narrower value exactly, and copying narrows it again.
    dtypes = {p.dtype for p in model.parameters() if p.is_floating_point()}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.float32
    try:
        with _quiet():
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


def _check_architecture(model: Any, folder: Path) -> None:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: there is no config.json, so this is not a saved model") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: cannot read config.json: {error}") from None
    saved = config.get("architectures") or []
    own = type(model).__name__
    if saved and own not in saved:
        raise CheckpointError(f"{folder}: holds a {', '.join(saved)}, the model is a {own}")
    saved_type, own_type = config.get("model_type"), model.config.model_type
    if saved_type != own_type:
        raise CheckpointError(f"{folder}: holds a model of type {saved_type!r}, the model is {own_type!r}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers, which prints a table of mismatches. Our error names them in one line."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
