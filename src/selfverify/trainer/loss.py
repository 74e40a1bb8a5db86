"""The gradient of an optimiser update, from streams. This module knows objectives and no methods.

`micro_batches` decides which rows of which groups are forwarded together, `LossComputer` makes the gradients,
and `UpdateMetrics` adds up the updates of one step for logging.

Names of tensors end in their axes, as in `selfverify.trainer.batch`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from selfverify.core import ranks
from selfverify.core.errors import ConfigError
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Alternatives
from selfverify.objectives import (
    choice_probability,
    choice_surrogate,
    importance_weight,
    likelihood,
    pairwise,
    surrogate,
)
from selfverify.policy.policy import Policy
from selfverify.trainer.batch import (
    TokenStreams,
    batch_weights,
    pair_weights,
    stack,
    stack_choices,
    stack_known,
)
from selfverify.trainer.optim import chosen_alternatives, only
from selfverify.trainer.parallel import Parallel

_PASS_TOKENS = 256
"""The cost of a forward pass beside its tokens, in tokens. It keeps slices of groups from being too small."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows of a group, which are forwarded behind one copy of its prompt.

    Args:
        group: The place of the group in the batch.
        rows: The places of its trajectories in the group.
    """

    group: int
    rows: list[int]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Slices of groups that are forwarded together.

    Args:
        slices: At least one.
        counts: False for a pass that only keeps the processes in step. Its gradient and its figures are
            dropped.
    """

    slices: list[Slice]
    counts: bool = True


def micro_batches(
    groups: Sequence[TokenStreams], size: int, tokens: int | None = None, whole: bool = False
) -> list[MicroBatch]:
    """Return this process's forward passes. Groups of like lengths go together, so that little is padding.

    A group that is longer than ``tokens`` is sliced: its longest row does not make all others as long, and
    its passes need less memory. The prompt is forwarded once for each slice.

    Wrappers make all processes work in step, so all get as many passes as the busiest process has. A process
    that has fewer repeats a small pass, which does not count.

    Args:
        groups: The groups of all processes; each names its owner.
        size: The largest number of groups in one pass.
        tokens: The largest number of tokens in one pass, padding included. A single row that is longer is a
            pass of its own. None is no limit.
        whole: Whether the rows of a group have to stay together at all lengths.
    """
    order = sorted(range(len(groups)), key=lambda i: (len(groups[i].prompt.ids), groups[i].width))
    shares: list[list[MicroBatch]] = [[] for _ in range(ranks.count())]
    for owner, passes in enumerate(shares):
        own = [i for i in order if groups[i].owner == owner]
        # Groups that fit are joined, the others are cut into slices.
        fit = [i for i in own if whole or tokens is None or _padded([groups[i]]) <= tokens]
        cut = [Slice(i, rows) for i in own if i not in fit for rows in row_slices(groups[i], tokens or 0)]
        passes += _joined(groups, fit, size, tokens) + [MicroBatch([each]) for each in cut]
    mine = shares[ranks.index()]
    spare = (mine or [each for share in shares for each in share])[0]
    missing = max(len(share) for share in shares) - len(mine)
    return mine + [MicroBatch(spare.slices[:1], counts=False)] * missing


def _joined(
    groups: Sequence[TokenStreams], own: Sequence[int], size: int, tokens: int | None
) -> list[MicroBatch]:
    """Return passes of whole groups, in the order of ``own``."""
    batches: list[list[int]] = []
    for i in own:
        joined = [*batches[-1], i] if batches else [i]
        fits = tokens is None or _padded([groups[j] for j in joined]) <= tokens
        if batches and len(joined) <= size and fits:
            batches[-1] = joined
        else:
            batches.append([i])
    return [MicroBatch([Slice(i, [*range(len(groups[i].tokens))]) for i in batch]) for batch in batches]


def _padded(groups: Sequence[TokenStreams]) -> int:
    """Return how many tokens a pass of groups has, padding included."""
    prompt = max(len(group.prompt.ids) for group in groups)
    rows = max(len(group.tokens) for group in groups) * max(group.width for group in groups)
    return len(groups) * (prompt + rows)


