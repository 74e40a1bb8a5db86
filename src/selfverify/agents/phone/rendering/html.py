"""A screen as a page of HTML without scripts, for browsers and reports."""

from __future__ import annotations

from html import escape

from selfverify.agents.phone.rendering.icons import STROKE, shapes
from selfverify.agents.phone.rendering.style import (
    CARD,
    FADED,
    INK,
    KEY,
    KEYBOARD,
    LINES,
    PAGE,
    PAPER,
    QUIET,
    ROWS_OF_KEYS,
    accent,
    css,
)
from selfverify.agents.phone.system.glass import (
    BAR,
    HEIGHT,
    ICON,
    KEYS,
    LINE,
    STATUS,
    TABS,
    WIDTH,
    Box,
    Layout,
)
from selfverify.agents.phone.system.widgets import Widget

_ROUND = 'stroke-linecap="round" stroke-linejoin="round"'
_CSS = f"""
.phone {{ position: relative; width: {WIDTH}px; height: {HEIGHT}px; overflow: hidden;
  background: {css(PAGE)}; color: {css(INK)}; font: 25px "DejaVu Sans", "Noto Sans", sans-serif; }}
.phone * {{ position: absolute; box-sizing: border-box; white-space: nowrap; }}
.phone .head {{ background: var(--app); }}
.phone .title {{ color: {css(PAPER)}; font-weight: bold; font-size: 28px; line-height: {BAR}px;
  height: {BAR}px; overflow: hidden; text-overflow: ellipsis; }}
.phone .clock {{ color: {css(PAPER)}; font-size: 17px; line-height: {STATUS}px; left: 28px; top: 0; }}
.phone .card {{ background: {css(CARD)}; }}
.phone .dialog {{ border-radius: 28px; }}
.phone .shade {{ inset: 0; background: rgba(0, 0, 0, .55); }}
.phone .line {{ background: {css(CARD)}; border-bottom: 1px solid {css(LINES)}; padding: 0 28px;
  display: flex; flex-direction: column; justify-content: center; overflow: hidden; }}
.phone .line * {{ position: static; overflow: hidden; text-overflow: ellipsis; line-height: 1.5; }}
.phone .small {{ font-size: 20px; color: {css(QUIET)}; }}
.phone .long {{ white-space: normal; }}
.phone .field .value {{ border-bottom: 2px solid {css(QUIET)}; min-height: 40px; white-space: pre; }}
.phone .field.focus .value {{ border-color: var(--app); }}
.phone .flat {{ flex-direction: row; align-items: center; justify-content: space-between; border: 0; }}
.phone .knob {{ width: 60px; height: 32px; border-radius: 16px; background: {css(FADED)}; flex: none; }}
.phone .knob::after {{ content: ""; display: block; width: 24px; height: 24px; margin: 4px;
  border-radius: 12px; background: {css(PAPER)}; }}
.phone .knob.on {{ background: var(--app); }}
.phone .knob.on::after {{ margin-left: 32px; }}
.phone .option {{ flex-direction: row; align-items: center; justify-content: flex-start; gap: 20px;
  border: 0; }}
.phone .dot {{ width: 30px; height: 30px; border-radius: 15px; border: 3px solid {css(QUIET)}; flex: none; }}
.phone .dot.on {{ border-color: var(--app); background: radial-gradient(var(--app) 50%, transparent 55%); }}
.phone .button span {{ inset: 34px 28px; border-radius: 32px; background: var(--app); color: {css(PAPER)};
  font-weight: bold; display: flex; align-items: center; justify-content: center; }}
.phone .button.low span {{ inset: 12px 28px; }}
.phone .off span {{ background: {css(FADED)}; }}
.phone .icon {{ display: flex; align-items: center; justify-content: center; color: {css(PAPER)}; }}
.phone .icon.off {{ opacity: .35; }}
.phone .floating {{ border-radius: 50%; background: var(--app); box-shadow: 0 4px 8px rgba(0, 0, 0, .3); }}
.phone .tab {{ background: {css(CARD)}; border-top: 1px solid {css(LINES)}; color: {css(QUIET)};
  font-size: 22px; display: flex; align-items: center; justify-content: center; }}
.phone .tab.on {{ color: var(--app); font-weight: bold; border-top: 5px solid var(--app); }}
.phone .app svg {{ left: 40px; top: 16px; padding: 23px; border-radius: 26px; background: var(--app);
  color: {css(PAPER)}; }}
.phone .app span {{ left: 0; right: 0; top: 128px; text-align: center; font-size: 20px;
  color: {css(PAPER)}; }}
.phone .keys {{ left: 0; right: 0; bottom: 0; height: {KEYS}px; background: {css(KEYBOARD)};
  padding: 12px 0; }}
.phone .keys div {{ position: static; display: flex; gap: 5px; justify-content: center;
  margin-bottom: 12px; }}
.phone .keys span {{ position: static; width: 48px; height: 66px; line-height: 66px; text-align: center;
  background: {css(KEY)}; border-radius: 8px; }}
.phone .keys .space {{ width: 280px; margin-left: 110px; }}
.phone .keys .enter {{ width: 120px; background: {css(QUIET)}; color: {css(PAPER)}; font-size: 22px; }}
.phone .battery {{ left: {WIDTH - 60}px; top: 10px; width: 32px; height: 15px; border-radius: 3px;
  background: {css(PAPER)}; }}
.phone .toast {{ left: 0; right: 0; margin: auto; width: max-content; max-width: 500px;
  padding: 14px 30px; border-radius: 28px; background: {css(INK)}; color: {css(PAPER)}; font-size: 22px;
  overflow: hidden; text-overflow: ellipsis; }}
"""


