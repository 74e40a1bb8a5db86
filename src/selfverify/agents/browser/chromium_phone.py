"""The phone of `agents.phone` in Chromium: screens are pages, fingers the mouse, texts come by keyboard.

The phone itself stays the same. What the agent wants to touch is clicked for real, and what the page says was
hit is what the phone is told; so a page that shows something other than the phone has would be noticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from selfverify.agents.browser.chromium import Chromium
from selfverify.agents.browser.tab import Tab
from selfverify.agents.phone.phone_environment import PhoneEnvironment, PhoneOptions
from selfverify.agents.phone.system.glass import HEIGHT, WIDTH
from selfverify.core.environment import Call, Environment, EnvironmentLost, Observation
from selfverify.core.errors import DataError

SWIPES = {"short": 120, "medium": 240, "long": 420}
"""How far the mouse is moved, in pixels."""
HOLD_S = 1.0
"""How long the button is held for a long press, by the page's clock."""

T = TypeVar("T")

_LISTEN = """focus => {
  window.seen = [];
  const named = node => { const found = node.closest('[id]'); return found ? found.id : ''; };
  let from = null;
  document.addEventListener('mousedown', event => {
    event.preventDefault();
    from = {x: event.clientX, y: event.clientY, at: Date.now(), id: named(event.target)};
  });
  document.addEventListener('mouseup', event => {
    if (from) window.seen.push({...from, dx: event.clientX - from.x, dy: event.clientY - from.y,
                                ms: Date.now() - from.at});
    from = null;
  });
  if (!focus) return;
  const field = document.createElement('textarea');
  field.style.cssText = 'position: fixed; opacity: 0; width: 1px; height: 1px; left: 0; top: 0';
  document.body.append(field);
  field.addEventListener('keydown', event => {
    if (event.key === 'Enter') {
      event.preventDefault();
      window.seen.push({text: field.value});
    }
  });
  field.focus();
}"""


