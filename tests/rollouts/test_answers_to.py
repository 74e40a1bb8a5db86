"""Questions that quote others: what is shown means nothing, and each answer depends on its number alone."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from selfverify.core.config import SamplingConfig
from selfverify.core.episode import Observation
from selfverify.core.problem import Problem
from selfverify.policy.policy import Policy
from selfverify.rollouts.policy_sampler import ask_policy
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
