r"""From a response to the one expression that it commits to, as plain LaTeX: markup is taken off, nothing is
guessed.

Texts are at most `math.MAX_ANSWER_CHARS` long. No function raises an error, and each looks at a
character a bounded number of times.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise, takewhile

from selfverify.tasks.math_numbers import (
    CHANGES,
    CLOSING,
    DENIALS,
    HEDGES,
    KNOWN_WORDS,
    TABLES,
    Token,
    tokens,
)

_PLAIN = {ord(sign): plain for plain, signs in TABLES["characters"].items() for sign in signs}
_COMMANDS = {name: plain for plain, names in TABLES["commands"].items() for name in names}
_STYLES = re.compile(
    r"\\(?:text|textbf|textit|textrm|ce|mathrm|mathbf|mathit|mathsf|mathtt|mbox|hbox|operatorname|emph|bm|boldsymbol|"
    r"underline|(?:text)?color\s*\{\w*\})\s*\{([^{}]*(?:\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}[^{}]*)*)\}"
)
"""A style with its text, in which braces stand in braces at most twice."""
_TAKES_AN_ARGUMENT = ("frac", "\\sqrt", "^", "_")
_COMMAND = re.compile(r"\\(?:(!)\s*|([A-Za-z]+|[^A-Za-z!]))")
_FRACTION = re.compile(r"\\frac" + r"\s*(?:\{([^{}]*)\}|([0-9A-Za-z]|\\pi))" * 2)
"""A fraction, whose arguments need no braces where they are one sign."""
_SYSTEM = re.compile(r"(?:\\\{\s*)?\\begin\{(\w+)(?<!matrix)\}(?:\{[lcr]*\})?(.*?)\\end\{\1\}")
"""Equations below one another."""
_EMPHASIS = re.compile(r"(?<![\w*\\)\]}])(\*{1,3}|_{1,2})(?=[^\s*_])(.+?)(?<=[^\s*_])\1(?![\w*({\\])")
"""Markdown's marks around a part; a star or a line between two values is none."""
_WRAPS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), *zip("`\"'{", "`\"'}", strict=True))
_WRAPPERS = frozenset(left[0] for left, _ in _WRAPS)
_LEAD = re.compile(
    r"(?:#{1,6} +)?(?:(?:so|thus|therefore|hence),? +)?(?:the +)?(?:(?:final|correct|right) +)*"
    r"(?:answer|result|option|choice)(?: +to +(?:the|this) +(?:question|problem))?"
    r"(?: +is(?: +(?:therefore|thus|hence))?(?: *:)?| *:| *=|  ) *|#{1,6} +"
    r"|(?:[故应本题最终正确]*(?:答案|选项|选择|选|答(?=:))\s*(?:是|为|:)*\s*)+",
    re.IGNORECASE,
)
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_NEW_SENTENCE = re.compile(r"[A-Za-z]{2}.*[.!?:\n]|\n.*[A-Za-z]{2}", re.DOTALL)
_STOP = re.compile(r"\.(?=\s+[A-Z$\\(\"*])|,?(?= because )|,(?= since )")
_SHORTENED = tuple(TABLES["shortened"])
_PHRASE = re.compile(
    r"\b(?:answer|option|choice)\b(?: to (?:the|this) (?:question|problem))?[*_ ]*"
    r"(?:(?:is|was|would be|should be)\b(?: (?:therefore|thus|hence)\b)?[*_ ]*:?|:|=)[*_ ]*"
    r"|(?:\bfinal|^[#*_ ]+) *answer[*_ ]*$|^#### +|答案[*_ ]*(?:是|为)?[:：]?\s*|^答[:：]\s*",
    re.IGNORECASE | re.MULTILINE,
)
_DISPLAY = re.compile(r"\A[\s*_]*(?:\$\$.*?\$\$|\\\[.*?\\\])", re.DOTALL)
"""A formula on lines of its own."""
_SHORT = 200
"""The length of a line that is an answer by itself, if a response consists of nothing else."""