class ChromiumPhone(Environment):
    """A session on the phone, shown and used in the browser that all sessions of a process share.

    Tasks, tools, texts, facts and state are those of `PhoneEnvironment`; screenshots are Chromium's.

    Args:
        options: How the phone is shown and touched.
        executable: Chromium's program; None looks for one.
        page_seconds: How long the browser may take for one thing.

    Raises:
        ConfigError: The browser is not installed.
    """

    def __init__(
        self, options: PhoneOptions | None = None, executable: str | None = None, page_seconds: float = 30.0
    ) -> None:
        self.options = PhoneOptions() if options is None else options
        self._inner = PhoneEnvironment(self.options.model_copy(update={"show": "text"}))
        self._chromium = Chromium(executable)
        self._tab = Tab(self._chromium, WIDTH, HEIGHT, 1, page_seconds)
        self._lost = ""

    @property
    def tools(self) -> Sequence[dict[str, Any]]:
        """See `Environment`."""
        return self._inner.tools

    async def reset(self, task: Mapping[str, Any], seed: int) -> Observation:
        """See `PhoneEnvironment`."""
        if self._lost:
            raise EnvironmentLost(self._lost)
        shown = await self._inner.reset(task, seed)
        return await self._guarded(self._begin(shown))

    async def act(self, call: Call) -> Observation:
        """See `Environment`."""
        if self._inner.phone is None and not self._lost:
            raise DataError("phone: the session has not been reset, or it is closed")
        return await self._guarded(self._answer(call))

    async def state(self) -> dict[str, Any] | None:
        """See `PhoneEnvironment`."""
        if self._lost:
            raise EnvironmentLost(self._lost)
        return await self._inner.state()

    async def close(self) -> None:
        """See `Environment`."""
        self._lost = self._lost or "the session is closed"
        await self._give_back()

    async def _give_back(self) -> None:
        await self._inner.close()
        await self._tab.close()
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

    async def _begin(self, shown: Observation) -> Observation:
        await self._tab.open("about:blank")
        await self._draw()
        return await self._pictured(shown) if self.options.first_screen == "given" else shown

    async def _answer(self, call: Call) -> Observation:
        shown = await self._inner.act(await self._by_hand(call))
        await self._draw()
        return await self._pictured(shown)

    async def _draw(self) -> None:
        """Show the phone's screen, and listen to what is done to it."""
        phone = self._inner.phone
        assert phone is not None
        await self._tab.write(self._inner.html())
        await self._tab.run(_LISTEN, bool(phone.look().focus))

    async def _pictured(self, shown: Observation) -> Observation:
        if self.options.show != "text":
            shown.images = [await self._tab.picture(WIDTH, HEIGHT)]
        if self.options.show == "png":
            shown.text = ""
        return shown

    async def _by_hand(self, call: Call) -> Call:
        """Do on the page what a call asks for; the call that the page says was made.

        What has no place on the page (keys of the phone itself, waiting, launching), and calls that the phone
        refuses anyway, are left as they are.
        """
        phone = self._inner.phone
        assert phone is not None
        arguments = dict(call.arguments)
        if call.name in ("tap", "long_press"):
            if (place := self._place(arguments)) is None:
                return call
            if call.name == "tap":
                await self._tab.click(*place)
            else:
                await self._tab.hold(*place, HOLD_S)
            hit = await self._seen(call)
            name = "long_press" if hit["ms"] >= HOLD_S * 500 else "tap"
            x, y = hit["x"], hit["y"]
            return Call(name, {"id": hit["id"]} if hit["id"] else {"x1": x, "y1": y, "x2": x, "y2": y})
        if call.name == "swipe" and arguments.get("direction") in ("up", "down", "left", "right"):
            way = SWIPES.get(str(arguments.get("dist", "medium")))
            if way is None:
                return call
            dx, dy = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}[arguments["direction"]]
            x, y = WIDTH / 2, HEIGHT / 2
            await self._tab.drag(x - dx * way / 2, y - dy * way / 2, x + dx * way / 2, y + dy * way / 2)
            hit = await self._seen(call)
            return Call("swipe", {**arguments, **_swiped(hit["dx"], hit["dy"])})
        if call.name == "type" and phone.look().focus and isinstance(arguments.get("text_input"), str):
            await self._tab.type(" ".join(arguments["text_input"].splitlines()))
            await self._tab.press("Enter")
            return Call("type", {**arguments, "text_input": (await self._seen(call))["text"]})
        if call.name == "enter" and phone.look().focus:
            await self._tab.press("Enter")
            await self._seen(call)
        return call

    def _place(self, arguments: Mapping[str, Any]) -> tuple[float, float] | None:
        """Where a call touches; None where it touches nothing that is there."""
        phone = self._inner.phone
        assert phone is not None
        box: Any = None
        if arguments.keys() == {"id"} and isinstance(arguments["id"], str):
            found = phone.look().find(arguments["id"])
            box = None if found is None else found[1]
        elif arguments.keys() == {"x1", "y1", "x2", "y2"}:
            box = [arguments[key] for key in ("x1", "y1", "x2", "y2")]
        if box is None or not all(isinstance(n, int | float) and not isinstance(n, bool) for n in box):
            return None
        x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
        return (x, y) if 0 <= x < WIDTH and 0 <= y < HEIGHT else None

    async def _seen(self, call: Call) -> dict[str, Any]:
        """What the page has noticed of the call."""
        seen: list[dict[str, Any]] = await self._tab.run("window.seen.splice(0)")
        if len(seen) != 1:
            raise EnvironmentLost(f"the page has noticed {len(seen)} events of one {call.name}")
        return seen[0]


def _swiped(dx: float, dy: float) -> dict[str, str]:
    """The direction and the distance of a movement."""
    if abs(dx) > abs(dy):
        direction = "right" if dx > 0 else "left"
    else:
        direction = "down" if dy > 0 else "up"
    length = max(abs(dx), abs(dy))
    return {"direction": direction, "dist": min(SWIPES, key=lambda name: abs(SWIPES[name] - length))}
