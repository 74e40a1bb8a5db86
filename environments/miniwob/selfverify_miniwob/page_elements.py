"""A page as MiniWoB++ describes it (``core.getDOMInfo``), in the elements that an agent is shown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from selfverify.agents.tools import Box, Element, Screen, name_elements

MOST_NODES = 5_000
"""Elements of a page beyond which the others are left out."""

MOST_OPTIONS = 50
"""Options of a drop-down list that are shown."""

USED = re.compile(r"a|button|input_\w+|input|select|textarea|option|label|summary")
"""Tags that can be used, so that they are shown whatever is in them."""

_PLAIN_COLOURS = ("rgba(0, 0, 0, 0)", "rgb(255, 255, 255)", "transparent", "")


def page_screen(app: str, dom: Mapping[str, Any], size: tuple[int, int], scale: int) -> Screen:
    """The screen that a page is.

    Shown are elements that can be used, that say something, or in which nothing else stands; those that only
    hold others are left out.

    Args:
        app: The page's name.
        dom: The root, with ``tag``, ``left``, ``top``, ``width``, ``height``, ``children``, and more;
            drop-down lists have ``options``, which `miniwob.elements` adds.
        size: The size that is seen, in CSS pixels.
        scale: Pixels of the screen per CSS pixel.
    """
    seen = (size[0] * scale, size[1] * scale)
    found = list(_elements(dom, Box(0, 0, *seen), scale))
    names = name_elements([place for place, _ in found])
    elements = [_named(element, name) for (_, element), name in zip(found, names, strict=True)]
    return Screen(app, seen, elements)


def _named(element: Element, name: str) -> Element:
    return Element(name, element.kind, element.box, (), element.states, element.texts, element.depth)


def _elements(dom: Mapping[str, Any], screen: Box, scale: int) -> Iterator[tuple[str, Element]]:
    """Each element with its place in the page; pages may be deep: no recursion."""
    stack = [(dom, "", 0)]
    for _ in range(MOST_NODES):
        if not stack:
            return
        node, place, depth = stack.pop()
        element = _element(node, screen, scale, depth)
        if element is not None:
            yield place, element
            depth += 1
            for number, option in enumerate(node.get("options", ())[:MOST_OPTIONS]):
                states = ("selected",) if option.get("selected") else ()
                texts = (str(option.get("text", "")),)
                yield f"{place}/{number}", Element("", "option", element.box, (), states, texts, depth)
        alike: Counter[str] = Counter()
        inside = []
        for child in node.get("children", ()):
            own = f"{child.get('tag', '')}#{child.get('id', '')}"
            alike[own] += 1
            inside.append((child, f"{place}/{own}[{alike[own]}]", depth))
        stack += reversed(inside)


def _element(node: Mapping[str, Any], screen: Box, scale: int, depth: int) -> Element | None:
    """What is shown of a node; None where nothing is."""
    tag = str(node.get("tag", "")).lower()
    left, top = float(node.get("left", 0)) * scale, float(node.get("top", 0)) * scale
    right, bottom = left + float(node.get("width", 0)) * scale, top + float(node.get("height", 0)) * scale
    box = Box(round(left), round(top), round(right), round(bottom)).cut(screen)
    value, text = node.get("value"), str(node.get("text") or "").strip()
    used = USED.fullmatch(tag) is not None
    if box is None or (node.get("children") and not used and not text):
        return None
    states = ["focused"] if node.get("focused") else []
    if isinstance(value, bool):
        states.append("checked" if value else "unchecked")
        value = None
    colour = str(node.get("bgColor") or "")
    if not text and not used and colour not in _PLAIN_COLOURS:
        states.append(re.sub(r"[^\w(), .]", "", colour)[:40])
    texts = [said for said in (text, "" if value is None else str(value)) if said]
    return Element("", _kind(tag, node), box, (), tuple(states), tuple(dict.fromkeys(texts)), depth)


def _kind(tag: str, node: Mapping[str, Any]) -> str:
    """Tag, id and classes in the notation of CSS, such as ``button#save.primary``."""
    classes = node.get("classes")
    listed = classes.split()[:3] if isinstance(classes, str) else []
    name = "text" if tag == "t" else tag
    own = f"#{node['id']}" if isinstance(node.get("id"), str) and node["id"] else ""
    return re.sub(r"[^\w#.-]+", "_", "".join((name, own, *(f".{each}" for each in listed))))[:80]
