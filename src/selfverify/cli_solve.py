"""The command ``selfverify solve``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from selfverify.errors import ConfigError

if TYPE_CHECKING:
    from selfverify.selection.calibration import Calibration
    from selfverify.selection.candidates import Candidate
    from selfverify.solve import Solution


def solve(
    question: Annotated[str | None, typer.Argument(help="What to ask.")] = None,
    model: Annotated[
        str | None, typer.Option(help="`builtin:NAME`, a folder, or a hub id; by default `builtin:digits`.")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="Ask this OpenAI-compatible server instead; --model is its name there."),
    ] = None,
    image: Annotated[list[Path] | None, typer.Option(help="An image; repeatable, in order.")] = None,
    n: Annotated[int, typer.Option("-n", min=1, max=1024, help="Candidates at most.")] = 8,
    strategy: Annotated[
        str, typer.Option(help="`first`, `majority`, `best`, `weighted` or `best-of-majority`.")
    ] = "weighted",
    verifier: Annotated[
        str,
        typer.Option(
            help="`soft`, `greedy`, `inline`, `repeated:K`, `turns:K` (how often a second turn keeps the "
            "answer), `judge:MODEL` or `ask:MODEL`."
        ),
    ] = "soft",
    turns: Annotated[
        int, typer.Option(min=1, max=2, help="2: every answer is re-examined, and the second one counts.")
    ] = 1,
    second_turn: Annotated[
        str | None,
        typer.Option(help="What second turns are asked: as in training. By default AdaPO's sentence."),
    ] = None,
    stop: Annotated[
        str, typer.Option(help="Stop early: `never`, `beta` (by votes) or `posterior` (by scores).")
    ] = "never",
    confidence: Annotated[float, typer.Option(help="How sure the answer has to be to stop.")] = 0.95,
    budget_tokens: Annotated[int | None, typer.Option(help="Tokens to write at most.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Of the sampling.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0.01, max=1.0, help="Of the sampling.")] = 0.99,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length limit of a candidate.")] = 256,
    vote_temperature: Annotated[float, typer.Option(help="`weighted`: of the votes.")] = 0.1,
    share: Annotated[float, typer.Option(help="`best-of-majority`: share an answer needs.")] = 0.25,
    answers: Annotated[
        str, typer.Option(help="What answers are: `text`, `set` (words in any order) or `box`.")
    ] = "text",
    task: Annotated[str | None, typer.Option(help="Take a problem of this built-in task instead.")] = None,
    index: Annotated[int, typer.Option(min=0, help="Which problem of the task's test split.")] = 0,
    save_image: Annotated[
        Path | None,
        typer.Option(help="With --task: write the problem's image here, print its question, stop."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="A file of `selfverify calibrate`. By default the model folder's, if it fits."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling.")] = 0,
    timeout: Annotated[float, typer.Option(min=0.1, help="With --server: seconds, at most.")] = 120.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Answer a question: sample candidates, verify them, choose one, say why.

    Examples:

    - `selfverify solve --task digits-pick --index 3`

    - `selfverify solve --task digits-pick --index 3 --save-image pick.png`

    - `selfverify solve --image pick.png --answers set "Pick 3 of the digits shown that add up to 13."`

    - `selfverify solve --model runs/mine/model --turns 2 --image cat.png "How many cats are shown?"`

    - `selfverify solve --server http://127.0.0.1:8000 --image cat.png "What is this?"`

    - `selfverify solve --model runs/mine/model --image cat.png "What is this?" -n 12 --stop beta --json`
    """
    # What is wrong with the request shows before a model is loaded.
    from selfverify.selection.adaptive import Stopping
    from selfverify.selection.strategies import Options, find_strategy

    if find_strategy(strategy).needs == "truth":
        raise ConfigError(f"strategy {strategy} needs the right answer; it is for analysis only")
    options = Options(temperature=vote_temperature, share=share)
    first = n if stop == "never" else min(2, n)
    stopping = Stopping(stop, confidence, first, max(1, n // 8), n, budget_tokens)  # type: ignore[arg-type]
    if answers not in ("text", "set", "box"):
        raise ConfigError(f"--answers {answers!r}: text, set or box")
    if task is not None and (question is not None or image):
        raise ConfigError("--task brings its own question and image; leave yours out")
    if task is None and (question is None or save_image is not None):
        raise ConfigError("a question is missing: give one, or take a task's problem with --task NAME")

    from selfverify.solve import FreeQuestion, free_problem, open_image
    from selfverify.solve import solve as run_solve
    from selfverify.tasks import TASKS, make_task

    if task is not None:
        if task in TASKS and "test" in TASKS[task].config.model_fields:
            raise ConfigError(f"task {task} reads files of its own: ask with --image and a question instead")
        asked: Any = make_task(task)
        problem = asked.problem("test", 0, index)
    else:
        asked = FreeQuestion(answers)  # type: ignore[arg-type]
        problem = free_problem(question or "", [open_image(path) for path in image or []])
    if save_image is not None:
        if not problem.images:
            raise ConfigError(f"problem {problem.id} has no image")
        problem.images[0].save(save_image)
        typer.echo(problem.meta.get("question", ""))
        return

    from selfverify.policy.config import SamplingConfig

    sampling = SamplingConfig(temperature=temperature, top_p=top_p, max_new_tokens=max_new_tokens)
    if server is not None:
        if turns == 2:
            raise ConfigError("--turns 2 needs a model that runs here, not a --server")
        from selfverify.remote.client import ServerSettings
        from selfverify.selection.calibration import Calibration
        from selfverify.serving.asking import solve_on_server
        from selfverify.serving.errors import ApiError
        from selfverify.serving.protocol import BestOf, validated

        wanted = {
            "n": n, "strategy": strategy, "verifier": verifier, "stop": stop, "confidence": confidence,
            "budget_tokens": budget_tokens, "vote_temperature": vote_temperature, "share": share,
            "answers": answers,
        }  # fmt: skip
        try:
            settings: BestOf = validated(wanted)
        except ApiError as error:
            raise ConfigError(str(error).replace("best_of.", "--")) from None
        with _Shown(quiet=as_json) as shown:
            solution = solve_on_server(
                ServerSettings(server, timeout_s=timeout),
                model,
                asked,
                problem,
                settings,
                sampling=sampling,
                seed=seed,
                calibration=Calibration.load(calibration) if calibration else None,
                on_candidate=shown.add,
            )
        _tell(solution, problem.target if task else None, as_json)
        return
    from selfverify.policy.policy import Policy
    from selfverify.policy.turns import SECOND_TURN
    from selfverify.selection.verifiers import make_verifier

    model = model or "builtin:digits"
    policy, words = Policy.load(model), second_turn or SECOND_TURN
    use = {"verifier": verifier, "strategy": strategy, "options": asdict(options), "samples_per_problem": n}
    fitted = find_calibration(calibration, model, use, all_samples=stop == "never" and budget_tokens is None)
    shown = _Shown(quiet=as_json)
    with shown:
        solution = run_solve(
            policy,
            asked,
            problem,
            make_verifier(verifier, policy, asked, words),
            strategy=strategy,
            options=options,
            stopping=stopping,
            sampling=sampling,
            seed=seed,
            calibration=fitted,
            second_turn=words if turns == 2 else None,
            on_candidate=shown.add,
        )
    _tell(solution, problem.target if task else None, as_json)


def find_calibration(
    path: Path | None, model: str, use: dict[str, Any], all_samples: bool
) -> Calibration | None:
    """The calibration to use: the one asked for, or the model folder's if it was fitted for this.

    Args:
        path: The one asked for.
        model: Beside which there may be one.
        use: What it has to have been fitted for.
        all_samples: Whether all samples are drawn, as those were that it was fitted on.

    Raises:
        ConfigError: The one asked for was fitted for something else.
        DataError: It cannot be read.
    """
    from selfverify.selection.calibration import CALIBRATION_FILE, Calibration

    beside = Path(model) / CALIBRATION_FILE
    if path is None and not beside.is_file():
        return None
    found = Calibration.load(path or beside)
    if not all_samples:
        if path is None:
            return None
        raise ConfigError(f"{path} was fitted on full sets of samples, which early stopping does not draw")
    misfit = found.misfit(use)
    if misfit and path is not None:
        raise ConfigError(f"{path} was fitted with {misfit}")
    return None if misfit else found


class _Shown:
    """The table of candidates, growing as they come."""

    def __init__(self, quiet: bool) -> None:
        self.table = Table("#", "answer", "score", "log-prob", "tokens")
        self.live = None if quiet else Live(self.table, console=Console())
        self.count = 0

    def __enter__(self) -> _Shown:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()
            if not self.live.console.is_terminal:
                self.live.console.print()

    def add(self, candidate: Candidate) -> None:
        """One more."""
        answer = "unreadable" if candidate.answer is None else shown_answer(candidate.answer)
        if candidate.first is not None:
            answer = f"{shown_answer(candidate.first)} → {answer}"
        numbers = [candidate.score, candidate.logprob]
        self.table.add_row(
            Text(str(self.count)),
            Text(answer),
            *("–" if value is None else f"{value:.3f}" for value in numbers),
            str(candidate.tokens),
        )
        self.count += 1
        if self.live:
            self.live.refresh()


def shown_answer(answer: Any) -> str:
    """An answer as people write it."""
    return " ".join(map(str, answer)) if isinstance(answer, (list, tuple)) else str(answer)


def _tell(solution: Solution, target: Any, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(solution.as_json(), ensure_ascii=False))
        return
    console, choice = Console(), solution.choice
    if choice.answer is None:
        console.print(Text("no answer", "bold red"), Text(f"({choice.reason})"))
    else:
        console.print(Text("answer:", "bold green"), Text(shown_answer(choice.answer), "bold"))
        console.print(Text(f"chosen by {choice.strategy}: {choice.reason}"))
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
