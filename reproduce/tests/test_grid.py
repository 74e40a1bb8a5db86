"""Running a study: what is run, skipped and taken up again, and that failures stay alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from reproduce import grid
from reproduce import one_run as worker
from reproduce.grid import StudyJob, run_study
from reproduce.grid_file import GRIDS, built_in, load_study, overrides_of, plan
from samples import sample, write_samples
from selfverify.core.errors import ConfigError, DataError
from selfverify.evaluation.samples import StoredSample
from selfverify.experiments.recipe import load_recipe, to_yaml
from tables import yaml_cases


def random_answers(recipe: Any, seed: int) -> list[StoredSample]:
    """Samples of a task's own problems, better the higher the seed."""
    rng, box = np.random.default_rng(seed), [1, 2, 30, 40]
    found = []
    for index in range(recipe.evaluation.problems):
        for number in range(recipe.evaluation.samples):
            right = bool(rng.random() < 0.4 + 0.1 * seed)
            changes: dict[str, Any] = {}
            if recipe.task.name == "digits-locate":
                changes = {"answer": box, "key": None, "rewards": {"answer": rng.random(), "format": 1.0}}
            score = round(float(np.clip(0.4 + 0.2 * right + rng.normal(0, 0.2), 0, 1)), 1)
            found.append(sample(f"{recipe.task.name}/test/0/{index}", number, right, score, **changes))
    return found


class FakeLaunch:
    """Stands for the worker: writes what a run leaves, or fails for labels that hold a given text."""

    def __init__(self, fail: str = "\0") -> None:
        self.fail = fail
        self.done: list[str] = []

    def __call__(self, job: StudyJob, threads: int) -> int:
        self.done.append(job.label)
        if self.fail in job.label:
            return 1
        assert load_recipe(job.folder) == job.recipe, "the worker reads its recipe from the folder"
        samples = random_answers(job.recipe, job.recipe.seed + ("adpo" in job.label))
        if job.before is None:
            write_samples(job.folder / "samples.jsonl", {}, samples)
        else:
            assert job.before.is_file()
            write_samples(job.folder / "samples-after.jsonl", {}, samples)
            steps = [{"step": k, "verification/score_is_1": 0.1 * k} for k in (1, 2, 3)]
            (job.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in steps))
        (job.folder / "metrics.json").write_text('{"before": {"pass@1": 0.5}, "after": {"pass@1": 0.5}}')
        return 0


def quiet(text: str) -> None:
    pass


def test_a_study_runs_and_skips_what_is_finished(file: Path, tmp_path: Path) -> None:
    study, out, launch = load_study(file), tmp_path / "out", FakeLaunch()
    results_file, failures = run_study(study, out, jobs=2, say=quiet, launch=launch)
    assert sorted(launch.done[:2]) == ["locate/before", "pick/before"]
    assert len(launch.done) == 2 + 10 and not failures
    assert results_file == out / "results.json"
    results = json.loads(results_file.read_text())
    assert list(results["tasks"]["locate"]["variants"]) == ["grpo", "adpo", "wide"]
    assert results["missing"] == []
    table = (out / "table.md").read_text()
    assert "| wide | 2 | " in table and "| before | – | " in table
    assert "Difference from **adpo**" in table

    again = FakeLaunch()
    run_study(study, out, say=quiet, launch=again)
    assert again.done == []
    # One that is not finished is taken up again, and the others stay.
    (out / "pick/grpo/seed-1/metrics.json").unlink()
    run_study(study, out, say=quiet, launch=again, only=["adpo"])
    results_file, failures = run_study(study, out, say=quiet, launch=again, report_only=True)
    assert again.done == [] and results_file is not None
    assert json.loads(results_file.read_text())["missing"] == ["pick/grpo/seed-1"]
    run_study(study, out, say=quiet, launch=again)
    assert again.done == ["pick/grpo/seed-1"]


