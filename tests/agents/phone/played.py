"""Sessions on the phone without a model, as the store keeps them: for tests of pages and judges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from selfverify.agents.judges.jury import Jury
from selfverify.core.problem import Problem
from selfverify.evaluation.samples import StoredSample
from selfverify.experiments.agent_session import Watched
from selfverify.rollouts.rollout import rollout
from selfverify.rollouts.script_sampler import TextSampler
from selfverify_phone.task import PhoneAgents, PhoneAgentsConfig


def call(name: str, **arguments: Any) -> str:
    """A call as an agent writes it."""
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"So.\n<tool_call>\n{body}\n</tool_call>"


def expert(task: PhoneAgents, problem: Problem) -> list[str]:
    """The shortest way, and its proof."""
    return [turn.text for turn in task.demonstrate_turns(problem, np.random.default_rng(0))]


def played(
    task: PhoneAgents, problem: Problem, texts: Sequence[str], images: Path, jury: Jury | None = None
) -> StoredSample:
    """The session in which an agent says ``texts``."""
    episode = task.open(problem, 0)
    episode.jury = jury or episode.jury
    watched = Watched(episode, images, lambda *about: None)
    limits = task.limits.model_copy(update={"turns": len(texts)})
    script = TextSampler({(0, 0): texts})
    made = rollout(script, task, [problem], [0], 1, open_episode=lambda *about: watched, limits=limits)
    assert not made.errors
    return watched.sample(problem.id)


def phone_task(**config: Any) -> PhoneAgents:
    """The task `phone` as it is tested: the first screen is given."""
    return PhoneAgents(PhoneAgentsConfig.model_validate({"agent": {"first_screen": "given"}, **config}))
