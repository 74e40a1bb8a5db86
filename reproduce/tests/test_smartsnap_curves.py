"""Curves of a study's runs: means of twenty steps, by seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from reproduce.smartsnap_curves import SHOWN, curves, draw
from selfverify.core.errors import ConfigError


def write(study: Path, variant: str, seed: int, done: list[float]) -> None:
    folder = study / "phone" / variant / f"seed-{seed}"
    folder.mkdir(parents=True)
    rows = [{"step": n, **dict.fromkeys(SHOWN, 0.5), "agent/SR": of} for n, of in enumerate(done, start=1)]
    del rows[3]["agent/judge-recall"]  # a step in which nothing was done
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_steps_are_averaged_by_twenties_and_seeds_stay_apart(tmp_path: Path) -> None:
    write(tmp_path, "rules", 0, [0.0] * 20 + [1.0] * 20)
    write(tmp_path, "rules", 1, [0.2] * 20 + [0.5] * 10 + [0.7] * 10)
    (tmp_path / "phone/before").mkdir()
    said: list[str] = []
    found = curves(tmp_path, said.append)
    assert [*found] == ["rules"] and [*found["rules"]] == [*SHOWN]
    assert found["rules"]["agent/SR"] == {"0": [0.0, 1.0], "1": pytest.approx([0.2, 0.6])}
    assert found["rules"]["agent/judge-recall"]["0"] == [0.5, 0.5]
    first, last = said
    assert "| rules | 50.0 | 10.0 |" in first and "| rules | 50.0 | 80.0 |" in last


def test_the_figure_has_a_panel_for_each_variant(tmp_path: Path) -> None:
    """Those that begin alike share a row."""
    sizes = []
    for variant in ["a-10", "a-30", "rules", "b-10"]:
        write(tmp_path, variant, 0, [0.0] * 20 + [1.0] * 20)
        draw(curves(tmp_path, lambda said: None), tmp_path / "figure.png")
        with Image.open(tmp_path / "figure.png") as image:
            sizes.append(image.size)
    assert sizes[0][0] < sizes[1][0] < sizes[2][0] and len({height for _, height in sizes[:3]}) == 1
    assert sizes[3][1] > sizes[2][1]  # a row more


def test_runs_that_are_not_finished_are_not_averaged(tmp_path: Path) -> None:
    write(tmp_path, "rules", 0, [0.0] * 40)
    write(tmp_path, "rules", 1, [0.0] * 20)
    with pytest.raises(ConfigError, match="different numbers of steps"):
        curves(tmp_path)


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no runs with steps"):
        curves(tmp_path)
