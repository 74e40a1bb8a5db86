"""Reading an answer as one plain expression: the markup is taken off, nothing is guessed.

Texts are at most `MathConfig.max_answer_chars` long. No function raises an error, and each looks at a
character a bounded number of times.
"""

from __future__ import annotations

import re

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("−–—﹣－", "-"),
        **dict.fromkeys("\u00a0\u2002\u2003\u2009\u202f\u3000\t\r\n\f\v", " "),
        "％": "%", "×": r" \times ", "⋅": r" \cdot ", "·": r" \cdot ", "÷": "/", "°": r"^\circ ", "²": "^2",
        "³": "^3", "π": r" \pi ", "∞": r" \infty ", "≤": r" \le ", "≥": r" \ge ", "≠": r" \ne ",
        "±": r" \pm ", "½": r" \frac{1}{2}", "¼": r" \frac{1}{4}", "¾": r" \frac{3}{4}", "θ": r" \theta ",
        "，": ",", "∅": r" \emptyset ",
        "α": r" \alpha ", "β": r" \beta ", "γ": r" \gamma ", "∠": r" \angle ", "（": "(",
        "）": ")", "：": ":",
        "₀": "_0", "₁": "_1", "₂": "_2", "∈": r" \in ", "∪": r" \cup ", "′": "'",
    }
)  # fmt: skip
_REPLACED = (
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:left|right|bigl|bigr|Bigl|Bigr|big|Big|displaystyle)(?![A-Za-z])"), ""),
    (re.compile(r"(?<!\\)\\[,;:! ]|~|\\q?quad(?![A-Za-z])"), " "),
    (re.compile(r"\\([%$#&])"), r"\1"),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ|\\degree(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mbox)\s*\{([^{}]*)\}"), r" \1 "),
    (re.compile(r"√\s*(\d+(?:\.\d+)?|[A-Za-z])"), r"\\sqrt{\1}"),
    (re.compile(r"√\s*\(([^()]*)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\\varnothing(?![A-Za-z])"), r"\\emptyset"),
    (re.compile(r"\\lbrace(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\(begin|end)\{[bB]matrix\}"), r"\\\1{pmatrix}"),
    (re.compile(r" {2,}"), " "),
)
_WRAPS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"), ('"', '"'))
_LEAD = re.compile(
    r"(?:(?:so|thus|therefore|hence),? +)?(?:the +)?(?:(?:final|correct) +)?"
    r"(?:answer|result|option|choice)(?: +is(?: *:)?| *:| *=) *",
    re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_HEDGE = re.compile(r"(?:\b(?:or|and|not|either|nor|isn't|maybe)\b|[,;/])\W*$", re.IGNORECASE)
_TAIL = re.compile(r"[\s.,;:!$)\]*\\]*")


def plain(text: str) -> str:
    """Return a text as one line, with LaTeX spacing, styles and Unicode signs in their plainest form."""
    text = text.translate(_PLAIN)
    for pattern, replacement in _REPLACED:
        text = pattern.sub(replacement, text)
    return text.strip()


def unwrap(text: str) -> str:
    """Return a text without the signs around the whole of it (``$..$``, ``**..**``) and its full stop."""
    before = None
    while before != text:
        before = text
        text = text.strip()
        if text.endswith((".", ";", ",")) and not text.endswith((r"\.", r"\;", r"\,")):
            text = text[:-1]
        for left, right in _WRAPS:
            inner = text[len(left) : -len(right)]
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                # "$5$ or $6$" begins and ends with a dollar, too.
                if left not in inner and right not in inner:
                    text = inner
                break
    return text


def boxes(text: str) -> list[tuple[int, int, str]]:
    r"""Return ``(start, end, content)`` of every ``\boxed{..}`` whose braces match."""
    found, at = [], 0
    while (match := _BOX.search(text, at)) is not None:
        depth, end = 1, match.end()
        while end < len(text) and depth:
            if text[end] == "\\":
                end += 1
            elif text[end] in "{}":
                depth += 1 if text[end] == "{" else -1
            end += 1
        if depth or end > len(text):
            break
        found.append((match.start(), end, text[match.end() : end - 1]))
        at = end
    return found


def final_expression(text: str) -> str | None:
    r"""Return the one expression that an answer commits to, `plain`; None if there is none or more than one.

    An answer with ``\boxed`` commits to what stands in the box. Several boxes must hold the same. The text
    before the first box must not end in an alternative ("5 or"); only punctuation and a unit may follow the
    last box. An answer without a box commits to all of its text but a phrase like "The answer is".
    """
    found = boxes(text)
    if not found and text.count("$") > 1:
        text = text.replace("$", " ")  # "$5$ or $6$": no wrap around the whole, and no amount of money alone
    if found:
        content = {plain(unwrap(inner)) for _, _, inner in found}
        if len(content) > 1:
            return None
        tail = text[found[-1][1] :]
        if any(_HEDGE.search(text[:start].rstrip(" \n$*\\([")) for start, _, _ in found[:1]):
            return None
        rest = unwrap(plain(tail.strip().lstrip("$").rstrip("$").removeprefix(r"\)").removeprefix(r"\]")))
        if len(rest) > 20 or re.search(r"[\d=]|\b(?:or|and|not)\b", rest, re.IGNORECASE):
            return None
        only = content.pop()
        return unwrap(only) if not rest or _TAIL.fullmatch(rest) else f"{unwrap(only)} {rest}"
    text = unwrap(plain(unwrap(text)))
    lead = _LEAD.match(text)
    return unwrap(text[lead.end() :]) if lead else text


def words(text: str) -> str:
    """Return a text as it is compared: without case, spaces, dollars and the punctuation around it."""
    return " ".join(text.replace("$", " ").casefold().split()).strip(" .,;:!?'\"*")


def balanced(text: str, deepest: int) -> bool:
    """Return whether brackets match in number, at most ``deepest`` deep.

    Their kinds may differ, as in half-open intervals.
    """
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            if depth > deepest:
                return False
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return False
    return depth == 0


def elements(text: str) -> tuple[str, list[str]]:
    """Return the brackets around a list (``""``, ``"()"``, ``"[)"``, ``"{}"``, ...) and its elements.

    Commas, semicolons, "and" and "or" separate elements. A comma between digits with exactly three after it
    belongs to a number: ``1,234``. A text that is no list is one element without brackets.
    """
    text = text.strip()
    inner = text.replace(r"\{", "{").replace(r"\}", "}")
    kind = ""
    if len(inner) > 1 and inner[0] in "([{" and inner[-1] in ")]}" and _encloses(inner):
        kind, body = inner[0] + inner[-1], inner[1:-1]
    else:
        body = text
    parts = _split(body)
    if len(parts) == 1 and kind != "{}":
        return "", [text]
    return kind, [part.strip() for part in parts]


def _encloses(text: str) -> bool:
    """Return whether the last character closes the first bracket."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return place == len(text) - 1
    return False


_SEPARATOR = re.compile(r"[,;()\[\]{}]|(?<=[\s,;])(?:and|or)(?=\s)", re.IGNORECASE)


def _split(text: str) -> list[str]:
    parts, start, depth = [], 0, 0
    for match in _SEPARATOR.finditer(text):
        found = match.group()
        if found in "([{":
            depth += 1
        elif found in ")]}":
            depth -= 1
        elif depth == 0 and not (found == "," and _thousands(text, match.start())):
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    # "5, and 6" has two separators in a row.
    return [part for part in parts if part.strip()] or [""]


def _thousands(text: str, at: int) -> bool:
    head = text[max(at - 4, 0) : at]
    digits = len(head) - len(head.rstrip("0123456789"))
    after = text[at + 1 : at + 5]
    return 1 <= digits <= 3 and after[:3].isdigit() and len(after) >= 3 and not after[3:].isdigit()
