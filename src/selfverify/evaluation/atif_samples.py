"""Stored samples as trajectories of ATIF, and the same samples again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import TypeAdapter, ValidationError

from selfverify.core.errors import DataError
from selfverify.core.jsonl_store import STRICT
from selfverify.evaluation.samples import StoredProblem, StoredSample
from selfverify.rollouts.atif import (
    OURS,
    VERSION,
    AtifContent,
    AtifFinalMetrics,
    AtifMetrics,
    AtifStep,
    AtifTrajectory,
    Content,
    Message,
    image_part,
    our_agent,
    read_atif,
    text_of,
    to_messages,
    to_steps,
    without_surrogates,
)

_ASKED = {"prompt": True}
"""What is said of the step that poses the problem."""


@dataclass(frozen=True, slots=True)
class AtifSample:
    """What a trajectory holds of a sample besides its steps.

    Args:
        kind: What the trajectory was made of.
        settings: The store's settings.
        index: `StoredProblem.index`.
        digest: `StoredProblem.digest`.
        conversation: Whether the sample has steps.
        sample: The sample's other fields (`StoredSample`).
        entry: What the report's gallery knows of the problem: question, target, image (as it is called in the
            folder of images); None where it knows nothing.
    """

    __pydantic_config__: ClassVar = STRICT

    kind: Literal["sample"]
    settings: dict[str, Any]
    index: int
    digest: str
    conversation: bool
    sample: dict[str, Any]
    entry: dict[str, Any] | None = None


def sample_to_atif(
    settings: Mapping[str, Any], row: StoredProblem, sample: StoredSample, entry: dict[str, Any] | None
) -> AtifTrajectory:
    """Return a sample as a trajectory. Images are in the folder ``images`` beside its file.

    Args:
        settings: The store's settings.
        row: The line of the store that the sample stands in.
        sample: The sample.
        entry: What the report's gallery knows of the problem, as in `AtifSample`; its question and its image
            become the first step.
    """
    fields = asdict(replace(sample, steps=[]))
    del fields["steps"], fields["text"]
    if sample.steps:
        messages = [
            Message(
                step.text,
                step.images,
                {name: value for name, value in asdict(step).items() if name not in ("text", "images")},
                step.channel,
                step.finish,
            )
            for step in sample.steps
        ]
        if sample.text != "".join(step.text for step in sample.steps):
            fields["text"] = sample.text
    else:
        numbers = AtifMetrics(completion_tokens=sample.tokens)
        about = {"author": "policy", "turn": 0, "finish": sample.finish}
        messages = [Message(sample.text, [], about, "", sample.finish, numbers)]
    steps = to_steps(messages, [] if entry is None else [_asked(entry)])
    ours = AtifSample("sample", dict(settings), row.index, row.digest, bool(sample.steps), fields, entry)
    return AtifTrajectory(
        schema_version=VERSION,
        session_id=session(settings),
        trajectory_id=f"{sample.problem}#{sample.sample}",
        agent=our_agent(settings.get("model")),
        steps=steps,
        final_metrics=AtifFinalMetrics(total_completion_tokens=sample.tokens, total_steps=len(steps)),
        extra={OURS: without_surrogates(asdict(ours))},
    )


def sample_from_atif(trajectory: AtifTrajectory) -> tuple[AtifSample, StoredSample] | None:
    """Return what `sample_to_atif` was given; None for a trajectory that is no sample of ours.

    Raises:
        DataError: Our part of the trajectory is damaged; the message names the field.
    """
    found = (trajectory.extra or {}).get(OURS)
    if not isinstance(found, dict) or found.get("kind") != "sample":
        return None
    about: AtifSample = validated(AtifSample, found, f"extra.{OURS}")
    steps = [step for step in trajectory.steps if (step.extra or {}).get(OURS) != _ASKED]
    fields = dict(about.sample)
    if about.conversation:
        told = [{**m.about, "text": m.text, "images": list(m.images)} for m in to_messages(steps)]
        fields = {"text": "".join(step["text"] for step in told), "steps": told} | fields
    else:
        fields["text"] = "".join(text_of(step.message) for step in steps)
    return about, validated(StoredSample, fields, f"extra.{OURS}.sample")


def read_exported(folder: Path) -> list[tuple[AtifSample, StoredSample]]:
    """Return the samples in a folder that they were exported to, in the order of their store.

    Raises:
        DataError: A file is damaged; the message names it.
    """
    found = []
    for path in sorted(folder.glob("problem-*.json")):
        trajectory = read_atif(path)
        try:
            if (made := sample_from_atif(trajectory)) is not None:
                found.append(made)
        except DataError as error:
            raise DataError(f"{path}: {error}") from None
    return found


def session(settings: Mapping[str, Any]) -> str:
    """Return a name for the run that trajectories belong to: all those of the same settings."""
    text = json.dumps(settings, sort_keys=True)
    return f"{OURS}-{hashlib.blake2b(text.encode('utf-8', 'replace'), digest_size=8).hexdigest()}"


def validated(kind: type[Any], value: Any, where: str) -> Any:
    """Return an object of a class from JSON values.

    Raises:
        DataError: They do not fit; the message names the field.
    """
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join([where, *(str(part) for part in fault["loc"])])
        raise DataError(f"{place}: {fault['msg']}") from None


def _asked(entry: Mapping[str, Any]) -> AtifStep:
    """The problem as the first step: its image, if there is one, before the question."""
    question = str(entry.get("question") or "")
    image = entry.get("image")
    message: Content = question
    if image:
        message = [image_part(str(image)), AtifContent(type="text", text=question)]
    return AtifStep(step_id=1, source="user", message=message, extra={OURS: _ASKED})
