"""What the updates of one step add up to, for logging."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from selfverify.core import ranks


@dataclass(slots=True)
class UpdateMetrics:
    """Figures that passes, updates and processes add to.

    Args:
        sums: By name. ``tokens`` counts trained tokens; ``loss``, ``kl`` and ``clipped`` are sums over them.
            The names that begin with ``mismatch/`` are sums over the trained tokens that another sampling
            engine gave a log-probability for. ``pairs`` counts pairs of a chosen and a rejected trajectory,
            and the names that begin with ``pairs/`` are sums over them.
        largest: The largest ``ratio`` and the largest ``mismatch`` of a token, by name.
        grad_norms: The gradient's norm at each update, before clipping. Where channels have gradients of
            their own, it is that of all of them as one vector: the root of the sum of their squared norms.
            It is not finite where an update was skipped.
        channel_norms: The norms of each channel's own gradient, before clipping, where they were measured.
        skipped: How many updates were skipped because their gradient was not finite. Channels with gradients
            of their own have updates of their own.
    """

    sums: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    largest: dict[str, float] = field(default_factory=lambda: {"ratio": 1.0, "mismatch": 0.0})
    grad_norms: list[float] = field(default_factory=list)
    channel_norms: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    skipped: int = 0

    def add_norms(self, norms: Mapping[str, float]) -> None:
        """Note the norms of channels' own gradients."""
        for name, norm in norms.items():
            self.channel_norms[name].append(norm)

    def note_largest(self, name: str, values: Tensor) -> None:
        """Raise ``largest[name]`` to the largest of ``values``, if there are any."""
        if values.numel():
            self.largest[name] = max(self.largest[name], float(values.max()))

    def add_mismatch(
        self, old_bgr: Tensor, sampler_bgr: Tensor, trained_bgr: Tensor, cap: float | None
    ) -> None:
        """Add how far a foreign sampling engine's log-probabilities lie from the learner's.

        Args:
            old_bgr: ``[B, G, R]`` log-probabilities under the learner's model at the moment of sampling.
            sampler_bgr: ``[B, G, R]`` the engine's, NaN where unknown.
            trained_bgr: ``[B, G, R]`` bool, which tokens are trained.
            cap: The largest importance weight; None where the weights are not used.
        """
        known_bgr = trained_bgr & ~sampler_bgr.isnan()
        difference = (old_bgr.detach() - sampler_bgr)[known_bgr].double()
        ratio = difference.exp()
        self.sums["mismatch/tokens"] += len(difference)
        self.sums["mismatch/absolute"] += float(difference.abs().sum())
        self.sums["mismatch/ratio"] += float(ratio.sum())
        self.sums["mismatch/truncated"] += 0 if cap is None else int((ratio > cap).sum())
        self.note_largest("mismatch", difference.abs())

    def together(self) -> UpdateMetrics:
        """The totals of all processes; every process has to call this."""
        # Gradients are summed over processes, so their norms are the same everywhere.
        whole = UpdateMetrics(
            grad_norms=self.grad_norms, channel_norms=self.channel_norms, skipped=self.skipped
        )
        for part in ranks.gather(self):
            for name, value in part.sums.items():
                whole.sums[name] += value
            for name, value in part.largest.items():
                whole.largest[name] = max(whole.largest[name], value)
        return whole

    def metrics(self) -> dict[str, float]:
        """Means per update, per trained token or per pair.

        Names that begin with ``mismatch/`` or ``pairs/``, and ``updates/skipped``, are there only where there
        is something to count. Norms are means of those that are finite, NaN where none is.
        """
        updates, tokens = max(len(self.grad_norms), 1), max(self.sums["tokens"], 1)
        found = {
            "loss": self.sums["loss"] / updates,
            "kl": self.sums["kl"] / tokens,
            "clip_share": self.sums["clipped"] / tokens,
            "ratio_max": self.largest["ratio"],
            "grad_norm": _mean(self.grad_norms) if self.grad_norms else 0.0,
            "tokens/trained": float(self.sums["tokens"]),
        }
        found |= {f"grad_norm/{name}": _mean(norms) for name, norms in self.channel_norms.items()}
        if self.skipped:
            found["updates/skipped"] = float(self.skipped)
        compared = self.sums["mismatch/tokens"]
        if compared:
            found |= {
                "mismatch/mean_abs": self.sums["mismatch/absolute"] / compared,
                "mismatch/max": self.largest["mismatch"],
                "mismatch/ratio_mean": self.sums["mismatch/ratio"] / compared,
                "mismatch/truncated_share": self.sums["mismatch/truncated"] / compared,
            }
        pairs = self.sums["pairs"]
        if pairs:
            found |= {
                "pairs/accuracy": self.sums["pairs/right"] / pairs,
                "pairs/margin": self.sums["pairs/margin"] / pairs,
            }
        return found


def _mean(norms: Sequence[float]) -> float:
    finite = [norm for norm in norms if math.isfinite(norm)]
    return sum(finite) / len(finite) if finite else math.nan
