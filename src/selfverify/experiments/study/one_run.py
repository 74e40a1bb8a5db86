"""One run of a study, in a process of its own.

It is started as ``python -m selfverify.experiments.study.one_run FOLDER [BEFORE]``.

``FOLDER`` holds the ``recipe.yaml`` to run. ``BEFORE`` is the ``metrics.json`` of the evaluation that the
task's runs share; without it, that evaluation is what is made.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selfverify.core.atomic_files import write_json
from selfverify.core.errors import DataError, SelfVerifyError
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.run import build, measure, train
from selfverify.learner.progress import TrainingProgress
from selfverify.reports.run_data import read_json


def work(folder: Path, before: Path | None = None) -> None:
    """Train by the folder's recipe, or, without ``before``, evaluate what it starts from.

    Unfinished work continues: training from its newest checkpoint, an evaluation from its stored samples.
    """
    recipe = load_recipe(folder)
    alive = _while_parent_lives()
    with TrainingProgress(recipe.learner.steps) as shown:
        if before is not None:
            summary = (read_json(before, dict[str, dict[str, Any]]) or {}).get("before")
            if summary is None:
                raise DataError(f"{before} holds no evaluation; delete it and run the study again")
            train(recipe, True, alive(shown.on_step), alive(shown.on_phase), before=summary)
            return
        policy, task, _ = build(recipe)
        report = alive(lambda done, total: shown.on_phase("before", done, total))
        summary = measure(policy, task, recipe, folder / "samples.jsonl", "before", report)
    write_json(folder / "metrics.json", {"before": summary, "settings": recipe.model_dump(mode="json")})


def _while_parent_lives() -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a wrapper of callbacks that ends this process when the study's process has died.

    Otherwise it would go on writing to its folder while a restarted study does the same.
    """
    parent = os.getppid()

    def wrap(callback: Callable[..., None]) -> Callable[..., None]:
        def called(*values: Any) -> None:
            if os.getppid() != parent:
                raise SelfVerifyError("the study that started this run is gone")
            callback(*values)

        return called

    return wrap


def main(arguments: list[str]) -> int:
    """Do the work and return the exit status; a known fault ends in one line on stderr."""
    folder, *before = (Path(argument) for argument in arguments)
    try:
        work(folder, before[0] if before else None)
    except SelfVerifyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
