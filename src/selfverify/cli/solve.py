"""The commands ``selfverify solve`` and ``selfverify serve``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from selfverify.cli.options import Json, announced, figure, file_text, print_json, settings_as_options
from selfverify.core.errors import ConfigError
from selfverify.core.files import naming
from selfverify.serving.config import QuestionConfig, ServeConfig, SolveConfig

if TYPE_CHECKING:
    from selfverify.core.problem import Problem
    from selfverify.selection.rules import Candidate
    from selfverify.serving.solve import Solution
    from selfverify.tasks.base import Task


@settings_as_options
def solve(settings: SolveConfig, as_json: Json = False) -> None:
    """Answer a question: sample candidates, verify them, choose one, say why.

    A candidate is one sampled answer. A verifier gives it a score. A strategy chooses by scores or votes.

    Examples:

    - `selfverify solve --task digits-pick --index 3`

    - `selfverify solve --task digits-pick --index 3 --save-image pick.png`

    - `selfverify solve --image pick.png --answers set "Pick 3 of the digits shown that add up to 13."`

    - `selfverify solve --model runs/mine/model --turns 2 --image cat.png "How many cats are shown?"`

    - `selfverify solve --server http://127.0.0.1:8000 --image cat.png "What is this?"`

    - `selfverify solve --model runs/mine/model --image cat.png "What is this?" -n 12 --stop beta --json`

    - `selfverify solve --look --server http://127.0.0.1:8000 --image street.png "What is written?"`
    """
    task, problem = _asked(settings.asked, settings.choosing.answers)
    if settings.asked.save_image is not None:
        if not problem.images:
            raise ConfigError(f"problem {problem.id} has no image")
        try:
            with naming(settings.asked.save_image):
                problem.images[0].save(settings.asked.save_image)
        except ValueError as error:
            raise ConfigError(f"--save-image: {error}; end the file's name with .png") from None
        typer.echo(problem.meta.get("question", ""))
        return
    table = Table("#", "answer", "score", "log-prob", "tokens")
    live = Live(table, console=Console())
    show = None if as_json else partial(_add, table, live)
    if settings.answerer.server is None:
        from selfverify.serving.solve import solve_here as answer
    else:
        import selfverify.clients.openai_client  # noqa: F401  (says which extra is missing)
        from selfverify.serving.solve import solve_on_server as answer
    try:
        solution = answer(settings, task, problem, show)
    finally:
        live.stop()
    if as_json:
        print_json(solution.as_json(), indent=None)
    else:
        if not live.console.is_terminal:
            live.console.print()  # the table ends without a line break there
        _tell(solution, problem.target if settings.asked.task else None)


def _asked(asked: QuestionConfig, answers: Any) -> tuple[Task, Problem]:
    """Return what is asked: a task's problem, or a person's own question."""
    from selfverify.data.images import ImageRef
    from selfverify.experiments.registry import TASKS, make_task
    from selfverify.serving.backend import FreeQuestion, free_problem

    if asked.task is None:
        images = [ImageRef("--image", path).open(tries=1) for path in asked.image]
        return FreeQuestion(answers), free_problem(asked.question or "", images)
    if asked.task in TASKS and "test" in TASKS[asked.task].config_class.model_fields:
        raise ConfigError(f"task {asked.task} reads files of its own: ask by --image and a question")
    task = make_task(asked.task)
    return task, task.problem("test", 0, asked.index)


def _add(table: Table, live: Live, candidate: Candidate) -> None:
    """Show one more candidate in the table."""
    live.start()  # only the first time
    answer = "unreadable" if candidate.answer is None else shown_answer(candidate.answer)
    if candidate.first is not None:
        answer = f"{shown_answer(candidate.first)} → {answer}"
    numbers = (figure(value, ".3f") for value in (candidate.score, candidate.logprob))
    table.add_row(str(table.row_count), Text(answer), *numbers, str(candidate.tokens))
    live.refresh()


def shown_answer(answer: Any) -> str:
    """Return an answer as people write it."""
    return " ".join(map(str, answer)) if isinstance(answer, (list, tuple)) else str(answer)


def shown_step(step: Mapping[str, Any]) -> str:
    """Return what was done in one step of looking."""
    if step["duplicate"]:
        return f"{step['tool']} again, as in step {step['duplicate']}"
    asked = ", ".join(f"{name} {shown_answer(value)}" for name, value in step["arguments"].items())
    found = ", ".join(f"image {number}" for number in step["images"]) or "words"
    return f"{step['tool'] or 'no call'} {asked} → {step['error'] or found}"


def _tell(solution: Solution, target: Any) -> None:
    console, choice = Console(), solution.choice
    if choice.answer is None:
        console.print(Text("no answer", "bold red"), Text(f"({choice.reason})"))
    else:
        console.print(Text("answer:", "bold green"), Text(shown_answer(choice.answer), "bold"))
        console.print(Text(f"chosen by {choice.strategy}: {choice.reason}"))
    for step in solution.looks[choice.index] if solution.looks else []:
        console.print(Text(f"step {step['step']}: {shown_step(step)}"))
    if solution.probability is not None:
        console.print(Text(f"right with probability {solution.probability:.2f} (calibrated)"))
    if solution.abstained and choice.answer is not None:
        console.print(Text("too unsure to be given: below the calibration's threshold", "yellow"))
    if solution.correct is not None:
        verdict = "right" if solution.correct else "wrong"
        console.print(Text(f"the task says: {verdict} (target {shown_answer(target)})"))
    console.print(
        Text(
            f"{len(solution.candidates)} candidates ({solution.stopped}), {solution.tokens} tokens, "
            f"{solution.seconds:.1f} s"
        )
    )


@settings_as_options
def serve(
    settings: ServeConfig,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print the settings in force, as a --config file, and stop.")
    ] = False,
) -> None:
    """Serve best-of-N over OpenAI's protocol: with a model run here, or in front of another server.

    For every request the gateway samples several candidates, chooses an answer, and says how sure it is.

    `-n`, `--strategy` and the other fields of a request's `best_of` hold for requests that do not set them.
    All settings may come from a file (`--config`). The key for the other server is taken from
    `SELFVERIFY_SERVER_API_KEY` or `OPENAI_API_KEY`.

    Examples:

    - `selfverify serve --model builtin:digits`

    - `selfverify serve --upstream http://127.0.0.1:8000/v1 -n 4 --strategy majority`

    - `selfverify serve --config gateway.yaml --port 9000`
    """
    if show_config:
        typer.echo(file_text(settings), nl=False)
        return
    import selfverify.clients.openai_client  # noqa: F401  (says which extra is missing)
    from selfverify.serving.server import open_gateway, run, run_gateway

    say = announced(settings.listening.host, f"{settings.backend.model or settings.backend.upstream}", "/v1")
    gateway = open_gateway(settings)
    run(lambda: run_gateway(gateway, settings.listening, say))
