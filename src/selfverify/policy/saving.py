"""What of a model goes to disk, and how its weights are told from others."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from selfverify.core.errors import FileError
from selfverify.core.files import naming
from selfverify.policy.loading import Loaded, copy_processor_settings


def save(loaded: Loaded, path: str, folder: Path, weights: dict[str, Tensor] | None) -> None:
    """Write model (or its adapter alone), tokenizer and image processor as a checkpoint folder.

    Args:
        loaded: The model with its tokenizer and image processor.
        path: What it was loaded from; settings that the image processor does not keep are copied from there.
        folder: The folder to write; it is made if need be.
        weights: The whole state of a model that holds only a shard of it; None takes the model's own.

    Raises:
        FileError: The disk is full or not writable.
    """
    try:
        with naming(folder):
            loaded.model.save_pretrained(folder, state_dict=weights)
            loaded.tokenizer.save_pretrained(folder)
            if loaded.image_processor is not None:
                loaded.image_processor.save_pretrained(folder)
                copy_processor_settings(path, folder)
    except SafetensorError as error:  # its writer tells of a full disk in its own way
        raise FileError(None, f"the weights cannot be written ({error})", str(folder)) from error


@torch.no_grad()
def fingerprint(model: Any) -> str:
    """16 hex digits that change when the weights do: a digest of up to 4,096 values of each tensor."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        digest.update(name.encode())
        digest.update(flat[:: max(1, len(flat) // 4096)].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
