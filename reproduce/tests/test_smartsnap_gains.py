"""What training is worth: figures of samples, and intervals over seeds and tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reproduce.smartsnap_gains import RECIPE, SETS, figures_of, gain, kinds_of, models_of
from selfverify.core.errors import ConfigError
from selfverify.evaluation.samples import StoredSample
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.run import recipe_task


def sample(problem: str, **rewards: float) -> StoredSample:
    return StoredSample(
        problem, 0, "", None, None, False, {"format_error": 0.0, **rewards}, {}, 1, None, "stop", 0
    )


def test_a_task_counts_as_done_only_where_work_was_submitted() -> None:
    found = figures_of(
        [
            sample("a", truth=1.0, evidence=2.0, sufficient=1.0, judged_success=1.0),
            sample("a", truth=1.0, format_error=-1.0),
            sample("b", truth=0.0, evidence=4.0, sufficient=0.0, judged_success=1.0),
            sample("b", truth=0.0, evidence=3.0, judged_success=0.0),
        ]
    )
    assert found.sr.tolist() == [0.5, 0.0] and found.best.tolist() == [1.0, 0.0]
    assert found.figures["exhibits"] == pytest.approx(3.0)
    assert found.figures["completeness"] == pytest.approx(0.5)
    assert found.figures["false_positive"] == pytest.approx(0.5)
    assert found.figures["submitted"] == pytest.approx(0.75)


def test_a_conversation_that_was_cut_off_counts_as_not_done() -> None:
    cut_off = StoredSample("a", 1, "", None, None, False, {"truth": 1.0}, {}, 1, None, "length", 0)
    found = figures_of([sample("a", truth=1.0, evidence=2.0), cut_off])
    assert found.sr.tolist() == [0.5] and found.figures["submitted"] == 0.5


def test_the_interval_is_over_seeds_and_tasks() -> None:
    rng = np.random.default_rng(0)
    before = rng.uniform(0.2, 0.4, size=200)
    assert gain(before, [before + 0.1, before + 0.1]) == (pytest.approx(0.1), [pytest.approx(0.1)] * 2)
    # Seeds that differ widen it, though their tasks agree.
    mean, (low, high) = gain(before, [before, before + 0.2])
    assert mean == pytest.approx(0.1) and low == pytest.approx(0.0) and high == pytest.approx(0.2)
    # Tasks that differ widen it as the standard error of their mean does.
    after = before + rng.normal(0.1, 0.2, size=200)
    mean, (low, high) = gain(before, [after])
    error = (after - before).std() / np.sqrt(200)
    assert high - low == pytest.approx(2 * 1.96 * error, rel=0.1)
    # Tasks of a template that all gain alike count as one.
    templates = np.repeat(np.arange(20), 10)
    after = before + rng.normal(0.1, 0.2, size=20)[templates]
    assert gain(before, [after])[0] == pytest.approx(gain(before, [after], templates)[0])
    low, high = gain(before, [after], templates)[1]
    narrow_low, narrow_high = gain(before, [after])[1]
    assert (high - low) / (narrow_high - narrow_low) == pytest.approx(np.sqrt(10), rel=0.1)


def test_a_task_that_ends_on_save_is_one_that_teachers_forget_to_end() -> None:
    task = recipe_task(load_recipe(RECIPE))
    problems = [task.problem("validation", 0, index) for index in range(97, 194)]
    found = kinds_of([problem.id for problem in problems], ["evaluation.split=validation"])
    forgets, names = found.forgotten, [problem.meta["categories"]["template"][0] for problem in problems]
    assert forgets[names.index("clock-add-label")] and not forgets[names.index("settings-look")]
    assert not any(forgets[i] for i, p in enumerate(problems) if p.meta["categories"]["kind"] == ["query"])
    assert (found.templates == np.unique(names, return_inverse=True)[1]).all()


def test_a_study_without_models_says_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="grid smartsnap-phone` makes them"):
        models_of(tmp_path)


@pytest.mark.parametrize("name", SETS)
def test_all_sets_of_tasks_can_be_asked_for(name: str) -> None:
    recipe = load_recipe(RECIPE, ["policy.path=some/model", *SETS[name]])
    assert recipe.evaluation.problems is not None and recipe.evaluation.problems >= 256
    task = recipe_task(recipe)
    apps = {task.problem(recipe.evaluation.split, 0, n).meta["category"] for n in range(8)}
    assert (apps <= {"music", "reader"}) == (name == "apps")
