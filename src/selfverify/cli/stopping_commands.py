"""`selfverify visual calibrate` and `visual compare`: when a verifier ends looking."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import Field, model_validator

from selfverify.cli.options import Json, Overrides, settings_as_options
from selfverify.cli.printing import bar, figure, print_json, print_table
from selfverify.core.config import CommandConfig

if TYPE_CHECKING:
    from selfverify.visual.stopping import Target as StopTarget

Target = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE_OR_MODEL", help="A recipe with the task, a run's folder or a model's folder."
    ),
]
WIDEST = 40
"""Characters of a histogram's longest bar."""


class ListenerConfig(CommandConfig):
    """Who looks, and who listens."""

    verifier: str
    """The verifier's folder: a model with an adapter, or with --verifier-base any model."""

    verifier_base: str | None = None
    """What the verifier was trained from; by default the model below its adapter."""

    model: str | None = None
    """The model that looks, instead of the recipe's."""

    recipe: str | None = None
    """The recipe with the task and the evaluation's settings. A model in a run's folder needs none."""

    tool: list[str] = []
    """For a task that does not look by itself: a tool; repeat the option. By default all that are there."""

    max_steps: int | None = Field(None, ge=1, le=100)
    """For such a task: the most steps."""

    output: Path | None = None
    """The folder in which the conversations are kept; by default `looking` in the run's."""


class StopTargetConfig(ListenerConfig):
    """What ε is chosen for."""

    rule: Literal["absolute", "signed"] = "absolute"
    """Whether looking ends where |Δr| < ε (the paper's text) or where Δr < ε (its Algorithm 1)."""

    steps: float | None = Field(None, gt=0)
    """The mean number of steps that may not be exceeded."""

    accuracy: float | None = Field(None, ge=0, le=1)
    """The accuracy that has to be reached, with the fewest steps."""

    within: float | None = Field(None, ge=0, le=1)
    """How far below the best accuracy of all ε it may be, with the fewest steps."""

    @model_validator(mode="after")
    def _one_target(self) -> StopTargetConfig:
        if sum(value is not None for value in (self.steps, self.accuracy, self.within)) != 1:
            raise ValueError(
                "give one target: --steps, the most on average; --accuracy, the least; or --within, how far "
                "it may be below the best"
            )
        return self

    @property
    def held(self) -> tuple[StopTarget, float]:
        """What is to be held."""
        given: dict[StopTarget, float | None] = {
            "steps": self.steps, "accuracy": self.accuracy, "within": self.within
        }  # fmt: skip
        return next((name, value) for name, value in given.items() if value is not None)


@settings_as_options
def calibrate(
    target: Target, settings: StopTargetConfig, overrides: Overrides = None, as_json: Json = False
) -> None:
    """Choose the ε with which a verifier ends looking, on validation problems, and store it beside it.

    The model looks to the cap and is asked for an answer after every step; called again, the command goes on
    where it was stopped, and another target needs no more conversations. What Theorem 3.2 assumes is printed
    for each step, with the histogram of Δr and the share of conversations that reach the cap.

    Examples:

    - `selfverify visual calibrate my-looks.yaml --verifier runs/dpo/model --accuracy 0.9`

    - `selfverify visual calibrate my-looks.yaml --verifier runs/dpo/model --rule signed --steps 3
      evaluation.problems=256 evaluation.samples=1`
    """
    from selfverify.experiments.train_stopping import calibrate_stopping

    name, wanted = settings.held
    with bar("problems", hidden=as_json) as progress:
        found = calibrate_stopping(_looks(target, settings, overrides), settings.rule, name, wanted, progress)
    if as_json:
        print_json(found.plain())
        return
    means, shares = found.means, found.figures.stopped_at
    rows = [
        (
            str(step),
            str(means.conversations[n]),
            _with_error(means.plan[n], means.plan_error[n]),
            _with_error(means.action[n], means.action_error[n]),
            f"{means.positive[n]:.3f}",
            f"{shares[step - 1]:.1%}",
        )
        for n, step in enumerate(found.steps)
    ]
    columns = ("step", "conversations", "log-ratio of plans", "of actions", "positive part of r", "stopped")
    print_table(columns, rows, "Theorem A.6 wants plans of at least 0, and a bounded positive part; nats")
    counts, edges = found.figures.counts, found.figures.edges
    bars = [
        (f"{low:.3g} to {high:.3g}", str(count), "█" * round(WIDEST * count / max(counts.max(), 1)))
        for low, high, count in zip(edges[:-1], edges[1:], counts.tolist(), strict=True)
    ]
    print_table(("Δr", "steps", ""), bars)
    fitted = found.calibration
    known = "" if fitted.accuracy is None else f", {fitted.accuracy:.1%} of the answers right"
    typer.echo(
        f"{fitted.rule}: ε = {fitted.epsilon:.6g} nats; {fitted.steps:.2f} steps on average{known}; "
        f"{found.figures.cap:.1%} of {found.conversations} conversations reach the cap"
    )
    if found.left_out:
        typer.echo(f"{found.left_out} conversations failed, had no verdict or no step, and are left out")
    typer.echo(f"calibration: {found.path}")


