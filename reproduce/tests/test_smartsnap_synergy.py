"""Starts with and without evidence: what is averaged, what is paired, and where models lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reproduce import smartsnap_synergy
from reproduce.grid_file import load_study
from reproduce.smartsnap_synergy import SEED, SIDES, STARTS, synergy
from reproduce.statistics import MeasuredRun, ratio_run
from selfverify.core.errors import ConfigError

RIGHT = {"evidence": (3, 5), "message": (4, 4)}
"""Of ten tasks, what a side's first start does and what is trained from it; each next start one more."""


def run(done: int) -> MeasuredRun:
    return ratio_run({"sr": (np.arange(10) < done, np.ones(10))})


def test_sides_are_compared_before_and_after_and_in_their_gains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[str]] = {}

    def measured(model: str, store: Path, overrides: list[str], kinds: list[str]) -> MeasuredRun:
        folder = Path(model).relative_to(tmp_path)
        asked[folder.as_posix()] = overrides
        assert store.parent == tmp_path / "smartsnap-synergy/measured" / store.parent.name
        side, start, when = store.stem.split("-")
        return run(RIGHT[side][when == "trained"] + int(start))

    monkeypatch.setattr(smartsnap_synergy, "measured", measured)
    said: list[str] = []
    starts, trained = load_study("smartsnap-starts"), load_study("smartsnap-synergy")
    made = {
        f"smartsnap-starts/{t}/{v}/seed-{s}/model"
        for t in starts.tasks
        for v in starts.variants
        for s in starts.seeds
    }
    after = {f"smartsnap-synergy/{t}/{v}/seed-10/model" for t in trained.tasks for v in trained.variants}
    for folder in made | after:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder).with_name("metrics.json").write_text("{}")
    found = synergy(tmp_path, said.append)
    assert [*found] == ["tasks", "greedy"] and len(said) == 4
    tasks = found["tasks"]
    assert tasks["figures"]["evidence, start"]["sr"]["mean"] == pytest.approx(0.5)
    assert tasks["figures"]["evidence, trained"]["sr"]["mean"] == pytest.approx(0.7)
    differences = {name: row["sr"]["difference"] for name, row in tasks["differences"].items()}
    assert differences == pytest.approx(
        {
            "gain of evidence": 0.2,
            "gain of message": 0.0,
            "start: evidence − message": -0.1,
            "trained: evidence − message": 0.1,
            "gain: evidence − message": 0.2,
        }
    )
    gains = tasks["differences"]["gain of evidence"]["sr"]
    assert [*gains["per_seed"].values()] == pytest.approx([0.2] * 5)
    # Each start gains two tasks of ten, and each task counts the same on both sides.
    assert gains["interval"] is None or gains["interval"][0] <= 0.2 <= gains["interval"][1]
    for folder, overrides in asked.items():
        assert ("task.agent.evidence.source=last" in overrides) == ("message" in folder)
    # The models are those that the two studies make.
    paths = {o.partition("=")[2] for of in trained.tasks.values() for o in of if o.startswith("policy.path=")}
    assert {f"runs/{folder}" for folder in made} == paths and made <= {*asked}
    assert len(asked) == len(SIDES) * len(STARTS) * 2
    assert [*trained.seeds] == [SEED] and [*starts.seeds] == [*STARTS]
    # Of what is not trained yet, nothing is measured; three starts a side are the least.
    asked.clear()
    for number in (1, 4):
        (tmp_path / f"smartsnap-synergy/message-{number}/state/seed-10/metrics.json").unlink()
    synergy(tmp_path, said.append)
    assert {Path(folder).parent.name for folder in asked if "starts" in folder} == {
        "seed-0",
        "seed-2",
        "seed-3",
    }
    (tmp_path / "smartsnap-starts/evidence/work/seed-0/metrics.json").unlink()
    with pytest.raises(ConfigError, match=r"2 starts a side .* not there: .*evidence/work/seed-0"):
        synergy(tmp_path, said.append)
