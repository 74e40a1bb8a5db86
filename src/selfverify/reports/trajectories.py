"""Trajectories of any agent, from files in ATIF, as cards with a film strip."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from selfverify.core.errors import DataError
from selfverify.core.trajectory import Finish
from selfverify.data.atif import (
    AtifMetrics,
    AtifResult,
    AtifStep,
    AtifTrajectory,
    Content,
    images_of,
    local_image,
    read_atif,
    text_of,
)
from selfverify.evaluation.atif_samples import sample_from_atif
from selfverify.reports.agent_film import agent_film
from selfverify.reports.film_strip import Drawings, Pictures, Shown, answer_text, messages_left_out, strip
from selfverify.rollouts.atif_steps import OURS, SHOWN_IMAGES
from selfverify.tasks.tool_episode import shortened

MOST_SHOWN = 24
"""A page has at most so many trajectories of a folder."""
LONGEST_TEXT = 20_000
"""Characters of a text that are shown; longer ones lose their middle."""
LONGEST_FACT = 300
"""The same of a line above a trajectory."""

_Message = tuple[AtifStep, AtifResult | None]
"""A step's own message, or one that it led to."""


class _Verdict(BaseModel):
    correct: bool
    answer: Any = None


class _About(BaseModel):
    """What we have noted of a message ourselves."""

    finish: str | None = None
    values: dict[str, float] = {}
    verdict: _Verdict | None = None


def trajectory_cards(folder: Path, files: list[Path], drawings: Drawings) -> list[dict[str, Any]]:
    """Return a card for each of the first `MOST_SHOWN` trajectories; subagents come behind their agent.

    Of a trajectory at most `MOST_STEPS` messages are shown.

    Args:
        folder: What the page is about; files are named relative to it.
        files: The files of trajectories.
        drawings: Takes the screens of our own agents' sessions.

    Raises:
        DataError: A file is no ATIF; the message names it.
    """
    pictures: dict[Path, Pictures] = {}
    cards: list[dict[str, Any]] = []
    for file in files:
        if len(cards) >= MOST_SHOWN:
            break
        own = pictures.setdefault(file.parent, Pictures(file.parent))
        found = _all(read_atif(file), str(file.relative_to(folder)))
        for trajectory, title in islice(found, MOST_SHOWN - len(cards)):
            cards.append(_card(trajectory, title, file, own) | {"film": _film(trajectory, file, drawings)})
    return cards


def _all(trajectory: AtifTrajectory, title: str) -> Iterator[tuple[AtifTrajectory, str]]:
    yield trajectory, title
    for number, inner in enumerate(trajectory.subagent_trajectories or (), start=1):
        yield from _all(inner, f"{title}, subagent {inner.trajectory_id or number}")


def _card(trajectory: AtifTrajectory, title: str, file: Path, pictures: Pictures) -> dict[str, Any]:
    agent, total = trajectory.agent, trajectory.final_metrics
    facts = [f"{agent.name} {agent.version}", agent.model_name, trajectory.trajectory_id, trajectory.notes]
    numbers = {} if total is None else total.model_dump(exclude={"extra"}, exclude_none=True)
    facts += [
        f"{name.removeprefix('total_').replace('_', ' ')}: {_number(value)}"
        for name, value in numbers.items()
    ]
    return {
        "title": title,
        "facts": [shortened(fact, LONGEST_FACT) for fact in facts if fact],
        "outcome": _outcome(trajectory),
        "steps": strip(
            list(_messages(trajectory)), partial(_shown, file=file, pictures=pictures), messages_left_out
        ),
    }


def _film(trajectory: AtifTrajectory, file: Path, drawings: Drawings) -> Shown | None:
    """A session of an agent of ours, exported from an evaluation; None for all others."""
    try:
        found = sample_from_atif(trajectory)
    except DataError:
        return None
    if found is None:
        return None
    about, sample = found
    target = (about.entry or {}).get("target")
    return agent_film(sample, target, Pictures(file.parent / SHOWN_IMAGES), drawings, open=True)


