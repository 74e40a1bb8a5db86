"""`reproduce.quickstart_seeds` says which goals several seeds reach."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import sample, write_samples

from reproduce import quickstart_seeds as program
from selfverify.evaluation.samples import StoredSample, read_samples

ERRORS = (None, "wrong sum", "digit not shown")


def write(path: Path, signal: float, seed: int, split: str, order: Sequence[int] = range(30)) -> None:
    """Eight samples a problem, three right; right ones have scores that are higher by ``signal``."""
    rng = np.random.default_rng(seed)
    rows = [
        sample(
            f"{split}/{p}", n, n < 3, float(np.clip(0.4 + signal * (n < 3) + 0.2 * rng.normal(), 0, 1)),
            key="r" if n < 3 else f"w{n}", error=None if n < 3 else ERRORS[1 + n % 2],
            logprob=float(rng.normal()),
        )
        for p in order
        for n in range(8)
    ]  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    write_samples(path, {}, rows)


def folders(tmp_path: Path, signals: tuple[float, float]) -> list[str]:
    words: dict[str, list[str]] = {"runs": [], "before": [], "after": []}
    for seed in range(2):
        run = tmp_path / f"run-{seed}"
        for stage, signal in zip(("before", "after"), signals, strict=True):
            write(run / f"samples-{stage}.jsonl", signal, 10 * seed + len(stage), "validation")
            folder = tmp_path / f"{stage}-{seed}"
            write(folder / "samples.jsonl", signal, 50 + 10 * seed + len(stage), "test")
            words[stage].append(str(folder))
        words["runs"].append(str(run))
    return [word for name, values in words.items() for word in (f"--{name}", *values)]


def test_a_verifier_that_learns(tmp_path: Path, capsys: Any) -> None:
    program.main([*folders(tmp_path, (0.0, 0.6)), "--output", str(tmp_path / "found.json")])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found == json.loads((tmp_path / "found.json").read_text())
    assert (found["seeds"], found["problems"], found["samples"]) == (2, 30, 8)
    assert found["before"]["pass@1"]["value"] == found["after"]["pass@1"]["value"] == 0.375
    goals = found["goals"]
    assert (
        goals["auc"]["reached"]
        and goals["auc_over_before"]["reached"]
        and goals["fused_over_before"]["reached"]
    )
    assert goals["auc_over_before"]["value"] == pytest.approx(
        np.mean([a["within_problem_auc"] for a in found["after_by_seed"]])
        - np.mean([b["within_problem_auc"] for b in found["before_by_seed"]])
    )
    assert goals["pass_over_before"] | {"interval": None} == {
        "value": 0, "interval": None, "at_least": 0.0, "more_than": None, "interval_above": None,
        "reached": True,
    }  # fmt: skip
    # Three of eight agree on the right answer, and no two wrong ones do.
    assert goals["best_over_majority"]["value"] < 0 and not goals["best_over_majority"]["reached"]
    assert set(found["start_on_validation"]) == {"wrong sum", "digit not shown"}


def test_one_that_does_not(tmp_path: Path, capsys: Any) -> None:
    program.main(folders(tmp_path, (0.3, 0.3)))
    goals = json.loads(capsys.readouterr().out.splitlines()[-1])["goals"]
    assert not goals["auc_over_before"]["reached"]


def test_what_is_level_is_not_above() -> None:
    draws = np.array([-0.02, 0.0, 0.02])
    level = [{"fused.best@8": (0.8, draws), "weighted@8": (0.8, draws)}]
    found = program.judged(program.GOALS["fused_over_weighted"], level, level, 30)
    assert (found["value"], found["more_than"], found["reached"]) == (0.0, 0.0, False)
    more = [{"fused.best@8": (0.81, draws), "weighted@8": (0.8, draws)}]
    assert program.judged(program.GOALS["fused_over_weighted"], level, more, 30)["reached"]
    assert "reached" not in program.judged(program.GOALS["fused_over_weighted_before"], level, more, 30)


def test_seeds_that_lack_an_evaluation(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        program.main(folders(tmp_path, (0.0, 0.5))[:-1])
    assert "one folder for each seed" in capsys.readouterr().err


def rows(*names: str, **changes: Any) -> list[StoredSample]:
    return [sample(name, n, n < 3, 0.1 * n, **changes) for name in names for n in range(8)]


TESTED = [f"test/{p}" for p in range(30)]


@pytest.mark.parametrize(
    ("change", "names", "says"),
    [
        (lambda p: write(p / "run-1/samples-after.jsonl", 0.5, 3, "test"), "run-1", "split=validation"),
        (lambda p: write(p / "after-1/samples.jsonl", 0.5, 3, "other"), "after-1", "60 differ"),
        (lambda p: write(p / "after-1/samples.jsonl", 0.5, 3, "test", range(20)), "after-1", "10 differ"),
        (
            lambda p: write_samples(p / "after-1/samples.jsonl", {"temperature": 0.2}, rows(*TESTED)),
            "after-1", "temperature",
        ),
        (
            lambda p: write_samples(p / "before-0/samples.jsonl", {}, rows(*TESTED)[::2]),
            "before-0", "evaluation.samples=8",
        ),
        (
            lambda p: write_samples(p / "before-0/samples.jsonl", {}, rows(*TESTED)[1:]),
            "before-0", "every problem needs the same number",
        ),
        (
            lambda p: write_samples(p / "after-0/samples.jsonl", {}, rows(*TESTED, scores={})),
            "after-0", "best@8",
        ),
        (
            lambda p: write_samples(p / "run-0/samples-before.jsonl", {}, rows("v", scores={})),
            "run-0", "a fusion needs such problems",
        ),
        (
            lambda p: write_samples(p / "run-0/samples-before.jsonl", {}, rows("v", "w")),
            "run-0", "",
        ),
        (lambda p: (p / "run-1/samples-after.jsonl").unlink(), "run-1", "no folder and no file"),
    ],
)  # fmt: skip
def test_evaluations_that_cannot_be_compared(
    tmp_path: Path,
    capsys: Any,
    change: Callable[[Path], object],
    names: str,
    says: str,
) -> None:
    given = folders(tmp_path, (0.0, 0.5))
    change(tmp_path)
    with pytest.raises(SystemExit):
        program.main(given)
    line = capsys.readouterr().err.splitlines()[-1]
    assert names in line and says in line


def test_the_order_of_the_problems_does_not_matter(tmp_path: Path, capsys: Any) -> None:
    """Another order draws other samples here, so the same file is written the other way round."""
    given = folders(tmp_path, (0.0, 0.6))
    program.main(given)
    first = json.loads(capsys.readouterr().out.splitlines()[-1])
    store = tmp_path / "after-1" / "samples.jsonl"
    write_samples(store, {}, read_samples(store)[1][::-1])
    program.main(given)
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == first
