"""Reward models: what they read, how they are told apart, and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from rounding import assert_close
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import ANSWER, Group, Segment, Trajectory
from selfverify.policy.tiny_models import tiny_tokenizer
from selfverify.tasks.base import Verdict, user_turn
from selfverify.verifiers.reward_models import RewardModel, reward_identity


def saved(folder: Path, labels: int | None = 1, longest: int = 512) -> Path:
    """A tiny reward model; with None a generating one."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    config = AutoConfig.for_model(
        "qwen2", vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=longest,
    )  # fmt: skip
    if labels is None:
        model = AutoModelForCausalLM.from_config(config)
    else:
        config.num_labels = labels
        model = AutoModelForSequenceClassification.from_config(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def group(*texts: str, images: int = 0) -> Group:
    pictures = [Image.new("RGB", (4, 4))] * images
    problem = Problem("p", user_turn("What is 1 + 2?", images), images=pictures)
    rows = [
        Trajectory([Segment(ANSWER, [], text=text)], parsed=Verdict(1.0, True, "3", "3") if text else None)
        for text in texts
    ]
    return Group(problem, rows)


def test_scores_are_sigmoids_of_logits(tmp_path: Path) -> None:
    """Of the conversation in the model's template, without the score that the writer gave itself."""
    judge = RewardModel.load(str(saved(tmp_path)), "rm", "cpu")
    [scores] = judge.score([group("<answer>3</answer><score>", "<answer>4</answer>", "")])
    assert scores[2] is None
    for text, score in zip(("<answer>3</answer>", "<answer>4</answer>"), scores, strict=False):
        turns = [{"role": "user", "content": "What is 1 + 2?"}, {"role": "assistant", "content": text}]
        read = judge.tokenizer.apply_chat_template(turns, tokenize=False)
        ids = judge.tokenizer(read, add_special_tokens=False, return_tensors="pt")
        assert_close(score, torch.sigmoid(judge.model(**ids).logits)[0, 0])
    assert scores[0] != scores[1]


def test_a_tokenizer_without_a_template_reads_pairs(tmp_path: Path) -> None:
    judge = RewardModel.load(str(saved(tmp_path)), "rm", "cpu")
    with_template = judge.score([group("<answer>3</answer>")])
    judge.tokenizer.chat_template = None
    [[pair]] = judge.score([group("<answer>3</answer>")])
    ids = judge.tokenizer("What is 1 + 2?", "<answer>3</answer>", return_tensors="pt")
    assert_close(pair, torch.sigmoid(judge.model(**ids).logits)[0, 0])
    assert [[pair]] != with_template


def test_what_it_cannot_read(tmp_path: Path) -> None:
    """Images are refused; an answer that is too long has no score, and the others have theirs."""
    judge = RewardModel.load(str(saved(tmp_path, longest=64)), "rm", "cpu")
    with pytest.raises(DataError, match="problem p has images, and reward model rm reads text alone"):
        judge.score([group("<answer>3</answer>", images=1)])
    long = "<answer>" + "3 " * 80 + "</answer>"
    [[score, none]] = judge.score([group("<answer>3</answer>", long)])
    assert score is not None and none is None


def test_what_is_no_reward_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no weights score\.weight"):
        RewardModel.load(str(saved(tmp_path / "lm", None)), "rm", "cpu")
    with pytest.raises(ConfigError, match="has 3 labels"):
        RewardModel.load(str(saved(tmp_path / "three", 3)), "rm", "cpu")
    with pytest.raises(ConfigError, match="holds no sequence classifier"):
        RewardModel.load(str(tmp_path), "rm", "cpu")


def test_files_are_told_apart(tmp_path: Path) -> None:
    folder = saved(tmp_path)
    first = reward_identity(str(folder))
    assert first == reward_identity(str(folder))
    [weights] = folder.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(bytes(content))
    assert reward_identity(str(folder)) != first
    weights.unlink()
    with pytest.raises(ConfigError, match="weights in safetensors"):
        reward_identity(str(folder))
