"""`reproduce.adpo`: methods x benchmarks counted again from stored samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from data_files import write_jsonl
from reproduce.adpo import app, markdown
from reproduce.by_size import ALL
from reproduce.paper_tables import paper_tables
from reproduce.stored_runs import run_sources
from samples import sample, write_samples
from selfverify.core.errors import ConfigError, DataError
from selfverify.evaluation.metrics import SampleTable, accuracy, summarise
from selfverify.evaluation.samples import StoredSample
from selfverify.experiments.registry import make_task

PROBLEMS, SAMPLES = 20, 8


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


def test_figures_are_those_of_evaluations(tmp_path: Path) -> None:
    """For each N that of the strategies' curves; N = 12 was not sampled."""
    a, b = rows(0, 0.4), rows(1, 0.7, scored=False)
    base, grpo = stored(tmp_path / "base", a), stored(tmp_path / "grpo", b)
    found = paper_tables(run_sources([f"adpo:pick={base}", f"grpo:pick={grpo}"]))
    known = {(f.method, f.place.chooser, f.place.n): f for f in found.figures}
    assert {key[2] for key in known} == {1, 4, 8}
    curves = summarise(a)["curves"]
    for n in (4, 8):
        assert known["adpo", "majority", n].value == pytest.approx(curves["majority"][n - 1])
        assert known["adpo", "best", n].value == pytest.approx(curves["best"][n - 1])
    assert known["adpo", "first", 1].value == pytest.approx(curves["pass@1"][0])
    low, high = known["adpo", "best", 8].interval or (1, 0)
    assert low < known["adpo", "best", 8].value < high
    assert ("grpo", "best", 8) not in known
    assert found.notes == ["grpo on pick: no 'best', as no answer has a soft score."]
    text = markdown(found)
    assert "| N | method | chosen by | pick acc |" in text and text.count("**") == 2 * 3
    assert accuracy(SampleTable.from_samples(b), "majority", 4) is not None


def test_seeds_are_pooled(tmp_path: Path) -> None:
    """The mean of the seeds; that they differ widens the interval."""
    folders = [stored(tmp_path / str(k), rows(k, rate)) for k, rate in enumerate((0.2, 0.9))]
    one = paper_tables(run_sources([f"a:x={folders[0]}"]), sizes=(1,)).figures[0]
    both = paper_tables(run_sources([f"a:x={f}" for f in folders]), sizes=(1,)).figures[0]
    other = paper_tables(run_sources([f"a:x={folders[1]}"]), sizes=(1,)).figures[0]
    assert both.seeds == 2 and both.value == pytest.approx((one.value + other.value) / 2)
    assert both.interval is not None and one.interval is not None
    assert both.interval[1] - both.interval[0] > 2 * (one.interval[1] - one.interval[0])


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
    found = paper_tables(run_sources(named))
    value = {(f.method, f.benchmark, f.place.figure): f.value for f in found.figures}
    assert value["ours", "x", "acc@t1"] == pytest.approx(np.mean([s.rewards["correct_1"] for s in x]))
    assert value["ours", "x", "acc@t2"] == pytest.approx(np.mean([s.correct for s in x]))
    means = [(value["ours", "x", n] + value["ours", "y", n]) / 2 for n in ("acc@t1", "acc@t2")]
    assert [value["ours", "", n] for n in ("acc@t1", "acc@t2")] == pytest.approx(means)
    assert value["ours", "", "delta"] == pytest.approx(means[1] - means[0])
    assert ("grpo", "", "delta") not in value and "grpo: no mean" in found.notes[0]
    named = [f"{name}:{b}={folders[k]}" for name in ("ours", "twin") for k, b in enumerate("xy")]
    again = paper_tables(run_sources(named), against="ours")
    zeros = [c for c in again.comparisons if c.benchmark == ""]
    assert [c.method for c in zeros] == ["twin"] * 5 and all(c.difference == 0 for c in zeros)
    assert "| method | x acc@t1 |" in markdown(again) and "| mean acc@t1 |" in markdown(again)
    assert "| method | x acc@t1 | x acc@t2 | x Δ | x M₀→₁ | x M₁→₀ | y acc@t1 |" in markdown(found)


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
    named = run_sources([f"a:sums={folder}", f"a:pick={plain}"])
    found = paper_tables(named, sizes=(1,), categories=["category"])
    value = {f.place.category: f for f in found.figures if f.benchmark == "sums"}
    assert value["category: even"].value == 0.5 and value["category: odd"].value == 1.0
    assert value["category: even"].problems == 2
    assert found.notes[-1] == "pick: its problems have no category 'category'."
    assert "sums even acc | sums odd acc | sums acc | pick acc |" in markdown(found)
    with pytest.raises(ConfigError, match=r"no benchmark has a category 'king'; categories: .*category"):
        paper_tables(named, categories=["king"])


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    a = stored(tmp_path / "a", rows(0, 0.5))
    hot = stored(tmp_path / "hot", rows(0, 0.5), temperature=1.0)
    with pytest.raises(ConfigError, match=r"temperature=1\.0.*measure both alike"):
        paper_tables(run_sources([f"a:x={a}", f"b:x={hot}"]))
    fewer = stored(tmp_path / "fewer", rows(0, 0.5)[SAMPLES:])
    with pytest.raises(DataError, match="need the same problems; 1 differ, such as digits-pick/test/0/0"):
        paper_tables(run_sources([f"a:x={a}", f"b:x={fewer}"]))
    old = stored(tmp_path / "old", rows(0, 0.5), task_options={"colour": "red"})
    with pytest.raises(ConfigError, match=r"another version.*colour"):
        paper_tables(run_sources([f"a:x={old}"]))
    (tmp_path / "bare").mkdir()
    write_samples(tmp_path / "bare" / "samples.jsonl", {"task": "digits-pick"}, rows(0, 0.5))
    with pytest.raises(DataError, match="no 'task_options'; it was made with another version"):
        paper_tables(run_sources([f"a:x={tmp_path / 'bare'}"]))
    (a / "metrics.json").write_text(json.dumps({"version": "0.0.1"}))
    assert "sampled with version 0.0.1" in paper_tables(run_sources([f"a:x={a}"])).notes[0]


