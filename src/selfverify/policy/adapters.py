"""LoRA adapters, by peft: make one, load one from a folder, merge one, and compute without one.

A folder with an adapter holds ``adapter_config.json`` and ``adapter_model.safetensors``. The first file names
the model below the adapter. transformers and peft can load the folder, too, if they find a model of that
name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from transformers.pytorch_utils import Conv1D

from selfverify.core.errors import CheckpointError, ConfigError, needs
from selfverify.core.policy_config import AdapterConfig
from selfverify.policy.decoding import kept_generators
from selfverify.policy.families import Family

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
LEARNT, START = "default", "start"
"""The names of the adapter that is trained, and of the frozen copy of its first weights."""
_PREFIX = "base_model.model."
_ANY = {
    *("alpha_pattern", "exclude_modules", "layers_pattern", "layers_to_transform", "rank_pattern"),
    *("fan_in_fan_out", "lora_alpha", "lora_dropout", "r", "target_modules", "use_rslora"),
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "task_type"),
}
"""Settings of an adapter that may have any value: which layers have one, its rank and scale, its history."""
_ALLOWED: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "init_lora_weights": (True, "gaussian"),
    "revision": ("main",),
}
"""Values of other settings that are supported besides false or empty ones; if not here, peft's defaults."""


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


def _peft(needing: str) -> Any:
    with needs(f"{needing} needs peft", "lora"):
        import peft
    return peft


def attach(model: Any, family: Family, settings: AdapterConfig, base: str, vision: bool) -> None:
    """Put a new adapter on all linear layers of the decoder, and of the tower if ``vision``; freeze the rest.

    A new adapter changes nothing yet, because its B is 0. Its random A is the same for the same settings.

    Raises:
        ConfigError: peft is not installed, or ``settings.targets`` has a name that no linear layer has.
    """
    peft = _peft("policy.lora")
    names = _linear_layers(model, family, vision)
    present = {name.rsplit(".", 1)[-1] for name in names}
    unknown = [target for target in settings.targets if target not in present]
    if unknown or not present:
        raise ConfigError(
            f"policy.lora.targets: the model has no linear layers named {', '.join(unknown) or 'anything'}; "
            f"those that can have an adapter are named {', '.join(sorted(present)) or 'nothing'}"
        )
    wanted = [name for name in names if name.rsplit(".", 1)[-1] in (settings.targets or present)]
    shape = {"r": settings.rank, "lora_alpha": settings.alpha, "lora_dropout": settings.dropout}
    _add(model, peft.LoraConfig(**shape, target_modules=wanted), LEARNT, base)
    _refuse_odd_layers(model, "policy.lora")


def load_adapter(model: Any, folder: Path, base: str) -> None:
    """Put the adapter in ``folder`` on ``model``, where it is trained further.

    Raises:
        ConfigError: peft is not installed, or the adapter is of a kind that cannot be merged here.
        CheckpointError: The adapter's weights do not fit the model.
    """
    peft = _peft(f"{folder} holds an adapter, which")
    path = folder / CONFIG_FILE
    _refuse_unknown(path)
    try:
        # The reference is the model with the adapter as it was loaded, and not the bare model.
        for name in (LEARNT, START):
            _add(model, peft.PeftConfig.from_pretrained(folder), name, base)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: this adapter cannot be put on {base} ({error})") from error
    _refuse_odd_layers(model, str(path))
    load_weights(model, folder)
    _set_weights(model, START, _weights(model, LEARNT))
    model.set_adapter(LEARNT)


def _refuse_unknown(path: Path) -> None:
    """Refuse adapters whose settings ask for anything but B A on linear layers: it would be merged wrongly.

    A setting that a newer peft has added is refused, too, unless it is off.
    """
    from peft import LoraConfig

    settings = json.loads(path.read_text(encoding="utf-8"))
    usual = {field.name: field.default for field in fields(LoraConfig)}
    for name, value in {"peft_type": None, **settings}.items():
        allowed = _ALLOWED.get(name, (usual.get(name),))
        if name not in _ANY and value not in allowed and (value or name == "peft_type"):
            raise ConfigError(f"{path}: {name}: {value} is not supported; merge it with peft first")


