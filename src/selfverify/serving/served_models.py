"""Which models clients may ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfverify.serving.api_errors import ApiError

_OTHER_MODELS = {
    "models", "route", "fallbacks", "fallback_models", "context_window_fallbacks", "content_policy_fallbacks",
    "model_list", "model_group", "user_config", "litellm_params", "custom_llm_provider", "lora_path",
    "lora_request", "preset",
}  # fmt: skip
"""Fields of routers (OpenRouter, LiteLLM) and servers that name models, or say where they are looked up."""

_LONG = 64


class ServedModels:
    """The models that a gateway answers for.

    Args:
        names: Their names, without suffixes; without any, all that the backend has.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = tuple(names)

    def check(self, model: str, param: str = "model") -> None:
        """Refuse a model that is not served.

        Raises:
            ApiError: It is not, as if it did not exist.
        """
        if self.names and model not in self.names:
            text = f"the model {model[:200]!r} does not exist; there are {', '.join(self.names)}"
            raise ApiError(404, text, "model_not_found", param)

    def check_fields(self, fields: Mapping[str, Any], place: str = "") -> None:
        """Refuse fields that let a server answer with other models than the one that is named.

        Raises:
            ApiError: There is such a field, and not all models are served.
        """
        if not self.names:
            return
        for name, value in fields.items():
            lowered = name[:_LONG].casefold()
            if lowered in _OTHER_MODELS and value not in (None, "", [], {}):
                text = f"{place}{lowered}: the model is chosen by its name alone, of {', '.join(self.names)}"
                raise ApiError(400, text, "unsupported_parameter", f"{place}{name[:_LONG]}")
            if lowered == "extra_body" and isinstance(value, Mapping):
                self.check_fields(value, f"{place}extra_body.")

    def of(self, models: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of a backend's models that are served."""
        return [model for model in models if not self.names or model["id"] in self.names]
