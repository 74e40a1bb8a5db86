"""Reward models with a value head: the score of the last token, with images, as transformers computes it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen2_5_VLForConditionalGeneration as TinyModel

from selfverify.core.errors import ConfigError
from selfverify.core.policy_config import PolicyConfig
from selfverify.core.problem import Problem
from selfverify.core.trajectory import ANSWER, Group, Segment, Trajectory
from selfverify.experiments.registry import make_task
from selfverify.policy.tiny_models import tiny_image_processor
from selfverify.tasks.base import Verdict
from selfverify.verifiers.reward_models import VALUE_HEAD, ValueHead, has_value_head

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


def group(problem: Problem, *texts: str) -> Group:
    rows = [
        Trajectory([Segment(ANSWER, [], text=text)], parsed=Verdict(1.0, True, "3", "3") if text else None)
        for text in texts
    ]
    return Group(problem, rows)


def test_the_last_tokens_value(tiny_folder: Path, tmp_path: Path) -> None:
    """Of the whole conversation with its image, and of no answer where none was readable."""
    judge = ValueHead.load(str(with_head(tiny_folder, tmp_path / "rm")), "rm", CONFIG)
    assert has_value_head(str(tmp_path / "rm")) and not has_value_head(str(tiny_folder))
    task = make_task("digits-pick")
    problems = [task.problem("test", 0, index) for index in range(2)]
    texts = ("<think>1</think><answer>3 4</answer>", "<answer>9</answer>")
    first = group(problems[0], texts[0] + "<score>", "", texts[1])
    found = judge.score([first, group(problems[1], texts[1])])
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
