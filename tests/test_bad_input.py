"""Broken data files, from `data check` to training and evaluation: named, left out or refused, counted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from data_files import base64_png, write_jsonl
from selfverify import Policy, make_method, make_task
from selfverify.cli.main import app
from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.errors import DataError
from selfverify.core.trainer_config import TrainerConfig
from selfverify.evaluation.evaluate import evaluate
from selfverify.experiments.run import learn

ASKED = {"question": "How many?", "answer": "3", "image": base64_png(28, 28)}
BOXED = {"question": "it", "image": base64_png(40, 30), "box": [0, 0, 10, 10]}


def second(row: dict[str, Any], **changes: Any) -> Callable[[Path], Path]:
    """Three rows, of which the one in the middle is changed."""
    return lambda folder: write_jsonl(folder / "a.jsonl", [row, {**row, **changes}, row])


def table(folder: Path) -> Path:
    path = folder / "a.tsv"
    rows = [["index", "image", "question", "answer"], ["0", base64_png(28, 28), "q", "1"]]
    rows += [["1", "77", "q", "2"], ["2", "0", "r", "3"]]
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return path


LINES = {
    "unknown index": ("math", table, r"line 3: its image is '77', and no row of that index"),
    "box outside": ("grounding", second(BOXED, box=[0, 0, 99, 9]), r"line 2: its box .* reaches out of"),
}


def check(path: Path, code: int) -> str:
    result = CliRunner().invoke(app, ["data", "check", str(path), "--samples", "0"])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def train(policy: Policy, task: str, path: Path, folder: Path) -> list[dict[str, Any]]:
    """The events of a run of one step."""
    config = TrainerConfig(steps=1, groups_per_step=3)
    sampling = SamplingConfig(group_size=2, max_new_tokens=3)
    made = make_task(task, train=str(path))
    learn(policy, made, make_method("adpo"), config, sampling, output=folder)
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


ALL = EvaluationConfig(problems=None, samples=2)


@pytest.mark.parametrize("case", LINES)
def test_broken_rows(case: str, load_policy: Any, tmp_path: Path) -> None:
    name, write, said = LINES[case]
    path = write(tmp_path)
    with pytest.raises(DataError, match=said):
        make_task(name, test={"path": str(path), "on_bad": "refuse"}).problem("test", 0, 0)
    told = check(path, 1)
    assert "2 usable rows, 1 broken" in told and f"{path}, line" in told
    policy = load_policy()
    found = evaluate(policy, make_task(name, test=str(path)), ALL, max_new_tokens=3)
    assert (found["problems"], found["left_out"]["rows"]) == (2, 1)
    assert re.search(said, found["left_out"]["reasons"][0])
    [skipped] = [e for e in train(policy, name, path, tmp_path / "run") if e["event"] == "rows_skipped"]
    assert skipped["rows"] == 1


def test_a_broken_image(load_policy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfverify.data.images.time.sleep", lambda seconds: None)
    file, said = "text.png", r"line 2: the image .*text\.png cannot be read"
    (tmp_path / file).write_text("no picture")
    path = second(ASKED, image=file)(tmp_path)
    assert "2 usable rows, 1 broken" in check(path, 1)
    policy, task = load_policy(), make_task("math", test=str(path))
    with pytest.raises(DataError, match=said):
        evaluate(policy, task, ALL, max_new_tokens=3)
    skip = ALL.model_copy(update={"on_bad": "skip"})
    found = evaluate(policy, task, skip, max_new_tokens=3)
    assert (found["problems"], found["left_out"]["problems"]) == (2, 1)
    assert re.search(said, found["left_out"]["reasons"][0])
    [skipped] = [e for e in train(policy, "math", path, tmp_path / "run") if e["event"] == "problem_skipped"]
    assert re.search(said, skipped["reason"])
