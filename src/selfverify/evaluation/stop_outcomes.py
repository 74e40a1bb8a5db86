"""What each rule that ends looking comes to, on the same conversations (VTS-V, Algorithm 1).

A rule is a function from conversations to the step after which each is told to answer; the answers after
every step are known (`selfverify.evaluation.looked`), so that nothing is sampled here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from selfverify.core.errors import ConfigError
from selfverify.evaluation.looked_arrays import CappedArrays, Ints
from selfverify.evaluation.statistics import Statistic, bootstrap_interval, on_all, ratio
from selfverify.selection.rules import Floats
from selfverify.visual.stopping import Kind, stop_steps

WITHIN = 0.01
"""How far the smallest fixed number of steps may be below the best one."""


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """What a rule comes to in each of N conversations.

    Args:
        right: ``[N]`` how often the answer is right, from 0 to 1.
        steps: ``[N]`` how many steps were made.
        visual: ``[N]`` the visual tokens that were shown.
        early: ``[N]`` whether looking ended before everything needed had been shown; None where the task does
            not know.
        late: ``[N]`` whether it ended after more steps than were needed.
        seen: ``[N]`` how much of what the answer needs had been shown, from 0 to 1; None where the task does
            not know.
    """

    right: Floats
    steps: Floats
    visual: Floats
    early: Floats | None
    late: Floats | None
    seen: Floats | None = None


def stopped(looked: CappedArrays, at: Ints, on_stop: Literal["run", "skip"] = "run") -> StopOutcome:
    """Looking ends with given steps; where a conversation has fewer, as it did.

    A step in which the model wants to answer by itself ends looking with that answer, and is no look.

    Args:
        looked: The conversations.
        at: ``[N]`` the step, from 1; 0 is an answer without a look.
        on_stop: ``skip``: the step that ends looking is dropped, and the answer comes from what was there
            before it.
    """
    rows, ends = np.arange(len(at)), at > looked.lengths
    place = np.minimum(at, looked.lengths)
    own = looked.own[rows, np.maximum(place - 1, 0)]
    takes_own = ~ends & (place > 0) & ~np.isnan(own)
    place = place - (takes_own | (~ends & (place > 0) & (on_stop == "skip")))
    answered = np.where(ends, looked.final, looked.correct[rows, place])
    return _outcome(looked, np.where(takes_own, own, answered), place)


def own_end(looked: CappedArrays) -> Ints:
    """``[N]`` the step in which the model wants to answer by itself; `never` where it does not."""
    wants = ~np.isnan(looked.own)
    return np.where(wants.any(1), wants.argmax(1) + 1, never(looked)).astype(np.int64)


def never(looked: CappedArrays) -> int:
    """A step beyond all conversations."""
    return looked.delta_r.shape[1] + 1


def self_stop(looked: CappedArrays) -> StopOutcome:
    """The model ends looking by itself, with the first answer that it gives of its own accord."""
    return stopped(looked, own_end(looked))


def always(looked: CappedArrays, steps: int) -> StopOutcome:
    """Looking ends after a fixed number of steps."""
    return stopped(looked, np.full(len(looked.lengths), steps))


def verifier_steps(looked: CappedArrays, rule: Kind, epsilon: float) -> Ints:
    """``[N]`` the step with which the verifier ends looking (Lemma 3.1); `never` where it does not."""
    at = stop_steps(looked.delta_r, rule, epsilon, looked.lengths)
    shown = looked.delta_r[np.arange(len(at)), np.maximum(at - 1, 0)]
    fulfils = (np.abs(shown) if rule == "absolute" else shown) < epsilon
    return np.where(fulfils, at, never(looked)).astype(np.int64)


def shuffled(looked: CappedArrays, at: Ints) -> StopOutcome:
    """Random stopping: a rule's stopping times belong to other conversations.

    The mean over all permutations of the times, each as likely; no permutation is drawn.
    """
    times, counts = np.unique(at, return_counts=True)
    parts = [stopped(looked, np.full(len(at), time)) for time in times]

    def mean(of: Callable[[StopOutcome], Floats | None]) -> Floats:
        whole: Floats = np.average([of(part) for part in parts], axis=0, weights=counts)
        return whole

    found = StopOutcome(
        mean(lambda o: o.right), mean(lambda o: o.steps), mean(lambda o: o.visual), None, None
    )
    if looked.enough is None:
        return found
    seen = None if looked.seen is None else mean(lambda o: o.seen)
    return replace(found, early=mean(lambda o: o.early), late=mean(lambda o: o.late), seen=seen)


def oracle(looked: CappedArrays) -> StopOutcome:
    """Looking ends with the first step after which everything needed has been shown.

    Raises:
        ConfigError: The task does not know what is needed.
    """
    if looked.enough is None:
        raise ConfigError("this task does not know which looks are needed, so that it has no oracle")
    return stopped(looked, np.where(looked.enough > 0, looked.enough, never(looked)))


def _outcome(looked: CappedArrays, right: Floats, steps: Ints) -> StopOutcome:
    visual = looked.visual[np.arange(len(steps)), steps]
    made = StopOutcome(right.astype(np.float64), steps.astype(np.float64), visual, None, None)
    if looked.enough is None:
        return made
    early = ((looked.enough == 0) | (steps < looked.enough)).astype(np.float64)
    late = ((looked.enough > 0) & (steps > looked.enough)).astype(np.float64)
    seen = None if looked.seen is None else looked.seen[np.arange(len(steps)), steps]
    return replace(made, early=early, late=late, seen=seen)


def outcomes(looked: CappedArrays, epsilons: Mapping[Kind, float]) -> dict[str, StopOutcome]:
    """What all rules come to, by name.

    With ``accept`` the model may end looking before the verifier does, with ``skip`` the step that ends
    looking is dropped, and ``random`` gives the verifier's stopping times to other conversations.

    Args:
        looked: The conversations.
        epsilons: ε of the verifier's rules that are to be compared.
    """
    found = {f"always {n}": always(looked, n) for n in range(looked.delta_r.shape[1] + 1)}
    own = own_end(looked)
    found["self-stop"] = stopped(looked, own)
    for rule, epsilon in epsilons.items():
        at = verifier_steps(looked, rule, epsilon)
        found[rule] = stopped(looked, at)
        found[f"{rule}, skip"] = stopped(looked, at, on_stop="skip")
        found[f"{rule}, accept"] = stopped(looked, np.minimum(at, own))
        found[f"{rule}, random"] = shuffled(looked, at)
    if looked.enough is not None:
        found["oracle"] = oracle(looked)
    return found


def compared(looked: CappedArrays, epsilons: Mapping[Kind, float]) -> dict[str, dict[str, Any]]:
    """Figures of all rules, with intervals over problems, and each verifier's rule against the others.

    Args:
        looked: See `outcomes`.
        epsilons: See `outcomes`.

    Returns:
        ``rules``: by name ``accuracy`` with its 95 % ``interval``, ``steps``, ``visual_tokens``, and where
        the task knows ``too_early``, ``too_late`` and ``crop_hit``, the share of what is needed that had been
        shown. ``verifier``: by rule ``best_n`` and ``smallest_n``,
        the smallest fixed number of steps within `WITHIN` of the best; ``gap_to_smallest_n``, ``over_random``
        and ``over_self_stop``, paired differences of accuracy with intervals; and ``steps_share`` of the
        smallest.
    """
    found = outcomes(looked, epsilons)
    rules: dict[str, Any] = {}
    for name, outcome in found.items():
        rules[name] = {
            "accuracy": float(outcome.right.mean()),
            "interval": bootstrap_interval(_mean(looked, outcome.right), looked.problems),
            "steps": float(outcome.steps.mean()),
            "visual_tokens": float(outcome.visual.mean()),
        }
        if outcome.early is not None and outcome.late is not None:
            shares = {"too_early": float(outcome.early.mean()), "too_late": float(outcome.late.mean())}
            rules[name] |= shares
        if outcome.seen is not None:
            rules[name]["crop_hit"] = float(outcome.seen.mean())
    fixed = {n: found[f"always {n}"] for n in range(1, looked.delta_r.shape[1] + 1)}
    best = max(fixed, key=lambda n: (fixed[n].right.mean(), -n), default=0)
    near = [n for n in fixed if fixed[n].right.mean() >= fixed[best].right.mean() - WITHIN]
    against: dict[str, Any] = {}
    for rule in epsilons if near else ():
        own, smallest = found[rule], fixed[min(near)]
        against[rule] = {
            "epsilon": epsilons[rule],
            "best_n": best,
            "smallest_n": min(near),
            "gap_to_smallest_n": _difference(looked, own.right - smallest.right),
            "steps_share": float(own.steps.mean() / smallest.steps.mean()),
            "over_random": _difference(looked, own.right - found[f"{rule}, random"].right),
            "over_self_stop": _difference(looked, own.right - found["self-stop"].right),
        }
    return {"rules": rules, "verifier": against}


def _mean(looked: CappedArrays, values: Floats) -> Statistic:
    """The mean over conversations, of which whole problems are drawn."""
    sums = np.bincount(looked.problem, values, minlength=looked.problems)
    counts = np.bincount(looked.problem, minlength=looked.problems).astype(np.float64)
    return lambda weights: ratio(weights @ sums, weights @ counts)


def _difference(looked: CappedArrays, values: Floats) -> dict[str, Any]:
    statistic = _mean(looked, values)
    return {
        "mean": on_all(statistic, looked.problems),
        "interval": bootstrap_interval(statistic, looked.problems),
    }
