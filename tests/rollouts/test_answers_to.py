"""Questions that quote others: what is shown means nothing, and each answer depends on its number alone."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from rounding import assert_close
from sampled_threads import drawn
from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation
from selfverify.core.problem import Problem
from selfverify.core.score_tokens import decimals_of
from selfverify.core.trajectory import Group, Segment, Trajectory
from selfverify.experiments.registry import make_task
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import ask_policy
from selfverify.rollouts.rollout import Rollout
from selfverify.rollouts.score_reading import read_rollout_scores, written_score
from selfverify.rollouts.script_sampler import recite
from selfverify.tasks.base import user_turn

ASKED = Problem("p", user_turn("Judge this.", images=0))


def tokens(
    policy: Policy, replies: Sequence[Observation], times: int = 2, seed: int = 5
) -> list[list[list[int]]]:
    sampling = SamplingConfig(group_size=times, max_new_tokens=8, temperature=0.7)
    found = ask_policy(policy, [(ASKED, reply) for reply in replies], [seed] * len(replies), sampling)
    return [[said.tokens for said in row if said is not None] for row in found]


def test_an_answer_depends_on_question_seed_and_number_alone(policy: Policy) -> None:
    one, other = tokens(policy, [Observation("Alarm"), Observation("Clock")], times=3)
    assert tokens(policy, [Observation("Clock")]) == [other[:2]]
    assert one != other and one != tokens(policy, [Observation("Alarm")], times=3, seed=6)[0]
    assert len({tuple(answer) for answer in one}) > 1


def test_pictures_are_shown_and_what_cannot_be_shown_has_no_answer(policy: Policy) -> None:
    picture = Observation([{"type": "image"}, {"type": "text", "text": "?"}], [Image.new("RGB", (56, 56))])
    shown, broken = tokens(policy, [picture, Observation([{"type": "image"}])])
    assert len(shown) == 2 and broken == []


def test_the_decimals_of_a_written_score() -> None:
    written = {"0.8</score>": 1, "1</score>": 1, "0.85</score>.": 2, "0.8500</score>": 2, " 0.07 </score>": 2}
    for text, decimals in written.items():
        assert decimals_of(written_score(Trajectory([Segment("score", [1], text=text)]))) == decimals


def test_an_answer_is_read_by_its_own_form_alone(policy: Policy) -> None:
    """Two decimals give another expectation than tenths; neighbours change nothing."""
    task = make_task("digits-pick")
    problem = task.problem("test", 0, 0)

    def group(*scores: str) -> Group:
        texts = [f"<think>1+1=2</think><answer>1 1</answer><score>{score}</score>" for score in scores]
        told = [recite(policy, problem, task.open(problem, 0), [drawn(policy, text)]) for text in texts]
        return Group(problem, told)

    def read(*scores: str, as_written: bool = True) -> list[float]:
        made = group(*scores)
        read_rollout_scores(policy, Rollout(policy.encode([problem]), [made]), as_written=as_written)
        return [trajectory.scores["soft"] for trajectory in made.trajectories]

    [tenths], [hundredths] = read("0.8"), read("0.85")
    assert_close(read("0.8", "0.85", "0.31"), [tenths, hundredths, hundredths])
    assert_close(read("0.85", as_written=False), read("0.8", as_written=False))
    assert abs(tenths - hundredths) > 1e-3
