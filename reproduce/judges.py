"""What a judge makes of sessions, by what it reads: message, last screen, all screens, chosen evidence.

SmartSnap's §3.2 and Fig. 2 argue that little, chosen evidence is cheaper to judge than whole trajectories,
and more reliable. Here the same judges read the same sessions in all ways, and are held against the truth.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from pydantic import Field, model_validator

from reproduce.judged_sessions import Sessions, erring_sessions, stored_sessions
from reproduce.scripts import script
from reproduce.tables import grid, percent
from selfverify.agents.episode import Finished
from selfverify.agents.evidence import Source
from selfverify.agents.judges.case import Judgement, JudgePanel, render
from selfverify.agents.judges.make_judge import JudgeConfig, hint_names, make_jury
from selfverify.cli.options import Json, print_json, settings_as_options
from selfverify.core.config import CommandConfig, Seed
from selfverify.core.errors import ConfigError
from selfverify.core.files import write_json
from selfverify.evaluation.statistics import Statistic, bootstrap_interval, on_all, ratio_statistic
from selfverify_phone.short_form import SHORT
from selfverify_phone.task import PhoneAgentsConfig

READS: dict[str, tuple[Source, bool]] = {
    "message": ("message", False),
    "last": ("last", False),
    "all": ("all", False),
    "chosen": ("chosen", False),
    "chosen and last": ("chosen", True),
}
"""What judges read, by its name in tables: the source, and whether the last screen is shown, too."""

Row = dict[str, Any]
"""Of one judge and what it reads: figures by name, and their intervals."""


def compare_judges(sessions: Sequence[Finished], judges: Mapping[str, JudgePanel]) -> list[Row]:
    """Let judges judge all sessions by all that they can read.

    A session without a verdict takes part in no figure but ``undecided``.

    Args:
        sessions: With their truth.
        judges: By name; those that need one have their policy.

    Returns:
        A row for each judge and each of `READS`, whose names are ``judge`` and ``reads``:

        - ``sessions`` and ``undecided``, their numbers;
        - ``accuracy``, the share that was judged rightly;
        - ``precision``, of what was judged a success the share that is done, and ``recall``, of what is done
          the share that was judged a success;
        - ``false_positives``, of what is not done the share that was judged a success;
        - ``exhibits`` and ``characters`` that a judge is shown of a session on average, written as for a
          model, and ``tokens`` that its votes cost, where they are counted.

        A figure of nothing is None. ``intervals`` has 95 % intervals by a bootstrap over problems.
    """
    return [
        {"judge": name, "reads": read, **_figures(sessions, *how, panel)}
        for name, panel in judges.items()
        for read, how in READS.items()
    ]


def markdown(rows: Sequence[Row], intervals: bool = False) -> str:
    """The rows as a table, shares in percent; with ``intervals`` their 95 % intervals, too."""
    shares = ("accuracy", "precision", "recall", "false_positives")

    def share(row: Row, name: str) -> str:
        bounds = row["intervals"][name]
        more = f" [{percent(bounds[0])}, {percent(bounds[1])}]" if intervals and bounds else ""
        return percent(row[name]) + more

    head = ["judge", "reads", "right %", "precision %", "recall %", "false positives %", "no verdict"]
    body = [
        [
            row["judge"],
            row["reads"],
            *(share(row, name) for name in shares),
            str(row["undecided"]),
            f"{row['exhibits']:.1f}",
            f"{row['characters']:.0f}",
            "–" if row["tokens"] is None else f"{row['tokens']:.0f}",
        ]
        for row in rows
    ]
    return grid([*head, "rounds", "characters", "tokens"], body, 2)


def _figures(sessions: Sequence[Finished], read: Source, last_screen: bool, panel: JudgePanel) -> Row:
    cases = [session.case(read, last_screen) for session in sessions]
    pending = [panel.ask(case) for case in cases]
    verdicts = [wait() for wait in pending]
    said = np.array([verdict.success is True for verdict in verdicts])
    known = np.array([verdict.decided for verdict in verdicts])
    true = np.array([session.truth.complete for session in sessions])
    problems = [*dict.fromkeys(session.name for session in sessions)]
    place = {name: number for number, name in enumerate(problems)}
    of = np.array([place[session.name] for session in sessions])

    def share(above: np.ndarray, below: np.ndarray) -> Statistic:
        counts = [np.bincount(of, weights=known & mask, minlength=len(problems)) for mask in (above, below)]
        return ratio_statistic(*counts)

    statistics = {
        "accuracy": share(said == true, np.ones_like(true)),
        "precision": share(said & true, said),
        "recall": share(said & true, true),
        "false_positives": share(said & ~true, ~true),
    }
    values = {name: on_all(statistic, len(problems)) for name, statistic in statistics.items()}
    return {
        "sessions": len(sessions),
        "undecided": int((~known).sum()),
        **{name: None if np.isnan(value) else float(value) for name, value in values.items()},
        "exhibits": float(np.mean([len(case.submission.evidence) for case in cases])),
        "characters": float(np.mean([len(render(case).text) for case in cases])),
        "tokens": _tokens(verdicts),
        "intervals": {name: bootstrap_interval(one, len(problems)) for name, one in statistics.items()},
    }


def _tokens(verdicts: Sequence[Judgement]) -> float | None:
    """Tokens that a session's votes cost on average; None where nobody counts them."""
    spent = [verdict.tokens for verdict in verdicts]
    return None if all(tokens is None for tokens in spent) else float(np.mean([t or 0 for t in spent]))


class ErringSettings(CommandConfig):
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


class JudgesSettings(CommandConfig):
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

    - `python -m reproduce.judges`

    - `python -m reproduce.judges runs/smartsnap-phone --output judges.json`

    - `python -m reproduce.judges --judge rules --judge builtin:phone-judge --split test`
    """
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


def _panels(settings: JudgesSettings) -> dict[str, JudgePanel]:
    """The judges by name, each with what it needs to vote."""
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
        jury.judge.set_policy(None)
    return dict(made)


app = script(judges)


if __name__ == "__main__":
    app()
