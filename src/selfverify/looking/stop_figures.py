"""What can be said of a stopping verifier: the conditions of Theorem A.6, Δr, and when it stops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from selfverify.core.errors import DataError
from selfverify.looking.stop_calibration import Floats, Kind, stop_steps


@dataclass(frozen=True, slots=True)
class StepMeans:
    """Means over the conversations that have a step h, for h = 1, 2, ...

    Args:
        conversations: How many have it.
        plan: Mean log V_φ/V_φ0 of t_h, nats. Under words of R it estimates the difference of KL divergences
            that condition (ii) of Theorem A.6 wants to be at least 0.
        plan_error: The mean's standard error; NaN with one conversation.
        action: The same for a_h.
        action_error: Its standard error.
        positive: Mean of the positive part of r after the step, which condition (i) wants to be bounded.
    """

    conversations: NDArray[np.int64]
    plan: Floats
    plan_error: Floats
    action: Floats
    action_error: Floats
    positive: Floats


def step_means(delta_r: ArrayLike, delta_r_plan: ArrayLike) -> StepMeans:
    """The conditions of Theorem A.6 (Theorem 3.2), measured step by step.

    R has to be the reasoner's own sampling, held to the cap; where a rule has ended conversations the means
    of later steps are those of the ones that it let go on.

    Args:
        delta_r: ``[N, H]`` Δr of each step, nats; NaN behind a conversation's last step.
        delta_r_plan: ``[N, H]`` the plan's part of it.

    Raises:
        DataError: The shapes differ, or there is no step.
    """
    whole, plan = np.asarray(delta_r, dtype=np.float64), np.asarray(delta_r_plan, dtype=np.float64)
    if whole.shape != plan.shape or whole.ndim != 2 or not len(whole):
        raise DataError(
            f"Δr {whole.shape} and its plans' parts {plan.shape} need one shape [N, H], N above 0"
        )
    known = ~np.isnan(whole)
    count = known.sum(0)
    if not count.all():
        raise DataError(f"no conversation has step {int(np.flatnonzero(count == 0)[0]) + 1}")
    after = np.where(known, np.cumsum(np.where(known, whole, 0.0), axis=1), np.nan)
    (plan_mean, plan_error), (action_mean, action_error) = (_mean(x, count) for x in (plan, whole - plan))
    positive = np.nanmean(np.maximum(after, 0.0), axis=0)
    return StepMeans(count, plan_mean, plan_error, action_mean, action_error, positive)


def _mean(values: Floats, count: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Mean and standard error over the conversations, NaN left out."""
    mean = np.nanmean(values, axis=0)
    squares = np.nansum((values - mean) ** 2, axis=0)
    error = np.full(mean.shape, np.nan)
    several = count > 1
    error[several] = np.sqrt(squares[several] / (count[several] - 1) / count[several])
    return mean, error


@dataclass(frozen=True, slots=True)
class StopFigures:
    """When a rule stops.

    Args:
        steps: The mean number of steps.
        stopped_at: ``[H]`` the share of conversations that the rule stops after each step.
        cap: The share that it does not stop before the cap of H steps.
        own_end: The share that ended by themselves before, without being stopped.
        edges: ``[bins + 1]`` edges of a histogram of Δr, nats.
        counts: ``[bins]`` how many Δr lie between them.
    """

    steps: float
    stopped_at: Floats
    cap: float
    own_end: float
    edges: Floats
    counts: NDArray[np.int64]


def stop_figures(
    delta_r: ArrayLike, rule: Kind, epsilon: float, lengths: ArrayLike | None = None, bins: int = 40
) -> StopFigures:
    """When a rule stops conversations that were held to the cap, and how Δr is spread.

    Args:
        delta_r: See `step_means`; H is the cap.
        rule: ``absolute`` or ``signed``.
        epsilon: ε, nats.
        lengths: See `stop_steps`.
        bins: Bins of the histogram.

    Raises:
        DataError: There is no conversation, or Δr has gaps.
    """
    values = np.asarray(delta_r, dtype=np.float64)
    if values.ndim != 2 or not values.size or np.isnan(values).all():
        raise DataError(f"Δr {values.shape} needs the shape [N, H] with at least one step")
    at = stop_steps(values, rule, epsilon, lengths)
    last = (~np.isnan(values)).sum(1) if lengths is None else np.asarray(lengths)
    shown = np.take_along_axis(values, np.maximum(at - 1, 0)[:, None], axis=1)[:, 0]
    stopped = (np.abs(shown) if rule == "absolute" else shown) < epsilon
    counts, edges = np.histogram(values[~np.isnan(values)], bins)
    width = values.shape[1]
    shares = np.bincount(at[stopped], minlength=width + 1)[1:] / len(values)
    return StopFigures(
        float(at.mean()),
        shares,
        float(np.mean(~stopped & (last == width))),
        float(np.mean(~stopped & (last < width))),
        edges,
        counts,
    )
