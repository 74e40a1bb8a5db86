"""When looking ends: the rule that is asked after every step, and its ε (VTS-V §3.4).

`stop_figures` and `step_means` say of a stopping verifier when it stops, how Δr is spread, and whether the
conditions of Theorem A.6 hold.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ConfigDict, FiniteFloat, TypeAdapter, ValidationError

from selfverify.core.episode import PolicyTurn
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import read_regular, write_text

LOG_RATIO, LOG_RATIO_PLAN = "log_ratio", "log_ratio_plan"
"""Names of the values that a verifier has measured of a turn: log V_φ/V_φ0 over its tokens, nats, and the
plan's part of it."""
DELTA_R = "delta_r"
"""The name of a step's Δr (Lemma 3.1). The answer t_{H+1} has none."""


@dataclass(frozen=True, slots=True)
class After:
    """Looking ends after a fixed number of steps; with infinity only at the cap of steps, or where the model
    ends it."""

    steps: float

    def stops(self, step: int, said: PolicyTurn) -> bool:
        return step >= self.steps


@dataclass(frozen=True, slots=True)
class Verified:
    """Ends looking where Δr says that enough was seen (VTS-V §3.4, Lemma 3.1).

    ``signed`` is Algorithm 1, Δr < ε: it stops at a step that the verifier likes less than its base does.
    ``absolute`` is |Δr| < ε, as in §3.4 and Lemma 3.1: it stops where the verifier has no opinion on a step,
    and goes on through steps that it dislikes. As Δr ≤ |Δr|, ``signed`` never stops later with the same ε. ε
    is in nats; the paper asks for a positive one, and that of ``signed`` is below 0 where needed steps have
    a Δr around 0. Of a step that was not measured nothing is known, and looking goes on.
    """

    kind: Literal["absolute", "signed"]
    epsilon: float

    def stops(self, step: int, said: PolicyTurn) -> bool:
        if DELTA_R not in said.values:
            return False
        delta = said.values[DELTA_R]
        return (abs(delta) if self.kind == "absolute" else delta) < self.epsilon


StopRule = After | Verified
"""Says after which step the model has to answer; Algorithm 1 asks it after every one.

It is asked (`stops`) with a step's number h, from 1, and what was said: plan and action. That is before the
step's tool runs: by Lemma 3.1 the paper's Δr needs plan and action only. A hook's measurements of the turn
stand in `PolicyTurn.values`. Turns whose call was refused are steps, too.
"""


def make_stop_rule(name: str) -> StopRule:
    """The rule without a verifier that a setting names.

    Raises:
        ConfigError: There is no such rule.
    """
    kind, _, number = name.partition(":")
    if name == "never":
        return After(math.inf)
    if kind == "after" and number.isascii() and number.isdigit() and 1 <= int(number[:4]) == int(number):
        return After(int(number))
    raise ConfigError(
        f"there is no rule {name!r} that ends looking; there are `never`, `after:N` and `verifier`"
    )