def row_slices(group: TokenStreams, tokens: int) -> list[list[int]]:
    """Cut a group's rows into slices, such that all slices together have as few tokens as possible.

    A slice has the prompt once and its rows as long as its longest. So rows of like lengths belong together,
    and the best cut goes through the rows in the order of their lengths (dynamic programming over cuts).

    Args:
        group: A group of G rows.
        tokens: The largest number of tokens in a slice. A slice of one row may have more.

    Returns:
        Lists of rows. Together they are all G rows, from the shortest to the longest.
    """
    lengths = [len(row) for row in group.tokens]
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    best: list[tuple[int, list[list[int]]]] = [(0, [])]
    """The cost and the slices of the first 0, 1, 2, ... rows of ``order``."""
    for end in range(1, len(order) + 1):
        choices = []
        for start in range(end):
            count = end - start
            needed = len(group.prompt.ids) + count * lengths[order[end - 1]]
            if needed <= tokens or count == 1:
                cost, slices = best[start]
                choices.append((cost + needed + _PASS_TOKENS, [*slices, order[start:end]]))
        best.append(min(choices, key=lambda choice: choice[0]))
    return best[-1][1]


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
        """Add how far a foreign sampling engine's log-probabilities lie from the trained model's.

        Args:
            old_bgr: ``[B, G, R]`` log-probabilities under the trained model at the moment of sampling.
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


OBJECTIVES = ("surrogate", "likelihood", "pairwise")
"""The losses that tokens may learn by; `selfverify.objectives` has a function of each name."""


@torch.no_grad()
def fixed_logprobs(
    policy: Policy, groups: Sequence[TokenStreams], passes: Sequence[MicroBatch], temperature: float
) -> list[Tensor]:
    """Return each group's log-probabilities ``[G, R]`` under a policy that does not learn, on the CPU.

    A group that is in no pass gets an empty tensor.
    """
    results: list[Tensor] = [torch.empty(0, 0)] * len(groups)
    for each in passes:
        chosen = [groups[part.group].take(part.rows) for part in each.slices]
        logprobs_bgr = policy.logprobs(
            [group.prompt for group in chosen],
            [group.continuations for group in chosen],
            temperature=temperature,
            needed=stack([group.trained_gr for group in chosen], policy.device),
        ).cpu()
        for part, group, logprobs_gr in zip(each.slices, chosen, logprobs_bgr, strict=True):
            if not results[part.group].numel():
                results[part.group] = logprobs_gr.new_zeros(groups[part.group].channel_gr.shape)
            results[part.group][part.rows, : group.width] = logprobs_gr[: len(part.rows), : group.width]
    return results


class LossComputer:
    """Makes the gradients of one optimiser batch after another.

    Args:
        parallel: Holds the policy that learns and its reference.
        config: The settings of the loss.
        objective: The method's, one of `OBJECTIVES`.
        temperature: The temperature of sampling.

    Raises:
        ConfigError: There is no such objective, or the settings part the channels of pairs.
    """

    def __init__(
        self, parallel: Parallel, config: TrainerConfig, objective: str, temperature: float = 1.0
    ) -> None:
        if objective not in OBJECTIVES:
            raise ConfigError(f"there is no objective {objective!r}; there are: {', '.join(OBJECTIVES)}")
        if objective == "pairwise" and (config.optim.channels != "joint" or config.log.channels_every):
            raise ConfigError(
                "learner: the objective pairwise compares whole trajectories, whose channels cannot be told "
                "apart; set channels: joint and log_channels_every: 0"
            )
        self.parallel, self.policy = parallel, parallel.policy
        self.config, self.objective, self.temperature = config, objective, temperature

    def passes(self, groups: Sequence[TokenStreams]) -> list[MicroBatch]:
        """Return this process's forward passes of a batch of all processes; see `micro_batches`."""
        whole = self.objective == "pairwise"
        return micro_batches(
            groups, self.config.batch.micro_batch_groups, self.config.batch.micro_batch_tokens, whole
        )

    def fix_logprobs(self, groups: Sequence[TokenStreams], passes: Sequence[MicroBatch]) -> None:
        """Give groups the log-probabilities that stay as they are while the policy learns from the groups.

        The reference's are computed where any token has a KL coefficient. The sampling policy's are needed
        where several updates follow a rollout. Sampling gave them already, unless another engine sampled, or
        nothing was sampled: then they are computed here. With a single update per rollout the new
        log-probabilities serve.

        Args:
            groups: A step's groups, of all processes.
            passes: This process's share of them.
        """
        reference = self.parallel.reference
        if reference is not None and any(bool(group.kl_coef_gr.any()) for group in groups):
            with self.parallel.accelerator.autocast():  # in the policy's precision
                found = fixed_logprobs(reference, groups, passes, self.temperature)
            for group, reference_gr in zip(groups, found, strict=True):
                group.reference_logprobs_gr = reference_gr
        if (
            self.config.batch.updates_per_rollout * self.config.batch.inner_epochs == 1
            or self.objective != "surrogate"
        ):
            return
        known = [None if group.foreign else group.sampler_logprobs_gr for group in groups]
        if any(logprobs_gr is None for logprobs_gr in known):
            known = [*fixed_logprobs(self.policy, groups, passes, self.temperature)]
        for group, logprobs_gr in zip(groups, known, strict=True):
            group.old_logprobs_gr = logprobs_gr

    def gradient(
        self,
        groups: Sequence[TokenStreams],
        passes: Sequence[MicroBatch],
        totals: UpdateMetrics,
        channel: str | None = None,
        apart: Sequence[str] = (),
    ) -> None:
        """Accumulate the gradient of one optimiser batch.

        A channel's gradient is its part of the batch's: the denominators are those of all channels' tokens.

        Args:
            groups: The batch, of all processes.
            passes: This process's share of it.
            totals: This process's share is added to it.
            channel: The only channel that is learnt; None is all of them.
            apart: The channels whose gradients are kept apart (`Parallel.apart`). They share the forward
                passes, and each has its own backward passes.
        """
        weights = batch_weights(groups, self.config.loss.denominator)
        if self.objective == "pairwise":
            weights = pair_weights(groups)
        trajectories = max(sum(group.trajectories for group in groups), 1)
        for number, each in enumerate(passes):
            last = number == len(passes) - 1
            chosen, shares = [], []
            for part in each.slices:
                group = groups[part.group]
                chosen.append((group if each.counts else _repeated(group)).take(part.rows))
                shares.append(weights[part.group][part.rows, : chosen[-1].width])
            counted = totals if each.counts else UpdateMetrics()
            scale = 1.0 if each.counts else 0.0
            if channel is not None:
                chosen = [only(group, channel) for group in chosen]
            with self.parallel.one_pass(last and not apart):
                logprobs_bgr, alternatives_mk = self._forward(chosen)
                for name in apart:
                    parts = [only(group, name) for group in chosen]
                    own_mk = alternatives_mk[chosen_alternatives(chosen, parts).to(alternatives_mk.device)]
                    loss = self._loss(parts, shares, trajectories, logprobs_bgr, own_mk, counted)
                    self.parallel.backward(scale * loss, name, more=name != apart[-1])
                if not apart:
                    loss = self._loss(chosen, shares, trajectories, logprobs_bgr, alternatives_mk, counted)
                    self.parallel.backward(scale * loss)

    def _forward(self, groups: Sequence[TokenStreams]) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of a pass: of its tokens ``[B, G, R]`` and of choices ``[M, K]``."""
        choice_places_m3, _, choices = stack_choices(groups)
        return self.policy.logprobs_and_choices(
            [group.prompt for group in groups],
            [group.continuations for group in groups],
            choice_places_m3,
            choices.tokens,
            temperature=self.temperature,
            needed=stack([group.trained_gr for group in groups], self.policy.device),
        )

    def _loss(
        self,
        groups: Sequence[TokenStreams],
        weights: Sequence[Tensor],
        trajectories: int,
        logprobs_bgr: Tensor,
        alternatives_mk: Tensor,
        totals: UpdateMetrics,
    ) -> Tensor:
        """Return one pass's share of the batch's loss, of the tokens that ``groups`` train."""
        device = self.policy.device
        trained_bgr = stack([group.trained_gr for group in groups], device)
        choice_places_m3, choice_weight_m, choices = stack_choices(groups)
        weight_bgr = stack(weights, device) * trained_bgr
        if self.objective == "pairwise":
            loss = self._pairwise(groups, logprobs_bgr, weight_bgr, totals)
        elif self.objective == "likelihood":
            loss = (likelihood(logprobs_bgr) * weight_bgr).sum()
        else:
            loss = (self._surrogate(groups, logprobs_bgr, trained_bgr, totals) * weight_bgr).sum()
        if len(choice_places_m3):
            first = groups[0].old_logprobs_gr is None
            loss_m = self._choice_loss(choices, alternatives_mk, first, totals)
            loss = loss + (loss_m * choice_weight_m.to(device)).sum() / trajectories
        totals.sums["loss"] += float(loss.detach())
        totals.sums["tokens"] += int(trained_bgr.sum())
        return loss

    def _pairwise(
        self, groups: Sequence[TokenStreams], logprobs_bgr: Tensor, weight_bgr: Tensor, totals: UpdateMetrics
    ) -> Tensor:
        """Return the loss of the pairs among ``groups``."""
        device = logprobs_bgr.device
        beta_bgr = stack([group.kl_coef_gr for group in groups], device)
        reference_bgr = stack_known([group.reference_logprobs_gr for group in groups], device)
        if reference_bgr is None:
            if bool(beta_bgr.any()):
                raise ValueError("pairwise: there are no log-probabilities of a reference")
            reference_bgr = logprobs_bgr.detach()
        preference_bgr = stack([group.advantage_gr for group in groups], device)
        terms = pairwise(logprobs_bgr, reference_bgr, preference_bgr, beta_bgr)
        weight_b = weight_bgr.amax((-2, -1))
        margin_p = terms.margin[weight_b > 0]
        totals.sums["pairs"] += len(margin_p)
        totals.sums["pairs/right"] += int((margin_p > 0).sum())
        totals.sums["pairs/margin"] += float(margin_p.sum())
        return (terms.loss * weight_b).sum()

    def _surrogate(
        self, groups: Sequence[TokenStreams], logprobs_bgr: Tensor, trained_bgr: Tensor, totals: UpdateMetrics
    ) -> Tensor:
        """Return the loss per token, ``[B, G, R]``."""
        device = logprobs_bgr.device
        old_bgr = stack_known([group.old_logprobs_gr for group in groups], device)
        if old_bgr is None:
            old_bgr = logprobs_bgr.detach()
        weight_bgr, cap = None, self.config.loss.importance_cap
        if any(group.foreign for group in groups):  # tokens that another engine sampled
            sampler_bgr = stack([_foreign_logprobs(group) for group in groups], device)
            totals.add_mismatch(old_bgr, sampler_bgr, trained_bgr, cap)
            weight_bgr = None if cap is None else importance_weight(old_bgr, sampler_bgr, cap)
        terms = surrogate(
            logprobs_bgr,
            old_bgr,
            stack([group.advantage_gr for group in groups], device),
            clip_low=self.config.loss.clip_low,
            clip_high=self.config.loss.clip_high,
            ref_logprobs=stack_known([group.reference_logprobs_gr for group in groups], device),
            kl_coef=stack([group.kl_coef_gr for group in groups], device),
            weight=weight_bgr,
            trajectories=trained_bgr if self.config.loss.ratio == "trajectory" else None,
        )
        totals.sums["kl"] += float(terms.kl[trained_bgr].sum())
        totals.sums["clipped"] += float(terms.clipped[trained_bgr].sum())
        totals.note_largest("ratio", terms.ratio[trained_bgr])
        return terms.loss

    def _choice_loss(
        self, choices: Alternatives, logprobs_mk: Tensor, first: bool, totals: UpdateMetrics
    ) -> Tensor:
        """Return the loss of each token with choices, ``[M]``.

        ``first`` says that nothing has been learnt since sampling. In this case the old probabilities are the
        new ones. The probabilities that were read during the rollout may differ from them by rounding.
        """
        probability_mk = choices.probability.to(logprobs_mk.device)
        if first:
            probability_mk = choice_probability(logprobs_mk.detach(), probability_mk > 0)
        terms = choice_surrogate(
            logprobs_mk,
            probability_mk,
            choices.advantage.to(logprobs_mk.device),
            clip_low=self.config.loss.clip_low,
            clip_high=self.config.loss.clip_high,
        )
        totals.sums["clipped"] += float(terms.clipped.sum())
        totals.note_largest("ratio", terms.ratio)
        return terms.loss


def _repeated(group: TokenStreams) -> TokenStreams:
    """Return ``group`` for a pass that does not count, without log-probabilities that may be unknown here."""
    kl_coef_gr = torch.zeros_like(group.kl_coef_gr)
    return replace(group, kl_coef_gr=kl_coef_gr, old_logprobs_gr=None, reference_logprobs_gr=None)


def _foreign_logprobs(group: TokenStreams) -> Tensor:
    """Return another engine's log-probabilities of a group, ``[G, R]``; NaN where there are none."""
    known = group.sampler_logprobs_gr if group.foreign else None
    return torch.full(group.channel_gr.shape, torch.nan) if known is None else known
