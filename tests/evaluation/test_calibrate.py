"""Calibrations and fused scores: fitted by hand, and from one end to the other by the command."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from samples import sample, write_samples
from selfverify.cli.main import app
from selfverify.core.errors import DataError
from selfverify.evaluation.calibrate import (
    calibrate,
    chosen_confidence,
    fit_fusion,
    fusion_of_samples,
    with_fused,
)
from selfverify.evaluation.metrics import summarise
from selfverify.evaluation.samples import StoredSample
from selfverify.selection.calibration import Calibration, Fusion
from tables import yaml_cases


def test_the_weight_by_hand() -> None:
    """The first problem is chosen right with a weight above .5 (.6 - .2a > .7 - .4a), the second below 1.25
    (.9 - .5a > .4 - .1a): of the weights in between, the smallest that is tried is .75."""
    score, nats = [[0.6, 0.7], [0.9, 0.4]], [[-0.2, -0.4], [-0.5, -0.1]]
    found = fit_fusion(score, nats, [[1, 0], [1, 0]])
    assert found.weight == 0.75 and found.slope is not None and found.slope > 0


def test_the_calibrated_form_by_hand() -> None:
    """Scores 0 and 1, right in one and in three of four problems: logits -ln 3 and ln 3. Log-probabilities
    that say nothing weigh nothing."""
    found = fit_fusion([[0, 1]] * 4, [[-1.0, -1.0]] * 4, [[0, 1], [0, 1], [0, 1], [1, 0]])
    assert found.weight == 0
    assert found.intercept == pytest.approx(-math.log(3), rel=1e-3)
    assert found.slope == pytest.approx(2 * math.log(3), rel=1e-3)
    np.testing.assert_allclose(found([0, 1], [-1, -1]), [0.25, 0.75], atol=1e-3)


def test_answers_without_a_score_or_a_log_probability_take_no_part() -> None:
    score = [[0.6, 0.7, np.nan, 0.99], [0.9, 0.4, 0.1, 0.99]]
    nats = [[-0.2, -0.4, -0.1, np.nan], [-0.5, -0.1, -0.9, np.nan]]
    assert fit_fusion(score, nats, [[1, 0, 0, 0], [1, 0, 0, 0]]).weight == 0.75


@yaml_cases
def test_what_cannot_be_fitted(score: object, nats: object, correct: object, text: str) -> None:
    with pytest.raises(DataError, match=text):
        fit_fusion(score, nats, correct)  # type: ignore[arg-type]


def drawn(seed: int, problems: int = 120, total: int = 4) -> list[StoredSample]:
    """Samples whose score and log-probability each know a part of what is right."""
    rng, rows = np.random.default_rng(seed), []
    for p in range(problems):
        for k in range(total):
            right = bool(rng.random() < 0.4)
            soft = float(np.clip(0.4 + 0.2 * right + 0.25 * rng.normal(), 0, 1))
            nats = float(-0.4 + 0.1 * right + 0.1 * rng.normal())
            key = "right" if right else f"wrong {rng.integers(9)}"
            rows.append(sample(f"p{p}", k, right, soft, key=key, answer=key, logprob=nats))
    return rows


def test_fused_figures_stand_beside_the_others_and_change_none() -> None:
    rows, held_out = drawn(1), drawn(2)
    fusion = fusion_of_samples(rows)
    fused, plain = summarise(with_fused(held_out, fusion)), summarise(held_out)
    mine = fused.pop("fused")
    intervals = fused["intervals"]
    fused["intervals"] = {k: v for k, v in intervals.items() if not k.startswith("fused.")}
    assert fused == plain
    assert mine["within_problem_auc"] > max(
        plain["within_problem_auc"], plain["logprob"]["within_problem_auc"]
    )
    assert mine["best@4"] > plain["best@4"] and mine["weighted@4"] is not None
    low, high = intervals["fused.best@4"]
    assert low <= mine["best@4"] <= high
    assert "fused" not in held_out[0].scores  # what is stored is not changed


def test_a_calibration_of_fused_scores_holds_the_fusion() -> None:
    rows = drawn(1)
    whole = calibrate(rows, "fused", "best")
    assert whole.calibration.fusion == fusion_of_samples(rows)
    assert whole.calibration.fitted_on["verifier"] == "fused"
    other = calibrate(rows, "fused", "best", held_out=drawn(2))
    assert other.calibration == whole.calibration and other.after != whole.after
    assert calibrate(rows, "soft", "best").calibration.fusion is None


def test_the_chosen_answers_are_calibrated_and_the_risk_is_kept() -> None:
    """On other problems, where the confidence in the best answer is its score and the verdict is its own."""
    rows, others = drawn(1, 800), drawn(2, 800)
    best = [max(rows[n : n + 4], key=lambda s: s.scores["soft"] or 0) for n in range(0, 3200, 4)]
    confidence, correct = chosen_confidence(rows, "soft", "best")
    assert confidence.tolist() == [s.scores["soft"] for s in best]
    assert correct.mean() == pytest.approx(np.mean([s.correct for s in best]), abs=0.01)
    fitted = calibrate(rows, "soft", "best", target_risk=0.3, held_out=others)
    assert fitted.after["ece"] < min(0.05, fitted.before["ece"])
    assert 0 < fitted.coverage < 1 and 0 < fitted.risk <= 0.33


def test_what_nobody_could_judge_takes_no_part_in_a_fit() -> None:
    """A judge that fails on sure answers teaches no fit that sure answers are wrong."""
    rows = drawn(1)
    lost = [
        sample(s.problem, 4 + k, False, 1.0, key="lost", logprob=-0.001, finish="error")
        for s in rows[::4]
        for k in range(2)
    ]
    assert fusion_of_samples([*rows, *lost]) == fusion_of_samples(rows)
    # In every third problem the surest answer, which is chosen, has no verdict.
    holes = [*rows]
    for n in range(0, len(rows), 12):
        holes[n] = sample(rows[n].problem, 0, False, 1.0, key="lost", logprob=-0.001, finish="error")
    judged = [s for n, s in enumerate(rows) if n // 4 % 3]
    assert np.isnan(chosen_confidence(holes, "soft", "best")[1]).sum() == len(rows) // 12
    found = calibrate(holes, "soft", "best", target_risk=0.3, held_out=holes)
    wanted = calibrate(judged, "soft", "best", target_risk=0.3, held_out=judged)
    assert (found.calibration, found.after) == (wanted.calibration, wanted.after)
    assert (found.coverage, found.risk) == (wanted.coverage, wanted.risk)
    assert calibrate(holes, "fused", "best").after["ece"] is not None


# --- the command --------------------------------------------------------------------------------------------


def run(*words: str) -> tuple[int, str]:
    shown = CliRunner().invoke(app, ["eval", *words])
    return shown.exit_code, " ".join(shown.output.split())


def calibrated(samples: Path, output: Path, verifier: str, *more: str) -> tuple[int, str]:
    return run("--calibrate", str(samples), "--output", str(output), "--verifier", verifier, *more)


def test_the_command(tmp_path: Path) -> None:
    """It writes beside the model or into a file; a folder without samples is named with what is missing."""
    write_samples(tmp_path / "samples.jsonl", {"task": "digits-pick", "weights": "abc"}, drawn(1))
    _, text = calibrated(tmp_path, tmp_path / "c.json", "fused")
    weight = Calibration.load(tmp_path / "c.json").fusion
    assert isinstance(weight, Fusion) and f"{weight.weight:g}" in text
    assert calibrated(tmp_path, tmp_path / "soft.json", "soft", "--test", str(tmp_path))[0] == 0
    code, text = run("adpo-digits", "--calibration", str(tmp_path / "soft.json"))
    assert code == 2 and "soft.json was fitted for the verifier 'soft'" in text
    code, text = calibrated(tmp_path / "samples.jsonl", tmp_path, "soft", "--target-risk", "0.4")
    assert code == 0 and "ece" in text and "answers" in text, text
    found = Calibration.load(tmp_path / "calibration.json")
    assert found.threshold is not None
    assert found.fitted_on["weights"] == "abc"
    (tmp_path / "empty").mkdir()
    for name, said in (("no.jsonl", "no.jsonl"), ("empty", "empty holds no samples")):
        code, text = calibrated(tmp_path / name, tmp_path / "c.json", "soft")
        assert code == 2 and said in text
