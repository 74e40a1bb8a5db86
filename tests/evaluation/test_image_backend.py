"""A store of samples names what prepared its images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfverify import Policy, make_task
from selfverify.core.config import EvaluationConfig
from selfverify.core.errors import ConfigError
from selfverify.evaluation.evaluate import evaluate
from selfverify.evaluation.samples import read_samples

CONFIG = EvaluationConfig(problems=1, samples=1)


def measure(policy: Policy, store: Path) -> Any:
    return evaluate(policy, make_task("digits-pick"), CONFIG, store, max_new_tokens=2)


def test_a_store_is_not_gone_on_with_by_other_code(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "samples.jsonl"
    found = measure(policy, store)
    assert read_samples(store)[0]["image_backend"] == "Qwen2VLImageProcessorPil"
    assert measure(policy, store) == found
    monkeypatch.setattr(Policy, "image_backend", "Qwen2VLImageProcessor")
    with pytest.raises(ConfigError, match="image_backend was 'Qwen2VLImageProcessorPil' and is now 'Qwen2VL"):
        measure(policy, store)


def test_a_store_that_does_not_name_it_is_gone_on_with(policy: Policy, tmp_path: Path) -> None:
    store = tmp_path / "samples.jsonl"
    found = measure(policy, store)
    header, *rows = store.read_text().splitlines(keepends=True)
    older = json.loads(header)
    del older["settings"]["image_backend"]
    store.write_text("".join([json.dumps(older) + "\n", *rows]))
    assert measure(policy, store) == found
