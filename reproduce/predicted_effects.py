"""What each reward will do to a policy, from its samples alone, before it is trained.

Each file holds the samples of `selfverify eval`. Of two-turn samples: does the second turn check or redraw,
and above which gap of fixed rewards does it pay to err first (AdaPO, Fig. 2)? Of answers with scores: does a
reward push all scores one way, or right ones above wrong ones (ADPO, Fig. 2)? Of boxes: what does a margin do
to the signal (ADPO, Table 6)? The formulas are in `selfverify.objectives.expected_push`.

Every push is the mean over problems, whose samples are taken as one group; with 95 % bootstrap intervals over
problems. Groups of other sizes than the recipe's have other baselines, so take as many samples.

    selfverify eval adapo-digits --output two-turns evaluation.split=validation evaluation.samples=8
    selfverify eval adpo-digits --output one-turn evaluation.split=validation evaluation.samples=8
    selfverify eval adpo-digits task.name=digits-locate --output boxes evaluation.split=validation
    python -m reproduce.predicted_effects two-turns one-turn boxes [--output effects.json]

The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reproduce.scripts import show
from reproduce.turn_keeping import TurnTable, breakeven_statistic, keeping, turn_rates
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.core.files import write_json
from selfverify.evaluation.metrics import SampleTable
from selfverify.evaluation.samples import CORRECT_1, StoredSample, find_store, read_samples
from selfverify.evaluation.statistics import (
    Statistic,
    bootstrap_interval,
    mean_statistic,
    on_all,
    ratio_statistic,
)
from selfverify.objectives import (
    RewardShape,
    binary_end,
    binary_reward,
    concordance_credit,
    entangled_margin,
    first_turn_push,
    group_advantage,
    margin_signal,
    preference_reward,
    score_push,
)

GAPS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
MARGINS = (0.025, 0.05, 0.1, 0.2, 0.25)
CONCORDANCE_SCALE = 4.0


def measured(statistic: Statistic, problems: int) -> dict[str, Any]:
    """A figure and its interval."""
    return {"value": on_all(statistic, problems), "interval": bootstrap_interval(statistic, problems)}


def two_turns(samples: Sequence[StoredSample]) -> dict[str, Any]:
    """Keeping, rates, the gaps at which erring begins to pay, and each reward's push on first answers."""
    table = TurnTable.from_samples(samples)
    if table.first.shape[1] < 2:
        raise DataError("each problem has one sample, and rewards compare several; give evaluation.samples=8")
    problems = len(table.first)
    found: dict[str, Statistic] = keeping(table)
    for within in (False, True):
        where = "within" if within else "pooled"
        names = (f"P(right|right), {where}", f"P(right|wrong), {where}")
        found |= dict(zip(names, turn_rates(table, within), strict=True))
        found[f"breakeven gap, {where}"] = breakeven_statistic(table, within)
    first, second = torch.from_numpy(table.first), torch.from_numpy(table.second)
    shapes = {f"gap {gap:g}": _fixed(gap) for gap in GAPS} | {"adapo": RewardShape()}
    for name, shape in shapes.items():
        for scale in (True, False):
            push = first_turn_push(first, second, shape, scale=scale)
            title = f"push on first answers, {name}" + ("" if scale else ", unscaled")
            found[title] = mean_statistic(push.numpy())
    push = first_turn_push(first, second, RewardShape(), agreeing=True)
    found["push on first answers, adapo, all groups"] = mean_statistic(push.numpy())
    alone = group_advantage(first.double()) * first
    found["push on first answers, one turn"] = mean_statistic(alone.mean(-1).numpy())
    # Unscaled, the push falls by as much with each unit of the gap, and turns where nothing of it is left.
    level, raised = (first_turn_push(first, second, _fixed(gap), scale=False).numpy() for gap in (0.0, 1.0))
    found["gap at which the push turns, unscaled"] = ratio_statistic(level, level - raised)
    return {name: measured(statistic, problems) for name, statistic in found.items()}


def _fixed(gap: float) -> RewardShape:
    return RewardShape(base_01=1 + gap, k_01=0.0, k_11=0.0, k_10=0.0, k_00=0.0)


