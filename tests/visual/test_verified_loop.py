"""The loop with its verifier: Δr is known before the tool runs, stops it, and adds up to r(τ)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.evaluation.test_looked import far, teach
from tests.visual.test_look_episode import ANSWER, crop, looking, words
from tests.visual.test_step_verifier import adapted

from selfverify.core.config import SamplingConfig
from selfverify.core.episode import PolicyTurn
from selfverify.core.trajectory import Finish
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import PolicySampler
from selfverify.rollouts.rollout import rollout
from selfverify.verifiers.base import verify
from selfverify.verifiers.policy_verifiers import TrajectoryRatio
from selfverify.visual.config import VisualConfig
from selfverify.visual.episode import asked_anew
from selfverify.visual.stopping import DELTA_R, LOG_RATIO
from selfverify.visual.task import VisualToolTask
from selfverify.visual.verifier import StepVerifier


def test_the_rule_is_asked_with_delta_r() -> None:
    """A call has Δr and ends looking where it is small; an answer has none, and is refused until then."""
    named = {"stop": "verifier", "verifier": "/nowhere", "rule": "absolute", "epsilon": 0.5}
    task = looking(**named, terminate="refuse")
    episode = task.look(task.problem("test", 0, 0))
    episode.reset()

    def say(text: str, ratio: float, turn: int) -> str:
        said = PolicyTurn(text, [], Finish.STOP, turn, {LOG_RATIO: ratio})
        reply = episode.step(said)
        assert (DELTA_R in said.values) == (text != ANSWER)
        return "" if reply.done else words(reply)

    assert "too early" in say(ANSWER, 0.1, 0)
    assert "answer the question now" not in say(crop(), -0.6, 1)
    told = say(crop(9), 0.4, 2)
    assert "Image 3" in told and "answer the question now" in told
    assert say(ANSWER, 2.0, 3) == ""
    made = episode.result()
    assert made.scores[LOG_RATIO] == pytest.approx(1.9) and made.rewards["correct"] == 1
    steps = [(step["delta_r"], step["stopped"]) for step in made.turns[:3]]
    assert steps == [(None, ""), (-0.6, ""), (0.4, "rule")]


def test_a_task_brings_its_verifier(load_policy: Callable[..., Policy]) -> None:
    """`rollout` asks the task for its listener; the verifier may be the reasoner itself."""
    policy = adapted(load_policy)
    plain = VisualToolTask(looking().inner, VisualConfig(tools=["crop"]))
    plain.set_policy(policy)
    assert plain.hook() is None
    path = policy.config.path
    task = VisualToolTask(plain.inner, VisualConfig(tools=["crop"], verifier=path, stop="after:1"))
    task.set_policy(policy)
    listener = task.hook()
    assert isinstance(listener, StepVerifier) and listener.policies[0] is policy
    sampling = SamplingConfig(group_size=2, max_new_tokens=6)
    [group] = rollout(
        PolicySampler(policy, sampling), task, [task.problem("test", 0, 0)], [1], sampling.group_size
    ).groups
    assert all(LOG_RATIO in trajectory.segments[-1].values for trajectory in group.trajectories)


@pytest.mark.parametrize("stop", ["after:1", "after:2"])
def test_a_step_that_is_taken_back_is_not_measured(load_policy: Callable[..., Policy], stop: str) -> None:
    """r(τ) is that of what is left, read anew; what is left is what `compare` takes for it."""
    policy, verifier = load_policy(), adapted(load_policy)
    task = far(stop=stop, on_stop="skip", max_steps=3)
    teach(policy, task)
    problems = [task.problem("validation", 0, index) for index in range(4)]
    task.set_policy(policy)
    listener = StepVerifier(verifier, reasoner=policy)
    sampling = SamplingConfig(group_size=2, max_new_tokens=48)
    groups = rollout(
        PolicySampler(policy, sampling), task, problems, [5, 6, 7, 8], sampling.group_size, hook=listener
    ).groups
    kept = int(stop[-1]) - 1
    if kept:
        # What is left is what ends looking one step before, with that step's tool.
        run = far(stop=f"after:{kept}", max_steps=3)
        others = rollout(
            PolicySampler(policy, sampling), run, problems, [5, 6, 7, 8], sampling.group_size
        ).groups
        assert [t.tokens for g in groups for t in g.trajectories] == [
            t.tokens for g in others for t in g.trajectories
        ]
    # Without a look it is what `evaluation.visual_metrics` asks where there was none.
    unseen = asked_anew(problems[0], [("", [{"type": "text", "text": "Answer."}], [])], "user", "")
    [whole], [prompt] = policy.encode([unseen]), policy.encode(problems[:1])
    asked = [*prompt.ids.tolist(), *groups[0].trajectories[0].segments[0].tokens]
    assert kept or asked == whole.ids.tolist()
    for group in groups:
        for trajectory in group.trajectories:
            said = [s for s in trajectory.segments if s.author == "policy"]
            assert [s.channel for s in said] == ["plan", "action"] * kept + ["answer"]
            assert trajectory.rewards["steps"] == kept and trajectory.finish == Finish.STOP
            assert [s.turn for s in said] == sorted(s.turn for s in said)
            assert said[-1].turn == kept and "Answer." in trajectory.segments[-2].text
            shown = [s for s in trajectory.segments if s.author == "environment"]
            assert len(shown) == max(kept, 1) and sum(len(s.images) for s in shown) == kept
    measured = {id(t): t.scores.pop(LOG_RATIO) for group in groups for t in group.trajectories}
    assert len({round(value, 6) for value in measured.values()}) > 1
    verify(groups, TrajectoryRatio(verifier))
    for group in groups:
        for trajectory in group.trajectories:
            assert trajectory.scores["ratio"] == pytest.approx(measured[id(trajectory)], abs=1e-3)
            trajectory.scores[LOG_RATIO] = 7.0
    assert TrajectoryRatio(None).score(groups) == [[7.0, 7.0]] * 4
