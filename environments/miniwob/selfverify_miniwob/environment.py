"""MiniWoB++ in Chromium as an environment."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, TypeVar

from pydantic import Field

from selfverify.agents.tools import Address, Look, Screen, WaitFor, describe, quoted
from selfverify.core.config import Config
from selfverify.core.episode import Call, Environment, EnvironmentLost, StepResult
from selfverify.core.errors import ConfigError, DataError
from selfverify.tasks.tool_calls import ToolError
from selfverify_miniwob import pages as miniwob
from selfverify_miniwob.chromium import Chromium
from selfverify_miniwob.page_elements import page_screen
from selfverify_miniwob.tab import Tab
from selfverify_miniwob.tools import (
    BrowserAction,
    BrowserTools,
    Choose,
    Click,
    Drag,
    PressKeys,
    Scroll,
    TypeKeys,
)

SCROLLED = 50
"""CSS pixels that one call scrolls, as in MiniWoB++."""

T = TypeVar("T")

_CHOOSE = """([x, y, wanted]) => {
  let node = document.elementFromPoint(x, y);
  if (node instanceof HTMLIFrameElement) {
    const box = node.getBoundingClientRect();
    node = node.contentDocument.elementFromPoint(x - box.left, y - box.top);
  }
  const list = node && node.closest('select');
  if (!list) return null;
  const options = Array.from(list.options);
  const found = options.find(option => option.text.trim() === wanted.trim());
  if (!found) return options.map(option => option.text.trim()).slice(0, 30);
  list.focus();
  list.value = found.value;
  found.selected = true;
  for (const name of ['input', 'change']) list.dispatchEvent(new Event(name, {bubbles: true}));
  return true;
}"""


class BrowserConfig(Config):
    """How pages are shown and used."""

    observations: Literal["text", "png", "both"] = "both"
    """What the agent is shown: the page's elements in words, a screenshot, or both."""
    address: Address = "bounds"
    """How calls name a place: by coordinates in pixels of the screenshot, or by elements' ids."""
    scale: int = Field(2, ge=1, le=8)
    """Pixels of the screenshot per CSS pixel; a task of MiniWoB++ has 160 x 210 CSS pixels."""
    steps: int = Field(20, ge=1)
    """Calls that a session may make; the last one is answered as truncated."""
    time_limit_s: float | None = Field(None, gt=0)
    """Seconds of the page's clock after which it ends a task; null sets none. MiniWoB++ has 10 for most."""
    call_s: float = Field(0.5, ge=0)
    """Seconds by which a call moves the page's clock on. Between calls it stands still."""
    reward: Literal["positive", "raw"] = "positive"
    """Reward at the end: MiniWoB++'s raw one, from -1 to 1, with what is below 0 as 0 or as it is."""
    executable: str | None = None
    """Chromium's program; null looks for one."""
    page_seconds: float = Field(30.0, gt=0)
    """How long the browser may take for one thing."""