def scored(table: SampleTable, margin: float) -> dict[str, Any]:
    """Each verification reward's drift and separation, and what entangling them does to answers."""
    answer, scores = torch.from_numpy(table.reward("answer")), torch.from_numpy(table.scores["sampled"])
    expected, right = torch.from_numpy(table.scores["soft"]), torch.from_numpy(table.correct)
    problems, group = answer.shape
    rewards: dict[str, Tensor] = {
        "binary": binary_reward(scores, answer),
        "pairwise": preference_reward(scores, answer, margin),
        "class_mean": preference_reward(scores, answer, margin, "class_mean"),
    }
    credits = {name: group_advantage(reward) for name, reward in rewards.items()}
    credits["concordance"] = CONCORDANCE_SCALE * concordance_credit(scores, answer, margin)
    found: dict[str, Statistic] = {"pass@1": mean_statistic(table.correct.mean(1))}
    for name, credit in credits.items():
        drift, separation = score_push(credit, scores, expected, answer)
        found[f"{name}: drift"] = mean_statistic(drift.numpy())
        found[f"{name}: separation"] = mean_statistic(separation.numpy())
    sums = {"alone": answer} | {name: answer + rewards[name] for name in ("binary", "pairwise")}
    for name, total in sums.items():
        push = (group_advantage(total) * right).mean(-1)
        found[f"push on right answers, {name}"] = mean_statistic(push.numpy())
    figures = {name: measured(statistic, problems) for name, statistic in found.items()}
    return figures | ends(table, group)


def ends(table: SampleTable, group: int) -> dict[str, Any]:
    """What follows from pass@1 and from the scores' own AUC, pooled over all answers."""
    right = float(table.correct.mean())
    score = table.scores["soft"][~np.isnan(table.scores["soft"])]
    correct = table.correct[~np.isnan(table.scores["soft"])] > 0.5
    above = (score[correct][:, None] > score[~correct]).mean() if 0 < right < 1 else np.nan
    tied = (score[correct][:, None] == score[~correct]).mean() if 0 < right < 1 else np.nan
    auc = float(above + tied / 2)
    found = {"auc": auc, "entangled: an answer must be worth": entangled_margin(right, auc, group)}
    if 0.5 < auc < 1:
        end = binary_end(right, auc)
        found |= {
            "binary ends: high of right": end.high_right,
            "binary ends: high of wrong": end.high_wrong,
            "binary ends: auc": end.auc,
        }
    return {name: {"value": value, "interval": None} for name, value in found.items()}


def boxes(table: SampleTable) -> dict[str, Any]:
    """By margin: pairs that stay, the signal relative to none, and how well scores rank those pairs."""
    answer = torch.from_numpy(table.reward("answer"))
    found: dict[str, Any] = {}
    for margin in (0.0, *MARGINS):
        share, signal = margin_signal(answer, margin)
        credit = concordance_credit(torch.from_numpy(table.scores["soft"]), answer, margin)
        auc = (1 + credit.sum(-1)) / 2
        some = torch.from_numpy(table.scores["soft"]).isfinite().all(-1) & (credit != 0).any(-1)
        values = torch.where(some, auc, torch.nan).numpy()
        found |= {
            f"gamma {margin:g}: pairs": {"value": share, "interval": None},
            f"gamma {margin:g}: signal": {"value": signal, "interval": None},
            f"gamma {margin:g}: auc of pairs": measured(mean_statistic(values), len(values)),
        }
    return found


def effects(path: Path) -> dict[str, Any]:
    """All that can be said of a file of samples.

    Raises:
        DataError: There is nothing that a reward could be predicted from, or groups differ in size.
    """
    samples = read_samples(find_store(path))[1]
    try:
        return _effects(samples)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _effects(samples: Sequence[StoredSample]) -> dict[str, Any]:
    if any(CORRECT_1 in sample.rewards for sample in samples):
        return two_turns(samples)
    table = SampleTable.from_samples(samples)
    if table.correct.shape[1] < 2:
        raise DataError("each problem has one sample, and rewards compare several; give evaluation.samples=8")
    if np.isnan(table.scores["sampled"]).all():
        raise DataError("no answer has a score, and no second turn follows one; nothing to predict")
    margin = MARGINS[2] if table.boxes is not None else 0.0
    return scored(table, margin) | (boxes(table) if table.boxes is not None else {})


def main(argv: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("samples", nargs="+", type=Path, help="folders of `selfverify eval`, or their files")
    parser.add_argument("--output", type=Path, help="also write all figures to this file")
    options = parser.parse_args(argv)
    results = {}
    written: Callable[[float], str] = "{:.4g}".format
    for path in options.samples:
        try:
            results[str(path)] = found = effects(path)
        except SelfVerifyError as error:
            parser.error(str(error))
        rows = [
            [name, written(row["value"]), " to ".join(map(written, row["interval"] or []))]
            for name, row in found.items()
        ]
        show(str(path), ["figure", "value", "95 %"], rows)
    text = json.dumps(results)
    if options.output is not None:
        write_json(options.output, results)
    print(text, flush=True)


if __name__ == "__main__":
    main()