STOPPING_FILE = "stopping.json"
Kind = Literal["absolute", "signed"]
Target = Literal["steps", "accuracy", "within"]
"""The aim that an ε is chosen for, see `fit_epsilon`."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StopCalibration:
    """A rule with its ε, which is chosen on validation problems and stored beside the model.

    Args:
        rule: ``signed`` stops where Δr < ε, ``absolute`` where |Δr| < ε.
        epsilon: ε, nats.
        target: The aim that it was chosen for: ``steps``, ``accuracy`` or ``within``.
        wanted: The mean number of steps that may not be exceeded; the accuracy that has to be reached; or how
            far below the best accuracy of all ε it may be.
        steps: The mean number of steps with this ε on the validation problems.
        accuracy: The accuracy there, where it is known.
        problems: How many problems there were.
        fitted_on: All else about the fit: the model, the task, its settings.
        format: The version of the file's format.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    rule: Kind
    epsilon: FiniteFloat
    target: Target
    wanted: FiniteFloat
    steps: FiniteFloat
    accuracy: FiniteFloat | None
    problems: int
    fitted_on: dict[str, Any] = field(default_factory=dict)
    format: Literal[1] = 1

    def save(self, folder: Path) -> Path:
        """Write it into a model's folder, whole or not at all; returns the file."""
        path = folder / STOPPING_FILE
        write_text(path, json.dumps(asdict(self), indent=1, allow_nan=False) + "\n")
        return path

    @classmethod
    def load(cls, folder: Path) -> StopCalibration:
        """Read a file that `save` wrote.

        Raises:
            DataError: There is no such file, or it is not such a calibration; the message says what is wrong.
        """
        path = folder / STOPPING_FILE
        try:
            return TypeAdapter(cls).validate_json(read_regular(path))
        except OSError as error:
            raise DataError(f"the verifier has no ε beside it ({error}); set epsilon, or calibrate") from None
        except ValidationError as error:
            [first, *_] = error.errors()
            fault = f"{'.'.join(map(str, first['loc']))}: {first['msg']}, not {first['input']!r}"
            raise DataError(f"{path} is no calibration of a stopping verifier: {fault}") from None


def stop_steps(
    delta_r: ArrayLike, rule: Kind, epsilon: float, lengths: ArrayLike | None = None
) -> NDArray[np.int64]:
    """After which step each conversation stops (VTS-V, Lemma 3.1 and Algorithm 1).

    Args:
        delta_r: ``[N, H]`` Δr of each step, nats; NaN behind the last step of a conversation.
        rule: See `StopCalibration`.
        epsilon: ε.
        lengths: ``[N]`` the number of steps, where some of them were not measured: NaN then stands for those,
            too, and they stop nothing. None: all were measured.

    Returns:
        ``[N]`` the first step, from 1, that fulfils the rule; the last step where none does; 0 without steps.
    """
    values, last = _values(delta_r, rule, lengths)
    fulfilled = values < epsilon
    found: NDArray[np.int64] = np.where(fulfilled.any(1), fulfilled.argmax(1) + 1, last).astype(np.int64)
    return found


def fit_epsilon(
    delta_r: ArrayLike,
    correct: ArrayLike | None,
    rule: Kind,
    target: Target,
    wanted: float,
    fitted_on: dict[str, Any] | None = None,
    lengths: ArrayLike | None = None,
) -> StopCalibration:
    """Choose ε on conversations that were held to the cap, with an answer asked for after every step.

    All ε that make a difference are looked at; each lies half-way between two values of Δr (or of |Δr|) at
    which some conversation stops earlier. With ``steps`` the smallest ε is taken that needs at most
    ``wanted`` steps on average; with ``accuracy`` the largest that reaches it, which has the fewest steps;
    with ``within`` the largest whose accuracy is at most ``wanted`` below the best.

    Args:
        delta_r: ``[N, H]``, see `stop_steps`.
        correct: ``[N, H]`` whether the answer after each step is right (1 or 0); None with ``steps`` where
            that is not known.
        rule: See `StopCalibration`.
        target: The aim.
        wanted: The mean number of steps, or the accuracy or difference of accuracies in [0, 1].
        fitted_on: See `StopCalibration`.
        lengths: See `stop_steps`.

    Raises:
        ConfigError: No ε holds the target; the message says what can be held.
        DataError: The figures do not fit together, or there are none.
    """
    values, last = _values(delta_r, rule, lengths)
    if not len(values) or not last.all():
        raise DataError("a calibration of the verifier needs conversations that have at least one step each")
    if np.isnan(values).all():
        raise DataError("the verifier has measured no step, so that there is nothing to calibrate")
    right = None if correct is None else np.asarray(correct, dtype=np.float64)
    if right is not None and right.shape != values.shape:
        raise DataError(f"verdicts {right.shape} and Δr {values.shape} need the same shape [N, H]")
    there = np.arange(values.shape[1]) < last[:, None]
    if right is not None and np.isnan(right[there]).any():
        raise DataError("there is a step with no verdict on the answer after it")
    if target != "steps" and right is None:
        raise ConfigError("a target of accuracy needs verdicts on the answers after every step")
    epsilons, steps, accuracy = _curve(values, last, right, rule)
    least = accuracy.max() - wanted if target == "within" else wanted
    held = steps <= wanted + 1e-9 if target == "steps" else accuracy >= least - 1e-9
    if not held.any():
        best = f"{steps.min():.3f} steps" if target == "steps" else f"an accuracy of {accuracy.max():.3f}"
        raise ConfigError(f"no ε reaches {target} {wanted}; the best of all is {best}")
    places = np.flatnonzero(held)
    place = places[0] if target == "steps" else places[-1]
    known = None if right is None else float(accuracy[place])
    return StopCalibration(
        rule,
        float(epsilons[place]),
        target,
        float(wanted),
        float(steps[place]),
        known,
        len(values),
        fitted_on or {},
    )


