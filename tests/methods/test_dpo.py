"""Learning from traces of looking again: Eq. 2-3 and 10 of VTS-V, what is learnt and what is only read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.experiments.looks.looks_files import write_looks

from selfverify.core.config import SamplingConfig
from selfverify.core.errors import ConfigError, DataError
from selfverify.core.trainer_config import TrainerConfig
from selfverify.core.trajectory import Finish, valid_trajectories
from selfverify.experiments.registry import make_method, make_task
from selfverify.methods.base import Training
from selfverify.objectives import likelihood, pairwise
from selfverify.policy.decoding import Sample
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout, recite
from selfverify.trainer.batch import TokenStreams, make_streams
from selfverify.trainer.trainer import Trainer
from selfverify.visual.digits_far import DigitsFar

SAMPLING = SamplingConfig(group_size=1)


def streams_of(policy: Policy, method: Any, rollout: Rollout) -> list[TokenStreams]:
    found = []
    for prompt, group in zip(rollout.prompts, rollout.groups, strict=True):
        credits = method.credit(group, valid_trajectories(group, False))
        found.append(make_streams(prompt, group, credits))
        found[-1].prepare_images(policy.encoder)
    return found


def rolled(policy: Policy, task: Any, method: Any, count: int) -> tuple[Rollout, list[TokenStreams]]:
    """The first problems of the validation split, in the file's order."""
    problems = [task.problem("validation", 0, index) for index in range(count)]
    rollout = method.rollout(policy, task, problems, list(range(count)), SAMPLING)
    return rollout, streams_of(policy, method, rollout)


def pairs(folder: Path) -> Any:
    return make_task("pairs", validation=str(folder / "pairs.jsonl"), train=str(folder / "pairs.jsonl"))


def test_all_turns_behind_the_common_beginning_are_compared(policy: Policy, tmp_path: Path) -> None:
    """Plans, actions and answers of both sides; what tools show stands between them and is not learnt."""
    write_looks(tmp_path)
    rollout, [streams, _] = rolled(policy, pairs(tmp_path), make_method("dpo"), 2)
    chosen, rejected = rollout.groups[0].trajectories
    assert [s.channel for s in chosen.segments] == ["plan", "action", "observation", "answer"]
    assert [s.channel for s in rejected.segments] == ["plan", "action", "observation"] * 2 + ["answer"]
    # The prompt has the question, the common step and what it showed: two images.
    assert len(rollout.prompts[0].images) == 2
    for row, (told, sign) in enumerate(((chosen, 1.0), (rejected, -1.0))):
        own = torch.tensor([s.author == "policy" for s in told.segments for _ in s.tokens])
        length = len(own)
        assert bool((streams.trained_gr[row, :length] == own).all())
        assert bool((streams.advantage_gr[row, :length] == sign * own).all())
        assert bool((streams.kl_coef_gr[row, :length][own] == torch.tensor(0.1)).all())
        assert len(streams.pictures[row]) == sum(s.author == "environment" for s in told.segments)


