"""`reproduce.vts_v bench --server`: what a server's model answers, at first sight and with tools."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tests.data.test_vstar import write

from commands import command
from reproduce.mathvista import published_accuracy
from reproduce.vts_v import app, row_of
from selfverify.core.errors import DataError
from selfverify.core.jsonl_store import open_journal
from selfverify.evaluation.samples import StoredProblem, StoredSample
from selfverify.experiments.registry import make_task
from selfverify.tasks.math import Math, MathConfig
from serving_servers import Body, FakeUpstream, Loop
from tables import read_tables, yaml_cases

STEP = json.dumps(
    {"thought": "?", "action_name": "crop", "action": {"image_index": 1, "bounding_box": [0, 0, 900, 900]}}
)
ANSWER = "<think>.</think><answer>A</answer>"


def looks_once(body: Body, number: int) -> str:
    """A step where there are tools, then an answer."""
    first = len(body["messages"]) == 1 and "action_name" in str(body["messages"][0])
    return STEP if first else ANSWER


class Bench:
    """Four questions of V*, and the command."""

    def __init__(self, folder: Path) -> None:
        self.data, self.output = folder / "vstar", folder / "out"
        for number in range(2):
            write(self.data / "direct_attributes", f"sa_{number}")
            write(self.data / "relative_position", f"sb_{number}")
        task = make_task("math", test={"path": str(self.data), "format": "vstar"}, score=False)
        self.targets = [task.problem("test", 0, index).target for index in range(4)]

    def run(self, address: str, *words: str) -> tuple[list[dict[str, Any]], Any]:
        told = [
            "bench", str(self.data), "--server", address, "--model", "m", "--output",
            str(self.output), "--max-steps", "2", "--tool", "crop", *words,
        ]  # fmt: skip
        shown = command(*told, of=app)
        return json.loads((self.output / "bench.json").read_text())["rows"], shown


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_server_answers(servers: Loop, bench: Bench) -> None:
    """Four rows, the paper's beside them; asked again, nothing is asked of the server."""
    fake = FakeUpstream(write=looks_once, knows_logprobs=False)
    address = servers.upstream(fake)
    rows, shown = bench.run(address, "--marks")
    assert [row["name"] for row in rows] == ["zero-shot", "without looking", "set of mark", "looking"]
    assert "| m + SoM | " in shown.output and "| Qwen2.5VL-7B [Bai et al. 2025] | 73.30 |" in shown.output
    share = sum("A" in str(target) for target in bench.targets) / 4
    assert 0 <= share < 1 and [row["accuracy"] for row in rows] == [share] * 4
    assert all(set(row["tasks"]) == {"direct_attributes", "relative_position"} for row in rows)
    assert rows[0]["mean"] == sum(rows[0]["tasks"].values()) / 2 and rows[0]["problems"] == 4
    assert rows[0]["steps"] is None and rows[3]["steps"] == 1.0 and rows[3]["crop_hit"] == 0.5
    answered = [body for body in fake.seen if "logprobs" not in body]  # others are refused
    assert {body["model"] for body in fake.seen} == {"m"} and len(answered) == 4 + 4 + 4 + 8
    count = len(fake.seen)
    assert bench.run(address, "--marks")[0] == rows and len(fake.seen) == count
    images = list((bench.output / "looking" / "images").iterdir())
    assert images and (bench.output / "looking" / "samples.jsonl").is_file()


def test_conversations_that_break_off(servers: Loop, bench: Bench) -> None:
    """A failing server ends the command, and what is missing is asked for by the next one. A conversation
    that a server refuses to go on with counts as wrong and is counted; where there are only such, the row
    says why it has no figures."""
    fault = [500]
    fake = FakeUpstream(
        write=looks_once,
        knows_logprobs=False,
        fault=lambda body: fault[0] if len(body["messages"]) > 1 and fault[0] else None,
    )
    address = servers.upstream(fake)
    with pytest.raises(AssertionError, match=r"the server failed on .*the same call goes on"):
        bench.run(address)
    first = sum(len(body["messages"]) == 1 and "action_name" not in str(body) for body in fake.seen)
    fault[0] = 0
    (*_, looking), shown = bench.run(address)
    assert looking["lost"] == 0 and looking["problems"] == 4 and "broke off" not in shown.stderr
    assert first == sum(
        len(body["messages"]) == 1 and "action_name" not in str(body) for body in fake.seen
    ), "the questions at first sight are not asked again"
    fault[0], bench.output = 400, bench.output.with_name("other")
    (*_, first_sight, looking), shown = bench.run(address)
    assert "no question of the benchmark was answered" in looking["why"] and "why" not in first_sight
    assert f"looking: {looking['why']}" in shown.stderr and f"m + VTS-V: {looking['why']}" in shown.output