def test_a_failed_run_is_reported_and_the_others_go_on(file: Path, tmp_path: Path) -> None:
    """But for those of a task whose first evaluation failed."""
    launch, study = FakeLaunch(fail="pick/grpo/seed-0"), load_study(file)
    _, failures = run_study(study, tmp_path / "out", say=quiet, launch=launch)
    assert len(launch.done) == 12
    log = tmp_path / "out/pick/grpo/seed-0/log.txt"
    assert failures == {"pick/grpo/seed-0": f"exit status 1, see {log}"}
    results = json.loads((tmp_path / "out/results.json").read_text())
    assert results["missing"] == ["pick/grpo/seed-0"]
    found = results["tasks"]["pick"]["variants"]["grpo"]
    assert found["seeds"] == [1] and list(found["difference"]["pass@1"]["per_seed"]) == ["1"]
    launch = FakeLaunch(fail="locate/before")
    _, *others = run_study(study, tmp_path / "other", say=quiet, launch=launch)[1].values()
    assert len(launch.done) == 2 + 4 and len(others) == 6
    assert {*others} == {"not started, locate/before failed"}


def test_a_folder_with_another_recipes_run_is_refused(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_study(load_study(file), out, say=quiet, launch=FakeLaunch())
    out.rename(tmp_path / "moved")
    launch = FakeLaunch()
    run_study(load_study(file), tmp_path / "moved", say=quiet, launch=launch)
    assert launch.done == [], "where a run lies is no part of its recipe"
    file.write_text(file.read_text().replace("seeds: [0, 1]", "seeds: [0]\noverrides: [learner.steps=4]"))
    with pytest.raises(ConfigError, match=r"learner\.steps was 3 and is now 4.*Delete the folder"):
        run_study(load_study(file), tmp_path / "moved", say=quiet, launch=FakeLaunch())


def test_runs_of_another_version_are_named_or_refused(file: Path, tmp_path: Path) -> None:
    """Their figures are not mixed in without a word; a recipe that is not read says what to do."""
    study, out = load_study(file), tmp_path / "out"
    run_study(study, out, say=quiet, launch=FakeLaunch())
    assert json.loads((out / "results.json").read_text())["notes"] == []
    for label in ("pick/grpo/seed-1", "pick/before"):
        path = out / label / "metrics.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"version": "0.0.1"}))
    run_study(study, out, say=quiet, launch=FakeLaunch())
    [note] = json.loads((out / "results.json").read_text())["notes"]
    assert "Made with version 0.0.1" in note and "pick/grpo/seed-1, pick/before. Delete" in note
    assert (out / "table.md").read_text().endswith(f"{note}\n")
    recipe = out / "pick/grpo/seed-1/recipe.yaml"
    recipe.write_text(f"old_key: 3\n{recipe.read_text()}")
    with pytest.raises(ConfigError, match=r"grpo/seed-1 holds a run.*old_key.*another version.*Delete the"):
        run_study(study, out, say=quiet, launch=FakeLaunch())


def test_tables_name_the_file_that_is_missing_or_cut_short(file: Path, tmp_path: Path) -> None:
    study, folder = load_study(file, "0"), tmp_path / "out"
    run_study(study, folder, say=quiet, launch=FakeLaunch())
    samples = folder / "pick" / "adpo" / "seed-0" / "samples-after.jsonl"
    lines = samples.read_text().splitlines(keepends=True)
    samples.write_text("".join(lines[:-1]))
    with pytest.raises(
        DataError, match=r"digits-pick, adpo, seed 0: .* 1 differ, such as digits-pick/test/0/3"
    ):
        run_study(study, folder, report_only=True, say=quiet)
    samples.unlink()
    with pytest.raises(DataError, match=r"adpo/seed-0/samples-after\.jsonl is missing; delete metrics\.json"):
        run_study(study, folder, report_only=True, say=quiet)
    (samples.parent / "metrics.json").write_text('{"before": 3}')
    with pytest.raises(DataError, match=r"metrics\.json: before: Input should be an object, but is 3"):
        run_study(study, folder, report_only=True, say=quiet)


@pytest.mark.parametrize(
    ("text", "said"), [('{"after": {}}', "holds no evaluation; delete it"), ("{", "is not valid JSON")]
)
def test_a_worker_needs_the_shared_evaluation(file: Path, tmp_path: Path, text: str, said: str) -> None:
    before = tmp_path / "metrics.json"
    before.write_text(text)
    shown = CliRunner().invoke(worker.app, [str(tmp_path), str(before)])
    assert shown.exit_code == 2
    assert shown.stderr.startswith(f"error: {tmp_path}: this folder holds no recipe.yaml")
    recipe = plan(load_study(file), tmp_path)[0].recipe
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    shown = CliRunner().invoke(worker.app, [str(tmp_path), str(before)])
    assert shown.exit_code == 2 and f"error: {before} {said}" in shown.stderr


def test_workers_are_processes_with_a_log(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import os, sys; print(os.environ['OMP_NUM_THREADS'], sys.argv[1:], file=sys.stderr);"
        "sys.exit(3 if 'grpo' in sys.argv[1] else 0)"
    )
    monkeypatch.setattr(grid, "WORKER", [sys.executable, "-c", script])
    out = tmp_path / "out"
    for task in ("pick", "locate"):
        (out / task / "before").mkdir(parents=True)
        (out / task / "before/metrics.json").write_text("{}")
    results_file, failures = run_study(load_study(file, seeds="0"), out, jobs=64, say=quiet)
    assert failures["pick/grpo/seed-0"].startswith("exit status 3, see ")
    assert failures["pick/adpo/seed-0"].startswith("ended without metrics.json, see ")
    assert results_file is None
    before = str(out / "pick/before/metrics.json")
    assert (out / "pick/grpo/seed-0/log.txt").read_text() == f"1 {[str(out / 'pick/grpo/seed-0'), before]}\n"


def test_a_worker_resumes_with_the_shared_evaluation(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = plan(load_study(file), tmp_path)[0].recipe
    recipe.folder.mkdir(parents=True)
    (recipe.folder / "recipe.yaml").write_text(to_yaml(recipe))
    calls: list[Any] = []
    monkeypatch.setattr(worker, "build", lambda recipe: (None, None, None))
    monkeypatch.setattr(worker, "measure", lambda *given, **named: {"pass@1": 0.25})
    monkeypatch.setattr(worker, "train", lambda *given, **named: calls.append((given[:2], named)))
    worker.work(recipe.folder)  # which makes the evaluation
    shared = recipe.folder.rename(tmp_path / "before") / "metrics.json"
    recipe.folder.mkdir(parents=True)
    (recipe.folder / "recipe.yaml").write_text(to_yaml(recipe))
    worker.work(recipe.folder, shared)
    assert calls == [((recipe, True), {"before": {"pass@1": 0.25}})]


STUDY = """
import sys
from pathlib import Path
from reproduce import grid
from reproduce.grid_file import load_study
grid.WORKER = [sys.executable, "-c", sys.argv[3]]
grid.run_study(load_study(sys.argv[1]), Path(sys.argv[2]), jobs=2)
"""
WAITING = """
import os, signal, sys, time
from pathlib import Path
from selfverify.core.worker import end_with_parent
signal.signal(signal.SIGINT, signal.default_int_handler)
end_with_parent(lambda: os.kill(os.getpid(), signal.SIGINT), 60.0)
try:
    (Path(sys.argv[1]) / "begun").touch()
    time.sleep(300)
except KeyboardInterrupt:
    (Path(sys.argv[1]) / "ended").touch()
"""


def test_a_killed_study_takes_its_workers_with_it(file: Path, tmp_path: Path) -> None:
    """And nobody else works on it meanwhile."""
    out = tmp_path / "out"

    def until(name: str) -> None:
        deadline = time.monotonic() + 180  # workers import torch, slowly where the machine is busy
        while len([*out.rglob(name)]) < 2:
            assert time.monotonic() < deadline, f"there are not two files {name}"
            time.sleep(0.02)

    study = subprocess.Popen([sys.executable, "-c", STUDY, str(file), str(out), WAITING])
    until("begun")
    with pytest.raises(ConfigError, match=f"{out} is in use: process {study.pid} "):
        run_study(load_study(file), out, say=quiet, launch=FakeLaunch())
    run_study(load_study(file), out, report_only=True, say=quiet)
    os.kill(study.pid, signal.SIGKILL)
    study.wait()
    until("ended")


# --- the file of a grid -------------------------------------------------------------------------------------


@yaml_cases
def test_a_wrong_file_is_refused_by_name(file: Path, old: str, new: str, said: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ConfigError) as caught:
        plan(load_study(file), Path("out"))
    assert said in str(caught.value)


def test_a_variant_replaces_the_method_section(file: Path) -> None:
    study = load_study(file)
    runs = {run.label: run.recipe for run in plan(study, Path("out"))}
    assert list(runs)[:6] == [
        "pick/grpo/seed-0", "pick/adpo/seed-0", "locate/grpo/seed-0", "locate/adpo/seed-0",
        "locate/wide/seed-0", "pick/grpo/seed-1",
    ]  # fmt: skip
    assert runs["pick/adpo/seed-0"].method.options["kl"] == 0.01, "the recipe's 0.5 belongs to its own method"
    assert runs["locate/adpo/seed-1"].method.options["gamma"] == 0.1
    assert runs["locate/wide/seed-1"].method.options["gamma"] == 0.25
    assert "gamma" not in runs["locate/grpo/seed-1"].method.options
    recipe = runs["locate/grpo/seed-1"]
    assert (recipe.name, recipe.seed, recipe.output) == ("small-locate-grpo", 1, "out/locate/grpo/seed-1")
    assert load_recipe(study.recipe, overrides_of(study, "locate", "wide")).task.name == "digits-locate"


def test_a_variant_without_a_method_keeps_the_recipes(file: Path) -> None:
    file.write_text(file.read_text().replace("[method.name=adpo, method.gamma=0.25]", "[learner.steps=9]"))
    recipe = plan(load_study(file, seeds="7"), Path("out"))[-1].recipe
    assert (recipe.method.options["kl"], recipe.method.options["gamma"]) == (0.5, 0.1)
    assert (recipe.learner.steps, recipe.seed) == (9, 7)


def test_seeds_and_studies_in_the_wrong_place(file: Path) -> None:
    """Seeds of a command are not blamed on the file, a study is no recipe; a variant may have fewer."""
    with pytest.raises(ConfigError, match=r"override 'seeds=\[0,x\]': seeds\.1: should be a valid integer"):
        load_study(file, seeds="0,x")
    with pytest.raises(ConfigError, match=r"`python -m reproduce\.grid .*small\.yaml` runs it"):
        load_recipe(file)
    study = load_study(file)
    study.variants["grpo"] = study.variants["grpo"].model_copy(update={"seeds": 1})
    runs = {(run.variant, run.seed) for run in plan(study, Path("out"))}
    assert runs == {("grpo", 0), ("adpo", 0), ("adpo", 1), ("wide", 0), ("wide", 1)}


def test_every_study_that_ships_can_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their recipes, overrides and settings are right, and their variants can be compared."""
    starts = [f"smartsnap-starts/{side}/work/seed-{k}" for side in ("evidence", "message") for k in range(5)]
    for name in (
        "cold-start-digits-boxes",
        "boxes-blind",
        "cold-start-phone-1-copy",
        "cold-start-phone-2-work",
        *starts,
    ):
        made_by_a_recipe = tmp_path / "runs" / name / "model"
        made_by_a_recipe.mkdir(parents=True)
        (made_by_a_recipe / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "reproduce").symlink_to(GRIDS.parent)
    monkeypatch.chdir(tmp_path)
    for name in built_in():
        assert plan(load_study(name), Path("out")), name


@pytest.mark.parametrize("domain", ["math", "grounding", "mobile"])
def test_the_papers_ablations_differ_from_their_recipe_in_the_ablation_alone(domain: str) -> None:
    """Tables 9 and 10, and on grounding Table 6; `adpo` is the recipe itself."""
    runs = {run.variant: run.recipe for run in plan(load_study(f"adpo-{domain}"), Path("out"))}
    whole = load_recipe(f"adpo-{domain}")
    assert runs["adpo"].method == whole.method and runs["adpo"].seed == whole.seed
    assert runs["grpo"].method == load_recipe(f"grpo-{domain}").method
    own = {name: recipe.method.options for name, recipe in runs.items()}
    changed = {
        name: {key for key in given if given[key] != whole.method.options[key]}
        for name, given in own.items()
        if name != "grpo"
    }
    margin = {"gamma"} if domain == "grounding" else set()
    assert changed["binary"] == {"verification"} | margin and changed["entangled"] == {"credit"}
    margins = sorted(given["gamma"] for name, given in own.items() if name.startswith("gamma"))
    assert margins == ([0.025, 0.05, 0.2, 0.25] if domain == "grounding" else [])


def test_smartsnaps_study_measures_all_arms_alike() -> None:
    """Whoever judges in training, evaluations ask the same judge about the same evidence."""
    runs = plan(load_study("smartsnap-phone"), Path("out"))
    judges = {run.variant: run.recipe.task.options["judge"] for run in runs}
    assert judges["true-state"]["kind"] == "state" and judges["flipped-one-vote"]["flipped"] == 0.1
    measured = [run.recipe.measured_task.options for run in runs]
    assert all(options == measured[0] for options in measured)
    assert measured[0]["judge"]["kind"] == "rules" and measured[0]["agent"]["evidence"]["judged"] == "chosen"
