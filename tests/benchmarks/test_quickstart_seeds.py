"""`benchmarks/quickstart_seeds.py` says which goals several seeds reach."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests.samples import sample, write_samples

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ERRORS = (None, "wrong sum", "digit not shown")


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("quickstart_seeds")


def write(path: Path, signal: float, seed: int, problems: int = 30) -> None:
    """Eight samples a problem, three right; right ones have scores that are higher by ``signal``."""
    rng = np.random.default_rng(seed)
    rows = [
        sample(
            f"p{p}", n, n < 3, float(np.clip(0.4 + signal * (n < 3) + 0.2 * rng.normal(), 0, 1)),
            key="r" if n < 3 else f"w{n}", error=None if n < 3 else ERRORS[1 + n % 2],
            logprob=float(rng.normal()),
        )
        for p in range(problems)
        for n in range(8)
    ]  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    write_samples(path, {}, rows)


def folders(tmp_path: Path, signals: tuple[float, float]) -> list[str]:
    words: dict[str, list[str]] = {"runs": [], "before": [], "after": []}
    for seed in range(2):
        run = tmp_path / f"run-{seed}"
        for stage, signal in zip(("before", "after"), signals, strict=True):
            write(run / f"samples-{stage}.jsonl", signal, 10 * seed + len(stage))
            folder = tmp_path / f"{stage}-{seed}"
            write(folder / "samples.jsonl", signal, 50 + 10 * seed + len(stage))
            words[stage].append(str(folder))
        words["runs"].append(str(run))
    return [word for name, values in words.items() for word in (f"--{name}", *values)]


def test_a_verifier_that_learns(program: ModuleType, tmp_path: Path, capsys: Any) -> None:
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


def test_one_that_does_not(program: ModuleType, tmp_path: Path, capsys: Any) -> None:
    program.main(folders(tmp_path, (0.3, 0.3)))
    goals = json.loads(capsys.readouterr().out.splitlines()[-1])["goals"]
    assert not goals["auc_over_before"]["reached"]


def test_what_is_level_is_not_above(program: ModuleType) -> None:
    draws = np.array([-0.02, 0.0, 0.02])
    level = [{"fused.best@8": (0.8, draws), "weighted@8": (0.8, draws)}]
    found = program.judged(program.GOALS["fused_over_weighted"], level, level, 30)
    assert (found["value"], found["more_than"], found["reached"]) == (0.0, 0.0, False)
    more = [{"fused.best@8": (0.81, draws), "weighted@8": (0.8, draws)}]
    assert program.judged(program.GOALS["fused_over_weighted"], level, more, 30)["reached"]
    assert "reached" not in program.judged(program.GOALS["fused_over_weighted_before"], level, more, 30)


def test_seeds_that_lack_an_evaluation(program: ModuleType, tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        program.main(folders(tmp_path, (0.0, 0.5))[:-1])
    assert "one folder for each seed" in capsys.readouterr().err
