"""What training is worth: figures of samples, and which tasks have an end that teachers forget."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from reproduce import smartsnap_gains
from reproduce.smartsnap_gains import RECIPE, SETS, VARIANT, compared, figures_of, forgotten, models_of
from selfverify.core.errors import ConfigError
from selfverify.evaluation.samples import StoredSample
from selfverify.experiments.recipe import load_recipe, recipe_task


def sample(problem: str, **rewards: float) -> StoredSample:
    return StoredSample(
        problem, 0, "", None, None, False, {"format_error": 0.0, **rewards}, {}, 1, None, "stop", 0
    )


SAMPLES = [
    sample("a", truth=1.0, evidence=2.0, sufficient=1.0, judged_success=1.0),
    sample("a", truth=1.0, format_error=-1.0),
    sample("b", truth=0.0, evidence=4.0, sufficient=0.0, judged_success=1.0),
    sample("b", truth=0.0, evidence=3.0, judged_success=0.0),
]


@pytest.fixture
def habit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Teachers forget the end of the first task alone."""
    monkeypatch.setattr(smartsnap_gains, "forgotten", lambda tasks, _: np.arange(len(tasks)) == 0.0)


@pytest.mark.usefixtures("habit")
def test_a_task_counts_as_done_only_where_work_was_submitted() -> None:
    found = {name: one.value for name, one in figures_of(SAMPLES, []).items()}
    assert found["sr"] == 0.25 and found["sr, habit"] == 0.5 and found["sr, other"] == 0.0
    assert found["exhibits"] == pytest.approx(3.0)
    assert found["completeness"] == found["false_positive"] == pytest.approx(0.5)
    assert found["submitted"] == pytest.approx(0.75) and "calls" not in found


@pytest.mark.usefixtures("habit")
def test_a_conversation_that_was_cut_off_counts_as_not_done() -> None:
    cut_off = StoredSample("a", 1, "", None, None, False, {"truth": 1.0}, {}, 1, None, "length", 0)
    found = {name: one.value for name, one in figures_of([SAMPLES[0], cut_off], []).items()}
    assert found["sr"] == 0.5 and found["submitted"] == 0.5


@pytest.mark.usefixtures("habit")
def test_a_study_is_compared_with_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained models and others by name; what only some models answer has rows for these alone."""
    for name in (f"{VARIANT}/seed-0", f"{VARIANT}/seed-1", "grpo/seed-0"):
        (tmp_path / "phone" / name / "model").mkdir(parents=True)
    parts = {
        "policy": "path: its/start",
        "task": "name: digits-pick",
        "method": "name: adpo",
        "learner": "steps: 6",
    }
    recipe = "name: x\n" + "".join(f"{name}: {{{of}}}\n" for name, of in parts.items())
    (tmp_path / f"phone/{VARIANT}/seed-0/recipe.yaml").write_text(recipe)
    asked: list[str] = []

    def measured(model: str, store: Path, overrides: list[str], kinds: list[str]) -> object:
        asked.append(store.relative_to(tmp_path).as_posix())
        assert (model == "its/start") == (store.name == "before-0.jsonl")
        return figures_of(SAMPLES if "seed" in model else SAMPLES[1:], kinds)

    monkeypatch.setattr(smartsnap_gains, "measured", measured)
    said: list[str] = []
    found = compared(tmp_path, {"vanilla": "elsewhere"}, said.append)
    assert [*found] == [*SETS] and [*found["apps"]] == ["before", VARIANT]
    assert [*found["tasks"]] == ["before", "grpo", VARIANT, "vanilla"]
    gain = found["tasks"][VARIANT]["gain"]["sr"]
    assert gain["difference"] == pytest.approx(0.25) and [*gain["per_seed"]] == ["0", "1"]
    assert "measured/greedy/vanilla-0.jsonl" in asked and f"measured/apps/{VARIANT}-1.jsonl" in asked
    assert any("| grpo |" in text and "SR (%)" in text for text in said)


def test_a_task_that_ends_on_save_is_one_that_teachers_forget_to_end() -> None:
    task = recipe_task(load_recipe(RECIPE))
    problems = [task.problem("validation", 0, index) for index in range(97, 194)]
    found = forgotten(tuple(problem.id for problem in problems), ("evaluation.split=validation",))
    names = [problem.meta["categories"]["template"][0] for problem in problems]
    assert found[names.index("clock-add-label")] and not found[names.index("settings-look")]
    assert not any(found[i] for i, p in enumerate(problems) if p.meta["categories"]["kind"] == ["query"])


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
