"""`reproduce.collapse` draws both turns' accuracy against the gap of fixed rewards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image
from tests.samples import turned

from reproduce import collapse as program
from reproduce.grid_results import task_results
from selfverify.experiments.recipe import load_recipe, to_yaml

VARIANTS = {
    "adapo": [],
    "wide": ["method.reward=fixed-correction", "method.fixed_gap=16"],
    "narrow": ["method.reward=fixed-correction", "method.fixed_gap=4"],
    "level": ["method.reward=fixed"],
    "scaled": ["method.reward=fixed", "method.scale_advantage=true"],
    "kept": ["method.reward=fixed-preservation"],
}


def study(folder: Path, variants: dict[str, str]) -> str:
    samples = {name: {0: turned(pairs)} for name, pairs in variants.items()}
    recipes = {}
    for name in variants:
        settings = ["method.scale_advantage=false", *VARIANTS[name], "evaluation.problems=4"]
        recipes[name] = load_recipe("adapo-digits-check", settings)
        run = folder / "pick" / name / "seed-0"
        run.mkdir(parents=True)
        (run / "recipe.yaml").write_text(to_yaml(recipes[name]))
    task = task_results(turned("11 01 00 00"), samples, recipes, next(iter(variants)))
    whole = {"study": "s", "baseline": next(iter(variants)), "tasks": {"pick": task}}
    (folder / "results.json").write_text(json.dumps(whole))
    return str(folder)


def test_points_stand_in_the_order_of_their_gaps(tmp_path: Path) -> None:
    folder = study(
        tmp_path / "s",
        {
            "adapo": "11 11 01 00",
            "wide": "01 01 01 00",
            "narrow": "11 01 01 00",
            "level": "11 11 00 00",
            "scaled": "11 11 11 00",
            "kept": "11 11 11 11",
        },
    )
    out, picture = tmp_path / "o.json", tmp_path / "p.png"
    program.main([folder, "--breakeven", "3.6", "--output", str(out), "--picture", str(picture)])
    found = json.loads(out.read_text())
    assert [point["gap"] for point in found["fixed"]] == [0, 4, 16]
    assert [point["turns.acc@t1"]["mean"] for point in found["fixed"]] == [0.5, 0.25, 0]
    assert [point["turns.acc@t2"]["mean"] for point in found["fixed"]] == [0.5, 0.75, 0.75]
    assert found["adaptive"]["turns.acc@t2"]["mean"] == 0.75
    assert found["before"]["turns.acc@t1"]["mean"] == 0.25
    # Another scale, or a preference for kept answers, is no point of the curve.
    assert list(found["rest"]) == ["scaled", "kept"] and found["breakeven"] == 3.6
    with Image.open(picture) as image:
        assert image.width > 1000 and len(image.convert("RGB").getcolors(1 << 20) or ()) > 50


def test_what_cannot_be_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = study(tmp_path / "adaptive", {"adapo": "11 11 01 00"})
    for words, told in (
        ([str(tmp_path)], "has no results.json"),
        ([only, "--task", "box"], "has no task 'box', but pick"),
        ([only], "no variant has method.reward of fixed or fixed-correction"),
    ):
        with pytest.raises(SystemExit):
            program.main(words)
        assert told in capsys.readouterr().err
