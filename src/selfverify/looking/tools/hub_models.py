"""Models of tools that people name: folders or hub ids, loaded by transformers as safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def missing_model(name: str | None, setting: str) -> str:
    """Why a model is not available; empty where it may be. Nothing is loaded, and no hub is asked.

    Args:
        name: A folder or a hub id; None where none was named.
        setting: The setting that names it.
    """
    if name is None:
        return f"no model is named: {setting}"
    path = Path(name).expanduser()
    looks_local = name.startswith((".", "/", "~")) or name.count("/") != 1
    if looks_local and not (path / "config.json").is_file():
        return f"{setting}: {name} is no folder with a config.json"
    return ""


def loaded(kind: Any, name: str, device: str) -> Any:
    """A model of a class of transformers, ready to be asked.

    Args:
        kind: One of transformers' ``AutoModel`` classes.
        name: A folder or a hub id.
        device: Where it runs.
    """
    model = kind.from_pretrained(place_of(name), use_safetensors=True)
    return model.to(device).eval()


def pipeline_of(task: str, name: str, device: str) -> Any:
    """A pipeline of transformers, ready to be asked.

    Args:
        task: What transformers calls it.
        name: The model: a folder or a hub id.
        device: Where it runs.
    """
    from transformers import pipeline

    model = place_of(name)
    return pipeline(task, model=model, device=device, model_kwargs={"use_safetensors": True})


def processor_of(name: str) -> Any:
    """What prepares a model's images and texts."""
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(place_of(name))


def place_of(name: str) -> str:
    """A folder or a hub id as transformers takes it: without ``~``."""
    return str(Path(name).expanduser())
