"""The words that agents and judges are given: files of this package beside it, in `prompts/`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Literal

from jinja2 import Environment as Templates
from jinja2 import PackageLoader, StrictUndefined

from selfverify.agents.evidence import Source
from selfverify.core.errors import ConfigError

World = Literal["phone", "browser", "tools"]
"""What an agent operates; each has a file in `prompts/worlds/`."""

_PLACES = {"phone": "an Android phone", "browser": "a web page", "tools": "an environment through its tools"}


@cache
def hint_names() -> tuple[str, ...]:
    """The kinds of apps of which there are hints, in alphabetical order."""
    folder = files("selfverify.agents") / "prompts" / "hints"
    return tuple(sorted(file.name.removesuffix(".md") for file in folder.iterdir()))


def judge_prompt(hints: Sequence[str] = (), world: World = "phone") -> str:
    """What a judge is told (the paper's Figures 12 and 13, in words of our own).

    Args:
        hints: Kinds of apps (`hint_names`) of which it is told what is usual.
        world: What the agent operates.

    Raises:
        ConfigError: There are no such hints.
    """
    return _filled("judge.md", place=_PLACES[world], hints=_hints(hints))


def agent_prompt(
    source: Source = "chosen",
    react: bool = True,
    first_screen: Literal["asked", "given"] = "asked",
    hints: Sequence[str] = (),
    world: World = "phone",
) -> str:
    """What an agent is told: the 3C principles of §3.3 and Figure 8, in words of our own.

    Args:
        source: Whose evidence is judged; principles of choosing are named where the agent chooses.
        react: Whether the agent says before each call why it makes it (ReAct), or calls only.
        first_screen: Whether the agent asks for the first screen, or is shown it.
        hints: Kinds of apps (`hint_names`) of which it is told what is usual.
        world: What it operates.

    Raises:
        ConfigError: There are no such hints.
    """
    return _filled(
        "agent.md",
        source=source,
        react=react,
        first_screen=first_screen,
        hints=_hints(hints),
        world=world,
        place=_PLACES[world],
    )


def _hints(names: Sequence[str]) -> list[str]:
    if unknown := sorted(set(names) - {*hint_names()}):
        raise ConfigError(f"there are no hints {unknown[0]!r}; hints: {', '.join(hint_names())}")
    return [_templates().get_template(f"hints/{name}.md").render().strip() for name in names]


def _filled(name: str, **values: object) -> str:
    return _templates().get_template(name).render(**values).strip() + "\n"


@cache
def _templates() -> Templates:
    # Blocks leave no empty lines behind. Nothing here is HTML, and only our own files are templates.
    return Templates(
        loader=PackageLoader("selfverify.agents", "prompts"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,  # what is included ends its last line
        autoescape=False,
    )
