"""The command `selfverify agent judges`: what judges make of sessions, by what they read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import Field, model_validator

from selfverify.cli.options import Json, settings_as_options
from selfverify.cli.printing import print_json
from selfverify.core.settings import Seed, Settings

if TYPE_CHECKING:
    from selfverify.agents.cases import Panel
    from selfverify.experiments.judged_sessions import Sessions


class ErringSettings(Settings):
    """Which agents are judged where no evaluation is named: experts that make mistakes, or none."""

    sessions: int = Field(512, ge=1)
    """Without an evaluation: how many sessions of agents that make mistakes are judged."""

    seed: Seed = 0
    """Without an evaluation: decides tasks and mistakes."""

    split: Literal["train", "validation", "test"] = "validation"
    """Without an evaluation: the tasks' split. Validation has the kinds of tasks of training, with other
    contents."""

    held_out: Literal["seeds", "templates", "apps"] = "templates"
    """Without an evaluation: what the test split has that training has not."""

    max_calls: int | None = Field(9, ge=2)
    """Without an evaluation: leave out tasks that take an expert more calls."""

    hostile: bool = False
    """Without an evaluation: write texts on screens that try to deceive judges."""


class JudgesSettings(Settings):
    """Who judges what, and where the figures go."""

    stored: list[Path] = Field([], json_schema_extra={"argument": True})
    """Evaluations of the task phone, whose sessions are judged again: folders, or their samples.jsonl."""

    judge: list[str] = []
    """A judge: rules, state, builtin:phone-judge or a small judge's folder, with NAME= before it to call it
    so. It may be repeated. [default: rules]"""

    server: str | None = None
    """An OpenAI-compatible server whose model judges, too: three votes, two of which decide."""

    server_model: str | None = None
    """With --server: the model's name there."""

    device: str = "cpu"
    """The device of small judges."""

    erring: ErringSettings
    output: Path | None = None
    """A JSON file for the figures."""

    @model_validator(mode="after")
    def _together(self) -> JudgesSettings:
        if (self.server is None) != (self.server_model is None):
            raise ValueError("--server and --server-model go together")
        return self


@settings_as_options
def judges(
    settings: JudgesSettings,
    intervals: Annotated[
        bool, typer.Option("--intervals", help="Print 95 % intervals (bootstrap over problems).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Let judges read the message alone, the last screen, all screens, or the chosen evidence, and compare.

    Each verdict is held against the ground truth. Without an evaluation the sessions are those of experts on
    the phone that make mistakes, about half of them; with one they are those of the model that was evaluated.

    Examples:

    - `selfverify agent judges`

    - `selfverify agent judges runs/smartsnap-phone --output judges.json`

    - `selfverify agent judges --judge rules --judge builtin:phone-judge --split test`
    """
    from selfverify.core.atomic_files import write_json
    from selfverify.experiments.judge_comparison import compare_judges, markdown
    from selfverify.experiments.markdown_tables import percent

    # Sessions without a verdict have a column of their own.
    logging.getLogger("selfverify.agents.judges.jury").setLevel(logging.ERROR)
    panels = _panels(settings)
    found = []
    for held in _sessions(settings):
        rows = compare_judges(held.sessions, panels)
        done = sum(session.truth.complete for session in held.sessions)
        found.append({"about": held.about, "not_judged": held.others, "done": done, "rows": rows})
        if not as_json:
            count = len(held.sessions)
            typer.echo(f"{count} sessions, {done} of them done: {held.about['agents']}")
            same = percent(max(done, count - done) / count)
            typer.echo(f"Who always says the same is right in {same} %.\n")
            typer.echo(f"{markdown(rows, intervals)}\n")
    if settings.output is not None:
        write_json(settings.output, found)
    if as_json:
        print_json(found)


def _sessions(settings: JudgesSettings) -> list[Sessions]:
    from selfverify.core.errors import ConfigError
    from selfverify.experiments.judged_sessions import erring_sessions, stored_sessions
    from selfverify_phone.task import PhoneAgentsConfig

    if not settings.stored:
        e = settings.erring
        phone = PhoneAgentsConfig.model_validate(
            {
                "held_out": e.held_out,
                "max_calls": e.max_calls,
                "hostile": e.hostile,
                "text": "terse",
                "agent": {"first_screen": "given"},
            }
        )
        return [erring_sessions(phone, e.split, e.seed, e.sessions)]
    found = [stored_sessions(path) for path in settings.stored]
    for path, held in zip(settings.stored, found, strict=True):
        if not held.sessions:
            raise ConfigError(f"{path}: in none of its sessions anything proper was handed in")
    return found


def _panels(settings: JudgesSettings) -> dict[str, Panel]:
    """The judges by name, each with what it needs to vote."""
    from selfverify.agents.judges.make_judge import JudgeConfig, make_jury
    from selfverify.agents.prompting import hint_names
    from selfverify.core.errors import ConfigError
    from selfverify_phone.short_form import SHORT

    asked: dict[str, dict[str, Any]] = {}
    for said in settings.judge or ["rules"]:
        name, _, path = said.rpartition("=")
        if not path:
            raise ConfigError(
                f"--judge {said!r} names no judge: it is rules, state, or a small judge's folder"
            )
        if (name or path) in asked:
            raise ConfigError(f"two judges are called {name or path!r}; give one another name: NAME={path}")
        small = {"path": path, "form": "short", "temperature": 0.0, "max_new_tokens": 160}
        own = {"kind": "own", "own": {**small, "device": settings.device}}
        asked[name or path] = {"kind": path} if path in ("rules", "state") else own
    if settings.server is not None:
        if settings.server_model in asked:
            raise ConfigError(f"two judges are called {settings.server_model!r}; give --judge another name")
        server = {"url": settings.server, "model": settings.server_model}
        asked[str(settings.server_model)] = {"kind": "model", "server": server}
    made = {
        name: make_jury(JudgeConfig.model_validate(config), [*hint_names()], "phone", SHORT)
        for name, config in asked.items()
    }
    for jury in made.values():
        jury.judge.use_policy(None)
    return dict(made)