class BrowserEnvironment(Environment):
    """One session after another, each in a fresh profile of the browser that all sessions of a process share.

    Args:
        config: How pages are shown and used.

    Raises:
        ConfigError: The browser or the tasks are not installed.
    """

    def __init__(self, config: BrowserConfig | None = None) -> None:
        self.config = BrowserConfig() if config is None else config
        miniwob.pages()
        self._chromium = Chromium(self.config.executable)
        self._tools = BrowserTools(self.config.address)
        self.tab: Tab | None = None
        """Where the session is, between `reset` and `close`."""
        self._task = ""
        self._utterance = miniwob.Utterance("")
        self._screen = Screen("", (0, 0))
        self._round = 0
        self._over = self._lost = ""

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """See `Environment`."""
        return self._tools.schemas

    async def reset(self, task: Mapping[str, Any], seed: int) -> StepResult:
        """Begin a task anew. The observation says what is asked for, and shows the page.

        Args:
            task: ``{"task": NAME}``, such as ``click-test-2``; `miniwob.pages` has the names.
            seed: Decides what the page draws; equal seeds give equal pages.

        Raises:
            DataError: There is no such task.
            ConfigError: The browser does not start.
            EnvironmentLost: The page cannot be opened.
        """
        name = task.get("task")
        if not isinstance(name, str) or task.keys() != {"task"}:
            raise DataError(f'a task of the browser is {{"task": NAME}}, not {dict(task)!r}'[:300])
        miniwob.page_of(name)
        return await self._guarded(self._begin(name, seed))

    async def step(self, call: Call) -> StepResult:
        """See `Environment`."""
        if self.tab is None and not self._lost:
            raise ConfigError("reset the environment before the first call")
        self._round += 1
        return await self._guarded(self._answer(call))

    async def state(self) -> dict[str, Any] | None:
        """How the task stands, and the page's elements as MiniWoB++ describes them."""
        if self.tab is None and not self._lost:
            return None
        return await self._guarded(self._facts())

    async def close(self) -> None:
        """See `Environment`."""
        self._lost = self._lost or "the session is closed"
        await self._give_back()

    async def _give_back(self) -> None:
        tab, self.tab = self.tab, None
        if tab is not None:
            await tab.close()
        await self._chromium.close()

    async def _guarded(self, work: Coroutine[Any, Any, T]) -> T:
        """``work``, unless the session is lost; what is cut off in the middle of something is lost, too."""
        if self._lost:
            work.close()
            raise EnvironmentLost(self._lost)
        try:
            return await work
        except (EnvironmentLost, asyncio.CancelledError) as error:
            self._lost = str(error) or "a call was cancelled while it was carried out"
            await asyncio.shield(self._give_back())
            raise

    async def _begin(self, task: str, seed: int) -> StepResult:
        config = self.config
        if self.tab is not None:
            await self.tab.close()
        self.tab = Tab(self._chromium, *miniwob.window_of(task), config.scale, config.page_seconds)
        self._task, self._round, self._over = task, 0, ""
        self._utterance = await miniwob.begin(self.tab, task, seed, config.time_limit_s)
        shown = await self._shown(self.tab)
        shown.text = "\n".join(filter(None, (f"Task: {quoted(self._utterance.text, 2_000)}", shown.text)))
        shown.info |= {"instruction": self._utterance.text, "fields": self._utterance.fields}
        return shown

    async def _answer(self, call: Call) -> StepResult:
        tab = self.tab
        assert tab is not None
        if self._over:
            return StepResult(self._round, error=self._over)
        try:
            action = self._tools.read(call, self._screen.size, self._screen.boxes)
            await self._do(tab, action)
        except ToolError as error:
            return self._limited(StepResult(self._round, error=str(error)))
        if not isinstance(action, Look):
            await tab.pass_time(action.seconds if isinstance(action, WaitFor) else self.config.call_s)
        shown = await self._shown(tab)
        now = await miniwob.status(tab)
        if now.done:
            self._over = "the session has ended: " + ("time ran out" if now.timed_out else "the task is over")
            shown.truncated, shown.done = now.timed_out, not now.timed_out
            shown.info |= {"raw_reward": now.reward, "reason": now.reason}
            if shown.done:
                shown.reward = now.reward if self.config.reward == "raw" else max(now.reward, 0.0)
            return shown
        return self._limited(shown)

    async def _do(self, tab: Tab, action: BrowserAction) -> None:
        """Carry out an action; places are pixels of the screenshot."""
        scale = self.config.scale
        match action:
            case Click((x, y)):
                await tab.click((x + 0.5) / scale, (y + 0.5) / scale)
            case Drag((x, y), (to_x, to_y)):
                await tab.drag(*((place + 0.5) / scale for place in (x, y, to_x, to_y)))
            case TypeKeys(text):
                await tab.type(text)
            case PressKeys(keys):
                await tab.press(keys)
            case Scroll((x, y), direction):
                by_x, by_y = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[direction]
                await tab.scroll(x / scale, y / scale, by_x * SCROLLED, by_y * SCROLLED)
            case Choose((x, y), option):
                found = await tab.run(_CHOOSE, [x / scale, y / scale, option])
                if found is None:
                    raise ToolError("there is no drop-down list at this place")
                if found is not True:
                    raise ToolError(f"the list has no such option; it has {', '.join(map(quoted, found))}")

    async def _shown(self, tab: Tab) -> StepResult:
        """The page as the agent sees it."""
        config, size = self.config, miniwob.size_of(self._task)
        page = await miniwob.elements(tab)
        self._screen = page_screen(self._task, page, size, config.scale)
        text = describe(self._screen) if config.observations != "png" else ""
        images = [await tab.picture(*size)] if config.observations != "text" else []
        return StepResult(self._round, text, images, info={"task": self._task})

    async def _facts(self) -> dict[str, Any]:
        assert self.tab is not None
        now = await miniwob.status(self.tab)
        return {
            "task": self._task,
            "utterance": self._utterance.text,
            "fields": self._utterance.fields,
            "done": now.done,
            "raw_reward": now.reward if now.done else None,
            "reason": now.reason,
            "page": await miniwob.elements(self.tab),
        }

    def _limited(self, observation: StepResult) -> StepResult:
        """The observation, truncated where the session has made all its calls."""
        if self._round >= self.config.steps:
            self._over = f"the session has ended after {self.config.steps} calls"
            observation.truncated = True
        return observation
