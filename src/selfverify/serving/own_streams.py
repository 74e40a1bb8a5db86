"""The text that an own model writes, in pieces, while it writes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from selfverify.policy.policy import Policy


class OwnStream:
    """Turns tokens into pieces of text, which together begin the text that `completion_of` makes of them.

    What may still change is held back: characters of which only some bytes are there, and text that may
    become a stop. So the last piece may be missing.

    Args:
        policy: Writes the tokens.
        stops: Texts before which the answer ends.
        put: Gets the pieces.
    """

    def __init__(self, policy: Policy, stops: Sequence[str], put: Callable[[str], None]) -> None:
        self._tokenizer, self._ends, self._put = policy.tokenizer, policy.stop_tokens, put
        self._stops = [stop for stop in stops if stop]
        self._held = max((len(stop) - 1 for stop in self._stops), default=0)
        self.sent = 0
        """Characters that were put."""
        self.restart()

    def restart(self) -> None:
        """Begin again with the same tokens; what was put is not put again."""
        self._tokens: list[int] = []
        self._text, self._read, self._context = "", 0, 0
        self._over = False

    def token(self, token: int) -> None:
        """Take in the next token."""
        if self._over or token in self._ends:
            return
        self._tokens.append(token)
        # A token's text depends on the one before it, as where it begins a word.
        before = self._decoded(self._tokens[self._context : self._read])
        text = self._decoded(self._tokens[self._context :])
        if text.endswith("\N{REPLACEMENT CHARACTER}"):
            return
        self._text += text[len(before) :]
        self._context, self._read = self._read, len(self._tokens)
        places = [place for stop in self._stops if (place := self._text.find(stop)) >= 0]
        self._over = bool(places)
        end = min(places) if places else len(self._text) - self._held
        if end > self.sent:
            self._put(self._text[self.sent : end])
            self.sent = end

    def _decoded(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text
