"""`reproduce.adpo` and `reproduce.adapo`: methods x benchmarks counted again from stored samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from data_files import write_jsonl
from reproduce import adapo, adpo
from reproduce.by_size import ALL, Place
from reproduce.paper_tables import MEAN, TURNS, Asked, compared, markdown, paper_tables, run_sources
from reproduce.statistics import pooled
from samples import sample, write_samples
from selfverify.core.errors import ConfigError, DataError
from selfverify.evaluation.metrics import summarise
from selfverify.evaluation.samples import StoredSample
from selfverify.experiments.registry import make_task

PROBLEMS, SAMPLES = 20, 8
ASKED = Asked((1, 4, 8, 12), ("majority", "best"))


def rows(seed: int, rate: float, scored: bool = True, **changes: Any) -> list[StoredSample]:
    """Answers of which this share is right, with a score that knows something of it."""
    rng = np.random.default_rng(seed)
    found = []
    for p in range(PROBLEMS):
        for k in range(SAMPLES):
            right = bool(rng.random() < rate)
            score = float(rng.random() + 0.2 * right) / 1.2 if scored else None
            key = "right" if right else f"wrong {rng.integers(9)}"
            found.append(sample(f"digits-pick/test/0/{p}", k, right, score, key=key, answer=key, **changes))
    return found


def stored(path: Path, samples: list[StoredSample], **changes: Any) -> Path:
    task = make_task(changes.pop("name", "digits-pick"), **changes.pop("options", {}))
    header = {
        "task": task.name, "task_options": task.config.model_dump(mode="json"), "weights": str(path),
        "temperature": 0.2, "top_p": 0.99, "max_new_tokens": 48, "split": "test", "problems": PROBLEMS,
    }  # fmt: skip
    path.mkdir(parents=True)
    write_samples(path / "samples.jsonl", header | changes, samples)
    return path


def acc(benchmark: str, category: str = ALL) -> Place:
    return Place(benchmark, category, "accuracy")


def test_figures_are_those_of_evaluations(tmp_path: Path) -> None:
    """For each N that of the strategies' curves; N = 12 was not sampled."""
    a, b = rows(0, 0.4), rows(1, 0.7, scored=False)
    base, grpo = stored(tmp_path / "base", a), stored(tmp_path / "grpo", b)
    found = paper_tables([f"adpo:pick={base}", f"grpo:pick={grpo}"], ASKED)
    assert [*found.measured] == ["N = 1", "N = 4", "N = 8"]
    curves = summarise(a)["curves"]
    for n in (4, 8):
        own = [row for row in found.measured[f"N = {n}"] if row[0] == "adpo"]
        for row, curve in zip(own, ("majority", "best"), strict=True):
            [figure] = pooled(found.measured[f"N = {n}"][row]).values()
            assert figure["mean"] == pytest.approx(curves[curve][n - 1])
            assert figure["interval"][0] < figure["mean"] < figure["interval"][1]
    single = found.measured["N = 1"]["adpo", "–"][0]
    assert single[acc("pick")].value == pytest.approx(curves["pass@1"][0])
    assert len(found.measured["N = 8"]) == 3
    assert found.notes[-1] == "grpo on pick: no 'best', as no answer has a soft score."
    text = markdown(found, ASKED)
    assert "| method | chosen by | pick acc (%) |" in text and text.count("**") == 2 * 3