def _outcome(trajectory: AtifTrajectory) -> list[tuple[str, str]]:
    """What our own trajectories say of their ending."""
    ours = (trajectory.extra or {}).get(OURS)
    if not isinstance(ours, dict):
        return []
    sample = ours.get("sample")
    told = sample if isinstance(sample, dict) else ours
    found = [(name, told.get(name)) for name in ("correct", "answer", "finish")]
    for group, name in (("rewards", "reward"), ("scores", "score")):
        values = told.get(group)
        found += [(f"{name}/{key}", v) for key, v in values.items()] if isinstance(values, dict) else []
    return [
        (shortened(name, LONGEST_FACT), shortened(_plain(value), LONGEST_FACT))
        for name, value in found
        if value is not None
    ]


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _messages(trajectory: AtifTrajectory) -> Iterator[_Message]:
    for step in trajectory.steps:
        yield step, None
        yield from ((step, result) for result in (step.observation.results if step.observation else ()))


def _shown(message: _Message, file: Path, pictures: Pictures) -> Shown:
    step, result = message
    if result is not None:
        return _message(_origin(step, result), False, result.content, result.extra, file, pictures)
    notes = []
    if step.reasoning_content:
        notes.append(("reasoning", shortened(step.reasoning_content, LONGEST_TEXT)))
    for call in step.tool_calls or ():
        arguments = json.dumps(call.arguments, ensure_ascii=False, indent=1)
        notes.append((f"calls {call.function_name[:80]}", shortened(arguments, LONGEST_TEXT)))
    who = f"{step.source[:20]}, step {step.step_id}"
    return _message(who, step.source == "agent", step.message, step.extra, file, pictures) | {
        "notes": notes,
        "measured": _measured(step.metrics) + _values(step.extra),
    }


def _origin(step: AtifStep, result: AtifResult) -> str:
    called = {call.tool_call_id: call.function_name for call in step.tool_calls or ()}
    name = called.get(result.source_call_id or "")
    return "observation" if name is None else f"observation of {name[:80]}"


def _message(
    who: str, own: bool, words: Content | None, extra: dict[str, Any] | None, file: Path, pictures: Pictures
) -> Shown:
    about = _about(extra)
    verdict = about.verdict
    parts = words if isinstance(words, list) else []
    others = sorted({part.type[:20] for part in parts} - {"text", "image"})
    return {
        "who": who,
        "own": own,
        "text": shortened(text_of(words).strip(), LONGEST_TEXT),
        "notes": [("not shown", ", ".join(others))] if others else [],
        "images": [_picture(source.path, file, pictures) for source in images_of(words)],
        "verdict": None if verdict is None else verdict.correct,
        "answer": None if verdict is None else answer_text(verdict.answer),
        "measured": _values(extra),
        "cut": about.finish not in (None, Finish.STOP),
    }


def _picture(path: str, file: Path, pictures: Pictures) -> dict[str, Any]:
    try:
        return pictures.shown(str(local_image(file, path).relative_to(pictures.folder.resolve())))
    except DataError as error:
        return {"note": str(error)}


def _measured(metrics: AtifMetrics | None) -> list[tuple[str, str]]:
    if metrics is None:
        return []
    found = {
        "prompt tokens": metrics.prompt_tokens,
        "tokens": metrics.completion_tokens,
        "USD": metrics.cost_usd,
    }
    return [(name, f"{_number(value)}") for name, value in found.items() if value is not None]


def _values(extra: dict[str, Any] | None) -> list[tuple[str, str]]:
    return [(name, f"{value:.3g}") for name, value in _about(extra).values.items()]


def _about(extra: dict[str, Any] | None) -> _About:
    """What we have noted; nothing where it is not ours, or damaged."""
    found = (extra or {}).get(OURS)
    try:
        return _About.model_validate(found if isinstance(found, dict) else {})
    except ValueError:
        return _About()
