"""How far the log-probabilities of a foreign sampling engine lie from the learner's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(slots=True)
class Mismatch:
    """Sums (and one maximum) over trained tokens that the engine gave a log-probability for."""

    tokens: int = 0
    absolute: float = 0.0
    largest: float = 0.0
    ratio: float = 0.0
    truncated: int = 0

    def add(self, old: Tensor, sampler: Tensor, trained: Tensor, cap: float | None) -> None:
        """Count a batch.

        Args:
            old: ``[N, R]`` log-probs under the learner's model when it was sampled from.
            sampler: ``[N, R]`` the engine's, NaN where unknown.
            trained: ``[N, R]`` bool.
            cap: Importance weights above it were truncated; None is no correction.
        """
        known = trained & ~sampler.isnan()
        if not known.any():
            return
        difference = (old.detach() - sampler)[known].double()
        ratio = difference.exp()
        self.tokens += len(difference)
        self.absolute += float(difference.abs().sum())
        self.largest = max(self.largest, float(difference.abs().max()))
        self.ratio += float(ratio.sum())
        self.truncated += 0 if cap is None else int((ratio > cap).sum())

    @classmethod
    def together(cls, parts: Sequence[Mismatch]) -> Mismatch:
        """Those of all processes as one."""
        return cls(
            tokens=sum(part.tokens for part in parts),
            absolute=sum(part.absolute for part in parts),
            largest=max(part.largest for part in parts),
            ratio=sum(part.ratio for part in parts),
            truncated=sum(part.truncated for part in parts),
        )

    def metrics(self) -> dict[str, float]:
        """Means per token; nothing where no other engine has sampled."""
        if self.tokens == 0:
            return {}
        return {
            "mismatch/mean_abs": self.absolute / self.tokens,
            "mismatch/max": self.largest,
            "mismatch/ratio_mean": self.ratio / self.tokens,
            "mismatch/truncated_share": self.truncated / self.tokens,
        }
