"""`sampling.engine: vllm` for evaluations and the data filter, against a stand-in for vLLM's side."""

from __future__ import annotations

from pathlib import Path

import pytest

import vllm_standin
from selfverify.core.errors import ConfigError
from selfverify.evaluation.samples import read_samples
from selfverify.experiments.data_filter import Filter
from selfverify.experiments.recipe import Recipe, load_recipe
from selfverify.experiments.run import evaluate_recipe

pytest.importorskip("trl.generation.vllm_generation", exc_type=ImportError)


def recipe_of(folder: Path, *more: str, engine: str = "vllm") -> Recipe:
    small = ["evaluation.problems=3", "evaluation.samples=2", "sampling.max_new_tokens=5"]
    words = [f"policy.path={folder}", "policy.device=cpu", f"sampling.engine={engine}"]
    return load_recipe("adpo-digits", [*small, *words, *more])


def test_an_evaluation_by_vllm(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its samples are stored with the engine's name, and that engine alone goes on with them."""
    vllm_standin.install(monkeypatch)
    recipe = recipe_of(tiny_folder)
    summary = evaluate_recipe(recipe, output=tmp_path)
    header, rows = read_samples(tmp_path / "samples.jsonl")
    assert header["engine"] == "vllm" and len(rows) == summary["samples"] == 6
    assert all(row.logprob is not None and 0 < row.tokens <= 5 for row in rows)
    again = evaluate_recipe(recipe, output=tmp_path)
    assert again["curves"] == summary["curves"]
    with pytest.raises(ConfigError, match="engine"):
        evaluate_recipe(recipe_of(tiny_folder, engine="own"), output=tmp_path)


def test_filter_by_vllm(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_standin.install(monkeypatch)
    recipe = recipe_of(tiny_folder)
    filtered = Filter.of(recipe, 2)
    verdicts = filtered.run(tmp_path / "kept.jsonl", 3)
    assert len(verdicts) == 3 and filtered.policy.engine is None  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="engine"):
        Filter.of(recipe_of(tiny_folder, engine="own"), 2).run(tmp_path / "kept.jsonl", 3)


def test_greedy_answers_are_refused(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm_standin.install(monkeypatch)
    with pytest.raises(ConfigError, match="at temperature 0"):
        evaluate_recipe(recipe_of(tiny_folder, "evaluation.temperature=0"), output=tmp_path)
