"""What the models of a server turned out not to do."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

MOST_MODELS = 1000


class Lacking:
    """The models that lack something, such as ``n``. That is believed for a while, and then tried again.

    Args:
        after: How many odd replies in a row say so; one may be an accident.
        again_s: Seconds after which it is tried again. One odd reply is then enough.
        clock: Returns the time in seconds.
    """

    def __init__(
        self, after: int = 2, again_s: float = 600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.after = after
        self.again_s = again_s
        self._clock = clock
        self._odd: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __contains__(self, model: str) -> bool:
        odd, at = self._odd.get(model, (0, 0.0))
        return odd >= self.after and self._clock() - at < self.again_s

    def odd(self, model: str, sure: bool = False) -> None:
        """Count a reply as if the model lacked it; ``sure``: the server says so."""
        known, _ = self._odd.pop(model, (0, 0.0))
        self._odd[model] = (self.after if sure else known + 1, self._clock())
        while len(self._odd) > MOST_MODELS:
            self._odd.popitem(last=False)

    def has(self, model: str) -> None:
        """Say that the model has it after all."""
        self._odd.pop(model, None)
