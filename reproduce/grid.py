"""Runs a study: every run in a process of its own, several at once, each of them skipped when it is done.

Under the study's folder: ``<task>/before/``, the evaluation that all runs of a task start from;
``<task>/<variant>/seed-<k>/``, a run as `selfverify.experiments.run.train` writes it, with its ``log.txt``;
and what came out, ``results.json``, ``table.md`` and ``figures/``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from reproduce.grid_file import BEFORE, Run, Study, load_study, measured_settings, plan
from reproduce.grid_results import write_results
from reproduce.scripts import script
from selfverify.cli.options import say, settings_as_options
from selfverify.core.config import Config
from selfverify.core.errors import ConfigError
from selfverify.core.files import differences, make_folder, only_writer, write_text
from selfverify.experiments.recipe import RECIPE_FILE, Recipe, load_recipe, to_yaml

WORKER = [sys.executable, "-m", "reproduce.one_run"]
LOG = "log.txt"
METRICS = "metrics.json"
"""The file that a run writes last; where it stands, the run is finished."""


@dataclass(frozen=True, slots=True)
class StudyJob:
    """The work of one process: a run, or (without ``before``) the evaluation that a task starts from."""

    label: str
    folder: Path
    recipe: Recipe
    before: Path | None = None

    @property
    def finished(self) -> bool:
        """Whether the job has come to its end."""
        return (self.folder / METRICS).is_file()


Launch = Callable[[StudyJob, int], int]
"""Does a job with a number of threads, and returns the job's exit status."""


def run_study(
    study: Study,
    output: Path | None = None,
    jobs: int = 1,
    only: Sequence[str] = (),
    report_only: bool = False,
    say: Callable[[str], None] = print,
    launch: Launch | None = None,
) -> tuple[Path | None, dict[str, str]]:
    """Do the jobs of a study that are not finished, then aggregate everything that is finished.

    Args:
        study: The study, from `load_study`.
        output: The study's folder; default ``runs/<name>``.
        jobs: The number of runs at the same time; each gets its share of the cores.
        only: The variants to run; none means all. The tables hold every finished run all the same.
        report_only: Whether to run nothing and only write the tables.
        say: Called with a line per event.
        launch: Does a job; by default in a process of its own.

    Returns:
        The file ``results.json``, None while no run is finished; and why jobs failed this time, by label.

    Raises:
        ConfigError: A recipe is wrong, a folder holds a run of another recipe, the study's own folder
            cannot be made, or another process is at work on the study.
        KeyboardInterrupt: After Ctrl-C, when the runs at work have written their checkpoints.
    """
    output = output or Path("runs") / study.name
    unknown = [label for label in only if label not in study.variants]
    if unknown:
        raise ConfigError(f"there is no variant {unknown[0]!r}; variants: {', '.join(study.variants)}")
    runs = plan(study, output)
    # Of a task's first run: all its runs start from the same policy.
    evaluations = {run.task: _evaluation(study, run, output) for run in reversed(runs)}
    work = [
        StudyJob(run.label, run.recipe.folder, run.recipe, evaluations[run.task].folder / METRICS)
        for run in runs
    ]
    for job in (*evaluations.values(), *work):
        _refuse_other_recipe(job)
    failures: dict[str, str] = {}
    with ExitStack() as held:
        if not report_only:
            make_folder(output)
            held.enter_context(only_writer(output))
            chosen = [(r, job) for r, job in zip(runs, work, strict=True) if not only or r.variant in only]
            failures = _do_jobs(chosen, evaluations, _Pool(jobs, say, launch))
        finished = [run for run, job in zip(runs, work, strict=True) if job.finished]
        say(f"{len(finished)} of {len(runs)} runs are finished")
        results = write_results(study, output, runs) if finished else None
    return results, failures


def _do_jobs(
    chosen: Sequence[tuple[Run, StudyJob]], evaluations: Mapping[str, StudyJob], pool: _Pool
) -> dict[str, str]:
    """Make the evaluations that tasks start from, then the runs; returns what failed."""
    tasks = {run.task for run, _ in chosen}
    failures = pool.run([job for task, job in evaluations.items() if task in tasks])
    ready = []
    for run, job in chosen:
        start = evaluations[run.task]
        if start.finished or job.finished:
            ready.append(job)
        else:
            failures[job.label] = f"not started, {start.label} failed"
    return failures | pool.run(ready)