def plain(text: str) -> str:
    """Return a text as one line, with LaTeX spacing, styles and Unicode signs in their plainest form."""
    text = text.translate(_PLAIN)
    if not text.isascii():
        text = _as_ascii(text)
    if "\\" in text:
        text = _STYLES.sub(_styled, text)
        text = _COMMAND.sub(lambda found: _COMMANDS.get(found[1] or found[2], found[0]), text)
        text = _FRACTION.sub(r"\\frac{\1\2}{\3\4}", text) if "frac" in text else text
        if "begin" in text and "=" in text and "&" not in (rows := text.replace("&=", "=")):
            text = _SYSTEM.sub(lambda found: found[2].replace("\\\\", ","), rows)
        for bracket in ("{bmatrix}", "{Bmatrix}"):
            text = text.replace(bracket, "{pmatrix}")
        text = text.replace("^{\\circ}", "^\\circ ").replace("\\circ  ", "\\circ ")
        text = text.replace("^{'}", "'").replace("^{''}", "''").replace("^'", "'")
    return text.replace("~", " ").replace("{,}", ",").strip().rstrip("\\ ")


def _styled(found: re.Match[str]) -> str:
    """Return the text of a style such as bold; an argument of a command stays in braces."""
    before, text = found.string[: found.start()].rstrip(), _STYLES.sub(_styled, found[1])
    return f"{{{text}}}" if before.endswith(_TAKES_AN_ARGUMENT) else f" {text} "


def _as_ascii(text: str) -> str:
    """Return raised, lowered and wide characters and written fractions as LaTeX. Digits of other scripts
    stay.
    """
    found, place = [], ""
    for sign in text:
        kind = unicodedata.decomposition(sign).partition(" ")[0]
        mark = {"<super>": "^", "<sub>": "_"}.get(kind, "")
        if mark != place:
            found.append(("}" if place else "") + (f"{mark}{{" if mark else ""))
        place, made = mark, unicodedata.normalize("NFKC", sign).replace("\u2212", "-")
        if kind == "<fraction>" and "\u2044" in made:
            made = " \\frac{{{}}}{{{}}}".format(*made.split("\u2044"))
        wide = kind == "<wide>" or (kind in ("<compat>", "<fraction>") and not sign.isdigit())
        found.append(made if mark or wide else sign)
    return "".join(found) + ("}" if place else "")


