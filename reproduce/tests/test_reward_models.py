"""Reward models, with a value head or without: what they read, how they are told apart, and what is none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers import Qwen2_5_VLForConditionalGeneration as TinyModel

from reproduce.reward_models import (
    VALUE_HEAD,
    RewardModel,
    ValueHead,
    has_value_head,
    reward_identity,
)
from rounding import assert_close
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.problem import Problem
from selfverify.core.trajectory import ANSWER, Group, Segment, Trajectory
from selfverify.experiments.registry import make_task
from selfverify.policy.tiny_models import tiny_image_processor, tiny_tokenizer
from selfverify.tasks.base import Verdict, user_turn


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
    return judged(Problem("p", user_turn("What is 1 + 2?", images), images=pictures), *texts)


def judged(problem: Problem, *texts: str) -> Group:
    """Answers that could be read, but for an empty one."""
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


# --- with a value head ---------------------------------------------------------------------------------

CONFIG = PolicyConfig(device="cpu")


def with_head(tiny_folder: Path, folder: Path, **changes: Any) -> Path:
    """The tiny vision-language model with a head."""
    shutil.copytree(tiny_folder, folder)
    torch.manual_seed(3)
    head = {"v_head.summary.weight": 0.3 * torch.randn(1, 96), "v_head.summary.bias": torch.tensor([0.2])}
    save_file(
        {name: value for name, value in (head | changes).items() if value is not None}, folder / VALUE_HEAD
    )
    return folder


def test_the_last_tokens_value(tiny_folder: Path, tmp_path: Path) -> None:
    """Of the whole conversation with its image, and of no answer where none was readable."""
    judge = ValueHead.load(str(with_head(tiny_folder, tmp_path / "rm")), "rm", CONFIG)
    assert has_value_head(str(tmp_path / "rm")) and not has_value_head(str(tiny_folder))
    task = make_task("digits-pick")
    problems = [task.problem("test", 0, index) for index in range(2)]
    texts = ("<think>1</think><answer>3 4</answer>", "<answer>9</answer>")
    first = judged(problems[0], texts[0] + "<score>", "", texts[1])
    found = judge.score([first, judged(problems[1], texts[1])])
    assert found[0][1] is None
    model = TinyModel.from_pretrained(tiny_folder, attn_implementation="eager").eval()
    pad = judge.policy.tokenizer.convert_tokens_to_ids("<|image_pad|>")

    @torch.no_grad()
    def value(problem: Problem, text: str) -> float:
        """The whole row through transformers' model, its end found by rendering it without our verifier."""
        turn = {"role": "assistant", "content": [{"type": "text", "text": text}]}
        whole = judge.policy.tokenizer.apply_chat_template([*problem.messages, turn], tokenize=False)
        pictures = tiny_image_processor()(images=problem.images, return_tensors="pt")
        grids = pictures["image_grid_thw"]
        [head, tail] = whole.split("<|image_pad|>")
        slots = "<|image_pad|>" * (int(grids[0].prod()) // 4)
        ids = judge.policy.tokenizer(head + slots + tail, add_special_tokens=False, return_tensors="pt")[
            "input_ids"
        ]
        output = model.model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == pad).int(),
            **pictures,
        )
        logit = output.last_hidden_state[0, -1] @ judge.weight + judge.bias
        return float(torch.sigmoid(logit))

    expected = [value(problems[0], texts[0]), value(problems[0], texts[1]), value(problems[1], texts[1])]
    assert [found[0][0], found[0][2], found[1][0]] == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 0.01


def test_what_is_no_head(tiny_folder: Path, tmp_path: Path) -> None:
    several = with_head(tiny_folder, tmp_path / "a", **{"v_head.summary.weight": torch.zeros(2, 96)})
    with pytest.raises(ConfigError, match=r"reward model rm: .*\[2, 96\].*a head on this model is"):
        ValueHead.load(str(several), "rm", CONFIG)
    broken = with_head(tiny_folder, tmp_path / "b")
    (broken / VALUE_HEAD).write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="cannot be read"):
        ValueHead.load(str(broken), "rm", CONFIG)
