"""`reproduce.turn_errors` judges both turns, and counts what became of each kind of error."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from tests.samples import sample, write_samples

from reproduce import turn_errors as program
from selfverify.evaluation.samples import StoredSample, StoredStep, StoredVerdict
from selfverify.experiments.recipe import load_recipe
from selfverify.experiments.registry import make_task
from selfverify.tasks.base import Task


@pytest.fixture(scope="module")
def task() -> Task:
    settings = load_recipe("adapo-digits-check").task
    return make_task(settings.name, **settings.options)


def picks(task: Task, index: int) -> dict[str, list[int]]:
    """One pick of each kind for a problem: right, of another sum, of digits that are not shown, and both."""
    problem = task.problem("test", 0, index)
    shown, found = problem.meta["digits"], {}
    kinds = {
        (True, True): "right", (False, True): "wrong sum", (True, False): "digit not shown",
        (False, False): "wrong sum, digit not shown",
    }  # fmt: skip
    for pick in product(range(10), repeat=3):
        seen = all(pick.count(digit) <= shown.count(digit) for digit in pick)
        found.setdefault(kinds[sum(pick) == problem.target, seen], sorted(pick))
    return found


def twice(task: Task, index: int, number: int, *answers: list[int] | None) -> StoredSample:
    def turn(place: int, answer: list[int] | None) -> StoredStep:
        key = None if answer is None else " ".join(map(str, answer))
        return StoredStep("policy", place, "", "", [], "stop", {}, StoredVerdict(answer, key, False))

    made = sample(f"{task.name}/test/0/{index}", number, False, None)
    made.steps = [turn(place, answer) for place, answer in enumerate(answers)]
    return made


def test_kinds_before_and_after(task: Task, tmp_path: Path) -> None:
    rows = []
    for index in range(2):
        p = picks(task, index)
        pairs = [
            (p["right"], p["right"]),
            (p["wrong sum"], p["right"]),
            (p["wrong sum"], p["wrong sum"]),
            (p["digit not shown"], p["digit not shown"]),
            (p["wrong sum, digit not shown"], None),
        ]
        rows += [twice(task, index, number, *pair) for number, pair in enumerate(pairs)]
    folder, out = tmp_path / "a", tmp_path / "o.json"
    folder.mkdir()
    write_samples(folder / "samples.jsonl", {}, rows)
    program.main(["--of", "a", str(folder), "--of", "b", str(folder), str(folder), "--output", str(out)])
    found = json.loads(out.read_text())
    assert found["problems"] == 2 and found["methods"]["b"]["seeds"] == 2
    a = found["methods"]["a"]
    values = {kind: [of["value"] for of in figures.values()] for kind, figures in a["first"].items()}
    assert values == {
        "right": [0.2, 1.0, 1.0],
        "wrong sum": [0.4, 0.5, 0.5],
        "digit not shown": [0.2, 1.0, 0.0],
        "wrong sum, digit not shown": [0.2, 0.0, 0.0],
        "unreadable": [0.0, None, None],
    }
    assert [of["value"] for of in a["second"].values()] == [0.4, 0.2, 0.2, 0.0, 0.2]
    # Both problems have the same counts, so that no draw of them changes a figure.
    assert a["first"]["wrong sum"]["kept"]["interval"] == [0.5, 0.5]


def test_other_samples_are_refused(task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = twice(task, 0, 0, [1, 2, 3], [1, 2, 3])
    one.steps = one.steps[:1]
    cases = {
        "has samples of one turn": [one],
        "is not of digits-pick": [sample("other/test/0/0", 0, True, None)],
    }
    for number, (message, rows) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_samples(folder / "samples.jsonl", {}, rows)
        with pytest.raises(SystemExit):
            program.main(["--of", "a", str(folder)])
        assert message in " ".join(capsys.readouterr().err.split())
    good, other = tmp_path / "good", tmp_path / "other"
    for folder, index in ((good, 0), (other, 1)):
        folder.mkdir()
        write_samples(folder / "samples.jsonl", {}, [twice(task, index, 0, None, None)])
    with pytest.raises(SystemExit):
        program.main(["--of", "a", str(good), "--of", "b", str(other)])
    assert "has other problems" in " ".join(capsys.readouterr().err.split())