def test_observations_have_a_gradient_of_exactly_zero(policy: Policy, tmp_path: Path) -> None:
    """Of the loss with respect to each token's log-probability, of pairs and of fine-tuning."""
    write_looks(tmp_path)
    rollout, [streams, _] = rolled(policy, pairs(tmp_path), make_method("dpo"), 2)
    logprobs = torch.randn(1, *streams.channel_gr.shape, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(logprobs.shape, dtype=torch.float64)
    loss = pairwise(logprobs, reference, streams.advantage_gr[None], streams.kl_coef_gr[None]).loss.sum()
    loss.backward()
    taught = make_task("conversations", validation=str(tmp_path / "sft.jsonl"), learn="conversations")
    method = make_method("conversations-sft", share_turns=True)
    told, [sft, _] = rolled(policy, taught, method, 2)
    own = torch.randn(sft.channel_gr.shape, dtype=torch.float64, requires_grad=True)
    (likelihood(own) * torch.where(sft.trained_gr, sft.weight_gr, 0.0)).sum().backward()
    for group, gradient in ((rollout.groups[0], logprobs.grad[0]), (told.groups[0], own.grad)):  # type: ignore[index]
        for row, trajectory in enumerate(group.trajectories):
            start = 0
            for segment in trajectory.segments:
                found = gradient[row, start : start + len(segment.tokens)]  # type: ignore[index]
                start += len(segment.tokens)
                assert bool((found == 0).all()) == (segment.author == "environment")


def test_eq_3_weighs_a_trace_by_its_turns(policy: Policy, tmp_path: Path) -> None:
    """1/(H+1) for each token that was said; channels come from the file, images lie in between."""
    write_looks(tmp_path)
    task = make_task("conversations", validation=str(tmp_path / "sft.jsonl"), learn="conversations")
    rollout, [streams, _] = rolled(policy, task, make_method("conversations-sft", share_turns=True), 2)
    (told,) = rollout.groups[0].trajectories
    assert [s.channel for s in told.segments] == ["plan", "action", "observation"] * 2 + ["answer"]
    assert streams.weight_gr[streams.trained_gr].unique().tolist() == [pytest.approx(1 / 3)]
    assert len(rollout.prompts[0].images) == 1 and len(streams.pictures[0]) == 2


def test_the_answers_alone_are_the_baseline(policy: Policy, tmp_path: Path) -> None:
    """Each side's last turn learns; its steps before are read."""
    write_looks(tmp_path)
    rollout, [streams, _] = rolled(policy, pairs(tmp_path), make_method("dpo", level="answer"), 2)
    for row, told in enumerate(rollout.groups[0].trajectories):
        *before, last = told.segments
        assert last.channel == "answer"
        assert {s.channel for s in before} == {"context", "observation"}
        own = streams.trained_gr[row].nonzero().flatten().tolist()
        start = len(told.tokens) - len(last.tokens)
        assert own == [*range(start, start + len(last.tokens))]


def test_a_side_that_is_too_long_takes_its_pair_out(policy: Policy, tmp_path: Path) -> None:
    """The pair has no weight, the other pairs learn."""
    write_looks(tmp_path)
    task, method = pairs(tmp_path), make_method("dpo")
    _, [first, _] = rolled(policy, task, method, 2)
    longest = len(first.prompt.ids) + max(len(row) for row in first.tokens)
    task.limits = task.limits.model_copy(update={"tokens": longest - 1})
    rollout, _ = rolled(policy, task, method, 2)
    assert [t.finish == Finish.ERROR for t in rollout.groups[0].trajectories] == [False, True]


def test_who_has_no_preferences_says_so(policy: Policy, tmp_path: Path) -> None:
    task = make_task("digits-far")
    problem = task.problem("train", 0, 0)
    with pytest.raises(ConfigError, match="task digits-far has no preferences"):
        make_method("dpo").rollout(policy, task, [problem], [0], SAMPLING)
    write_looks(tmp_path)
    lines = (tmp_path / "pairs.jsonl").read_text()
    (tmp_path / "pairs.jsonl").write_text(lines.replace("images/", "gone/", 1))
    [row] = [row for row in pairs(tmp_path).rows("validation") if row["id"].endswith("r0 > w0")]
    with pytest.raises(DataError, match=r"pairs\.jsonl, line 1: the image .* cannot be read"):
        row["prompt"][0]["content"][0]["image"].open(tries=1)


def test_training_on_pairs(load_policy: Any, tmp_path: Path) -> None:
    """Two steps with an adapter, whose reference is the model without it: the margin grows from 0."""
    pytest.importorskip("peft")
    import json

    write_looks(tmp_path)
    policy = load_policy(lora={"rank": 4})
    learner = TrainerConfig(steps=3, groups_per_step=2, learning_rate=1e-2, checkpoint_every=0)
    Trainer(Training(policy, pairs(tmp_path), make_method("dpo"), learner, SAMPLING, tmp_path / "run")).run()
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert lines[0]["pairs/margin"] == pytest.approx(0, abs=1e-3)
    assert lines[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert lines[-1]["pairs/margin"] > 1e-2 and lines[-1]["loss"] < lines[0]["loss"]
    assert lines[0]["chosen/turns"] == 2 and lines[0]["rejected/turns"] == 3


def test_grpo_learns_from_all_turns_of_a_trajectory(load_policy: Any) -> None:
    """Plan, action and answer get the conversation's advantage; what the tools show gets none."""
    policy = load_policy()
    task = DigitsFar()
    problem = task.problem("train", 0, 0)
    [prompt] = policy.encode([problem])
    from selfverify.core.trajectory import Group

    def told(answer: int) -> Any:
        texts = ["<think>1</think>crop 1 0 0 3 3", f"<think>1</think><answer>{answer}</answer>"]
        said = []
        for text in texts:
            ids = policy.tokenizer(text, add_special_tokens=False)["input_ids"]
            said.append(Sample([*ids, policy.tokenizer.eos_token_id], [0.0] * (len(ids) + 1), Finish.STOP))
        return recite(policy, problem, task.look(problem), said)

    group = Group(problem, [told(problem.target), told(problem.target % 9 + 1)])
    method = make_method("grpo")
    credits = method.credit(group, valid_trajectories(group, False))
    streams = make_streams(prompt, group, credits)
    assert {"plan", "action", "answer"} <= set(streams.channels)
    for row, sign in ((0, 1.0), (1, -1.0)):
        segments = group.trajectories[row].segments
        assert [s.channel for s in segments] == ["plan", "action", "observation", "answer"]
        own = torch.tensor([s.author == "policy" for s in segments for _ in s.tokens])
        advantage = streams.advantage_gr[row, : len(own)]
        assert bool((advantage[own].sign() == sign).all()) and len(advantage[own].unique()) == 1
        assert not advantage[~own].any() and not streams.trained_gr[row, : len(own)][~own].any()
