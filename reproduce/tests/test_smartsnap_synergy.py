"""Starts with and without evidence: what is averaged, what is paired, and where models lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reproduce import smartsnap_synergy
from reproduce.grid_file import load_study
from reproduce.smartsnap_synergy import SEEDS, SIDES, STARTS, averaged, synergy
from reproduce.statistics import MeasuredRun, ratio_run

RIGHT = {"evidence": (4, 7), "message": (5, 6)}
"""Of ten tasks, what a side's first start does and what is trained from it; each next start one more."""


def run(done: int) -> MeasuredRun:
    return ratio_run({"sr": (np.arange(10) < done, np.ones(10))})


def test_two_models_of_one_start_count_as_one() -> None:
    both = averaged([run(4), run(6)])
    assert [*both] == ["sr"] and both["sr"].value == 0.5 and both["sr"].share
    # Taking a task away that one of the two does changes the mean by half of what it changes that one.
    assert both["sr"].changes == pytest.approx((run(4)["sr"].changes + run(6)["sr"].changes) / 2)
    assert averaged([run(4), {}]) == {}


def test_sides_are_compared_before_and_after_and_in_their_gains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[str]] = {}

    def measured(model: str, store: Path, overrides: list[str], kinds: list[str]) -> MeasuredRun:
        folder = Path(model).relative_to(tmp_path)
        asked[folder.as_posix()] = overrides
        assert store.parent == tmp_path / "smartsnap-synergy/measured" / store.parent.name
        side, start, *seed = store.stem.split("-")
        return run(RIGHT[side][bool(seed)] + int(start) + (int(seed[0]) if seed else 0))

    monkeypatch.setattr(smartsnap_synergy, "measured", measured)
    said: list[str] = []
    found = synergy(tmp_path, said.append)
    assert [*found] == ["tasks", "greedy"] and len(said) == 4
    tasks = found["tasks"]
    assert tasks["figures"]["evidence, start"]["sr"]["mean"] == pytest.approx(0.5)
    assert tasks["figures"]["evidence, trained"]["sr"]["mean"] == pytest.approx(0.85)
    differences = {name: row["sr"]["difference"] for name, row in tasks["differences"].items()}
    assert differences == pytest.approx(
        {
            "gain of evidence": 0.35,
            "gain of message": 0.15,
            "start: evidence − message": -0.1,
            "trained: evidence − message": 0.1,
            "gain: evidence − message": 0.2,
        }
    )
    assert tasks["differences"]["gain of evidence"]["sr"]["per_seed"] == pytest.approx(
        {"0": 0.35, "1": 0.35, "2": 0.35}
    )
    for folder, overrides in asked.items():
        assert ("task.agent.evidence.source=last" in overrides) == ("message" in folder)
    # The models are those that the two studies make.
    starts, trained = load_study("smartsnap-starts"), load_study("smartsnap-synergy")
    made = {
        f"smartsnap-starts/{t}/{v}/seed-{s}/model"
        for t in starts.tasks
        for v in starts.variants
        for s in starts.seeds
    }
    paths = {o.partition("=")[2] for of in trained.tasks.values() for o in of if o.startswith("policy.path=")}
    assert {f"runs/{folder}" for folder in made} == paths and made <= {*asked}
    assert len(asked) == len(SIDES) * len(STARTS) * (1 + len(SEEDS))
    assert [*trained.seeds] == [*SEEDS] and [*starts.seeds] == [*STARTS]
