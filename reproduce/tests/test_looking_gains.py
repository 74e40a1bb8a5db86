"""What looking is worth: rows of several seeds worked by hand, what has to be there, and one tiny study."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.evaluation.test_looked import far, teach
from tests.experiments.looks.looks_recipe import far_recipe
from tests.visual.test_step_verifier import adapted

from commands import command
from reproduce import looking_gains
from reproduce.looking_gains import (
    BEGINNING,
    UNTAUGHT,
    RowOfSeed,
    compared,
    gains,
    of_looks,
    of_samples,
    seeds_of,
    table_of,
)
from reproduce.vts_v import app
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.jsonl_store import write_journal
from selfverify.evaluation.samples import StoredSample
from selfverify.evaluation.visual_metrics import CappedConversation, CappedProblem, CappedStep, as_arrays
from selfverify.experiments import train_stopping
from selfverify.experiments.recipe import to_yaml
from selfverify.policy.policy import Policy
from selfverify.visual.stopping import StopCalibration


def talk(deltas: Sequence[float], right: Sequence[int], seen: Sequence[float]) -> CappedConversation:
    """A conversation, with an answer asked for after each step; the first of ``right`` is without a look."""
    steps = [
        CappedStep(delta, 0.0, float(answer), None, 5, 4, "crop", "", share)
        for delta, answer, share in zip(deltas, right[1:], seen, strict=True)
    ]
    enough = next((h for h, share in enumerate(seen, start=1) if share == 1), 0)
    return CappedConversation(steps, float(right[0]), float(right[-1]), enough, False)


def looked(*talks: CappedConversation) -> dict[int, CappedProblem]:
    return {n: CappedProblem(n, f"p/{n}", "0", 4, [one]) for n, one in enumerate(talks)}


FIRST = looked(
    talk([2.0, 0.1, 2.0], [0, 0, 1, 1], [0.5, 1, 1]),
    talk([0.1, 2.0, 2.0], [0, 1, 0, 1], [1, 1, 1]),
)
SECOND = looked(
    talk([0.1, 0.1, 0.1], [0, 0, 1, 1], [0.5, 1, 1]),
    talk([2.0, 2.0, 0.1], [0, 0, 0, 1], [0, 0.5, 1]),
)


def answers(*right: bool) -> RowOfSeed:
    samples = [
        StoredSample(f"p/{n}", 0, "", None, None, one, {}, {}, 1, None, "stop", 0)
        for n, one in enumerate(right)
    ]
    return of_samples(samples, 16)


def test_rows_worked_by_hand() -> None:
    """Two seeds of two problems: accuracies are means, differences are paired by seed and problem."""
    measured = [of_looks(as_arrays(rows), {"signed": 0.5}) for rows in (FIRST, SECOND)]
    rows: dict[str, Any] = {name: [one[name] for one in measured] for name in measured[0]}
    # The second seed's model without tools was asked one problem more, which counts for nothing.
    rows["no-tools"] = [answers(False, True), answers(False, False, True)]
    made = gains(rows, "signed")
    # The verifier stops after 2 and 1 steps, and after 1 and 3: right, right, wrong, right.
    row, figures = made["rows"]["signed"], made["rows"]["signed"]["figures"]
    assert figures["accuracy"]["mean"] == 0.75 and row["problems"] == 2
    assert figures["accuracy"]["per_seed"] == {"0": 1.0, "1": 0.5}
    assert figures["steps"]["mean"] == 7 / 4 and figures["visual_tokens"]["mean"] == 4 + 4 * 7 / 4
    assert figures["crop_hit"]["mean"] == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    assert figures["too_early"]["mean"] == 0.25 and figures["too_late"]["mean"] == 0.0
    ahead = {name: of["verifier_ahead"].get("accuracy") for name, of in made["rows"].items()}
    assert ahead["signed"] is None and ahead["no-tools"]["difference"] == np.mean([1, 0, 0, 1])
    # Always 3 is right everywhere, and no smaller number of steps is within a point of it.
    assert (made["best_n"], made["smallest_n"]) == (3, 3)
    assert ahead["always 3"]["difference"] == -0.25 and made["steps_share"] == pytest.approx(7 / 12)
    # With 2 and 1 steps, or 1 and 3, each conversation is right in one of two orders.
    assert made["rows"]["signed, random"]["figures"]["accuracy"]["mean"] == 0.5
    assert ahead["signed, random"]["difference"] == 0.25
    blind = made["rows"]["no-tools"]["figures"]
    assert blind["visual_tokens"]["mean"] == 16 and blind["steps"]["mean"] == 0 and "crop_hit" not in blind
    low, high = figures["accuracy"]["interval"]
    assert low < 0.75 < high
    shown = table_of(made)
    assert "| signed | 75.0 [" in shown and "| signed is ahead of | right (%) |" in shown


def test_lost_answers_are_left_out() -> None:
    """And a row about other problems is refused."""
    lost = StoredSample("p/0", 0, "", None, None, False, {}, {}, 1, None, "error", 0, lost=True)
    kept = StoredSample("p/1", 0, "", None, None, True, {"steps": 2.0}, {}, 1, None, "stop", 0)
    found = of_samples([lost, kept], 4)
    assert found.problems == ["p/1"] and found.figures["accuracy"].tolist() == [1.0]
    assert found.figures["steps"].tolist() == [2.0] and "visual_tokens" not in found.figures
    rows = {name: [one] for name, one in of_looks(as_arrays(FIRST), {"signed": 0.5}).items()}
    with pytest.raises(DataError, match="no-tools has no problem in common"):
        gains({**rows, "no-tools": [of_samples([], 4)]}, "signed")


class Study:
    """Runs of one seed: a verifier with its ε, trained from a model that looks, and a model without tools."""

    def __init__(self, folder: Path, tiny: Path, load_policy: Callable[..., Policy]) -> None:
        self.folder, self.verifier = folder, folder / "stop" / "verifier" / "model"
        lora, none = {"rank": 2, "alpha": 4}, {"tools": "none", "think": "none"}
        ways: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
            ("stop", {}, {"policy": {"path": str(folder / "blind" / "model"), "lora": lora}, "stopping": {}}),
            ("blind", none, {}),
        ]
        shutil.copytree(tiny, folder / "blind" / "model")
        for name, options, more in ways:
            run = folder / name
            run.mkdir(exist_ok=True)
            recipe = far_recipe(
                task={"name": "digits-far", "max_steps": 3, **options},
                output=str(run),
                **{"policy": {"path": str(run / "model")}, **more},
            )
            (run / "recipe.yaml").write_text(to_yaml(recipe), encoding="utf-8")
        adapted(load_policy).save(self.verifier)
        StopCalibration("absolute", 0.5, "steps", 3.0, 2.0, 0.0, 4).save(self.verifier)

    @property
    def named(self) -> list[tuple[str, str]]:
        named = (("verifier", "stop"), ("no-tools", "blind"))
        return [(name, str(self.folder / run)) for name, run in named]


def stored(folder: Path) -> dict[Path, bytes]:
    """The files of samples, and what is in them."""
    found = (path for path in folder.rglob("*.jsonl") if not path.name.startswith("timing-"))
    return {path: path.read_bytes() for path in found}


@pytest.fixture
def study(
    tmp_path: Path, tiny_folder: Path, load_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> Study:
    """Its reasoner says what a teacher says."""
    reasoner = load_policy()
    teach(reasoner, far(max_steps=3))

    class Taught(Policy):
        @classmethod
        def load(cls, config: Any, **settings: Any) -> Policy:
            return reasoner

    monkeypatch.setattr(train_stopping, "Policy", Taught)
    return Study(tmp_path, tiny_folder, load_policy)


def test_a_tiny_study(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is measured once; a second call reads it, and another model under a name is refused."""
    monkeypatch.setattr(looking_gains, "BEGINNING", str(study.folder / "blind" / "model"))
    assert BEGINNING == "builtin:digits"
    kept = study.folder / "gains"
    calibrated = study.folder / "stop" / "looking" / "looked-validation.jsonl"
    write_journal(calibrated, CappedProblem, {}, FIRST.values())
    said: list[str] = []
    made = compared(kept, study.named, said.append, problems=3, fewer=2)
    assert made["rows"]["absolute"]["problems"] == 3 and made["rows"]["blanked"]["problems"] == 2
    expected = {"no-tools", "blanked", "swapped, self-stop", UNTAUGHT, "oracle", "absolute, skip", "always 1"}
    assert expected <= set(made["rows"]) and made["rule"] == "absolute"
    # Of the other rule the ε with at most as many steps on the conversations of the calibration.
    [epsilons] = made["epsilons"]
    assert epsilons["absolute"] == 0.5 and set(epsilons) == {"absolute", "signed"}
    mean = {
        name: {key: of["mean"] for key, of in row["figures"].items()} for name, row in made["rows"].items()
    }
    assert made["steps_share"] > 0 and mean["oracle"]["accuracy"] > mean["no-tools"]["accuracy"]
    assert mean["blanked"]["crop_hit"] == 0 < mean["always 3"]["crop_hit"]
    assert any("| no-tools |" in text for text in said)
    json.dumps(made, allow_nan=False)
    files = stored(kept)
    assert {path.relative_to(kept).as_posix() for path in files} == {
        "0/shown/looked-test.jsonl", "0/blanked/looked-test.jsonl", "0/swapped/looked-test.jsonl",
        "0/no-tools.jsonl", "untaught.jsonl",
    }  # fmt: skip
    assert compared(kept, study.named, said.append, problems=3, fewer=2) == made and stored(kept) == files
    header, *lines = (kept / "0" / "no-tools.jsonl").read_text().splitlines()
    settings = json.loads(header)
    settings["settings"] |= {"weights": "0" * 16}
    (kept / "0" / "no-tools.jsonl").write_text("\n".join([json.dumps(settings), *lines, ""]))
    with pytest.raises(ConfigError, match="weights"):
        compared(kept, study.named, said.append, problems=3, fewer=2)


def test_everything_is_looked_for_before_anything_is_measured(study: Study) -> None:
    verifier, blind = study.named
    with pytest.raises(ConfigError, match="once for each seed, not verifier 1 times, no-tools 0 times"):
        seeds_of([verifier])
    with pytest.raises(ConfigError, match=r"no run with recipe\.yaml and a trained model"):
        seeds_of([verifier, ("no-tools", str(study.folder))])
    with pytest.raises(ConfigError, match="no section `stopping`"):
        seeds_of([("verifier", str(study.folder / "blind")), blind])
    (study.verifier / "stopping.json").unlink()
    with pytest.raises(DataError, match="no ε beside it"):
        seeds_of(study.named)
    told = command("gains", study.folder, "out.json", "odd", code=2, of=app)
    assert "odd: say NAME=FOLDER" in told.output
