"""`reproduce.vts_v bench --server`: what a server's model answers, at first sight and with tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.data.test_vstar import write
from typer.testing import CliRunner

from reproduce.vts_v import app, row_of
from selfverify.core.errors import DataError
from selfverify.experiments.registry import make_task
from serving_servers import Body, FakeUpstream, Loop

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
        shown = CliRunner().invoke(app, told)
        assert shown.exit_code == 0, shown.output
        return json.loads((self.output / "bench.json").read_text())["rows"], shown


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_server_answers(servers: Loop, bench: Bench) -> None:
    """Three rows; asked again, nothing is asked of the server."""
    fake = FakeUpstream(write=looks_once, knows_logprobs=False)
    address = servers.upstream(fake)
    rows, _ = bench.run(address, "--marks")
    assert [row["name"] for row in rows] == ["without looking", "set of mark", "looking"]
    share = sum("A" in str(target) for target in bench.targets) / 4
    assert 0 <= share < 1 and [row["accuracy"] for row in rows] == [share] * 3
    assert all(set(row["tasks"]) == {"direct_attributes", "relative_position"} for row in rows)
    assert rows[0]["mean"] == sum(rows[0]["tasks"].values()) / 2 and rows[0]["problems"] == 4
    assert rows[0]["steps"] is None and rows[2]["steps"] == 1.0 and rows[2]["crop_hit"] == 0.5
    answered = [body for body in fake.seen if "logprobs" not in body]  # others are refused
    assert {body["model"] for body in fake.seen} == {"m"} and len(answered) == 4 + 4 + 8
    count = len(fake.seen)
    assert bench.run(address, "--marks")[0] == rows and len(fake.seen) == count
    images = list((bench.output / "looking" / "images").iterdir())
    assert images and (bench.output / "looking" / "samples.jsonl").is_file()


def test_conversations_that_break_off(servers: Loop, bench: Bench) -> None:
    """A failing server ends the command, and what is missing is asked for by the next one. A conversation
    that a server refuses to go on with counts as wrong and is counted; where there are only such, no row."""
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
    (_, looking), shown = bench.run(address)
    assert looking["lost"] == 0 and looking["problems"] == 4 and "broke off" not in shown.stderr
    assert first == sum(
        len(body["messages"]) == 1 and "action_name" not in str(body) for body in fake.seen
    ), "the questions at first sight are not asked again"
    fault[0], bench.output = 400, bench.output.with_name("other")
    with pytest.raises(AssertionError, match="no question of the benchmark was answered"):
        bench.run(address)


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