def test_rows_by_hand() -> None:
    """Means are over questions and over tasks; BLINK's IQ test is in the table and not in the mean."""

    def figure(value: float) -> dict[str, Any]:
        return {"curves": {"pass@1": [value]}}

    tasks = {"Counting": 0.75, "IQ_Test": 0.0, "Jigsaw": 0.25}
    summary = {
        "problems": 4, "samples": 8, "pass@1": 0.375, "metrics": {"steps": figure(2.5)},
        "conversations": {"lost": 0.25},
        "categories": {"sub_task": {name: {"accuracy": figure(value)} for name, value in tasks.items()}},
    }  # fmt: skip
    found = row_of("looking", summary)
    assert found["tasks"] == tasks and found["lost"] == 2 and found["mean"] == 0.5
    assert found["accuracy"] == 0.375 and found["steps"] == 2.5 and found["crop_hit"] is None
    with pytest.raises(DataError, match="all conversations broke off"):
        row_of("looking", summary | {"conversations": {"lost": 1.0}})
    with pytest.raises(DataError, match="could be used"):
        row_of("looking", {"problems": 0})


FIXTURES = read_tables(Path(__file__).with_suffix(".yaml"))["fixtures"]


@yaml_cases
def test_the_papers_benchmarks(
    name: str, said: str, shares: dict[str, float], tmp_path: Path, servers: Loop
) -> None:
    """Files with the published columns; the tables have the paper's shape and figures."""
    data = tmp_path / f"{name}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in FIXTURES[name]))
    Image.new("RGB", (64, 48)).save(tmp_path / "a.png")

    def write(body: Body, number: int) -> str:
        asked = str(body["messages"][-1])
        if "Call no more tools" in asked:
            assert "Keep to the form <think>" in asked, "the form is named again"
            return said
        if "action_name" in asked:
            return STEP
        return said if "<think>" in asked else said.removeprefix("<think>.</think>")

    address = servers.upstream(FakeUpstream(write=write, knows_logprobs=False))
    output = tmp_path / "out"
    extractor = ["--extractor", "builtin:digits"] if name == "MathVista" else []
    told = ["--model", "m", "--output", str(output), "--tool", "crop", "--max-steps", "1", *extractor]
    words = ["bench", str(data), "--server", address, *told]
    shown = command(*words, of=app)
    rows = json.loads((output / "bench.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["zero-shot", "without looking", "looking"]
    for row in rows:
        assert {share: row[share] for share in shares} == shares, row["name"]
    titles = [f"Table {n}" for n in (1, 2, 3) if f"Table {n}" in shown.output]
    assert titles == ([] if name == "options" else ["Table 1", "Table 2", "Table 3"])
    if name == "BLINK":
        assert "| m + VTS-V | – | – | 100.00 | 100.00 |" in shown.output
        assert "| m | – | 100.00 | 100.00 |" in shown.output


class Copying:
    """An extractor that finds what stands behind "is", and writes two years as the list that is asked for."""

    name = "copying"

    def extract(self, problems: Any, responses: list[str]) -> list[str | None]:
        found: list[str | None] = []
        for problem, said in zip(problems, responses, strict=True):
            copied = said.rpartition("is ")[2]
            if "is a list" in problem.meta["question"] and copied[0].isdigit():
                copied = f"[{copied.replace(' and', ',')}]"
            found.append(copied or None)
        return found


@yaml_cases
def test_mathvista_as_published(
    answer: str, choices: list[str] | None, kind: str, said: str, right: bool, tmp_path: Path
) -> None:
    """As its repository extracts and compares, worked by hand."""
    row = {"pid": "1", "question": "Which?", "choices": choices, "answer": answer, "answer_type": kind,
           "precision": 1.0 if kind == "float" else None}  # fmt: skip
    task = Math(MathConfig(score=False), {"test": [row]})
    sample = StoredSample("p", 0, said, None, None, False, {}, {}, 1, None, "stop", 0)
    path = tmp_path / "samples.jsonl"
    open_journal(path, StoredProblem, {})[0].append(asdict(StoredProblem(0, "d", [sample])))
    assert published_accuracy(tmp_path, task, Copying()) == float(right)
