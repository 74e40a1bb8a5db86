"""`reproduce.adapo` puts a study's differences and its runs at T = 0 into one file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.samples import sample, turned, write_samples

from reproduce import adapo as program
from reproduce.grid_results import task_results
from selfverify.experiments.recipe import load_recipe, to_yaml

RECIPE = load_recipe("adapo-digits-check", ["evaluation.problems=4"])


def write(folder: Path, pairs: str) -> None:
    folder.mkdir(parents=True)
    write_samples(folder / "samples.jsonl", {}, turned(pairs))


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """A study of AdaPO with two seeds and of GRPO with one, and their samples at T = 0."""
    study, zero = tmp_path / "study", tmp_path / "greedy"
    samples = {
        "adapo": {0: turned("11 11 01 01"), 1: turned("11 11 01 00")},
        "grpo": {0: turned("11 11 11 00")},
    }
    before = turned("11 01 00 00")
    task = task_results(before, samples, dict.fromkeys(samples, RECIPE), "adapo")
    run = study / "pick" / "adapo" / "seed-0"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text(to_yaml(RECIPE))
    whole = {"study": "s", "baseline": "adapo", "tasks": {"pick": task}}
    (study / "results.json").write_text(json.dumps(whole))
    write(zero / "before", "11 11 10 00")
    write(zero / "adapo" / "seed-0", "11 11 01 00")
    write(zero / "adapo" / "seed-1", "11 01 01 00")
    write(zero / "grpo" / "seed-0", "11 10 11 00")
    return [str(study), "--greedy", str(zero)]


def test_figures(folders: list[str], tmp_path: Path) -> None:
    out = tmp_path / "o.json"
    program.main([*folders, "--output", str(out)])
    found = json.loads(out.read_text())
    assert (found["steps"], found["problems_per_step"], found["trajectories_per_problem"]) == (150, 24, 8)
    assert found["seeds"] == {"adapo": [0, 1], "grpo": [0]}
    # GRPO has seed 0 alone: 1 - 3/4. All of AdaPO's seeds against the start's 1/2.
    over = found["acc_t2_over"]
    assert over["grpo"]["difference"] == pytest.approx(0.25)
    assert over["grpo"]["seeds"] == 1
    assert over["before"]["difference"] == pytest.approx(0.875 - 0.5)
    assert over["grpo"]["low"] < 0.25 < over["grpo"]["high"]
    assert found["acc_t1_gap_to_grpo"]["difference"] == pytest.approx(0.5 - 0.75)
    assert found["m10_greedy"]["adapo"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert found["m10_greedy"]["before"]["value"] == 0.25
    assert found["m01_greedy"]["adapo"]["value"] == pytest.approx((1 + 2) / 8)
    assert found["acc_t2_over_greedy"]["grpo"]["difference"] == pytest.approx(0.75 - 0.5)
    assert found["problems_greedy"] == 4


Change = Callable[[Path, Path], object]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda study, _: (study / "results.json").unlink(), "no results.json"),
        (lambda study, _: (study / "results.json").write_text("{"), "results.json is not what"),
        (lambda study, _: (study / "results.json").write_text("{}"), "results.json is not what"),
        (
            lambda _, zero: write_samples(
                zero / "before" / "samples.jsonl", {"temperature": 1.0}, turned("11 11 10 00")
            ),
            "before was sampled at T = 1; evaluate anew with evaluation.temperature=0",
        ),
        (
            lambda study, zero: (zero / "adapo" / "seed-1" / "samples.jsonl").unlink(),
            "seed-1 holds no samples",
        ),
        (lambda study, zero: write_samples(zero / "before" / "samples.jsonl", {}, turned("11")), "problems"),
        (
            lambda study, zero: write_samples(
                zero / "before" / "samples.jsonl", {}, [sample("p0", 0, True, None)]
            ),
            "no second turns",
        ),
    ],
)
def test_bad_input(
    folders: list[str],
    change: Change,
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    change(Path(folders[0]), Path(folders[2]))
    with pytest.raises(SystemExit):
        program.main(folders)
    assert says in capsys.readouterr().err


def test_another_task(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        program.main([*folders, "--task", "sum"])
    assert "no task 'sum', but pick" in capsys.readouterr().err


def test_a_study_of_single_turns(folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(folders[0]) / "results.json"
    whole = json.loads(file.read_text())
    del whole["tasks"]["pick"]["variants"]["adapo"]["gain"]["turns.acc@t2"]
    file.write_text(json.dumps(whole))
    with pytest.raises(SystemExit):
        program.main(folders)
    assert "'pick' has no second turns" in capsys.readouterr().err
