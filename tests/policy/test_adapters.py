"""LoRA: what is trained, the reference without a second model, saving, loading, merging, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import CheckpointError, ConfigError
from selfverify.core.policy_config import AdapterConfig
from selfverify.core.problem import Problem
from selfverify.policy.policy import Policy
from tiny_models import disturb

TOKENS = [[[7, 8, 9], [10, 11]]] * 3
LORA = AdapterConfig(rank=4, alpha=8)


def trainable(policy: Policy) -> set[str]:
    return {name for name, p in policy.model.named_parameters() if p.requires_grad}


@pytest.fixture
def adapted(load_policy: Any) -> Policy:
    policy: Policy = load_policy(lora=LORA)
    return policy


def test_only_the_decoders_adapter_is_trained(load_policy: Any, adapted: Policy) -> None:
    names = trainable(adapted)
    assert names and all("lora_" in name and "visual" not in name for name in names)
    assert any("visual" in name for name in trainable(load_policy(lora=LORA, train_vision=True)))
    few = trainable(load_policy(lora=AdapterConfig(rank=4, targets=["q_proj"])))
    assert few and all(".q_proj." in name for name in few)
    for targets in (["nothing"], ["q_proj", "nothing"]):
        with pytest.raises(ConfigError, match=r"policy\.lora\.targets: .*named nothing; .* q_proj"):
            load_policy(lora=AdapterConfig(targets=targets))


def test_the_reference_is_the_start_and_holds_no_copy(
    load_policy: Any, adapted: Policy, problems: list[Problem], tmp_path: Path
) -> None:
    """It samples as before, and cannot be saved."""
    reference, sampling = adapted.frozen_copy(), SamplingConfig(group_size=2, max_new_tokens=6)
    assert reference.model is adapted.model
    prompts = adapted.encode(problems)
    start = adapted.logprobs(prompts, TOKENS).detach()
    disturb(adapted.model)
    adapted.model.train()
    with torch.no_grad():
        assert torch.equal(reference.logprobs(prompts, TOKENS), start)
    assert adapted.model.training
    now = adapted.logprobs(prompts, TOKENS)
    assert (now - start).abs().max() > 1e-3
    now.sum().backward()
    assert all(p.grad is not None for p in adapted.model.parameters() if p.requires_grad)
    found, expected = (p.sample(prompts, sampling, seeds=[0, 1, 2]) for p in (reference, load_policy()))
    assert [[s.tokens for s in g] for g in found] == [[s.tokens for s in g] for g in expected]
    for use in (lambda: reference.save(tmp_path), reference.merged):
        with pytest.raises(ConfigError, match="reference"):
            use()


def test_an_adapter_is_saved_alone_and_without_a_question_to_the_hub(
    adapted: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft.utils import save_and_load

    asked: list[str] = []
    monkeypatch.setattr(save_and_load, "check_file_exists_on_hf_hub", lambda model, name: asked.append(model))
    adapted.model.peft_config["default"].base_model_name_or_path = "some/model"
    adapted.save(tmp_path / "ours")
    assert not asked
    adapted.model.save_pretrained(tmp_path / "asks")
    assert asked == ["some/model"], "what is avoided would have been seen"
    assert [file.name for file in (tmp_path / "ours").glob("*.safetensors")] == ["adapter_model.safetensors"]


def test_an_adapter_on_narrow_weights_is_wide(load_policy: Any) -> None:
    policy = load_policy(lora=LORA, dtype="bfloat16")
    dtypes = {p.requires_grad: p.dtype for p in policy.model.parameters()}
    assert dtypes == {True: torch.float32, False: torch.bfloat16}


def test_what_does_not_fit(load_policy: Any, adapted: Policy, tmp_path: Path) -> None:
    from selfverify.trainer.state import load_matching

    adapted.save(tmp_path / "a")
    with pytest.raises(CheckpointError, match="does not fit"):
        load_matching(load_policy(lora=AdapterConfig(rank=8)).model, tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"policy\.lora"):
        load_matching(load_policy().model, tmp_path / "a")
    with pytest.raises(ConfigError, match="already holds an adapter"):
        Policy.load(str(tmp_path / "a"), lora=LORA)
    settings = json.loads((tmp_path / "a/adapter_config.json").read_text())
    (tmp_path / "a/adapter_config.json").write_text(
        json.dumps({**settings, "base_model_name_or_path": "./gone"})
    )
    with pytest.raises(ConfigError, match=r"gone.*below the adapter"):
        Policy.load(str(tmp_path / "a"))
    (tmp_path / "a/adapter_config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"adapter_config\.json"):
        Policy.load(str(tmp_path / "a"))


def test_without_an_adapter(
    load_policy: Any, adapted: Policy, problems: list[Problem], tmp_path: Path
) -> None:
    """The model below, which stays as it is and cannot be saved by itself."""
    plain, base = load_policy(), adapted.without_adapter()
    disturb(adapted.model)
    expected, found = (p.logprobs(p.encode(problems), TOKENS) for p in (plain, base))
    assert base.model is adapted.model and torch.equal(found, expected)
    assert (adapted.logprobs(adapted.encode(problems), TOKENS) - expected).abs().max() > 0.01
    with pytest.raises(ConfigError, match="save that policy"):
        base.save(tmp_path / "base")
    for use in (plain.without_adapter, plain.merged):
        with pytest.raises(ConfigError, match="no adapter"):
            use()
