"""Two-turn runs on what cannot work: refused with the reason, or done all the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from selfverify import LearnerConfig, learn
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.events import EVENTS_FILE, read_events
from selfverify.core.sampling_settings import SamplingConfig
from selfverify.experiments.registry import make_method, make_task
from selfverify.policy.policy import Policy

LoadPolicy = Callable[..., Policy]


def run(
    policy: Policy, output: Path, task: str, method: str = "adapo", words: str = "Sure?", turn: int = 4
) -> None:
    learn(
        policy,
        make_task(task),
        # A first stage would leave nothing of the one step.
        make_method(method, second_turn=words, **({"first_stage": 0} if method == "score" else {})),
        LearnerConfig(steps=1, groups_per_step=2, drop_zero_advantage=False),
        SamplingConfig(group_size=2, max_new_tokens=turn),
        output=output,
    )


@pytest.mark.parametrize("method", ["adapo", "score", "adapo-adpo", "star", "turns-sft"])
def test_a_template_for_one_turn_is_refused(load_policy: LoadPolicy, tmp_path: Path, method: str) -> None:
    policy = load_policy()
    policy.tokenizer.chat_template = (
        "{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}"
        "{% for part in messages[0].content %}{{ '<|vision_start|><|image_pad|><|vision_end|>' "
        "if part.type == 'image' else part.text }}{% endfor %}"
    )
    with pytest.raises(
        ConfigError, match=r"problem digits-pick/train/.*cannot continue a conversation.*one message only"
    ):
        run(policy, tmp_path, "digits-pick", method)


def test_words_longer_than_the_context_are_never_asked(load_policy: LoadPolicy, tmp_path: Path) -> None:
    """First turns that end at once are their conversations' last; the log names the problems."""
    policy = load_policy()
    policy._check_head()
    right, index = policy.head.logits, policy.tokenizer.eos_token_id

    def head(hidden: torch.Tensor) -> torch.Tensor:
        logits = right(hidden)
        return logits + 1e3 * torch.nn.functional.one_hot(torch.tensor(index), logits.shape[-1])

    policy.head.logits = head  # type: ignore[method-assign]
    run(policy, tmp_path, "digits-pick", words="Sure? " * 20_000)
    [row] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert row["turns/missing"] == 1 and row["truncated"] == 1 and row["groups/all_invalid"] == 2
    full = [e for e in read_events(tmp_path / EVENTS_FILE) if e["event"] == "context_full"]
    assert len(full) == 4 and all(e["problem"].startswith("digits-pick/train/") for e in full)
    assert all(re.search(r"limit of \d+ tokens", e["message"]) for e in full)


def test_images_for_a_model_of_text_are_refused(load_policy: LoadPolicy, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="image"):
        run(load_policy("llama"), tmp_path, "digits-pick")


def test_a_model_of_text_learns_from_text(load_policy: LoadPolicy, tmp_path: Path) -> None:
    run(load_policy("llama"), tmp_path, "word-sums", turn=8)
    [row] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert row["turns/acc@t1"] == 0


def test_first_turns_that_were_cut_off_are_counted(load_policy: LoadPolicy, tmp_path: Path) -> None:
    """An untrained model ends no answer in one token; nothing is left to learn from, and the run goes on."""
    run(load_policy(), tmp_path, "digits-pick", turn=1)
    [row] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert row["turns/missing"] == 1 and row["truncated"] == 1 and row["groups/all_invalid"] == 2
