"""What a tokenizer reads as more than words, and where words are cut so that nothing in them is read so.

A tokenizer knows special tokens by their text. Words that spell one (``<|im_end|>`` in a question, the mark
of an image on a screen) would end a turn or stand for an image. A text that is cut inside of such a spelling
and tokenised piece by piece has none of them, and says the same.
"""

from __future__ import annotations

import itertools
import logging
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from selfverify.core.problem import Problem
from selfverify.core.tags import SCORE_TAG
from selfverify.policy.chat import checked_messages, content_texts
from selfverify.policy.loading import Loaded

logger = logging.getLogger(__name__)

_ASKED_FOR = [f"<{slash}{tag}>" for tag in ("think", "answer", SCORE_TAG) for slash in ("", "/")]
"""What requests of this library name (`core.tags`): where it is a token, it is the one to be written."""
_CALLS = ["<tool_call>", "</tool_call>"]
"""What this library writes around calls (`tasks.tool_calls`), and instructions of tasks name."""


class SpecialTokens:
    """The special tokens of a model, the marks around its images, and other markup that is one token.

    In words that an environment shows nothing of it means anything. In a problem's messages no special token
    and no mark does, whoever speaks; markup that a tokenizer does not call special, such as ``<tool_call>``,
    means nothing in what users and tools say, and what it always means in what the system and the assistant
    say: there tasks write instructions and turns. The tags that this library's requests name mean what they
    always mean.

    Attributes:
        slot: What a chat template writes for an image; None where the model reads text only.
        control: The ids of special tokens and marks.
        meant: The same with those of markup.
    """

    def __init__(self, loaded: Loaded) -> None:
        family, model, tokenizer = loaded.family, loaded.model, loaded.tokenizer
        self.slot = family.slot(model, tokenizer) if family.placeholder(model) is not None else None
        marks = {mark for mark in (*family.marks(model, tokenizer), self.slot) if mark}
        added = tokenizer.added_tokens_decoder.items()
        special = {number for number, token in added if token.special}
        markup = {number for number, token in added if not token.special and _is_markup(token.content)}
        name = tokenizer.convert_ids_to_tokens
        control = marks | {name(number) for number in special}
        literals = control | {name(number) for number in markup}
        # What stands for characters that a tokenizer does not know means nothing itself.
        unknown = {tokenizer.unk_token_id}
        self.meant = (special | markup) - unknown
        self.control = (special | {*map(tokenizer.convert_tokens_to_ids, marks)}) - unknown
        self._literal = _any_of(literals)
        self._control_literal = _any_of(control)
        self._of_others = _any_of(literals - {*_ASKED_FOR})
        self._of_authors = _any_of(control - {*_ASKED_FOR, *_CALLS})
        self._warned: set[str] = set()

    def count(self, text: str) -> int:
        """How many special tokens and marks a text spells."""
        return sum(1 for _ in self._control_literal.finditer(text))

    def cuts(self, whole: str, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Places inside everything in ``ranges`` that reads like markup, so that none is it."""
        return sorted({cut for begin, end in ranges for cut, _ in _cuts(self._literal, whole, begin, end)})

    def pieces(self, words: str, role: str, named: str) -> list[str]:
        """The words that somebody says, cut where they would mean something; see the class.

        Args:
            words: What is said.
            role: Who says it.
            named: What a warning names: a problem, or a part of one.
        """
        found = dict(_cuts(self._pattern(role), words, 0, len(words)))
        self._warn(found.values(), role, named)
        return _split(words, found)

    def marked(self, problem: Problem) -> tuple[Problem, str]:
        """Mark the cuts in a problem's messages and tools.

        Returns:
            The problem with a mark at each cut, itself where there is none; and the mark, which stands
            nowhere else in it. What a chat template writes of it is to be cut there.

        Raises:
            DataError: A message is of no form that is known.
        """
        whole, named = repr((problem.messages, problem.tools)), f"problem {problem.id}"
        mark = next(mark for n in itertools.count() if (mark := f"(cut-{n})") not in whole)
        messages = [self._marked_message(message, mark, named) for message in checked_messages(problem)]
        tools = self._marked(problem.tools, "tools", mark, named)
        if messages == problem.messages and tools == problem.tools:
            return problem, mark
        return replace(problem, messages=messages, tools=tools), mark

    def _marked_message(self, message: dict[str, Any], mark: str, named: str) -> dict[str, Any]:
        role, content = message["role"], message.get("content")
        rest = {key: value for key, value in message.items() if key not in ("role", "content")}
        found = {"role": role, **self._marked(rest, role, mark, named)}
        if not isinstance(content, list):
            said = {"content": self._marked(content, role, mark, named)} if "content" in message else {}
            return {**message, **found, **said}
        # Templates put nothing between two texts, so that both may spell a token together.
        texts = [*content_texts(content)]
        spelt = dict(_cuts(self._pattern(role), "".join(texts), 0, sum(map(len, texts))))
        self._warn(spelt.values(), role, named)
        cuts, parts, start = sorted(spelt), [], 0
        for part in content:
            if part["type"] == "text":
                end = start + len(part["text"])
                own = cuts[bisect_right(cuts, start) : bisect_right(cuts, end)]
                part = {**part, "text": mark.join(_split(part["text"], [cut - start for cut in own]))}
                start = end
            parts.append(part)
        return {**message, **found, "content": parts}

    def _marked(self, value: Any, role: str, mark: str, named: str) -> Any:
        """A value of a message with ``mark`` at the cuts of all texts in it."""
        if isinstance(value, str):
            return mark.join(self.pieces(value, role, named))
        if isinstance(value, dict):
            return {
                self._marked(key, role, mark, named): self._marked(inner, role, mark, named)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._marked(inner, role, mark, named) for inner in value]
        return value

    def _pattern(self, role: str) -> re.Pattern[str]:
        return self._of_others if role in ("user", "tool") else self._of_authors

    def _warn(self, spelt: Iterable[str], role: str, named: str) -> None:
        """Say once of each token that somebody's words are not read as it."""
        for token in {*spelt} - self._warned:
            self._warned.add(token)
            logger.warning(
                "%s: words (%s) spell %s, which is a token of the model; they are read as the words that "
                "they are, here and everywhere else", named, role, token,
            )  # fmt: skip


def _cuts(literal: re.Pattern[str], whole: str, begin: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield a place inside each match that begins in a range, also in matches that overlap, and the match."""
    found = literal.search(whole, begin)
    while found is not None and found.start() < end:
        yield found.start() + 1, found.group()
        found = literal.search(whole, found.start() + 1)


def _split(text: str, cuts: Iterable[int]) -> list[str]:
    return [text[a:b] for a, b in itertools.pairwise([0, *sorted(cuts), len(text)])]


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern of the longest of ``texts`` at a place; it tries those that begin alike together.

    Tokenizers have thousands of special tokens that begin with ``<``: one after the other they would be tried
    at each such sign.
    """
    tree: dict[str, Any] = {}
    for text in filter(None, texts):
        node = tree
        for sign in text:
            node = node.setdefault(sign, {})
        node[""] = {}

    def pattern(node: dict[str, Any]) -> str:
        inner = [re.escape(sign) + pattern(node[sign]) for sign in sorted(node) if sign]
        if not inner:
            return ""
        both = inner[0] if len(inner) == 1 else f"(?:{'|'.join(inner)})"
        return f"(?:{both})?" if "" in node else both

    return re.compile(pattern(tree) or r"(?!)")


def _is_markup(text: str) -> bool:
    """Whether an added token that is not called special reads like markup, such as ``<tool_call>``."""
    return len(text) > 2 and text[0] in "<[" and text[-1] in ">]"