def test_empty_cells_have_their_reason(tmp_path: Path) -> None:
    """A row with fewer samples than another, sizes that none has, and a category of one value."""
    many, few = rows(0, 0.5), [one for one in rows(1, 0.5) if one.sample < 2]
    a, b = stored(tmp_path / "a", many), stored(tmp_path / "b", few)
    found = paper_tables(run_sources([f"a:x={a}", f"b:x={b}"]))
    assert found.notes == ["b on x: no N = 4, 8, as it has fewer samples."]
    with pytest.raises(ConfigError, match=r"as many samples as a size asks for \(4, 12\); say smaller"):
        paper_tables(run_sources([f"b:x={b}"]), sizes=(4, 12))
    for given, shown, note in (
        (("sums", "sums"), {ALL}, "sums: no columns of 'category', which is 'sums' for all problems."),
        (("sums", ""), {ALL, "category: sums"}, "sums: 1 of 2 problems have no 'category'."),
    ):
        lines = [{"question": "?", "answer": str(i), "category": value} for i, value in enumerate(given)]
        file = write_jsonl(tmp_path / f"t-{note[:9]}.jsonl", lines)
        task = make_task("math", test=str(file))
        names = [task.problem("test", 0, i).id for i in range(2)]
        folder = stored(
            tmp_path / note[:9], [sample(name, 0, True, 0.5) for name in names], name="math",
            options={"test": str(file)}, problems=None,
        )  # fmt: skip
        found = paper_tables(run_sources([f"a:sums={folder}"]), categories=["category"])
        assert found.notes == [note] and {f.place.category for f in found.figures} == shown