def test_two_turns_and_their_mean(tmp_path: Path) -> None:
    """acc@t1 of the first answers; the mean over benchmarks of the method that has both."""

    def turned(seed: int, first: float) -> list[StoredSample]:
        found, rng = rows(seed, 0.5), np.random.default_rng(seed)
        for row in found:
            row.rewards["correct_1"] = float(rng.random() < first)
        return found

    x, y, z = turned(0, 0.3), turned(1, 0.6), turned(2, 0.6)
    folders = [stored(tmp_path / str(k), s) for k, s in enumerate((x, y, z))]
    named = [f"ours:x={folders[0]}", f"ours:y={folders[1]}", f"grpo:x={folders[2]}"]
    found = paper_tables(named, Asked())
    ours, grpo = (
        {place: one.value for place, one in found.measured[TURNS][method,][0].items()}
        for method in ("ours", "grpo")
    )
    assert ours["x", ALL, "acc@t1"] == pytest.approx(np.mean([s.rewards["correct_1"] for s in x]))
    assert ours["x", ALL, "acc@t2"] == pytest.approx(np.mean([s.correct for s in x]))
    means = [(ours["x", ALL, n] + ours["y", ALL, n]) / 2 for n in ("acc@t1", "acc@t2")]
    assert [ours[MEAN, ALL, n] for n in ("acc@t1", "acc@t2")] == pytest.approx(means)
    assert ours[MEAN, ALL, "delta"] == pytest.approx(means[1] - means[0])
    assert (MEAN, ALL, "delta") not in grpo and "grpo: no mean" in found.notes[0]
    twins = [f"{name}:{b}={folders[k]}" for name in ("ours", "twin") for k, b in enumerate("xy")]
    against = Asked(against="ours")
    again = paper_tables(twins, against)
    [[row, zeros]] = compared(again, against)[TURNS].items()
    assert row == ("twin",) and len(zeros) == 15 and all(one["difference"] == 0 for one in zeros.values())
    assert "| method | x acc@t1 (%) |" in markdown(again, against)
    assert "| mean acc@t1 (%) |" in markdown(again, against)
    with pytest.raises(ConfigError, match=r"samples of two turns; `python -m reproduce\.adapo`"):
        paper_tables(named, ASKED)


def test_categories_become_columns(tmp_path: Path) -> None:
    """Those of the data file; one that a benchmark lacks is named, one that none has is refused."""
    lines = [
        {"question": "?", "answer": str(i), "category": "even" if i % 2 == 0 else "odd"} for i in range(4)
    ]
    file = write_jsonl(tmp_path / "t.jsonl", lines)
    options = {"test": str(file)}
    task = make_task("math", **options)
    task.set_coordinate_space(lambda size: size)
    names = [task.problem("test", 0, i).id for i in range(4)]
    samples = [sample(name, k, i < 2 or i == 3, 0.5) for i, name in enumerate(names) for k in range(2)]
    folder = stored(tmp_path / "m", samples, name="math", options=options, problems=None)
    plain = stored(tmp_path / "p", rows(0, 0.5))
    named = [f"a:sums={folder}", f"a:pick={plain}"]
    asked = Asked((1,), ("best",), categories=["category"])
    found = paper_tables(named, asked)
    run = found.measured["N = 1"]["a", "–"][0]
    even, odd = (acc("sums", f"category: {name}") for name in ("even", "odd"))
    assert run[even].value == 0.5 and run[odd].value == 1.0 and run[even].used.sum() == 2
    assert "pick: its problems have no category 'category'." in found.notes
    assert "sums acc (%) | sums even acc (%) | sums odd acc (%) | pick acc (%) |" in markdown(found, asked)
    with pytest.raises(ConfigError, match=r"no benchmark has a category 'king'; categories: .*category"):
        paper_tables(named, Asked((1,), ("best",), categories=["king"]))


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    a = stored(tmp_path / "a", rows(0, 0.5))
    hot = stored(tmp_path / "hot", rows(0, 0.5), temperature=1.0)
    with pytest.raises(ConfigError, match=r"temperature=1\.0 .*measure both alike"):
        paper_tables([f"a:x={a}", f"b:x={hot}"], ASKED)
    fewer = stored(tmp_path / "fewer", rows(0, 0.5)[SAMPLES:])
    with pytest.raises(DataError, match="need the same problems; 1 differ, such as digits-pick/test/0/0"):
        paper_tables([f"a:x={a}", f"b:x={fewer}"], ASKED)
    old = stored(tmp_path / "old", rows(0, 0.5), task_options={"colour": "red"})
    with pytest.raises(ConfigError, match=r"another version.*colour"):
        paper_tables([f"a:x={old}"], ASKED)
    (tmp_path / "bare").mkdir()
    write_samples(tmp_path / "bare" / "samples.jsonl", {"task": "digits-pick"}, rows(0, 0.5))
    with pytest.raises(DataError, match="no 'task_options'; it was made with another version"):
        paper_tables([f"a:x={tmp_path / 'bare'}"], ASKED)
    # A row with fewer samples than another has a reason, sizes that none has are refused.
    few = stored(tmp_path / "few", [one for one in rows(1, 0.5) if one.sample < 2])
    noted = paper_tables([f"a:x={a}", f"b:x={few}"], ASKED).notes
    assert noted[-1] == "b on x: no N = 4, 8, 12, as it has fewer samples."
    with pytest.raises(ConfigError, match=r"as many samples as a size asks for \(4, 12\); say smaller"):
        paper_tables([f"b:x={few}"], Asked((4, 12), ("best",)))


