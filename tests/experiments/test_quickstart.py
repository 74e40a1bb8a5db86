"""The quickstart goes on where it was stopped, starts over when it is asked to, and says what happened."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from selfverify.core.errors import ConfigError
from selfverify.evaluation.headline import MOST
from selfverify.experiments import quickstart as module
from selfverify.experiments.quickstart import SHOWCASES, Paper, quickstart
from selfverify.experiments.recipe import load_recipe, to_yaml
from tables import yaml_cases

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TINY: dict[Paper, tuple[str, ...]] = {
    "adpo": ("sampling.group_size=4", "evaluation.problems=4"),
    "adapo": ("sampling.group_size=4", "evaluation.problems=4"),
    "smartsnap": ("sampling.group_size=4", "evaluation.problems=4", "evaluation.samples=2"),
    "vts-v": ("stopping.problems=16", "stopping.samples=2", "evaluation.problems=8"),
}
LEARNER = {"steps": 2, "optim.warmup": 0, "groups_per_step": 2, "batch.micro_batch_groups": 2}
FEW = tuple(f"learner.{name}={value}" for name, value in LEARNER.items())


def overrides(paper: Paper, fast: bool, *more: str) -> list[str]:
    shown = SHOWCASES[paper]
    return [*shown.changes, *(shown.fast if fast else ()), *more]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("paper", get_args(Paper))
def test_a_run_with_other_settings_is_not_touched(paper: Paper, fast: bool, tmp_path: Path) -> None:
    shown = SHOWCASES[paper]
    recipe = load_recipe(shown.recipe, overrides(paper, not fast, f"output={tmp_path}"))
    (tmp_path / "recipe.yaml").write_text(to_yaml(recipe))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(ConfigError, match=r"other settings: evaluation\.problems was \d+ and .*overwrite it"):
        quickstart(paper, tmp_path, fast=fast)
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.yaml", "metrics.jsonl"}


def test_stored_figures_are_those_of_the_results() -> None:
    """What is not measured is told by the file that its note names."""
    adapo = json.loads((RESULTS / "adapo.json").read_text())["sampled"]
    premium = json.loads((RESULTS / "study-adapo-premium/results.json").read_text())["tasks"]["pick"]
    smartsnap = json.loads((RESULTS / "smartsnap.json").read_text())["sets"]["tasks"]
    arms = {"before": premium["before"], **premium["variants"]}
    first = {arm: row["metrics"]["turns.acc@t1"]["mean"] for arm, row in arms.items()}
    wanted = {
        "fixed rewards, acc@t1": [adapo[arm]["acc_t1"]["value"] for arm in ("before", "fixed")],
        "fixed rewards, acc@t2": [adapo[arm]["acc_t2"]["value"] for arm in ("before", "fixed")],
        "paid to err, acc@t1": [first["before"], first["weak"]],
        "+ dynamic KL, acc@t1": [first["before"], first["dynamic"]],
        "self-imitation, SR": [smartsnap[arm]["sr"] for arm in ("before", "self-imitation")],
        "its exhibits": [smartsnap[arm]["exhibits"] for arm in ("before", "self-imitation")],
    }
    stored = [one for shown in SHOWCASES.values() for one in shown.stored]
    assert {one.title: [one.before, one.value] for one in stored} == wanted
    for one in stored:
        assert len(one.title) <= 22 and (RESULTS.parents[1] / one.source.split(",")[0]).is_file()
        assert "`python -m reproduce.grid " in one.source


class Interrupted:
    """Counts training steps, and stands for a Ctrl-C in a later part."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[int] = []
        on_step = module.TrainingProgress.on_step

        def counted(shown: Any, step: int, *figures: Any) -> None:
            self.steps.append(step)
            on_step(shown, step, *figures)

        monkeypatch.setattr(module.TrainingProgress, "on_step", counted)

    def now(self, *_: Any) -> Any:
        raise KeyboardInterrupt


@pytest.mark.slow
@yaml_cases
def test_it_goes_on_where_it_was_stopped(
    paper: Paper, stopped_in: str, kept: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted behind the training, it neither trains again nor measures again what it has."""
    shown = SHOWCASES[paper]
    tiny = replace(shown, fast=(*FEW, *TINY[paper]))
    monkeypatch.setitem(module.SHOWCASES, paper, tiny)
    interrupted = Interrupted(monkeypatch)
    with monkeypatch.context() as stopped:
        stopped.setattr(module, stopped_in, interrupted.now)
        with pytest.raises(KeyboardInterrupt):
            quickstart(paper, tmp_path, fast=True)
    before = {name: (tmp_path / name).read_bytes() for name in kept}
    pages = [quickstart(paper, tmp_path, fast=True).read_text("utf-8") for _ in range(2)]
    assert {name: (tmp_path / name).read_bytes() for name in kept} == before and interrupted.steps == [1, 2]
    found = json.loads((tmp_path / "metrics.json").read_text())["headline"]
    assert found["title"] == shown.title and len(found["rows"]) <= MOST
    assert sum(row[0].startswith("stored: ") for row in found["rows"]) == len(shown.stored)
    for page in pages:
        assert "<h2>In short</h2>" in page and found["rows"][0][0] in page
        assert page.index("In short") < page.index("Before and after")
    quickstart(paper, tmp_path, fast=True, overwrite=True)
    assert interrupted.steps == [1, 2, 1, 2]


def test_demonstrations_need_no_extra() -> None:
    """`make quickstart` installs the core alone, in which there is neither a client nor a server."""
    code = (
        "import sys; missing = 'aiohttp', 'openai', 'prometheus_client', 'yarl'; "
        "sys.modules |= dict.fromkeys(missing); "
        "import selfverify.experiments.quickstart, selfverify.experiments.visual_data"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
