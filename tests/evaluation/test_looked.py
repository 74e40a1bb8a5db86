"""Conversations held to the cap: a taught reasoner, what is stored of it, and what the arrays say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sampled_threads import drawn, sampled_threads

from selfverify.core.config import EvaluationConfig, SamplingConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.evaluation.visual_metrics import (
    CappedProblem,
    always,
    as_arrays,
    oracle,
    run_to_cap,
    self_stop,
)
from selfverify.experiments.registry import make_task
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.visual.digits_far import DigitsFar

CONFIG = EvaluationConfig(problems=6, samples=2, split="validation", batch_problems=4)
WRONG = {1: 2}


def far(**options: Any) -> DigitsFar:
    """The task; the model may not end looking by itself unless it says so."""
    made = make_task("digits-far", **{"terminate": "refuse", **options})
    assert isinstance(made, DigitsFar)
    return made


def teach(policy: Policy, task: DigitsFar) -> list[str]:
    """Let the policy say what the teacher says; told to answer too early, it answers wrongly."""
    asked: list[str] = []

    def sample(prompts: Sequence[Prompt], sampling: SamplingConfig, *, seeds: Sequence[int]) -> Any:
        made = []
        for prompt in prompts:
            words = policy.tokenizer.decode(prompt.ids)
            _, split, _, index = prompt.problem_id.split("/")
            problem = task.problem(split, 0, int(index))  # type: ignore[arg-type]
            texts = [turn.text for turn in task.demonstrate_turns(problem, np.random.default_rng(0))]
            turn, target = words.count("</think>"), problem.target
            text = texts[min(turn, len(texts) - 1)]
            if "Answer." in words[-80:]:
                answer = target if turn >= problem.meta["looks"] else WRONG.get(target, 1)
                text = f"<think>0</think><answer>{answer}</answer>"
                asked.append(prompt.problem_id)
            made.append([drawn(policy, text)] * sampling.group_size)
        return made

    policy.threads = sampled_threads(policy, sample)  # type: ignore[method-assign, assignment]
    return asked


def test_a_taught_reasoner(load_policy: Callable[..., Policy], tmp_path: Path) -> None:
    """Its answers are right from the look on that it needs, and then it wants to answer by itself."""
    policy, task, store = load_policy(), far(), tmp_path / "looked.jsonl"
    asked = teach(policy, task)
    rows = run_to_cap(policy, task, CONFIG, store)
    looked = as_arrays(rows)
    assert looked.problems == 6 and len(looked.lengths) == 12 and looked.left_out == 0
    needed = [task.problem("validation", 0, index).meta["looks"] for index in looked.problem]
    assert looked.enough is not None and looked.enough.tolist() == needed and len(set(needed)) > 2
    for row, looks in enumerate(needed):
        length = looked.lengths[row]
        known = looked.correct[row, : length + 1]
        assert known.tolist() == [float(h >= looks) for h in range(length + 1)]
        # It asks to answer right behind its last look; three times in a row end the conversation.
        wants = np.flatnonzero(~np.isnan(looked.own[row])) + 1
        assert length == min(looks + 3, 9) and wants.tolist() == [*range(looks + 1, length + 1)]
        shares = looked.seen[row, : length + 1] if looked.seen is not None else np.zeros(0)
        assert shares[0] == 0 and (np.diff(shares) >= 0).all() and np.argmax(shares == 1) == looks
    assert np.isnan(looked.delta_r).all() and looked.final.all()
    steps = rows[0].talks[0].steps
    assert steps[0].tool == "crop" and steps[-1].error and steps[0].tokens > 5
    # A thumbnail has one token, each crop has four.
    assert looked.visual[0, :2].tolist() == [1, 5] and looked.visual[0, -1] > 0
    stops = self_stop(looked)
    assert stops.right.all() and stops.steps.tolist() == needed
    assert oracle(looked).steps.tolist() == needed and oracle(looked).right.all()
    assert always(looked, 2).right.mean() == np.mean([looks <= 2 for looks in needed])
    # Again it is read, not held; under other settings it is refused.
    count = len(asked)
    again = run_to_cap(policy, task, CONFIG, store)
    assert again == rows and len(asked) == count
    with pytest.raises(ConfigError, match=r"looking\.max_steps"):
        run_to_cap(policy, far(max_steps=3), CONFIG, store)


def test_where_the_model_may_end_looking(load_policy: Callable[..., Policy], tmp_path: Path) -> None:
    """Its own answer ends the conversation, and what is asked for after the last look is known, too."""
    policy, task = load_policy(), far(terminate="accept")
    teach(policy, task)
    looked = as_arrays(run_to_cap(policy, task, CONFIG, tmp_path / "looked.jsonl"))
    assert looked.enough is not None and looked.lengths.tolist() == looked.enough.tolist()
    assert looked.final.all() and np.isnan(looked.own).all()
    assert always(looked, 9).steps.tolist() == looked.enough.tolist()
    short = far(max_steps=1)
    teach(policy, short)
    capped = as_arrays(run_to_cap(policy, short, CONFIG, tmp_path / "short.jsonl"))
    assert (capped.lengths == 1).all() and (capped.final == (capped.enough == 1)).all()
    assert (capped.correct[:, 1] == capped.final).all()


def test_what_nobody_can_judge_is_left_out(load_policy: Callable[..., Policy], tmp_path: Path) -> None:
    """Conversations that failed and such without a verdict are counted; none left is an error."""
    policy, task = load_policy(), far()
    teach(policy, task)
    config = CONFIG.model_copy(update={"problems": 2, "samples": 1})
    rows = dict(run_to_cap(policy, task, config, tmp_path / "looked.jsonl"))
    [talk] = rows[0].talks

    def with_talk(**changes: Any) -> CappedProblem:
        return replace(rows[0], talks=[replace(talk, **changes)])

    steps = [replace(talk.steps[0], correct=None), *talk.steps[1:]]
    for broken in (
        with_talk(lost=True),
        with_talk(final=None),
        with_talk(before=None),
        with_talk(steps=steps),
    ):
        looked = as_arrays({**rows, 0: broken})
        assert looked.left_out == 1 and looked.problems == 1 and looked.problem.tolist() == [0]
        with pytest.raises(DataError, match="all 1 conversations failed"):
            as_arrays({0: broken})
    empty = as_arrays({0: with_talk(steps=[]), 1: rows[1]})
    assert empty.lengths.tolist()[0] == 0 and np.isnan(empty.correct[0, 1:]).all()