def test_tests_against_a_row(tmp_path: Path) -> None:
    """Differences are those of the figures; the corrected p is what decides; the text says how."""
    folders = {
        name: [stored(tmp_path / f"{name}{k}", rows(10 * k + place, rate)) for k in range(3)]
        for place, (name, rate) in enumerate({"grpo": 0.3, "same": 0.3, "ours": 0.8}.items())
    }
    named = [f"{name}:x={folder}" for name, of in folders.items() for folder in of]
    asked = Asked((1, 8), ("majority", "best"), against="grpo:majority")
    found = paper_tables(named, asked)
    values = {
        t: {row: pooled(of)[acc("x")]["mean"] for row, of in r.items()} for t, r in found.measured.items()
    }
    differences = compared(found, asked)
    vote, best = [row[1] for row in found.measured["N = 8"] if row[0] == "grpo"]
    assert ("grpo", vote) not in differences["N = 8"] and ("grpo", "–") not in differences["N = 1"]
    for title, of in differences.items():
        base = values[title]["grpo", "–" if title == "N = 1" else vote]
        for row, one in of.items():
            assert one[acc("x")]["difference"] == pytest.approx(values[title][row] - base)
    assert differences["N = 8"]["ours", best][acc("x")]["p"] < 0.05
    assert differences["N = 1"]["same", "–"][acc("x")]["p"] > 0.05
    paired, apart = (
        differences["N = 8"][row][acc("x")]["per_seed"] for row in (("grpo", best), ("ours", best))
    )
    assert [*paired] == ["0", "1", "2"] and apart == {}
    text = markdown(found, asked)
    assert "Difference from **grpo:majority**" in text and "Holm's correction for the 5 comparisons" in text
    assert any(line.startswith("| ours | ") and "| +" in line for line in text.splitlines())
    for bad, why in (("c", "no row is of method 'c'; methods: grpo"), ("ours:oracle", "add it to --by")):
        with pytest.raises(ConfigError, match=why):
            compared(found, Asked((1, 8), ("majority", "best"), against=bad))


def test_a_row_of_one_seed_is_compared_with_all_seeds(tmp_path: Path) -> None:
    folders = [stored(tmp_path / str(k), rows(k, 0.2 + 0.2 * k)) for k in range(3)]
    asked = Asked((1,), ("best",), against="before")
    found = paper_tables(
        [f"{m}:x={f}" for m, f in zip(("before", "ours", "ours"), folders, strict=True)], asked
    )
    means = {row[0]: pooled(of)[acc("x")]["mean"] for row, of in found.measured["N = 1"].items()}
    [one] = compared(found, asked)["N = 1"].values()
    assert one[acc("x")]["difference"] == pytest.approx(means["ours"] - means["before"])


