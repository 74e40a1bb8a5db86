"""`ADPOTrainer` gives TRL's loss the advantages that our own ADPO computes, and trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

from rounding import assert_close
from selfverify.core.errors import ConfigError
from selfverify.objectives import group_advantage, preference_reward

trl = pytest.importorskip("trl", exc_type=ImportError)

ANSWERS = ["7", "7", "3", "4"]
SCORES = ["0.9", "0.2", "0.4", "much"]


def completion(answer: str, score: str) -> str:
    return f"<think>1+2</think><answer>{answer}</answer><score>{score}</score><|im_end|>"


def right(completions: list[str], **kwargs: Any) -> list[float]:
    """1 for a 7."""
    return [float("<answer>7<" in text) for text in completions]


@pytest.fixture
def trainer(text_folders: dict[str, Path], tmp_path: Path) -> Any:
    """Makes a trainer of the tiny Llama; ``canned`` completions take the place of sampled ones."""
    from selfverify.integrations.trl import ADPOTrainer

    def make(canned: bool = True, steps: int = 1, beta: float = 0.0, **options: Any) -> Any:
        tokenizer = AutoTokenizer.from_pretrained(text_folders["llama"])

        def rollout(prompts: list[str], _: Any) -> dict[str, Any]:
            texts = [completion(a, s) for a, s in zip(ANSWERS, SCORES, strict=True)]
            texts = texts * (len(prompts) // len(texts))
            ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
            return {
                "prompt_ids": [tokenizer(p)["input_ids"] for p in prompts],
                "completion_ids": ids,
                "logprobs": None,
            }

        config = trl.GRPOConfig(
            output_dir=str(tmp_path), max_steps=steps, per_device_train_batch_size=8, num_generations=4,
            max_completion_length=12, report_to=[], use_cpu=True, beta=beta, learning_rate=1e-3,
            logging_steps=1, save_strategy="no", **options.pop("config", {}),
        )  # fmt: skip
        return ADPOTrainer(
            model=str(text_folders["llama"]),
            args=config,
            train_dataset=Dataset.from_dict({"prompt": ["1+6=", "3+4="] * 4}),
            reward_funcs=options.pop("functions", right),
            processing_class=tokenizer,
            rollout_func=rollout if canned else None,
            **options,
        )

    return make


def expected(gamma: float = 0.0, weight: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    quality = torch.tensor([1.0, 1.0, 0.0, 0.0])
    scores = torch.tensor([0.9, 0.2, 0.4, float("nan")])
    answer = group_advantage(quality + 0.1)
    verification = preference_reward(scores, quality, gamma) - torch.tensor([0.0, 0.0, 0.0, 0.1])
    return answer, weight * group_advantage(verification)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_answer_and_score_tokens_have_their_own_advantages(trainer: Any, weight: float) -> None:
    made = trainer(adpo={"score_weight": weight})
    made.model.train()
    batch = made._generate_and_score_completions([{"prompt": "3+4="}] * 8)
    answer, score = expected(weight=weight)
    for row in range(8):
        kept = batch["completion_mask"][row].bool()
        tokens = batch["completion_ids"][row][kept].tolist()
        text = made._tokenizer.decode(tokens)
        boundary = text.index("<score>") + len("<score>")
        opened = len(made._tokenizer(text[:boundary], add_special_tokens=False)["input_ids"])
        found = batch["advantages"][row]
        assert_close(found[:opened], answer[row % 4].expand(opened).float())
        rest = score[row % 4].expand(len(tokens) - opened).float()
        assert_close(found[opened : len(tokens)], rest)
    # One right answer above the wrong one, one below it; the malformed score is in no pair and pays.
    assert score[0] > 0 > score[3]


def tidy(completions: list[str], **kwargs: Any) -> list[float]:
    """A reward for markup, the second of equals."""
    return [float(i % 2) for i in range(len(completions))]


def test_markup_does_not_contrast(trainer: Any) -> None:
    made = trainer(functions=[right, tidy], judges=["right"])
    made.model.train()
    batch = made._generate_and_score_completions([{"prompt": "3+4="}] * 4)
    _, score = expected()
    answer = group_advantage(torch.tensor([1.0, 2.0, 0.0, 1.0]) + 0.1)
    assert_close(batch["advantages"][:, 0], answer.float())
    last = batch["completion_mask"].sum(1) - 1
    assert_close(batch["advantages"][torch.arange(4), last], score.float())


def test_it_trains_and_logs(trainer: Any) -> None:
    made = trainer(steps=2, beta=0.1)
    before = {n: p.detach().clone() for n, p in made.model.named_parameters()}
    made.train()
    assert any(not torch.equal(before[n], p) for n, p in made.model.named_parameters())
    rows = [row for row in made.state.log_history if "loss" in row]
    assert len(rows) == 2 and all(row["loss"] == row["loss"] for row in rows)
    assert rows[0]["adpo/verification/auc"] == pytest.approx(0.5)
    assert rows[0]["adpo/format/score"] == pytest.approx(0.75)
    assert rows[0]["adpo/reward/verification"] == pytest.approx((1 + 0 + 0.5) / 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adpo": {"kl": 0.1}}, "beta"),
        ({"adpo": {"verification_credit": "expected"}}, r"selfverify\.learn"),
        ({"tags": ("think", "answer")}, "score"),
        ({"judges": ["wrong"]}, "right"),
        ({"config": {"importance_sampling_level": "sequence"}}, "token"),
    ],
)
def test_what_cannot_hold_is_refused(trainer: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trainer(**options)
