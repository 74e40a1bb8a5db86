"""What benchmarks write down: JSON, also after several runs of a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda p: str(p.relative_to(RESULTS)))
def test_recorded_results_are_json(path: Path) -> None:
    assert json.loads(path.read_text(encoding="utf-8"))


def test_results_of_several_runs_are_one_list(
    benchmark: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common, file = benchmark("common"), tmp_path / "found.json"
    for prompts in ("110", "400"):
        parser = common.arguments("what it measures")
        common.finish({"ratio": 1.5}, common.parse(parser, ["--prompts", prompts, "--record", str(file)]))
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    recorded = json.loads(file.read_text())
    assert [found["about"].pop("options")["prompts"] for found in recorded] == [[110], [400]]
    assert recorded == printed and printed[0]["ratio"] == 1.5
