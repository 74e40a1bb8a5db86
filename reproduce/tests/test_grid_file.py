"""Study files: what is accepted and refused, and which recipes come out of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduce.grid_file import GRIDS, built_in, load_study, overrides_of, plan
from selfverify.core.errors import ConfigError
from selfverify.experiments.recipe import load_recipe


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("baseline: adpo", "baselin: adpo", "small.yaml:4: baselin: there is no such key; did you mean base"),
        ("overrides: [method.name=grpo]", "override: []", "variants.grpo.override: there is no such key"),
        ("recipe: base.yaml", "", "recipe: is missing"),
        ("recipe: base.yaml", "recipe: bose.yaml", "bose.yaml: there is no such recipe file"),
        ("seeds: [0, 1]", "seeds: [0, x]", "small.yaml:3: seeds.1: should be a valid integer"),
        ("seeds: [0, 1]", "seeds: [1, 1]", "a seed stands twice"),
        ("seeds: [0, 1]", "seeds: []", "seeds"),
        ("baseline: adpo", "baseline: adop", "baseline: there is no variant 'adop'"),
        ("tasks: [locate]", "tasks: [find]", "variants.wide.tasks: there is no task 'find'"),
        ("  wide:", "  a/b:", "'a/b' cannot name a folder"),
        ("  wide:", "  before:", "'before' cannot name a folder"),
        ("method.gamma=0.25", "gamma", "variants.wide.overrides.1: override 'gamma': write section."),
        ("method.gamma=0.25", "seed=3", "cannot override 'seed': it comes from `seeds`"),
        ("[method.name=grpo]", "[method=grpo]", "cannot override 'method': write method.name=NAME"),
        ("[method.name=grpo]", "[method.name=gppo]", "did you mean grpo?"),
        ("[method.name=grpo]", "[method.name=grpo, method.gamma=0]", "variants.grpo on tasks.pick: "),
        ("method.gamma=0.1", "method.gama=0.1", "tasks.locate: 'method.gama=0.1' is an option of no variant"),
        ("method.gamma=0.25", "evaluation.samples=3", "cannot be compared with variants.grpo: evaluation."),
        ("  pick: []", "  pick: []\n  sum: [task.name=digits-sumo]", "did you mean digits-sum?"),
    ],
)
def test_a_wrong_file_is_refused_by_name(file: Path, old: str, new: str, said: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ConfigError) as caught:
        plan(load_study(file), Path("out"))
    assert said in str(caught.value)


def test_a_variant_replaces_the_method_section(file: Path) -> None:
    study = load_study(file)
    runs = {run.label: run.recipe for run in plan(study, Path("out"))}
    assert list(runs)[:6] == [
        "pick/grpo/seed-0", "pick/adpo/seed-0", "locate/grpo/seed-0", "locate/adpo/seed-0",
        "locate/wide/seed-0", "pick/grpo/seed-1",
    ]  # fmt: skip
    assert runs["pick/adpo/seed-0"].method.options["kl"] == 0.01, "the recipe's 0.5 belongs to its own method"
    assert runs["locate/adpo/seed-1"].method.options["gamma"] == 0.1
    assert runs["locate/wide/seed-1"].method.options["gamma"] == 0.25
    assert "gamma" not in runs["locate/grpo/seed-1"].method.options
    recipe = runs["locate/grpo/seed-1"]
    assert (recipe.name, recipe.seed, recipe.output) == ("small-locate-grpo", 1, "out/locate/grpo/seed-1")
    assert load_recipe(study.recipe, overrides_of(study, "locate", "wide")).task.name == "digits-locate"


def test_a_variant_without_a_method_keeps_the_recipes(file: Path) -> None:
    file.write_text(file.read_text().replace("[method.name=adpo, method.gamma=0.25]", "[learner.steps=9]"))
    recipe = plan(load_study(file, seeds="7"), Path("out"))[-1].recipe
    assert (recipe.method.options["kl"], recipe.method.options["gamma"]) == (0.5, 0.1)
    assert (recipe.learner.steps, recipe.seed) == (9, 7)


def test_seeds_and_studies_in_the_wrong_place(file: Path) -> None:
    """Seeds of a command are not blamed on the file, a study is no recipe; a variant may have fewer."""
    with pytest.raises(ConfigError, match=r"override 'seeds=\[0,x\]': seeds\.1: should be a valid integer"):
        load_study(file, seeds="0,x")
    with pytest.raises(ConfigError, match=r"`python -m reproduce\.grid .*small\.yaml` runs it"):
        load_recipe(file)
    study = load_study(file)
    study.variants["grpo"] = study.variants["grpo"].model_copy(update={"seeds": 1})
    runs = {(run.variant, run.seed) for run in plan(study, Path("out"))}
    assert runs == {("grpo", 0), ("adpo", 0), ("adpo", 1), ("wide", 0), ("wide", 1)}


def test_every_study_that_ships_can_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their recipes, overrides and settings are right, and their variants can be compared."""
    made_by_a_recipe = tmp_path / "runs/cold-start-digits-boxes/model"
    made_by_a_recipe.mkdir(parents=True)
    (made_by_a_recipe / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "reproduce").symlink_to(GRIDS.parent)
    monkeypatch.chdir(tmp_path)
    for name in built_in():
        assert plan(load_study(name), Path("out")), name


@pytest.mark.parametrize("domain", ["math", "grounding", "mobile"])
def test_the_papers_ablations_differ_from_their_recipe_in_the_ablation_alone(domain: str) -> None:
    """Tables 9 and 10, and on grounding Table 6; `adpo` is the recipe itself."""
    runs = {run.variant: run.recipe for run in plan(load_study(f"adpo-{domain}"), Path("out"))}
    whole = load_recipe(f"adpo-{domain}")
    assert runs["adpo"].method == whole.method and runs["adpo"].seed == whole.seed
    assert runs["grpo"].method == load_recipe(f"grpo-{domain}").method
    own = {name: recipe.method.options for name, recipe in runs.items()}
    changed = {
        name: {key for key in given if given[key] != whole.method.options[key]}
        for name, given in own.items()
        if name != "grpo"
    }
    margin = {"gamma"} if domain == "grounding" else set()
    assert changed["binary"] == {"verification"} | margin and changed["entangled"] == {"credit"}
    margins = sorted(given["gamma"] for name, given in own.items() if name.startswith("gamma"))
    assert margins == ([0.025, 0.05, 0.2, 0.25] if domain == "grounding" else [])


def test_smartsnaps_study_measures_all_arms_alike() -> None:
    """Whoever judges in training, evaluations ask the same judge about the same evidence."""
    runs = plan(load_study("smartsnap-phone"), Path("out"))
    judges = {run.variant: run.recipe.task.options["judge"] for run in runs}
    assert judges["true-state"]["kind"] == "state" and judges["flipped-one-vote"]["flipped"] == 0.1
    measured = [run.recipe.measured_task.options for run in runs]
    assert all(options == measured[0] for options in measured)
    assert measured[0]["judge"]["kind"] == "rules" and measured[0]["agent"]["evidence"]["judged"] == "chosen"
