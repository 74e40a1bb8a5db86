"""Which models clients may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfverify.serving.api_errors import ApiError


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

    def of(self, models: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return those of a backend's models that are served."""
        return [model for model in models if not self.names or model["id"] in self.names]
