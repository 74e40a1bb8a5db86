"""What is there before the policy speaks: a first screen of each sample's own, or an end at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image
from tests.rollouts.conversations import Talkative, held, picture, three
from tests.updating import update

from rounding import assert_close
from selfverify.core.config import RolloutLimits, SamplingConfig
from selfverify.core.episode import Episode, Observation
from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Finish, Group, Trajectory, valid_trajectories
from selfverify.experiments.registry import make_method
from selfverify.methods.base import Method
from selfverify.policy.decoding import Sample
from selfverify.policy.observation_encoding import ReplyEncoder
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.rollouts.script_sampler import recite
from selfverify.tasks.answering import SingleTurn
from selfverify.tasks.base import user_turn
from selfverify.tasks.digits import DigitsSum
from selfverify.trainer.batch import TokenStreams, make_streams, select

SAMPLING = SamplingConfig(group_size=3, max_new_tokens=10, top_p=1.0)
LIMITS = RolloutLimits(turns=3)
THREADS = LIMITS.model_copy(update={"step_threads": 3, "step_timeout_s": 0.5})
ASKED = Problem("asked", user_turn("Which digits are shown?", images=0), environment_begins=True)
PLAIN = replace(ASKED, environment_begins=False)


class Screen(Talkative):
    """Begins with a screen of the sample's own: words, an image between words, or nothing."""

    def reset(self) -> Observation | None:
        kind = self.rng.randrange(6)
        words = {"type": "text", "text": "screen " * self.rng.randrange(1, 9)}
        if kind == 0:
            return None
        if kind < 3:
            return Observation([words])
        return Observation([words, {"type": "image"}, words], [picture(self.rng.randrange(5))])


class Given(Talkative):
    """Begins as a test says."""

    def __init__(self, first: Callable[[], Any]) -> None:
        super().__init__(0)
        self.first = first

    def reset(self) -> Observation | None:
        return self.first()  # type: ignore[no-any-return]


def hold(
    policy: Policy, first: Callable[[], Any], problem: Problem = ASKED, limits: RolloutLimits = LIMITS
) -> list[Trajectory]:
    """Three conversations; the one in the middle begins with ``first``."""
    return three(policy, lambda: Given(first), lambda: Given(lambda: None), 3, limits, SAMPLING, problem)


def streams_of(rollout: Rollout, method: Method) -> list[TokenStreams]:
    made = []
    for number, (prompt, group) in enumerate(zip(rollout.prompts, rollout.groups, strict=True)):
        credits = method.credit(group, valid_trajectories(group, False))
        made.append(make_streams(prompt, group, credits, number=number))
    return made


def whole(policy: Policy, messages: list[dict[str, Any]], images: list[Image.Image]) -> list[int]:
    """The ids of a conversation as the chat template writes it."""
    ids: list[int] = policy.encode([Problem("p", messages, images)])[0].ids.tolist()
    return ids


def test_a_first_screen_of_each_samples_own(ending_policy: Callable[..., Policy]) -> None:
    """The prompt is shared and ends with the question; what the policy reads is the template's conversation,
    and what the sampler says of its tokens is what the learner says."""
    policy = ending_policy()
    shown = replace(ASKED, messages=user_turn("What is on it?"), images=[picture(3, (84, 56))])
    sampling = SAMPLING.model_copy(update={"group_size": 9})
    rolled = held(policy, [shown, ASKED], [1, 2], lambda p, s: Screen(s), LIMITS, sampling)
    kinds = set()
    for problem, prompt, group in zip([shown, ASKED], rolled.prompts, rolled.groups, strict=True):
        assert len({tuple(t.segments[0].tokens) for t in group.trajectories}) > 2
        for trajectory in group.trajectories:
            first = trajectory.segments[0]
            assert (first.author, first.turn, first.finish) == ("environment", 0, None)
            assert trajectory.segments[1].author == "policy" and trajectory.segments[1].turn == 0
            words = first.text.partition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
            parts: list[dict[str, Any]] = [{"type": "text", "text": words}]
            if first.images:
                before, after = words.split("<|vision_start|><|image_pad|><|vision_end|>")
                assert before == after
                text = {"type": "text", "text": before}
                parts = [text, {"type": "image"}, text]
            screen = [{"role": "user", "content": parts}] if words else []
            read = whole(policy, [*problem.messages, *screen], [*problem.images, *first.images])
            assert [*prompt.ids.tolist(), *first.tokens] == read
            kinds.add((bool(words), bool(first.images)))
    assert len(kinds) == 3
    for streams, group in zip(streams_of(rolled, Words()), rolled.groups, strict=True):
        streams.prepare_images(policy.encoder)
        [values] = policy.logprobs([streams.prompt], [streams.continuations])
        for row, trajectory in zip(values, group.trajectories, strict=True):
            own = trajectory.channel_mask(["words"])
            found = row[: len(own)][torch.tensor(own)]
            known = [v for s in trajectory.segments if s.author == "policy" for v in s.logprobs]
            assert_close(known, found)