def _values(delta_r: ArrayLike, rule: Kind, lengths: ArrayLike | None) -> tuple[Floats, NDArray[np.int64]]:
    """``[N, H]`` what the rule compares with ε, NaN where it stops nothing, and ``[N]`` numbers of steps."""
    values = np.asarray(delta_r, dtype=np.float64)
    if values.ndim != 2:
        raise DataError(f"Δr has shape {values.shape}; conversations by steps [N, H] are needed")
    known = ~np.isnan(values)
    last = known.sum(1) if lengths is None else np.asarray(lengths, dtype=np.int64)
    if last.shape != values.shape[:1] or (last > values.shape[1]).any():
        raise DataError(f"{last.shape} numbers of steps do not fit Δr {values.shape}")
    if (known & (np.arange(values.shape[1]) >= last[:, None])).any() or np.isinf(values).any():
        raise DataError(
            "Δr has a gap between steps, or is not finite; NaN may stand behind the last step only, or where "
            "numbers of steps are given"
        )
    return np.abs(values) if rule == "absolute" else values, last


def _curve(
    values: Floats, last: NDArray[np.int64], right: Floats | None, rule: Kind
) -> tuple[Floats, Floats, Floats]:
    """Every ε that makes a difference, rising, with mean steps and accuracy under it.

    As ε rises past the smallest value of a conversation, that one stops at the step that has it; past the
    smallest value before that step, there; and so on.
    """
    rows = np.arange(len(values))
    least = np.minimum.accumulate(np.where(np.isnan(values), np.inf, values), axis=1)
    before = np.concatenate([np.full((len(values), 1), np.inf), least[:, :-1]], axis=1)
    record = least < before
    events: list[tuple[float, float, float]] = []
    for row in rows:
        later = int(last[row]) - 1
        for step in np.flatnonzero(record[row])[::-1]:
            gain = 0.0 if right is None else right[row, step] - right[row, later]
            events.append((values[row, step], float(step - later), gain))
            later = int(step)
    passed, shorter, better = (np.array(column) for column in zip(*sorted(events), strict=True))
    levels, ends = np.unique(passed, return_index=True)
    upto = np.append(ends[1:], len(passed)) - 1
    sums = [np.append(0.0, np.cumsum(column)[upto]) for column in (shorter, better)]
    steps = (last.sum() + sums[0]) / len(rows)
    start = np.nan if right is None else right[rows, last - 1].sum()
    accuracy = (start + sums[1]) / len(rows)
    beyond = levels[-1] + max(abs(levels[-1]), 1.0) * 1e-3
    never = 0.0 if rule == "absolute" else levels[0] - max(abs(levels[0]), 1.0) * 1e-3
    epsilons = np.concatenate([[never], (levels[:-1] + levels[1:]) / 2, [beyond]])
    return epsilons, steps, accuracy


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
    compared, last = _values(values, rule, lengths)
    stopped = np.take_along_axis(compared, np.maximum(at - 1, 0)[:, None], axis=1)[:, 0] < epsilon
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
