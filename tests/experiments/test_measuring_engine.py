"""`sampling.engine: vllm` for evaluations and the data filter, against a stand-in for the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from selfverify.core.errors import ConfigError
from selfverify.evaluation.samples import read_samples
from selfverify.experiments.data_filter import Filter
from selfverify.experiments.recipe import Recipe, load_recipe
from selfverify.experiments.run import evaluate_recipe
from vllm_standin import standing_in


@pytest.fixture
def recipe_of(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Recipe]]:
    """Makes recipes that sample on a server, or by the ``own`` engine."""
    small = ["evaluation.problems=3", "evaluation.samples=2", "sampling.max_new_tokens=5"]
    words = [f"policy.path={tiny_folder}", "policy.device=cpu", *small]
    with standing_in(monkeypatch, tiny_folder) as server:
        engine = {True: [], False: server.overrides}
        yield lambda *more, own=False: load_recipe("adpo-digits", [*words, *engine[own], *more])


def test_an_evaluation_by_vllm(recipe_of: Callable[..., Recipe], tmp_path: Path) -> None:
    """Its samples are stored with the engine's name, and that engine alone goes on with them."""
    recipe = recipe_of()
    summary = evaluate_recipe(recipe, output=tmp_path)
    header, rows = read_samples(tmp_path / "samples.jsonl")
    assert header["engine"] == "vllm" and len(rows) == summary["samples"] == 6
    assert all(row.logprob is not None and 0 < row.tokens <= 5 for row in rows)
    again = evaluate_recipe(recipe, output=tmp_path)
    assert again["curves"] == summary["curves"]
    with pytest.raises(ConfigError, match="engine"):
        evaluate_recipe(recipe_of(own=True), output=tmp_path)
    with pytest.raises(ConfigError, match="at temperature 0"):
        evaluate_recipe(recipe_of("evaluation.temperature=0"), output=tmp_path)


def test_filter_by_vllm(recipe_of: Callable[..., Recipe], tmp_path: Path) -> None:
    filtered = Filter.of(recipe_of(), 2)
    verdicts = filtered.run(tmp_path / "kept.jsonl", 3)
    assert len(verdicts) == 3 and filtered.policy.engine is None  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="engine"):
        Filter.of(recipe_of(own=True), 2).run(tmp_path / "kept.jsonl", 3)
