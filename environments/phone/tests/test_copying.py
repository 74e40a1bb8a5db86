"""Conversations that teach copying: what is called stands in the task and on the screen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from selfverify.core.config import SamplingConfig
from selfverify.methods.sft import ConversationSFT, ConversationSFTConfig
from selfverify.policy.policy import Policy
from selfverify.tasks.conversations import Conversations, ConversationsConfig
from selfverify_phone.copying import conversation, known_words, write_copying


def test_all_that_is_called_can_be_copied() -> None:
    words = known_words()
    assert {"22:30", "Ida", "search"} <= {*words}
    for seed in range(50):
        task, screen, *rest = conversation(words, np.random.default_rng(seed))["messages"]
        listed = dict(reversed(row.rsplit(" ", 1)) for row in screen["content"].split("\n- ")[2:])
        asked = task["content"].removeprefix("# Task\nTake ").removesuffix(".").split(", ")
        called = [json.loads(m["content"])["arguments"] for m in rest if m["role"] == "assistant"]
        things = [
            listed[of["id"].strip()] if "id" in of else of["text_input"].removeprefix(" ") for of in called
        ]
        assert list(dict.fromkeys(things)) == asked and {*asked} < {*listed.values()}


def test_the_file_depends_on_the_seed_alone_and_is_learnt(tmp_path: Path) -> None:
    first = write_copying(tmp_path / "a.jsonl", 3, seed=1)
    assert write_copying(tmp_path / "b.jsonl", 3, seed=1).read_bytes() == first.read_bytes()
    assert write_copying(tmp_path / "c.jsonl", 3, seed=2).read_bytes() != first.read_bytes()
    task = Conversations(ConversationsConfig(train=str(first), learn="conversations"))
    method = ConversationSFT(ConversationSFTConfig())
    problems = [task.problem("train", 0, index) for index in range(3)]
    policy = Policy.load("builtin:phone", device="cpu")
    rollout = method.rollout(policy, task, problems, [0, 1, 2], SamplingConfig())
    for group, line in zip(rollout.groups, first.read_text().splitlines(), strict=True):
        said = [s for s in group.trajectories[0].segments if s.author == "policy"]
        assert len(said) == sum(m["role"] == "assistant" for m in json.loads(line)["messages"])