class CompareStopConfig(ListenerConfig):
    """Which rules are compared."""

    absolute: float | None = Field(None, gt=0)
    """ε of the rule |Δr| < ε. Without --absolute and --signed that of the verifier's calibration is taken."""

    signed: float | None = None
    """ε of the rule Δr < ε."""


@settings_as_options
def compare(
    target: Target, settings: CompareStopConfig, overrides: Overrides = None, as_json: Json = False
) -> None:
    """Compare what ends looking, on the same conversations about test problems.

    The rows: after N steps, where the model wants to end, the verifier's rules (with the step that ends
    looking dropped, and where the model may end before), its stopping times given to other conversations,
    and where the task knows it the first step after which everything needed has been shown.

    Example: `selfverify visual compare my-looks.yaml --verifier runs/dpo/model evaluation.problems=2048`
    """
    from selfverify.experiments.train_stopping import compare_stopping

    given = {"absolute": settings.absolute, "signed": settings.signed}
    epsilons: dict[Any, float] = {rule: epsilon for rule, epsilon in given.items() if epsilon is not None}
    with bar("problems", hidden=as_json) as progress:
        found = compare_stopping(_looks(target, settings, overrides), epsilons, progress)
    if as_json:
        print_json(found)
        return
    names = ("accuracy", "interval", "steps", "visual_tokens", "crop_hit", "too_early", "too_late")
    cells = []
    for rule, figures in found["rules"].items():
        low, high = figures["interval"]
        shown = {**figures, "interval": f"{low:.3f} to {high:.3f}"}
        cells.append([rule, *(figure(shown.get(name), ".3f") for name in names)])
    print_table(
        ("looking ends", *(name.replace("_", " ") for name in names)), cells, no_wrap=("looking ends",)
    )
    for rule, against in found["verifier"].items():
        gap, over = against["gap_to_smallest_n"], against["over_random"]
        typer.echo(
            f"{rule}, ε = {against['epsilon']:.6g}: {_points(gap)} against {against['smallest_n']} steps "
            f"(the best is {against['best_n']}), at {against['steps_share']:.0%} of the steps; "
            f"{_points(over)} against random stopping"
        )


def _looks(target: str, settings: ListenerConfig, overrides: list[str] | None) -> Any:
    from selfverify.cli.run_folders import resolve_target
    from selfverify.experiments.recipe import load_recipe, refuse_hidden
    from selfverify.experiments.train_stopping import CappedLooks

    source, found = resolve_target(target, settings.recipe)
    recipe = load_recipe(source, overrides or [])
    refuse_hidden(recipe, overrides or [])
    return CappedLooks(
        recipe,
        settings.model or found,
        settings.verifier,
        settings.verifier_base,
        settings.output,
        tuple(settings.tool),
        settings.max_steps,
    )


def _with_error(mean: float, error: float) -> str:
    return f"{mean:+.4f} ± {error:.4f}"


def _points(difference: dict[str, Any]) -> str:
    low, high = (100 * value for value in difference["interval"])
    return f"{100 * difference['mean']:+.1f} points ({low:+.1f} to {high:+.1f})"