def _refuse_odd_layers(model: Any, where: str) -> None:
    """Refuse a model in which peft has changed more than linear layers of its own, by B A.

    Raises:
        ConfigError: It would be merged wrongly, or computes with other weights than those that are adapted.
    """
    from peft.tuners.lora.layer import Linear
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    owners = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for name, layer in model.named_modules():
        if not isinstance(layer, BaseTunerLayer | AuxiliaryTrainingWrapper):
            continue
        if type(layer) is not Linear or not _is_linear(layer.base_layer) or layer.lora_variant:
            raise ConfigError(
                f"{where}: {name} has an adapter of another kind than B A on a linear layer, which is not "
                "supported; merge it with peft first"
            )
        if owners[id(layer.base_layer.weight)] > 1:
            raise ConfigError(
                f"{where}: {name} has an adapter, and its weight is tied to another layer's, which would "
                "change with it; give it a copy of its own (tie_word_embeddings: false) and merge it with "
                "peft first"
            )


def _is_linear(module: Any) -> bool:
    """Whether ``module`` computes W x + b when it is called; `nn.MultiheadAttention` never calls its own."""
    return isinstance(module, nn.Linear | Conv1D) and not isinstance(module, NonDynamicallyQuantizableLinear)


def save(model: Any, folder: Path, weights: dict[str, torch.Tensor] | None) -> None:
    """Write the adapter that is trained, in peft's format.

    transformers would write the same files, and ask the Hub for the base model's vocabulary before.

    Args:
        model: The model.
        folder: The folder to write; it is made if need be.
        weights: The whole state of a model that holds only a shard of it; None takes the model's own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config.save_pretrained(folder)
    model.peft_config[LEARNT].save_pretrained(folder)
    found = _weights(model, LEARNT, weights)
    named = {f"{_PREFIX}{key}": tensor.contiguous() for key, tensor in found.items()}
    save_file(named, folder / WEIGHTS_FILE, {"format": "pt"})


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
    # peft saves the head's own weight, too, where that has an adapter.
    below = dict(model.named_parameters())
    for name in (saved.keys() - own.keys()) & below.keys():
        if torch.equal(saved[name].to(below[name]), below[name]):
            del saved[name]
    wrong = sorted(saved.keys() ^ own.keys()) or sorted(n for n in own if saved[n].shape != own[n].shape)
    if wrong:
        raise CheckpointError(
            f"{path}: this adapter does not fit the model: {', '.join(wrong[:5])} ({len(wrong)} in all); the "
            "model below it, policy.lora.rank and policy.lora.targets must be those it was trained with"
        )
    _set_weights(model, LEARNT, saved)


@contextmanager
def switched(model: Any, to: Literal["start", "off"]) -> Iterator[None]:
    """A context in which ``model`` computes without its adapter; with ``start`` as before training, which is
    with it as it was loaded, if it was."""
    was_training = model.training
    model.eval()
    if to == "start" and START in model.peft_config:
        model.set_adapter(START)
    else:
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
def merged_parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of ``model`` with its adapter merged in, by their names in a model without one.

    Nothing is merged in place, because adding an adapter and taking it off again rounds the frozen weights.

    Raises:
        ConfigError: The adapter is of a kind that would be merged wrongly.
    """
    from peft.tuners.lora import LoraLayer

    _refuse_odd_layers(model, str(model.name_or_path))
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    for name, parameter in model.named_parameters():
        inside = next((layer for layer in layers if name.startswith(f"{layer}.")), None)
        if inside is None:
            yield name, parameter.detach()
        elif name.startswith(f"{inside}.base_layer."):
            kind = name.removeprefix(f"{inside}.base_layer.")
            weight = parameter.detach()
            if kind == "weight":
                # Rounded once: the adapter is float32.
                weight = (weight + layers[inside].get_delta_weight(LEARNT)).to(weight)
            yield f"{inside}.{kind}", weight


def _linear_layers(model: Any, family: Family, vision: bool) -> list[str]:
    trained = {id(p) for p in family.backbone(model).parameters()}
    tower = {id(p) for p in family.vision_parameters(model)}
    wanted = trained | tower if vision else trained - tower
    head = model.get_output_embeddings()
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and _is_linear(module)
        and module is not head
        and id(module.weight) in wanted
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


def _weights(model: Any, name: str, whole: dict[str, torch.Tensor] | None = None) -> dict[str, torch.Tensor]:
    from peft import get_peft_model_state_dict

    # Left to itself, peft asks the Hub for the base model's vocabulary at every call.
    found: dict[str, torch.Tensor] = get_peft_model_state_dict(
        model, state_dict=whole, adapter_name=name, save_embedding_layers=False
    )
    return found


def _set_weights(model: Any, name: str, weights: dict[str, torch.Tensor]) -> None:
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(model, weights, adapter_name=name)