def test_a_studys_folder(tmp_path: Path) -> None:
    """Its tasks are benchmarks, its variants methods, and what all begin from is a row."""
    for name, seed in (("before", 0), ("grpo/seed-0", 1), ("grpo/seed-1", 2)):
        folder = stored(tmp_path / "pick" / name, rows(seed, 0.5))
        if name != "before":
            (folder / "samples.jsonl").rename(folder / "samples-after.jsonl")
    results = {"tasks": {"pick": {"variants": {"grpo": {"seeds": [0, 1]}}}}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    found = paper_tables([str(tmp_path)], Asked((8,), ("majority", "best")))
    assert [(row[0], [*of]) for row, of in found.measured["N = 8"].items()] == [
        ("before", [0]), ("before", [0]), ("grpo", [0, 1]), ("grpo", [0, 1])
    ]  # fmt: skip
    (tmp_path / "pick/grpo/seed-1/samples-after.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"seed-1/samples-after\.jsonl is missing"):
        run_sources([str(tmp_path)])


def run(app: typer.Typer, *words: str) -> tuple[int, str]:
    shown = CliRunner().invoke(app, words)
    return shown.exit_code, shown.output


def test_the_commands(tmp_path: Path) -> None:
    folder = stored(tmp_path / "a", rows(0, 0.5))
    words = (f"a={folder}", "--sizes", "1,8", "--by", "weighted", "--output", str(tmp_path / "t.md"))
    code, text = run(adpo.app, *words)
    assert code == 0 and "vote by score" in text and (tmp_path / "t.md").read_text() == text
    assert "digits-pick acc (%)" in text
    for bad in (["a"], [f"a:={folder}"], [f"a={tmp_path / 'no'}"]):
        assert run(adpo.app, *bad)[0] == 2
    assert run(adpo.app, f"a={folder}", "--by", "bst")[0] == 2
    code, text = run(adapo.app, f"a={folder}")
    assert code == 2 and "samples of one turn" in " ".join(text.split())
    turned = rows(0, 0.5)
    for row in turned:
        row.rewards["correct_1"] = 0.0
    code, text = run(adapo.app, f"a:x={stored(tmp_path / 'b', turned)}")
    assert code == 0 and "| a | 0.0 [0.0, " in text


def test_the_papers_figures_stand_beside(tmp_path: Path) -> None:
    """In tables that have the row's benchmark, at its N; numbers among the rows say which tables."""
    folder = stored(tmp_path / "a", rows(0, 0.5))
    code, text = run(
        adpo.app, f"ours:Math-Vista={folder}", "--sizes", "1,8", "--by", "best", "--paper", "2", "7"
    )
    assert code == 0 and "## N = 8" in text
    second, seventh = text.split("## Table ")[1:]
    [best] = [line for line in second.splitlines() if line.startswith("| ours | own score | 8 |")]
    [own] = [line for line in text.splitlines() if line.startswith("| ours | own score | ") and "[" in line]
    assert best.split("|")[6].strip() == own.split("|")[3].split("[")[0].strip(" *")
    assert (
        "| ours | – | 1 | – | – |" in second
        and "| ADPO [arXiv:2601.01483] | ADPO | 8 | 65.0 | 2.6 |" in seventh
    )
    turned = rows(0, 0.5)
    for row in turned:
        row.rewards["correct_1"] = 0.0
    file = tmp_path / "t.md"
    code, text = run(
        adapo.app, f"ours:ai2d={stored(tmp_path / 'b', turned)}", "--paper", "--output", str(file)
    )
    assert code == 0 and text.count("\n| ours |") == 3 and text.count("## Table") == 3
    assert file.read_text() == text and text.endswith("| +3.2 |\n")
    for app in (adpo.app, adapo.app):
        assert run(app, "--paper")[1].count("## Table") == (11 if app is adpo.app else 3)
        code, text = run(app, "--paper", "8")
        assert code == 2 and "no published Table 8 here" in text
        code, text = run(app)
        assert code == 2 and "ask for the paper's figures with --paper" in " ".join(text.split())
        assert run(app, "5")[0] == 2