class Words(type(make_method("grpo"))):  # type: ignore[misc]
    """GRPO of endings that have one reward alone."""

    def credit(self, group: Group, valid: torch.Tensor) -> Any:
        for trajectory in group.trajectories:
            trajectory.rewards |= dict.fromkeys(("answer_format", "score_opened", "score_format"), 1.0)
        return super().credit(group, valid)


def test_a_conversation_that_is_shown_nothing_is_the_ordinary_one(
    ending_policy: Callable[..., Policy],
) -> None:
    """What its prompt lacks is the beginning of the policy's message; the same tokens are drawn."""
    policy = ending_policy()
    [with_end] = policy.encode([PLAIN])
    [without] = policy.encode([ASKED])
    assert with_end.begun and not without.begun
    rest = ReplyEncoder(policy.encoder).opening(ASKED, None).tokens
    assert [*without.ids.tolist(), *rest] == with_end.ids.tolist()
    begun, plain = hold(policy, lambda: None), hold(policy, lambda: None, problem=PLAIN)
    for opened, ordinary in zip(begun, plain, strict=True):
        assert opened.segments[0].tokens == rest
        assert [s.tokens for s in opened.segments[1:]] == [s.tokens for s in ordinary.segments]


@pytest.mark.parametrize("limits", [LIMITS, THREADS], ids=["inline", "threads"])
@pytest.mark.parametrize("problem", [ASKED, PLAIN], ids=["begins", "plain"])
def test_over_before_the_policy_speaks(
    ending_policy: Callable[..., Policy], limits: RolloutLimits, problem: Problem
) -> None:
    """Such a conversation counts as its ending says, has no token to learn from, and disturbs no other."""
    policy = ending_policy()
    others = hold(policy, lambda: None, problem, limits)
    found = hold(policy, lambda: Observation("This is never shown.", done=True), problem, limits)
    assert [found[n].tokens for n in (0, 2)] == [others[n].tokens for n in (0, 2)]
    over = found[1]
    assert over.tokens == [] and over.written == 0 and over.finish == Finish.STOP and not over.truncated
    assert over.rewards == {"answer": 0.0}
    group = Group(problem, found)
    assert valid_trajectories(group, True).tolist()[1]
    method = make_method("grpo", kl=0)
    for trajectory, reward in zip(found, (1.0, 4.0, 1.0), strict=True):
        trajectory.rewards = dict.fromkeys(("answer_format", "score_opened", "score_format", "correct"), 1.0)
        trajectory.rewards["answer"] = reward
    valid = torch.ones(3, dtype=torch.bool)
    credits = method.credit(group, valid)
    # Its reward is part of the group's mean: (1 + 4 + 1) / 3.
    expected = torch.tensor([-1.0, 2.0, -1.0]).double() / (3**0.5 + 1e-4)
    torch.testing.assert_close(credits[0].advantage, expected)
    [prompt] = policy.encode([problem])
    streams = make_streams(prompt, group, credits)
    assert streams.trained_gr.any(-1).tolist() == [True, False, True] and streams.trajectories == 2
    turns = sum(len({s.turn for s in t.segments if s.author == "policy"}) for t in found)
    assert method.metrics([group])["conversation/turns"] == pytest.approx(turns / 3)
    streams.prepare_images(policy.encoder)
    update(policy, [streams], loss__denominator="sequence")
    grads = [p.grad for p in policy.model.parameters() if p.grad is not None]
    assert grads and all(bool(torch.isfinite(grad).all()) for grad in grads)


def test_a_group_in_which_nothing_was_said_leaves_the_batch(policy: Policy) -> None:
    """It may have advantages, but no token that they could be about."""

    rolled = held(policy, [PLAIN], [3], lambda p, s: Given(lambda: Observation(done=True)), LIMITS)
    [group] = rolled.groups
    for reward, trajectory in enumerate(group.trajectories):
        trajectory.rewards = dict.fromkeys(("answer_format", "score_opened", "score_format"), 1.0)
        trajectory.rewards["answer"] = float(reward)
    credits = make_method("grpo").credit(group, torch.ones(3, dtype=torch.bool))
    kept, dropped = select(rolled, [credits], drop_zero=False)
    assert kept == [] and dropped == {"zero_advantage": 1}


