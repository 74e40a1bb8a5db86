"""MiniWoB++'s tasks, as pages in the package ``miniwob``. Its Python code is not used."""

from __future__ import annotations

import difflib
import importlib.util
import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from selfverify.core.episode import EnvironmentLost
from selfverify.core.errors import ConfigError, DataError
from selfverify_miniwob.tab import Tab

NOT_REGISTERED = frozenset(("button-delay", "chase-circle", "hover-shape", "moving-items", "simon-says"))
"""Pages of the package that it does not offer as tasks."""
FLIGHTS = ("flight.AA", "flight.Alaska", "flight.Alaska-auto")
"""Tasks of FlightWoB, each a copy of an airline's form."""
WINDOW, PAGE = (500, 320), (160, 210)
"""Sizes of the window and of the task in it, in CSS pixels; beside the task the page shows rewards."""
FLIGHT_WINDOW, FLIGHT_PAGE = (600, 800), (375, 667)

_ELEMENTS = """() => {
  const page = core.getDOMInfo();
  const add = node => {
    const element = core.previousDOMInfo[node.ref];
    if (element && element.tagName === 'SELECT')
      node.options = Array.from(element.options, o => ({text: o.text.trim(), selected: o.selected}));
    node.children.forEach(add);
  };
  add(page);
  return page;
}"""

_READY_TRIES = 100
_FAR = 10**9
"""Milliseconds of a task without a limit: eleven days."""


@dataclass(slots=True)
class Status:
    """How a task stands.

    Args:
        done: Whether it is over.
        reward: The raw reward, from -1 to 1, without a penalty for time.
        reason: Why it is so, where the page says it.
    """

    done: bool
    reward: float
    reason: str

    @property
    def timed_out(self) -> bool:
        """Whether time ran out."""
        return self.reason == "timed out"


@dataclass(slots=True)
class Utterance:
    """What the page asks for.

    Args:
        text: In words; FlightWoB's are JSON.
        fields: In parts, where the page has them.
    """

    text: str
    fields: dict[str, Any] = field(default_factory=dict)


@cache
def pages() -> dict[str, Path]:
    """The page of each of the registered tasks, by name.

    Raises:
        ConfigError: The package is not installed.
    """
    found = importlib.util.find_spec("miniwob")
    if found is None or not found.submodule_search_locations:
        raise ConfigError("MiniWoB++ is not installed: pip install miniwob")
    folder = Path(found.submodule_search_locations[0]) / "html"
    tasks = {path.stem: path for path in sorted((folder / "miniwob").glob("*.html"))}
    tasks |= {name: folder / name.replace(".", "/") / "wrapper.html" for name in FLIGHTS}
    return {name: path for name, path in tasks.items() if name not in NOT_REGISTERED}


def page_of(task: str) -> Path:
    """The page of a task.

    Raises:
        DataError: There is no such task.
    """
    if (path := pages().get(task)) is None:
        close = difflib.get_close_matches(task[:60], pages(), n=3) or sorted(pages())[:3]
        raise DataError(f"MiniWoB++ has no task {task[:60]!r}; like it are {', '.join(close)}")
    return path


def window_of(task: str) -> tuple[int, int]:
    """The size of a task's window in CSS pixels."""
    return FLIGHT_WINDOW if task in FLIGHTS else WINDOW


def size_of(task: str) -> tuple[int, int]:
    """The size of a task in CSS pixels."""
    return FLIGHT_PAGE if task in FLIGHTS else PAGE


async def begin(tab: Tab, task: str, seed: int, limit_s: float | None) -> Utterance:
    """Open a task's page and begin an episode.

    Args:
        tab: Where to.
        task: The task's name.
        seed: Decides what the page draws.
        limit_s: Seconds of the page's clock after which it ends the episode; None never does.
    """
    await tab.open(page_of(task).as_uri())
    await tab.run(
        "([seed, ms]) => { Math.seedrandom(seed); core.EPISODE_MAX_TIME = ms; core.startEpisodeReal(); }",
        [seed % 2**53, _FAR if limit_s is None else limit_s * 1000],
    )
    for _ in range(_READY_TRIES):
        if await tab.run("WOB_TASK_READY"):
            break
        await tab.pass_time(0.1)
    else:
        raise EnvironmentLost(f"MiniWoB++ task {task}: the page never becomes ready")
    said = await tab.run("core.getUtterance()")
    if isinstance(said, dict):
        return Utterance(str(said.get("utterance", "")), dict(said.get("fields") or {}))
    fields: Any = {}
    if task in FLIGHTS:
        fields = json.loads(said)
    return Utterance(str(said), fields if isinstance(fields, dict) else {})


async def elements(tab: Tab) -> dict[str, Any]:
    """The page's elements as MiniWoB++ describes them; drop-down lists also have ``options``."""
    found: dict[str, Any] = await tab.run(_ELEMENTS)
    return found


async def status(tab: Tab) -> Status:
    """How the task stands now."""
    done, reward, reason = await tab.run("[WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL, WOB_REWARD_REASON]")
    return Status(bool(done), float(reward), "" if reason is None else str(reason))
