"""One run of a study, in a process of its own.

It is started as ``python -m reproduce.one_run FOLDER [BEFORE]``.

``FOLDER`` holds the ``recipe.yaml`` to run. ``BEFORE`` is the ``metrics.json`` of the evaluation that the
task's runs share; without it, that evaluation is what is made. The standard input is a pipe to the study's
process: where that is gone, the run ends with it.
"""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from reproduce.scripts import script
from selfverify.core.errors import DataError, __version__
from selfverify.core.files import only_writer, write_json
from selfverify.core.worker import end_with_parent
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.run import build, measure, train
from selfverify.reports.run_data import read_metrics
from selfverify.trainer.logging import TrainingProgress

FORCE_S = 60.0
"""Seconds that a run gets to write its checkpoint when its study is gone."""
WAIT_S = FORCE_S + 10.0
"""How long the run of a study that was started again waits for such a one."""


def work(folder: Path, before: Annotated[Path | None, typer.Argument()] = None) -> None:
    """Train by the folder's recipe, or, without ``before``, evaluate what it starts from.

    Unfinished work continues: training from its newest checkpoint, an evaluation from its stored samples.
    """
    recipe = load_recipe(folder)
    with only_writer(folder, WAIT_S), TrainingProgress() as shown:
        if before is not None:
            summary = read_metrics(before.parent).get("before")
            if summary is None:
                raise DataError(f"{before} holds no evaluation; delete it and run the study again")
            train(recipe, True, shown.on_step, shown.on_phase, before=summary)
            return
        policy, task, _ = build(recipe)
        report = partial(shown.on_phase, "before")
        summary = measure(policy, task, recipe, folder / "samples.jsonl", "before", progress=report)
        settings = recipe.model_dump(mode="json")
        write_json(folder / "metrics.json", {"before": summary, "settings": settings, "version": __version__})


app = script(work)


if __name__ == "__main__":
    # As Ctrl-C does, so that a checkpoint is written.
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the study runs in the background
    end_with_parent(lambda: os.kill(os.getpid(), signal.SIGINT), FORCE_S)
    app()