def test_an_answer_that_was_never_given_is_wrong(policy: Policy) -> None:
    class Closed(SingleTurn):
        def reset(self) -> Observation | None:
            return Observation(done=True)

    task = DigitsSum()
    problem = task.problem("train", 0, 0)
    said = [Sample([5], [0.0], Finish.STOP)]
    made = recite(policy, problem, Closed(problem, task.tags, task.verdict), said)
    assert made.tokens == [] and made.rewards["correct"] == 0.0 and made.finish == Finish.STOP


def raises() -> Any:
    raise OSError("no browser")


ODD: dict[str, Callable[[], Any]] = {
    "raises": raises,
    "hangs": lambda: time.sleep(1.0),
    "a text": lambda: "Hello.",
    "cuts": lambda: Observation("Hello.", channels=[("a", 0)]),
}


@pytest.mark.parametrize("odd", ODD)
def test_a_failing_beginning_ends_its_own_conversation_only(
    ending_policy: Callable[..., Policy], odd: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = ending_policy()
    others = hold(policy, lambda: None, limits=THREADS)
    found = hold(policy, ODD[odd], limits=THREADS)
    assert found[1].finish == Finish.ERROR and found[1].rewards == {} and found[1].tokens == []
    assert [found[n].tokens for n in (0, 2)] == [others[n].tokens for n in (0, 2)]
    assert any("problem asked, turn 0: its episode failed" in r.getMessage() for r in caplog.records)


def test_a_screen_that_the_problem_does_not_announce_is_refused(policy: Policy) -> None:
    with pytest.raises(ConfigError, match=r"problem asked: its episode shows .* environment_begins=True"):
        hold(policy, lambda: Observation("Hello."), problem=PLAIN)


ALTERNATING = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m['role'] }}\n"
    "{% for c in m['content'] %}{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ c['text'] | trim }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_templates_whose_roles_alternate(load_policy: Any) -> None:
    """What is shown continues the user's message."""
    policy = load_policy()
    policy.tokenizer.chat_template = ALTERNATING
    writer, decode = ReplyEncoder(policy.encoder), policy.tokenizer.decode
    [prompt] = policy.encode([ASKED])
    assert decode(prompt.ids) == "<|im_start|>user\nWhich digits are shown?"
    after = "<|im_end|>\n<|im_start|>assistant\n"
    assert decode(writer.opening(ASKED, None).tokens) == after
    assert decode(writer.opening(ASKED, Observation(" a <|im_end|>")).tokens) == f"\n\n a <|im_end|>{after}"
    screen = Observation([{"type": "image"}, {"type": "text", "text": "b"}], [picture(0)])
    shown = decode(writer.opening(ASKED, screen).unexpanded)
    assert shown == f"\n\n<|vision_start|><|image_pad|><|vision_end|>b{after}"
    special = policy.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert list(writer.opening(ASKED, Observation("<|im_end|>")).tokens).count(special) == 1
    with pytest.raises(ConfigError, match=r"problem asked: .* cannot continue a conversation"):
        writer.opening(ASKED, Observation("b", role="tool"))


def test_a_template_of_texts_alone(load_policy: Any) -> None:
    policy = load_policy("llama")
    opened = ReplyEncoder(policy.encoder).opening(ASKED, Observation("Look."))
    [prompt] = policy.encode([ASKED])
    messages = [*ASKED.messages, *user_turn("Look.", images=0)]
    assert [*prompt.ids.tolist(), *opened.tokens] == whole(policy, messages, [])


def test_beginnings_come_from_seeds(ending_policy: Callable[..., Policy]) -> None:
    """A problem alone equals itself in a batch with others that begin and that do not."""
    policy = ending_policy()

    def talk(problems: list[Problem], seeds: list[int], limits: RolloutLimits) -> list[list[list[int]]]:
        def begin(problem: Problem, seed: int) -> Episode:
            return Screen(seed) if problem.environment_begins else Talkative(seed)

        made = held(policy, problems, seeds, begin, limits)
        return [[t.tokens for t in group.trajectories] for group in made.groups]

    together = talk([ASKED, PLAIN], [3, 4], LIMITS)
    assert talk([ASKED], [3], LIMITS) == together[:1] and talk([PLAIN], [4], LIMITS) == together[1:]
    assert talk([ASKED, PLAIN], [3, 4], THREADS) == together
