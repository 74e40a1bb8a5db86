"""SmartSnap's tables of runs and evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from commands import command
from reproduce.smartsnap import agent_tables, app, markdown
from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe import load_recipe
from tables import yaml_cases


def figure(value: float, *interval: float) -> dict[str, Any]:
    return {"curves": {"pass@1": [value]}, "intervals": {"pass@1": [*interval]} if interval else {}}


def summary(success: float, name: str = "SR", **more: float) -> dict[str, Any]:
    """Ten problems, six of the clock and four of the contacts."""
    apps = {"clock": (6, success), "contacts": (4, success / 2)}
    return {
        "problems": 10,
        "samples_per_problem": 1,
        "metrics": {name: figure(success, success - 0.1, success + 0.1)}
        | {other.replace("_", "-"): figure(value) for other, value in more.items()},
        "categories": {
            "app": {app: {"problems": n, name: figure(value)} for app, (n, value) in apps.items()}
        },
    }


PHONE = ("smartsnap-phone-qwen3", "task.apps=[clock]")


def write(folder: Path, recipe_of: tuple[str, ...] = PHONE, **stages: dict[str, Any]) -> Path:
    """A folder with metrics.json; with one stage it is an evaluation."""
    folder.mkdir()
    name, *options = recipe_of
    recipe = load_recipe(name, ["learner.steps=2", "learner.groups_per_step=3", *options])
    written = {**stages, "settings": recipe.model_dump(mode="json")}
    (folder / "metrics.json").write_text(json.dumps(written))
    if "before" not in stages:
        (folder / "samples.jsonl").touch()
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    before = summary(0.04, Sub_SR=0.1, ROR_xml=0.5)
    after = summary(0.3, Sub_SR=0.4, RRR=1.2, ROR=0.9, evidence=1.5, completeness=0.8)
    return write(tmp_path / "rl", before=before, after=after)


def cells(text: str, *first: str) -> list[str]:
    """The cells of the only line that begins with these."""
    start = "| " + " | ".join(first) + " |"
    lines = [line for line in text.splitlines() if line.startswith(start)]
    assert len(lines) == 1, text
    return lines[0].strip("| ").split(" | ")[len(first) :]


def test_a_run_has_a_row_for_each_stage(run: Path) -> None:
    text = markdown(agent_tables([str(run)]))
    assert cells(text, "before rl") == ["6 (60.0%)", "4 (40.0%)", "10"]
    table_2, rest = text.split("## Table 2")[1].split("## Table 3")
    assert cells(table_2, "before", "rl", "10") == ["4.0 [−6.0, 14.0]", "10.0", "–", "–", "50.0", "–"]
    assert cells(table_2, "after", "rl", "10") == ["30.0 [20.0, 40.0]", "40.0", "120.0", "90.0", "–", "–"]
    assert cells(rest.split("## Evidence")[0], "after", "rl", "10") == ["30.0", "15.0"]
    assert cells(rest.split("## Evidence")[1], "after", "rl", "10") == ["1.500", "80.0", "–", "–", "–", "–"]
    assert "arXiv" not in text


def test_rows_have_names_and_gains(run: Path, tmp_path: Path) -> None:
    vanilla = write(tmp_path / "vanilla", after=summary(0.02))
    named = [f"PT:small={run}@before", f"FT vanilla:small={vanilla}", f"RL:small={run}"]
    with pytest.raises(ConfigError, match="two rows are called PT small"):
        agent_tables([named[0], named[0]])
    found = agent_tables(named)
    assert [row[:2] for row in found.figures] == [
        ("PT", "small"), ("FT vanilla", "small"), ("RL", "small"),
    ]  # fmt: skip
    assert found.figures["RL", "small", "10"]["above PT"]["mean"] == pytest.approx(0.26)
    text = markdown(found)
    assert "30.0 [20.0, 40.0]" in text and "| +26.0 |" in text and "| −2.0 |" in text


def test_lost_environments_are_noted(tmp_path: Path) -> None:
    folder = write(tmp_path / "lossy", after=summary(0.3, SR_all=0.25))
    [note] = agent_tables([f"RL:m={folder}"]).notes
    assert note.startswith("RL m: SR is over the tasks whose environment was not lost") and "25.0" in note
    assert not agent_tables([str(write(tmp_path / "whole", after=summary(0.3, SR_all=0.3)))]).notes


def test_success_that_only_judges_know_is_marked(tmp_path: Path) -> None:
    """Of all problems: who hands nothing in has not been found to be done."""
    measured = {**summary(0.8, "judged-SR"), "pass@1": 0.5}
    for name, share in (("clock", 0.5), ("contacts", 0.25)):
        measured["categories"]["app"][name]["accuracy"] = figure(share)
    folder = write(tmp_path / "judged", after=measured)
    text = markdown(agent_tables([f"PT:model={folder}"]))
    assert "PT model: SR is what judges say" in text
    assert cells(text.split("## Table 2")[1].split("##")[0], "PT", "model", "10")[0] == "50.0"
    assert cells(text.split("## Table 3")[1].split("##")[0], "PT", "model", "10") == ["50.0", "25.0"]


def test_the_papers_figures_stand_beside(run: Path) -> None:
    text = markdown(agent_tables([str(run)]), paper=True)
    row = cells(text.split("## Table 3")[0], "RL [arXiv:2512.22322]", "Qwen3-8B-Instruct", "138")
    assert row[:4] == ["36.2", "42.0", "88.0", "94.5"]
    assert "| PT, cited [arXiv:2512.22322] | LLaMA3.1-8B-Instruct | 138 | 2.2 | 3.6 | – | 52.8 |" in text
    assert "227 (31.3%)" in text and text.count("## Table 3") == 2


@yaml_cases
def test_what_makes_no_row(tmp_path: Path, named: str, message: str) -> None:
    folder = write(tmp_path / "words", ("grpo-math",), after={"problems": 3, "metrics": {}})
    with pytest.raises(ConfigError, match=message):
        agent_tables([named.format(words=folder)])


def test_a_folder_may_have_an_equals_sign_in_its_name(run: Path, tmp_path: Path) -> None:
    folder = run.rename(tmp_path / "lr=1e-6")
    for form in ("{}", "{}@after", "RL:tiny={}", "RL:tiny={}@after"):
        assert [*agent_tables([form.format(folder)]).figures][-1][1] in ("tiny", "lr=1e-6")


def test_the_command(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "tables.md"
    done = command("tables", str(run), "--paper", "--output", str(file), of=app)
    assert done.stdout == file.read_text()
    assert "there is no folder gone" in command("tables", "gone", code=2, of=app).stderr
