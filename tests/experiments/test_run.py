"""Runs measure the weights they have, also when they are taken up again."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from selfverify import EvaluationConfig, Policy, evaluate, learn, make_method, make_task
from selfverify.cli.train import dry_run_lines
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, FileError
from selfverify.core.files import only_writer
from selfverify.core.trainer_config import TrainerConfig
from selfverify.experiments.recipe import Recipe, load_recipe
from selfverify.experiments.run import evaluate_recipe, train
from selfverify.methods.base import StepCallback

SMALL = EvaluationConfig(problems=2, samples=2)


def recipe(output: Path, steps: int) -> Recipe:
    small = "learner.optim.warmup=0 learner.groups_per_step=4 evaluation.problems=2 evaluation.samples=2"
    more = [f"output={output}", f"learner.steps={steps}", "sampling.group_size=4"]
    return load_recipe("adpo-digits", [*small.split(), *more])


def header(path: Path) -> dict[str, object]:
    settings: dict[str, object] = json.loads(path.read_text().splitlines()[0])["settings"]
    return settings


def test_a_store_is_not_reused_for_other_weights_or_options(tiny_folder: Path, tmp_path: Path) -> None:
    policy, task, store = Policy.load(str(tiny_folder)), make_task("digits-pick"), tmp_path / "s.jsonl"
    first = evaluate(policy, task, SMALL, store, max_new_tokens=6)
    assert evaluate(policy, task, SMALL, store, max_new_tokens=6) == first
    with pytest.raises(ConfigError, match="max_new_tokens"):
        evaluate(policy, task, SMALL, store, max_new_tokens=7)
    with pytest.raises(ConfigError, match="task_options"):
        evaluate(policy, make_task("digits-pick", count=5), SMALL, store, max_new_tokens=6)
    with torch.no_grad():
        policy.model.get_input_embeddings().weight += 0.01
    with pytest.raises(ConfigError, match="weights"):
        evaluate(policy, task, SMALL, store, max_new_tokens=6)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A folder that another run is writing into."""
    folder = tmp_path / "held"
    folder.mkdir()
    begun, ended = threading.Event(), threading.Event()

    def hold() -> None:
        with only_writer(folder):
            begun.set()
            ended.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert begun.wait(60)
    yield folder
    ended.set()
    thread.join()


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")
@pytest.mark.parametrize("resume", [False, True])
def test_two_runs_do_not_share_a_folder(held: Path, resume: bool) -> None:
    """The second one is refused before it changes anything, such as what the first is about to complete."""
    (held / "checkpoints" / "checkpoint-000001.partial").mkdir(parents=True)
    (held / "metrics.jsonl").write_text('{"step": 1}\n')
    before = {path: path.stat().st_mtime_ns for path in held.rglob("*")}
    wanted = recipe(held, steps=1)
    policy, task = Policy.load("builtin:digits"), make_task("digits-pick")
    method = make_method("grpo")
    for second in (
        lambda: train(wanted, resume=resume),
        lambda: learn(policy, task, method, wanted.learner, output=held, resume=resume),
        lambda: evaluate_recipe(wanted, output=held),
    ):
        with pytest.raises(ConfigError, match=f"{held} is in use: process {os.getpid()} "):
            second()
    assert {path: path.stat().st_mtime_ns for path in held.rglob("*")} == before


def delete(folder: Path) -> None:
    shutil.rmtree(folder)


