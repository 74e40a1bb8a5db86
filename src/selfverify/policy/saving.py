"""What of a model goes to disk, and how its weights are told from others."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from selfverify.core.errors import FileError
from selfverify.core.files import naming, require_held
from selfverify.policy import adapters
from selfverify.policy.loading import Loaded, optional_file, resolve


def save(loaded: Loaded, path: str, folder: Path, weights: dict[str, Tensor] | None) -> None:
    """Write model (or its adapter alone), tokenizer and image processor as a checkpoint folder.

    Args:
        loaded: The model with its tokenizer and image processor.
        path: What it was loaded from; settings that the image processor does not keep are copied from there.
        folder: The folder to write; it is made if need be.
        weights: The whole state of a model that holds only a shard of it; None takes the model's own.

    Raises:
        FileError: The disk is full or not writable, or the folder around is lost (`require_held`).
    """
    require_held(folder)
    try:
        with naming(folder):
            if adapters.is_adapted(loaded.model):
                adapters.save(loaded.model, folder, weights)
            else:
                loaded.model.save_pretrained(folder, state_dict=weights)
            loaded.tokenizer.save_pretrained(folder)
            if loaded.image_processor is not None:
                loaded.image_processor.save_pretrained(folder)
                _copy_processor_settings(loaded, path, folder)
    except SafetensorError as error:  # its writer tells of a full disk in its own way
        raise FileError(None, f"the weights cannot be written ({error})", str(folder)) from error


def _copy_processor_settings(loaded: Loaded, path: str, folder: Path) -> None:
    """Copy the whole processor's settings from ``path``. Other programs load them; this library does not.

    transformers 5 writes the image processor's settings among them, and reads them from there rather than
    from a file of their own. Those are not copied, because sizes may have changed (``policy.max_pixels``).
    """
    processor: Any = loaded.image_processor
    source = resolve(adapters.base_of(resolve(path)) or path)
    whole = folder / "processor_config.json"
    for target in (whole, folder / "video_preprocessor_config.json"):
        found = optional_file(source, target.name, local_files_only=True)
        if found is not None and not target.exists():
            shutil.copyfile(found, target)
    # The processor of an unknown family is the whole one, which has written this file itself.
    if loaded.family.shares_prompts and whole.is_file():
        settings = json.loads(whole.read_text(encoding="utf-8"))
        if "image_processor" in settings:
            settings["image_processor"] = json.loads(processor.to_json_string())
            whole.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@torch.no_grad()
def fingerprint(model: Any) -> str:
    """16 hex digits that change when the weights do: a digest of up to 4,096 values of each tensor."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        digest.update(name.encode())
        digest.update(flat[:: max(1, len(flat) // 4096)].float().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
