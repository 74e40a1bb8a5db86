"""ATIF, the Agent Trajectory Interchange Format of the Harbor project (its RFC 0001): objects and files.

A file is one JSON object: what an agent said step by step, what tools and users replied, and numbers. We
write version 1.8. Files of every version 1.x are read; since 1.6 they may show images, which are files of
their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from selfverify.core.errors import DataError
from selfverify.core.files import read_regular

VERSION = "ATIF-v1.8"
"""The version that is written."""
_VERSIONS = re.compile(r"ATIF-v1\.\d+")


class _Object(BaseModel):
    """An object of the format. What later versions add is read over."""

    model_config = ConfigDict(extra="ignore")


class AtifSource(_Object):
    """Where an image is: a path relative to the trajectory's file, an absolute one, or an address."""

    media_type: str
    path: str


class AtifContent(_Object):
    """A part of a message: ``text``, or ``image`` (or, since 1.8, ``audio``) with a source."""

    type: str
    text: str | None = None
    source: AtifSource | None = None


Content = str | list[AtifContent]


class AtifCall(_Object):
    """A call of a tool."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class AtifResult(_Object):
    """What came of a call (``source_call_id``), or of what an agent did without one."""

    source_call_id: str | None = None
    content: Content | None = None
    extra: dict[str, Any] | None = None


class AtifObservation(_Object):
    """What an agent's step led to."""

    results: list[AtifResult]


class AtifMetrics(_Object):
    """Numbers of one step of an agent; token ids and log-probabilities are those of what it wrote."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] | None = None


class AtifStep(_Object):
    """A step: a message of the ``system``, a ``user`` or the ``agent``, with what it led to."""

    step_id: int
    timestamp: str | None = None
    source: str
    model_name: str | None = None
    message: Content
    reasoning_content: str | None = None
    tool_calls: list[AtifCall] | None = None
    observation: AtifObservation | None = None
    metrics: AtifMetrics | None = None
    llm_call_count: int | None = None
    extra: dict[str, Any] | None = None


class AtifAgent(_Object):
    """Who acted."""

    name: str
    version: str
    model_name: str | None = None
    extra: dict[str, Any] | None = None


class AtifFinalMetrics(_Object):
    """Numbers of a whole trajectory."""

    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None
    extra: dict[str, Any] | None = None


class AtifTrajectory(_Object):
    """A file's whole content. ``session_id`` names a run, ``trajectory_id`` this one of its trajectories."""

    schema_version: str
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AtifAgent
    steps: list[AtifStep]
    notes: str | None = None
    final_metrics: AtifFinalMetrics | None = None
    extra: dict[str, Any] | None = None
    subagent_trajectories: list[AtifTrajectory] | None = None

    @field_validator("schema_version")
    @classmethod
    def _check_version(cls, version: str) -> str:
        if not _VERSIONS.fullmatch(version):
            raise ValueError(f"ATIF of versions 1.x is read, such as {VERSION}, not {version!r:.40}")
        return version


def read_atif(path: Path) -> AtifTrajectory:
    """Read a file.

    Raises:
        DataError: It cannot be read or is no ATIF of a version 1.x; the message names the field.
    """
    try:
        return AtifTrajectory.model_validate_json(read_regular(path))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise DataError(f"{path}: {f'{place}: ' if place else ''}{fault['msg']}") from None


def images_of(content: Content | None) -> Iterator[AtifSource]:
    """Yield the sources of the images in a message, in their order."""
    for part in content if isinstance(content, list) else []:
        if part.type == "image" and part.source is not None:
            yield part.source


def text_of(content: Content | None) -> str:
    """Return the words of a message."""
    if isinstance(content, list):
        return "\n".join(part.text for part in content if part.text)
    return content or ""