def move(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


OTHER = """
import pathlib, sys
from selfverify.core.files import only_writer
from selfverify.core.jsonl_store import JsonlStore
folder = pathlib.Path(sys.argv[1])
(folder / "checkpoints" / "checkpoint-000002.partial").mkdir(parents=True)
with only_writer(folder):
    for name in ("metrics.jsonl", "timing.jsonl", "events.jsonl", "checkpoints/checkpoint-000002.partial/a"):
        JsonlStore(folder / name).append({"step": 1})
    print("begun", flush=True)
    sys.stdin.read()
"""
"""What a run of another process writes into its folder, for as long as its input is open."""


@contextmanager
def replaced(folder: Path) -> Iterator[None]:
    """A context in which another run is at work in the place of one that was moved."""
    move(folder)
    command = [sys.executable, "-c", OTHER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"begun\n"
        yield


def small_run(output: Path, on_step: StepCallback | None = None) -> None:
    learner = TrainerConfig(steps=4, groups_per_step=1, checkpoint={"every": 1})
    task, method = make_task("digits-pick"), make_method("sft")
    learn(Policy.load("builtin:digits"), task, method, learner, output=output, on_step=on_step)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")
@pytest.mark.parametrize("lose", [delete, move, replaced])
def test_a_run_ends_when_its_folder_is_lost(tmp_path: Path, lose: Callable[[Path], Any]) -> None:
    """It neither makes the folder anew nor touches what another run writes there, and its lock."""
    folder, left = tmp_path / "run", dict[Path, bytes]()
    with ExitStack() as others:

        def after(step: int, *_: object) -> None:
            if step == 2:
                other = lose(folder)
                if other is not None:
                    others.enter_context(other)
                left.update(contents(tmp_path))

        with pytest.raises(FileError, match=f"^{folder}: .*deleted, moved or taken over by another run"):
            small_run(folder, after)
        assert contents(tmp_path) == left
        assert (folder / ".lock").exists() == (lose is replaced)
    if lose is not delete:  # the checkpoint of the second step was to be written next
        kept = sorted(path.name for path in (tmp_path / "moved" / "checkpoints").iterdir())
        assert kept == ["checkpoint-000001"]


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is locked there")
def test_a_run_that_loses_its_folder_while_it_measures_does_not_train(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(FileError, match=f"^{folder}: .*deleted, moved or taken over"):
        train(recipe(folder, steps=1), on_phase=lambda *_: delete(folder))
    assert not list(tmp_path.iterdir())


def test_settings_that_cannot_teach_are_refused_in_python_too(tmp_path: Path) -> None:
    """With the words of a recipe's check, and before anything is made."""
    policy, task, learner = Policy.load("builtin:digits"), make_task("digits-pick"), TrainerConfig(steps=1)
    for sampling, name in (({"group_size": 1}, "group_size"), ({"temperature": 0.0}, "temperature")):
        for method in ("grpo", "adpo"):
            given = make_method(method), learner, SamplingConfig(**sampling)
            with pytest.raises(ConfigError, match=rf"^sampling\.{name}"):
                learn(policy, task, *given, output=tmp_path / "run")
    rates = TrainerConfig(steps=1, optim={"channels": "separate", "channel_rates": {"turn_1": 2.0}})
    with pytest.raises(ConfigError, match=r"^learner\.optim\.channel_rates: adpo has no channel 'turn_1'"):
        learn(policy, task, make_method("adpo"), rates, output=tmp_path / "run")
    assert not list(tmp_path.iterdir())
    learn(policy, task, make_method("sft"), learner, SamplingConfig(group_size=1), output=tmp_path / "run")


def test_verdicts_that_are_not_there_are_missed_before_anything_is_measured(tmp_path: Path) -> None:
    verdicts = tmp_path / "keep.jsonl"
    wanted = recipe(tmp_path / "run", steps=1)
    wanted = wanted.model_copy(update={"learner": wanted.learner.model_copy(update={"keep": str(verdicts)})})
    with pytest.raises(ConfigError, match=r"keep\.jsonl: there are no verdicts"):
        train(wanted)
    assert not list((tmp_path / "run").glob("samples-*"))


def test_a_run_that_goes_on_is_measured_again(tmp_path: Path) -> None:
    """One that is refused, because settings are others, leaves its folder's recipe as it was."""
    train(recipe(tmp_path, steps=1))
    before, noted = header(tmp_path / "samples-after.jsonl"), (tmp_path / "recipe.yaml").read_text()
    wanted = recipe(tmp_path, steps=2)
    for section, change in (
        ("evaluation", {"temperature": 0.3}),  # refused by the samples from before the training
        ("learner", {"optim": wanted.learner.optim.model_copy(update={"channels": "separate"})}),
        ("learner", {"keep": str(tmp_path / "none.jsonl")}),
    ):
        changed = getattr(wanted, section).model_copy(update=change)
        with pytest.raises(ConfigError):
            train(wanted.model_copy(update={section: changed}), resume=True)
        assert (tmp_path / "recipe.yaml").read_text() == noted, change
    train(wanted, resume=True)
    assert load_recipe(tmp_path).learner.steps == 2
    after = header(tmp_path / "samples-after.jsonl")
    assert before["weights"] != after["weights"]
    trained = Policy.load(str(tmp_path / "model"))
    assert after["weights"] == trained.fingerprint()


def test_a_missing_package_is_told_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What judging or training wants in its middle; `--dry-run` says so, too."""
    found = importlib.util.find_spec

    def gone(name: str, package: str | None = None) -> Any:
        return None if name in ("peft", "math_verify", "bitsandbytes") else found(name, package)

    monkeypatch.setattr("selfverify.experiments.recipe.find_spec", gone)
    lora = load_recipe("adpo-digits", [f"output={tmp_path}", "policy.lora.rank=4"])
    maths = load_recipe("adpo-digits", [f"output={tmp_path}", "task.name=math", "task.train=none.jsonl"])
    eight = load_recipe("adpo-digits", [f"output={tmp_path}", "learner.optim.name=adamw_8bit"])
    for wanted, extra in ((lora, "lora"), (maths, "math"), (eight, "8bit")):
        with pytest.raises(ConfigError, match=rf"pip install 'selfverify\[{extra}\]'"):
            train(wanted)
        assert any(extra in line for line in dry_run_lines(wanted, False))
    assert not any("NOT READY" in line for line in dry_run_lines(recipe(tmp_path, 1), False))
    assert not [*tmp_path.iterdir()]


def test_a_supervised_run_is_measured_where_it_is_compared(tmp_path: Path) -> None:
    """A study hands over what all its runs start from; otherwise such a run only makes a model."""
    small = ["learner.steps=1", "learner.groups_per_step=2", "learner.optim.warmup=0", "method.name=sft"]
    small += ["evaluation.problems=2", "evaluation.samples=2"]
    wanted = load_recipe("adpo-digits", [*small, f"output={tmp_path}"])
    train(wanted)
    assert not (tmp_path / "metrics.json").exists()
    train(wanted, before={"pass@1": 0.5})
    found = json.loads((tmp_path / "metrics.json").read_text())
    assert found["before"] == {"pass@1": 0.5} and found["after"]["problems"] == 2
