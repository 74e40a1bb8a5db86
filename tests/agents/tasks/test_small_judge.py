"""The small judge, fresh and as it ships: how large it is, and in how few tokens it reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from selfverify.agents.judges.judge_settings import SMALL_JUDGE
from selfverify.agents.tasks import small_judge
from selfverify.agents.tasks.phone_judging import PhoneJudging
from selfverify.policy.loading import resolve
from selfverify.policy.policy import Policy


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