def html(look: Layout, beneath: Layout | None = None, clock: str = "09:41") -> str:
    """A whole page.

    Args:
        look: What is on the glass.
        beneath: The page under a dialog or a drawer, which is shown dimmed.
        clock: The time in the status line.
    """
    title = escape(_plain(look.screen.title))
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/><title>{title}</title>'
        f"<style>body {{ margin: 0; }}{_CSS}</style></head>\n<body>\n{fragment(look, beneath, clock)}\n"
        "</body></html>\n"
    )


def fragment(look: Layout, beneath: Layout | None = None, clock: str = "09:41") -> str:
    """The screen as one element with the class ``phone``; `html` has the styles that it needs."""
    parts = [f'<div class="phone" style="--app: {css(accent(look.app))}">']
    if beneath is not None:
        parts += _page(beneath, clock, ids=False)
    if look.screen.style in ("page", "home"):
        parts += _page(look, clock)
    else:
        parts += _card(look)
    if look.focus:
        keys = "".join(f"<div>{''.join(f'<span>{k}</span>' for k in row)}</div>" for row in ROWS_OF_KEYS)
        wide = '<div><span class="space"></span><span class="enter">enter</span></div>'
        parts.append(f'<div class="keys">{keys}{wide}</div>')
    if look.toast:
        bottom = 20 + (KEYS if look.focus else TABS if look.screen.tabs else 0)
        parts.append(f'<div class="toast" style="bottom: {bottom}px">{escape(_plain(look.toast))}</div>')
    return "\n".join([*parts, "</div>"])