class _Pool:
    """Does jobs, several at the same time; a job that fails does not stop the others."""

    def __init__(self, jobs: int, say: Callable[[str], None], launch: Launch | None) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.jobs, self.threads = jobs, max(1, cores // jobs)
        self.say = say
        self.processes: list[subprocess.Popen[bytes]] = []
        self.launch = launch or self._process

    def run(self, jobs: Sequence[StudyJob]) -> dict[str, str]:
        """Do the jobs that are not finished yet, and return why some failed, by label."""
        waiting = [job for job in jobs if not job.finished]
        if len(waiting) < len(jobs):
            self.say(f"skipped: {len(jobs) - len(waiting)} finished already")
        failures = {}
        with ThreadPoolExecutor(self.jobs) as executor:
            futures = {executor.submit(self._do, job): job for job in waiting}
            try:
                for number, future in enumerate(as_completed(futures), start=1):
                    job, (seconds, reason) = futures[future], future.result()
                    if reason:
                        failures[job.label] = f"{reason}, see {job.folder / LOG}"
                    told = f"failed ({reason}), see {job.folder / LOG}" if reason else "done"
                    self.say(f"[{number}/{len(waiting)}] {job.label}: {told} after {seconds:.0f} s")
            except KeyboardInterrupt:
                executor.shutdown(wait=False, cancel_futures=True)
                self.say("interrupted: waiting for checkpoints; the same command goes on from there")
                for process in [*self.processes]:
                    process.send_signal(signal.SIGINT)  # one that has ended gets none
                raise  # leaving the executor waits for them
        return failures

    def _do(self, job: StudyJob) -> tuple[float, str | None]:
        started = time.monotonic()
        try:
            make_folder(job.folder)
            write_text(job.folder / RECIPE_FILE, to_yaml(job.recipe))
            status = self.launch(job, self.threads)
            reason = None if status == 0 else f"exit status {status}"
            if reason is None and not job.finished:
                reason = f"ended without {METRICS}"
        except OSError as error:  # a full disk, no process left: no cause to stop the others
            reason = str(error)
        return time.monotonic() - started, reason

    def _process(self, job: StudyJob, threads: int) -> int:
        command = [*WORKER, str(job.folder), *([str(job.before)] if job.before else [])]
        with (
            (job.folder / LOG).open("ab") as log,
            # A process group of its own: Ctrl-C reaches it once, through us. A second one would interrupt it
            # while it writes its checkpoint.
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end tells the process that the study is gone
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"OMP_NUM_THREADS": str(threads)},
                process_group=0,
            ) as process,
        ):
            self.processes.append(process)
            return process.wait()


def _evaluation(study: Study, run: Run, output: Path) -> StudyJob:
    """Return the job of the evaluation before training, which all runs of a task share."""
    folder, name = output / run.task / BEFORE, f"{study.name}-{run.task}-{BEFORE}"
    recipe = run.recipe.model_copy(update={"name": name, "output": str(folder)})
    return StudyJob(f"{run.task}/{BEFORE}", folder, recipe)


def _refuse_other_recipe(job: StudyJob) -> None:
    """Refuse a folder that holds a run of another recipe: the job can neither go on nor be skipped."""
    if not (job.folder / RECIPE_FILE).is_file():
        return
    try:
        held = load_recipe(job.folder)
    except ConfigError as error:
        raise ConfigError(
            f"{job.folder} holds a run whose recipe this version does not read ({error}): it was made with "
            "another version, or changed. Delete the folder to run it anew, or choose another --output"
        ) from None
    if job.before is None:
        settings = [measured_settings(recipe) for recipe in (held, job.recipe)]
    else:  # the output folder tells no runs apart: a study may be moved
        settings = [recipe.model_dump(mode="json", exclude={"output"}) for recipe in (held, job.recipe)]
    if changed := differences(*settings):
        raise ConfigError(
            f"{job.folder} holds a run of another recipe: {'; '.join(changed[:3])}. Delete the folder to run "
            "it anew, or choose another --output"
        )


class StudySettings(Config):
    """How a study is run."""

    output: Path | None = None
    """The folder of the study. By default `runs/NAME`."""

    seeds: str | None = None
    """The seeds to use instead of the file's, such as `0,1,2`."""

    jobs: int = Field(1, ge=1)
    """The number of runs at the same time; they share the cores."""

    only: list[str] = []
    """Run only this variant; repeat it for several."""

    report_only: bool = False
    """Run nothing; write the tables of the finished runs."""


@settings_as_options
def study(
    file: Annotated[str, typer.Argument(help="A study's YAML file, or a built-in study's name.")],
    settings: StudySettings,
) -> None:
    """Compare variants of a recipe, on several tasks and seeds, in tables and figures.

    Called again, the command goes on where it was stopped: finished runs are skipped, unfinished ones
    resumed.

    Examples:

    - `python -m reproduce.grid adpo-digits --jobs 2`

    - `python -m reproduce.grid my-study.yaml --only grpo --only adpo --seeds 0`
    """
    loaded = load_study(file, settings.seeds)
    results, failures = run_study(loaded, say=typer.echo, **settings.model_dump(exclude={"seeds"}))
    for label, reason in failures.items():
        say(f"{label}: {reason}", "bold red", "failed: ")
    if results:
        typer.echo(f"results: {results}, tables: {results.with_name('table.md')}")
    if failures or not results:
        raise typer.Exit(1)


app = script(study)


if __name__ == "__main__":
    app()
