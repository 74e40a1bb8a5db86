"""The model families, one file each: their placeholders, positions, image features and masks."""

from __future__ import annotations

import logging
from typing import Any

from selfverify.policy.families.base import Family, ImageInput, VisionFamily
from selfverify.policy.families.gemma3 import Gemma3
from selfverify.policy.families.idefics3 import Idefics3
from selfverify.policy.families.internvl import InternVL
from selfverify.policy.families.llava_onevision import LlavaOnevision
from selfverify.policy.families.qwen_vl import Qwen3VL, Qwen25VL, QwenVL
from selfverify.policy.families.unknown import Unknown

log = logging.getLogger(__name__)

__all__ = ["FAMILIES", "Family", "ImageInput", "Unknown", "VisionFamily", "family_of"]

FAMILIES: dict[str, type[Family]] = {
    "gemma3": Gemma3,
    "idefics3": Idefics3,
    "internvl": InternVL,
    "llava_onevision": LlavaOnevision,
    "qwen2_5_vl": Qwen25VL,
    "qwen2_vl": QwenVL,
    "qwen3_vl": Qwen3VL,
    "smolvlm": Idefics3,
}
"""Vision-language families by transformers' ``model_type``."""


def family_of(model: Any) -> Family:
    """The family of a loaded model, by its ``model_type``; all text-only models share one family."""
    kind = model.config.model_type
    if kind in FAMILIES:
        return FAMILIES[kind]()
    if getattr(model.config, "vision_config", None) is not None:
        log.warning(
            "the vision-language family %r is not known here: every sample is forwarded by itself, several "
            "times slower. Known: %s, and all text-only causal language models.",
            kind,
            ", ".join(FAMILIES),
        )
        return Unknown()
    return Family()