def _plain(said: str) -> str:
    """A text without what HTML cannot hold."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in said)


def _at(box: Box) -> str:
    x1, y1, x2, y2 = box
    return f"left: {x1}px; top: {y1}px; width: {x2 - x1}px; height: {y2 - y1}px"


def _titled(look: Layout) -> str:
    counted = "" if look.screen.count is None else f"  ({look.screen.count})"
    return escape(_plain(look.screen.title + counted))


def _page(look: Layout, clock: str, ids: bool = True) -> list[str]:
    if look.screen.style == "home":
        parts = [f'<div class="head" style="{_at((0, 0, WIDTH, HEIGHT))}"></div>']
    else:
        left = ICON if any(widget.id == "menu" for widget in look.screen.bar) else 28
        right = sum(widget.id != "menu" for widget in look.screen.bar) * ICON
        box = (left, STATUS, WIDTH - right, STATUS + BAR)
        parts = [
            f'<div class="head" style="{_at((0, 0, WIDTH, STATUS + BAR))}"></div>',
            f'<div class="title" style="{_at(box)}">{_titled(look)}</div>',
        ]
    parts.append(f'<div class="clock">{escape(clock)}</div><div class="battery"></div>')
    return [*parts, *(_widget(look, widget, box, ids) for widget, box in look.placed)]


def _card(look: Layout) -> list[str]:
    x1, y1, x2, _ = look.frame
    high = LINE if look.screen.style == "dialog" else BAR
    colour = "" if look.screen.style == "drawer" else f"; color: {css(INK)}"
    head = f'<div class="head" style="{_at((x1, y1, x2, y1 + BAR))}"></div>'
    return [
        '<div class="shade"></div>',
        f'<div class="card {look.screen.style}" style="{_at(look.frame)}"></div>',
        head if look.screen.style == "drawer" else "",
        f'<div class="title" style="{_at((x1 + 28, y1, x2 - 28, y1 + high))}{colour}">{_titled(look)}</div>',
        *(_widget(look, widget, box, True) for widget, box in look.placed),
    ]


def _widget(look: Layout, widget: Widget, box: Box, ids: bool) -> str:
    label, value = escape(_plain(widget.text)), escape(_plain(widget.value))
    id = f' id="{widget.id}"' if widget.id and ids else ""
    style = _at(box)
    on = " on" if widget.on else ""
    flat = box[3] - box[1] <= LINE
    name, inner = f"line {widget.role}", ""
    match widget.role:
        case "icon":
            name = (
                "icon"
                + (" floating" if widget is look.screen.floating else "")
                + " off" * (not widget.enabled)
            )
            inner = _svg(widget.id, widget.on, 34)
        case "app":
            name, inner = "app", f"{_svg(widget.id, None, 54)}<span>{label}</span>"
            style += f"; --app: {css(accent(widget.id))}"
        case "tab":
            name, inner = f"tab{on}", label
        case "switch":
            name = "line flat"
            inner = f'<span>{label}</span><span class="knob{on}"></span>'
            if not widget.text:
                style += "; background: none"
        case "option":
            inner = f'<span class="dot{on}"></span><span>{label}</span>'
        case "button":
            name = "button" + " off" * (not widget.enabled) + " low" * flat
            inner = f"<span>{label}</span>"
        case "field":
            name += " focus" if widget.id == look.focus else ""
            inner = f'<span class="small">{label}</span><span class="value">{value}</span>'
        case _ if widget.span > 1:
            name, inner = "line", f'<span class="long">{value}</span>'
        case _:
            name += " flat" if flat else ""
            first, second = ("", "small") if widget.role == "row" else ("small", "")
            inner = f'<span class="{first if value else ""}">{label}</span>'
            inner += f'<span class="{second}">{value}</span>' if value else ""
    return f'<div{id} class="{name}" style="{style}">{inner}</div>'


def _svg(name: str, on: bool | None, size: int) -> str:
    drawn = []
    for shape in shapes(name, on):
        points = " ".join(f"{x:g},{y:g}" for x, y in shape.points)
        x, y = shape.points[0]
        stroke = f'fill="none" stroke="currentColor" stroke-width="{STROKE:g}"'
        drawn.append(
            {
                "line": f'<polyline points="{points}" {stroke} {_ROUND}/>',
                "area": f'<polygon points="{points}" fill="currentColor"/>',
                "ring": f'<circle cx="{x:g}" cy="{y:g}" r="{shape.size:g}" {stroke}/>',
                "disc": f'<circle cx="{x:g}" cy="{y:g}" r="{shape.size:g}" fill="currentColor"/>',
            }[shape.sort]
        )
    return f'<svg viewBox="0 0 24 24" width="{size}" height="{size}">{"".join(drawn)}</svg>'
