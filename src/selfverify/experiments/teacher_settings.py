"""Who teaches; this loads without what a client of servers needs."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from selfverify.core.config import CommandConfig


class TeacherConfig(CommandConfig):
    """Who teaches."""

    expert: bool = False
    """A script that knows the way: what the task demonstrates."""

    own: bool = False
    """The recipe's own policy."""

    server: str | None = None
    """An OpenAI-compatible server behind which the teacher is."""

    model: str | None = None
    """With --server: the teacher's name there."""

    temperature: float = Field(1.0, ge=0.0)
    """Of each turn of a model; 0 is greedy."""

    max_tokens: int = Field(4096, ge=1)
    """Tokens of a turn of a model, its thoughts included."""

    timeout: float = Field(300.0, ge=0.1)
    """Seconds that one answer may take."""

    @model_validator(mode="after")
    def _one_teacher(self) -> TeacherConfig:
        if self.expert + self.own + (self.server is not None) != 1:
            raise ValueError("say who teaches: --expert, --own, or --server URL with --model NAME")
        if (self.server is None) != (self.model is None):
            raise ValueError("--server and --model go together")
        return self

    def fields(self, seed: int) -> dict[str, Any]:
        """The fields of a request to the server, besides its messages."""
        return {
            "model": self.model,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": seed % 2**31,
        }