def unwrap(text: str) -> str:
    """Return a text without emphasis, the signs around the whole of it (``$..$``) and its full stop."""
    before = None
    while before != text:
        before = text
        text = text.strip()
        if "*" in text or "_" in text:
            text = _EMPHASIS.sub(r"\2", text)
        goes_on = text.endswith("...") and "," in text  # "1, 2, ..."
        if text.endswith((".", ";", ",")) and not text.endswith((r"\.", r"\;", r"\,")) and not goes_on:
            text = text[:-1]
        for left, right in _WRAPS if text[:1] in _WRAPPERS else ():
            inner = text[len(left) : -len(right)]
            if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right):
                # "$5$ or $6$" begins and ends with a dollar, too; {1, 2} is a set.
                if left not in inner and right not in inner and not (left == "{" and {",", ";"} & {*inner}):
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

    An answer with ``\boxed`` commits to what stands in the box. Where a sentence stands between boxes, those
    behind it count; they must hold the same. The text before them must not end in an alternative ("5 or") or
    a sign, and what follows them in their sentence belongs to them unless it is prose. An answer without a
    box commits to all of its text but a phrase like "The answer is", with which it ends where its sentence
    ends; of several phrases the last one counts.
    """
    text = _STYLES.sub(_styled, text) if "box" in text else text
    if found := boxes(text):
        sentences = (b for (_, b, _), (c, _, _) in pairwise(found) if _NEW_SENTENCE.search(text, b, c))
        begin = max(sentences, default=0)
        found = [box for box in found if box[0] >= begin]
        contents = {final_expression(content) or "" for _, _, content in found}
        if len(contents) > 1 or _goes_on(text[begin : found[0][0]]):
            return None
        tail = first_sentence(f" {text[found[-1][1] :]}", 1).strip().strip("$")
        rest = unwrap(plain(tail.removeprefix(r"\)").removeprefix(r"\]")))
        return contents.pop() if _is_prose(rest) else f"{contents.pop()} {rest}"
    if text.count("$") > 1:
        inner = text.strip().strip("$")
        text = inner if "$" not in inner else text.replace("$", " ")  # "$5$ or $6$": no amount of money alone
    text = unwrap(plain(unwrap(text)))
    lead = _LEAD.match(text)
    if lead is None or not lead.end():
        return text
    # "The answer is 4. No, the answer is 5."
    start = max([lead.end(), *(stated.end() for stated in _PHRASE.finditer(text))])
    return unwrap(first_sentence(text[start:]))


def _goes_on(head: str) -> bool:
    """Whether a box belongs to what stands before it: ``5 or``, ``2,``, ``x = -``; not to "Thus,"."""
    *before, last = [Token("other", ""), *tokens(plain(head.rstrip(" \n$*\\([:")))]
    if last.text not in (",", ";"):
        glued = head.rstrip("$*\\([").endswith(last.text) or before[-1:] == [Token("other", "=", True)]
        glued &= last.text in ("+", "-", "^", "_") or (last.kind == "number" and head.endswith(last.text))
        return glued or last.text.casefold() in _JOINS
    said = [*takewhile(lambda part: part.kind == "word", reversed(before))]
    behind = before[: len(before) - len(said)][-1:]
    # "3 apples," and "x," are values.
    value = behind and (behind[0].kind in ("number", "clock", "command") or behind[0].text in CLOSING)
    return not said or len(said[0].text) == 1 or bool(value)


def _is_prose(tail: str) -> bool:
    """Whether what follows a box says nothing about its value: no words, or such as "is the answer"."""
    parts = tokens(tail.strip(" .,;:!$)]*\\"))
    if not parts or parts[0].text not in TABLES["prose"]:
        return not parts
    if any((part.kind != "word" or len(part.text) == 1) and part.text not in (",", "a") for part in parts):
        return False
    told = {part.text.casefold() for part in parts}
    return any(len(text) > 3 for text in told) and not told & _TELLING


_JOINS = HEDGES - {"but"} | DENIALS | {"/", "\\pm", "\\mp"}
_TELLING = CHANGES | DENIALS | KNOWN_WORDS | {*TABLES["no_names"].split(), "percent"}


def first_sentence(text: str, start: int = 0) -> str:
    """Return a text up to the full stop of its first sentence, behind which a capital and a word more stand.

    "B. Note that ..." ends behind the B; "J. Smith", "3.5" and "e.g. this" do not end. One that goes on with
    another choice ("A. Paris or B. London") is all of the text. Nothing before ``start`` is an end.
    """
    for stop in _STOP.finditer(text, start):
        head, rest = text[: stop.start()], text[stop.end() :]
        if (head.strip() or start) and len(rest.split()) > 1 and not head.endswith(_SHORTENED):
            return text if _names_another(rest.partition("\n")[0]) else head
    return text


def _names_another(line: str) -> bool:
    """Whether a line goes on with another choice: "or B. London", "and option (c)"."""
    said = [part.text.casefold() for part in tokens(line)]
    said = [text for text in said if text not in ("(", "option")]
    return any(
        join in ("or", "and") and len(letter) == 1 and letter.isalpha() and mark in ".):"
        for join, letter, mark in zip(said, said[1:], said[2:], strict=False)
    )


def committed(text: str) -> str | None:
    r"""Return the part of a free text that states its final answer; None if none does.

    That is what follows the last phrase such as "The correct answer is:", up to the end of its sentence or
    line or, where nothing follows there, the next line; or the line with the last ``\boxed``, if it comes
    later. A text of one short line is the answer itself. Nothing else is searched, and of several answers
    only the last one counts, so that listing many does not pay.
    """
    phrases = [*_PHRASE.finditer(text)]
    stated = phrases[-1] if phrases else None
    found = boxes(text)
    if found and (stated is None or found[-1][0] >= stated.start()):
        start, end, _ = found[-1]
        left, right = text.rfind("\n", 0, start) + 1, text.find("\n", end)
        line = text[left : right if right >= 0 else len(text)]
        return first_sentence(line, end - left).strip()
    if stated is not None:
        said = _DISPLAY.sub(lambda found: " ".join(found[0].split()), text[stated.end() :], count=1)
        lines = [line.strip() for line in said.strip(" ").splitlines()[:3] if line.strip("*_ \t")]
        if not lines:
            return None
        # An emphasis that began before the phrase ends behind it.
        line = lines[0].replace("**", "", 1).strip() if lines[0].count("**") == 1 else lines[0]
        return first_sentence(line)
    lines = text.strip().splitlines()
    return lines[0] if len(lines) == 1 and len(lines[0]) <= _SHORT else None


def words(text: str) -> str:
    """Return a text as it is compared: without case, spaces, dollars and the punctuation around it."""
    return " ".join(text.replace("$", " ").casefold().split()).strip(" .,;:!?'\"*")
