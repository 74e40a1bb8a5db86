"""Which ε the stopping verifier takes: chosen on validation problems, stored beside the model."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ConfigDict, FiniteFloat, TypeAdapter, ValidationError

from selfverify.core.errors import ConfigError, DataError
from selfverify.core.files import read_regular, write_text

STOPPING_FILE = "stopping.json"
Kind = Literal["absolute", "signed"]
Target = Literal["steps", "accuracy", "within"]
"""What an ε is chosen for, see `fit_epsilon`."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StopCalibration:
    """A rule with its ε.

    Args:
        rule: ``absolute`` stops where |Δr| < ε, ``signed`` where Δr < ε.
        epsilon: ε, nats.
        target: What it was chosen for: ``steps``, ``accuracy`` or ``within``.
        wanted: The mean number of steps that may not be exceeded; the accuracy that has to be reached; or how
            far below the best accuracy of all ε it may be.
        steps: The mean number of steps with this ε on the validation problems.
        accuracy: The accuracy there, where it is known.
        problems: How many problems there were.
        fitted_on: What else is to be known: the model, the task, its settings.
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
        """Read what `save` wrote.

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
            nobody knows.
        rule: See `StopCalibration`.
        target: What is to be held.
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
