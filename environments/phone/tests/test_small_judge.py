"""The small judge, fresh and as it ships: how large it is, and in how few tokens it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from selfverify.policy.loading import resolve
from selfverify.policy.policy import Policy
from selfverify_phone import small_judge
from selfverify_phone.judging import PhoneJudging
from selfverify_phone.short_form import SMALL_JUDGE
from selfverify_phone.task import PhoneAgentsConfig


def test_a_fresh_judge_is_small_and_knows_the_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_judge, "PROBLEMS", 100)
    policy = Policy.load(str(small_judge.write_small_judge(tmp_path / "fresh")), device="cpu")
    assert sum(weight.numel() for weight in policy.model.parameters()) < 1.3e6

    def tokens(text: str) -> list[int]:
        ids: list[int] = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    assert [len(tokens(f" {word}")) for word in ("§", "¶", "success", "irrelevant", "unseen")] == [1] * 5
    task = PhoneJudging()
    targets = [task.problem("validation", 0, n).target for n in range(40)]
    words = sum(len(target["case"].split()) for target in targets)
    # A word is a token, but for its punctuation and for numbers of more than two digits.
    assert sum(len(tokens(target["case"])) for target in targets) < 1.15 * words


def test_the_shipped_judge_is_the_trained_one_in_half_the_bytes() -> None:
    folder = Path(resolve(SMALL_JUDGE))
    assert sum(file.stat().st_size for file in folder.iterdir()) < 6e6
    kept = load_file(folder / "model.safetensors")
    assert {weight.dtype for weight in kept.values()} == {torch.bfloat16}
    policy = Policy.load(SMALL_JUDGE, device="cpu")
    assert policy.model.config.hidden_size == small_judge.WIDTH


def test_it_is_asked_in_few_words_only() -> None:
    own = {"path": SMALL_JUDGE}
    with pytest.raises(ValidationError, match=r"builtin:phone-judge reads .* set form=short with it"):
        PhoneAgentsConfig.model_validate({"judge": {"kind": "own", "own": own}})
    config = PhoneAgentsConfig.model_validate({"judge": {"kind": "own", "own": own | {"form": "short"}}})
    assert config.judge.own.temperature > 0
