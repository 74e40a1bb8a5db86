"""LoRA adapters, by peft: make one, load one from a folder, merge one, and compute without one.

A folder with an adapter holds ``adapter_config.json`` and ``adapter_model.safetensors``. The first file names
the model below the adapter. transformers and peft can load the folder, too, if they find a model of that
name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from selfverify.core.errors import CheckpointError, ConfigError
from selfverify.core.policy_settings import LoraSettings
from selfverify.policy.families import Family
from selfverify.policy.generators import kept_generators

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
LEARNT, START = "default", "start"
"""The names of the adapter that is trained, and of the frozen copy of its first weights."""
_PREFIX = "base_model.model."


def base_of(folder: str) -> str | None:
    """Return the model that the adapter in ``folder`` belongs on; None where there is no adapter.

    Raises:
        ConfigError: The adapter's settings cannot be read or name no model.
    """
    path = Path(folder) / CONFIG_FILE
    if not path.is_file():
        return None
    try:
        base = json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: cannot read which model this adapter belongs on ({error!r})") from error
    if not base:
        raise ConfigError(f"{path}: base_model_name_or_path is empty; write the model's folder or id there")
    return str(base)


def is_adapted(model: Any) -> bool:
    """Say whether ``model`` has an adapter."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def attach(model: Any, family: Family, settings: LoraSettings, base: str, vision: bool) -> None:
    """Put a new adapter on all linear layers of the decoder, and of the tower if ``vision``; freeze the rest.

    A new adapter changes nothing yet, because its B is 0. Its random A is the same for the same settings.

    Raises:
        ConfigError: peft is not installed, or no linear layer is named by ``settings.targets``.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise ConfigError("policy.lora needs peft: pip install 'selfverify[lora]'") from error
    names = _linear_layers(model, family, vision)
    if settings.targets:
        names = [name for name in names if name.rsplit(".", 1)[-1] in settings.targets]
    if not names:
        raise ConfigError(f"policy.lora.targets: the model has no linear layers named {settings.targets}")
    made = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=names,
        bias="none",
    )
    _add(model, made, LEARNT, base)


def load_adapter(model: Any, folder: Path, base: str) -> None:
    """Put the adapter in ``folder`` on ``model``, where it is trained further.

    Raises:
        ConfigError: peft is not installed.
        CheckpointError: The adapter's weights do not fit the model.
    """
    try:
        from peft import PeftConfig
    except ImportError as error:
        raise ConfigError(
            f"{folder} holds an adapter, which needs peft: pip install 'selfverify[lora]'"
        ) from error
    settings = PeftConfig.from_pretrained(folder)
    _refuse_unknown(settings, folder)
    _add(model, settings, LEARNT, base)
    load_weights(model, folder)
    # The reference is the model with the adapter as it was loaded, and not the bare model.
    _add(model, PeftConfig.from_pretrained(folder), START, base)
    _set_weights(model, START, _weights(model, LEARNT))
    model.set_adapter(LEARNT)


def _refuse_unknown(settings: Any, folder: Path) -> None:
    """Refuse adapters that add more than B A to linear layers, because they would be merged wrongly."""
    plain: dict[str, tuple[Any, ...]] = {
        "peft_type": ("LORA",),
        "bias": ("none",),
        "use_dora": (False, None),
        "lora_bias": (False, None),
        "modules_to_save": (None, []),
        "init_lora_weights": (True, False, "gaussian"),
    }
    for name, allowed in plain.items():
        value = getattr(settings, name, None)
        if (value.value if isinstance(value, Enum) else value) not in (*allowed, None):
            raise ConfigError(
                f"{folder / CONFIG_FILE}: {name}: {value} is not supported; merge it with peft first"
            )


def load_weights(model: Any, folder: Path) -> None:
    """Load the weights of the adapter in ``folder`` into the adapter of ``model``: all of them or none.

    Raises:
        CheckpointError: The folder has no weights that can be read, or their names or shapes do not fit.
    """
    path = folder / WEIGHTS_FILE
    try:
        saved = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot read the adapter's weights: {error}") from error
    saved = {name.removeprefix(_PREFIX): tensor for name, tensor in saved.items()}
    own = _weights(model, LEARNT)
    wrong = sorted(saved.keys() ^ own.keys()) or sorted(n for n in own if saved[n].shape != own[n].shape)
    if wrong:
        raise CheckpointError(
            f"{path}: this adapter does not fit the model: {', '.join(wrong[:5])} ({len(wrong)} in all); the "
            "model below it, policy.lora.rank and policy.lora.targets must be those it was trained with"
        )
    _set_weights(model, LEARNT, saved)


@contextmanager
def as_started(model: Any) -> Iterator[None]:
    """A context in which ``model`` is as before training: without its adapter, or with it as loaded."""
    was_training = model.training
    model.eval()
    if START in model.peft_config:
        model.set_adapter(START)
    else:
        model.disable_adapters()
    try:
        yield
    finally:
        if START in model.peft_config:
            model.set_adapter(LEARNT)
        else:
            model.enable_adapters()
        model.train(was_training)


@contextmanager
def switched_off(model: Any) -> Iterator[None]:
    """A context in which ``model`` computes without its adapter, also where that was loaded."""
    was_training = model.training
    model.eval()
    model.disable_adapters()
    try:
        yield
    finally:
        model.enable_adapters()
        # Enabling turns on whichever adapter was last set.
        model.set_adapter(LEARNT)
        model.train(was_training)


def adapts_tower(model: Any, family: Family) -> bool:
    """Whether the adapter changes what the vision tower computes."""
    tower = {id(p) for p in family.vision_parameters(model)}
    return any("lora_" in name and id(p) in tower for name, p in model.named_parameters())


@torch.no_grad()
def merge_into(model: Any, plain: Any) -> None:
    """Add what the adapter of ``model`` learnt to the weights of ``plain``, the same model without one."""
    own = dict(plain.named_parameters())
    for name, weight in merged_parameters(model):
        own[name].copy_(weight)


@torch.no_grad()
def merged_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of ``model`` with its adapter merged in, by their names in a model without one.

    Nothing is merged in place, because adding an adapter and taking it off again rounds the frozen weights.
    """
    from peft.tuners.lora import LoraLayer

    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    for name, parameter in model.named_parameters():
        inside = next((layer for layer in layers if name.startswith(f"{layer}.")), None)
        if inside is None:
            yield name, parameter.detach()
        elif name.startswith(f"{inside}.base_layer."):
            kind = name.removeprefix(f"{inside}.base_layer.")
            weight = parameter.detach()
            if kind == "weight":
                weight = weight + layers[inside].get_delta_weight(LEARNT).to(weight)
            yield f"{inside}.{kind}", weight


def _linear_layers(model: Any, family: Family, vision: bool) -> list[str]:
    trained = {id(p) for p in family.backbone(model).parameters()}
    tower = {id(p) for p in family.vision_parameters(model)}
    wanted = trained | tower if vision else trained - tower
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and id(module.weight) in wanted
    ]


def _add(model: Any, settings: Any, name: str, base: str) -> None:
    from peft.tuners.tuners_utils import cast_adapter_dtype

    # The random start of A must not depend on what ran before.
    with kept_generators(model.device):
        torch.manual_seed(0)
        model.add_adapter(settings, name)
    # The adapter learns in float32, because small steps vanish in bfloat16. Weights below it keep their type.
    cast_adapter_dtype(model, name)
    model.peft_config[name].base_model_name_or_path = base


def _weights(model: Any, name: str) -> dict[str, torch.Tensor]:
    from peft import get_peft_model_state_dict

    found: dict[str, torch.Tensor] = get_peft_model_state_dict(
        model, adapter_name=name, save_embedding_layers=False
    )
    return found


def _set_weights(model: Any, name: str, weights: dict[str, torch.Tensor]) -> None:
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(model, weights, adapter_name=name)