def test_tests_against_a_row(tmp_path: Path) -> None:
    """Differences are those of the figures; the corrected p is what decides; the footnote says how."""
    folders = {
        name: [stored(tmp_path / f"{name}{k}", rows(10 * k + place, rate)) for k in range(2)]
        for place, (name, rate) in enumerate({"grpo": 0.3, "same": 0.3, "ours": 0.8}.items())
    }
    named = run_sources([f"{name}:x={folder}" for name, of in folders.items() for folder in of])
    found = paper_tables(named, sizes=(1, 8), against="grpo:majority")
    values = {(f.method, f.place.chooser, f.place.n): f.value for f in found.figures}
    compared = {(c.method, c.place.chooser, c.place.n): c for c in found.comparisons}
    assert ("grpo", "majority", 8) not in compared and ("grpo", "first", 1) not in compared
    for (method, chooser, n), one in compared.items():
        base = values["grpo", "first" if n == 1 else "majority", n]
        assert one.difference == pytest.approx(values[method, chooser, n] - base)
    ours, same = compared["ours", "best", 8], compared["same", "first", 1]
    assert ours.p is not None and ours.p_holm is not None and ours.p < ours.p_holm < 0.05
    assert same.p_holm is not None and same.p_holm > 0.05
    assert compared["grpo", "best", 8].baseline_seeds == 2
    text = markdown(found)
    assert "## Difference from grpo:majority (points)" in text
    assert f"Holm's correction for the {len(compared)} comparisons" in text
    assert "one seed tells nothing" not in text
    tested = [line for line in text.splitlines() if line.startswith("| 8 | ours") and "Holm" in line]
    assert len(tested) == 2 and all("| **+" in line for line in tested)
    cells = found.as_json()["comparisons"]
    assert len(cells) == len(compared) and cells[0]["place"]["chooser"] == "best"

    scoreless = stored(tmp_path / "bare", rows(7, 0.4, scored=False))
    found = paper_tables(run_sources([f"a:x={folders['ours'][0]}", f"b:x={scoreless}"]), against="b")
    assert "a on x: no comparison of best, as b has no such figure there." in found.notes
    assert "one seed tells nothing" in markdown(found, intervals=False)
    for bad, why in (("c", "no row is of method 'c'; methods: a, b"), ("a:oracle", "add it to --by")):
        with pytest.raises(ConfigError, match=why):
            paper_tables(run_sources([f"a:x={scoreless}", f"b:x={scoreless}"]), against=bad)


def test_a_studys_folder(tmp_path: Path) -> None:
    """Its tasks are benchmarks, its variants methods, and what all begin from is a row."""
    for name, seed in (("before", 0), ("grpo/seed-0", 1), ("grpo/seed-1", 2)):
        folder = stored(tmp_path / "pick" / name, rows(seed, 0.5))
        if name != "before":
            (folder / "samples.jsonl").rename(folder / "samples-after.jsonl")
    results = {"tasks": {"pick": {"variants": {"grpo": {"seeds": [0, 1]}}}}}
    (tmp_path / "results.json").write_text(json.dumps(results))
    found = paper_tables(run_sources([str(tmp_path)]), sizes=(8,))
    assert [(f.method, f.place.chooser, f.seeds) for f in found.figures] == [
        ("before", "majority", 1), ("before", "best", 1), ("grpo", "majority", 2), ("grpo", "best", 2)
    ]  # fmt: skip
    (tmp_path / "pick/grpo/seed-1/samples-after.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"seed-1/samples-after\.jsonl is missing"):
        run_sources([str(tmp_path)])


def test_the_command(tmp_path: Path) -> None:
    folder = stored(tmp_path / "a", rows(0, 0.5))

    def run(*words: str) -> tuple[int, str]:
        shown = CliRunner().invoke(app, words)
        return shown.exit_code, shown.output

    code, text = run(f"a={folder}", "--sizes", "1,8", "--by", "weighted", "--output", str(tmp_path / "t.md"))
    assert code == 0 and "vote by score" in text and (tmp_path / "t.md").read_text() == text
    assert "digits-pick acc" in text
    code, text = run(f"a={folder}", "--json")
    assert code == 0 and json.loads(text)["figures"][0]["place"]["n"] == 1
    for words in (["a"], [f"a:={folder}"], [f"a={tmp_path / 'no'}"], [f"a={folder}@before"]):
        assert run(*words)[0] == 2
    assert run(f"a={folder}", "--by", "bst")[0] == 2
