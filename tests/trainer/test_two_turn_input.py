"""Two-turn runs on what cannot work: refused with the reason, or done all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from killed_runs import rows
from selfverify import TrainerConfig, learn
from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError
from selfverify.experiments.registry import make_method, make_task
from selfverify.policy.policy import Policy


def run(
    policy: Policy, output: Path, task: str, method: str = "adapo", words: str = "Sure?", turn: int = 4
) -> None:
    learn(
        policy,
        make_task(task),
        # A first stage would leave nothing of the one step.
        make_method(method, second_turn=words, **({"first_stage": 0} if method == "score" else {})),
        TrainerConfig(steps=1, groups_per_step=2, drop_zero_advantage=False),
        SamplingConfig(group_size=2, max_new_tokens=turn),
        output=output,
    )


@pytest.mark.parametrize("method", ["adapo", "score", "adapo-adpo", "star", "turns-sft"])
def test_a_template_for_one_turn_is_refused(load_policy: Any, tmp_path: Path, method: str) -> None:
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


def test_a_model_of_text_learns_from_text(load_policy: Any, tmp_path: Path) -> None:
    run(load_policy("llama"), tmp_path, "word-sums", turn=8)
    [row] = rows(tmp_path)
    assert row["turns/acc@t1"] == 0


def test_first_turns_that_were_cut_off_are_counted(load_policy: Any, tmp_path: Path) -> None:
    """An untrained model ends no answer in one token; nothing is left to learn from, and the run goes on."""
    run(load_policy(), tmp_path, "digits-pick", turn=1)
    [row] = rows(tmp_path)
    assert row["turns/missing"] == 1 and row["truncated"] == 1 and row["groups/all_invalid"] == 2
