"""With a real policy: the score's gradient is that of the expected AUC, and invariants 2 and 3."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.test_loss import drifted

from rounding import assert_close, assert_gradients_close
from selfverify.core.config import SamplingConfig
from selfverify.core.problem import Problem
from selfverify.core.tags import Tagged
from selfverify.core.trajectory import Credit, Group, Segment, Trajectory, valid_trajectories
from selfverify.experiments.registry import make_method, make_task
from selfverify.methods.adpo import score_distributions
from selfverify.methods.base import Method
from selfverify.objectives import choice_probability
from selfverify.policy.encoding import Prompt
from selfverify.policy.policy import Policy
from selfverify.rollouts.rollout import Rollout
from selfverify.rollouts.score_reading import read_rollout_scores
from selfverify.trainer.batch import TokenStreams, make_streams, select, stack, stack_choices
from updating import update

QUALITIES = [1.0, 0.0, 0.0, 1.0]
SCORES = ["0.7", "0.2", "1.0", "0.7"]
MALFORMED = "0..7"


def judged(segments: list[Segment], quality: float, score: float | None) -> Trajectory:
    """An answer of this quality with its score; None is a malformed one."""
    rewards = {"answer": quality, "correct": quality, "answer_format": 1.0, "score_opened": 1.0}
    rewards["score_format"] = float(score is not None)
    return Trajectory(segments, {} if score is None else {"sampled": score}, rewards)


def rollout_of(policy: Policy, texts: list[str], qualities: list[float]) -> Rollout:
    """One group whose answers and scores are written by hand, with the scores' distributions read."""
    problem = make_task("digits-pick").problem("train", 0, 0)

    def tokens(text: str) -> list[int]:
        return policy.tokenizer(text, add_special_tokens=False)["input_ids"]

    group = []
    for n, (text, quality) in enumerate(zip(texts, qualities, strict=True)):
        answer = tokens(f"<think>{n}</think><answer>{n} 2</answer><score>")
        score = [*tokens(f"{text}</score>"), policy.tokenizer.eos_token_id]
        segments = [Segment("answer", answer), Segment("score", score, finish="stop")]
        group.append(judged(segments, quality, None if text == MALFORMED else float(text)))
    rollout = Rollout(policy.encode([problem]), [Group(problem, group)])
    read_rollout_scores(policy, rollout)
    return rollout


@pytest.fixture
def rollout(policy: Policy) -> Rollout:
    """A fresh one, to be changed."""
    return rollout_of(policy, SCORES, QUALITIES)


def credited(group: Group, **options: Any) -> list[Credit]:
    """The answers' credit and the scores'."""
    method = make_method("adpo", verification_credit="expected", **options)
    return method.credit(group, valid_trajectories(group, False))


def learn(
    policy: Policy, rollout: Rollout, denominator: str = "channel", **options: Any
) -> dict[str, torch.Tensor]:
    """Gradients of one update without KL."""
    groups, _ = select(rollout, [credited(group, kl=0.0, **options) for group in rollout.groups], True)
    update(policy, groups, loss__denominator=denominator)
    return {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}


def expected_auc(policy: Policy, rollout: Rollout) -> torch.Tensor:
    """P(right above wrong) + P(tie)/2 over the pairs of the group, differentiable, written out."""
    group, [prompt] = rollout.groups[0], rollout.prompts
    zero, point = policy.tokenizer("0.", add_special_tokens=False)["input_ids"]
    digits = [policy.tokenizer(str(d), add_special_tokens=False)["input_ids"][0] for d in range(10)]
    rows = []
    for trajectory in group.trajectories:
        prefix = trajectory.segments[0].tokens
        vocabulary = policy.model.config.get_text_config().vocab_size

        def logits(path: list[int], prefix: list[int] = prefix, size: int = vocabulary) -> torch.Tensor:
            tokens = [*prefix, *path]
            places = torch.tensor([[0, 0, len(tokens)]])
            return policy.logprobs_and_choices([prompt], [[[*tokens, 0]]], places, torch.arange(size)[None])[
                1
            ][0]

        first = logits([])[[zero, digits[1]]].log_softmax(-1)
        tenths = logits([zero, point])[digits].log_softmax(-1)
        rows.append(torch.cat([first[:1] + tenths, first[1:]]).exp())
    above = torch.ones(11, 11).tril(-1) + 0.5 * torch.eye(11)
    pairs = [
        p @ above @ q
        for p, a in zip(rows, QUALITIES, strict=True)
        for q, b in zip(rows, QUALITIES, strict=True)
        if a > b
    ]
    return torch.stack(pairs).mean()


@pytest.mark.parametrize("denominator", ["sequence", "channel", "batch"])
def test_the_scores_gradient_is_that_of_the_expected_auc(
    load_policy: Any, in_float64: Any, denominator: str
) -> None:
    """In expectation over the first token written, "0" or "1", which decides whether tenths are reached.

    The loss is a mean over the 4 trajectories, so weight 4 and scale 1 make it minus the expected AUC,
    whatever the denominator of the other tokens and the lengths of the scores. The answers' part is
    measured alone, with score_weight 0, and taken off. A trajectory's gradient depends on what it wrote
    itself, not on the others. So the expectation is that of the tenths everywhere plus, for each trajectory,
    P("1.0") times what "1" there changes.

    These are differences of gradients, so they are taken in float64; the distributions are kept in float32.
    """
    policy = in_float64(load_policy())
    tenths = ["0.7", "0.75", "0.2", "0.7"]
    rollout = rollout_of(policy, tenths, QUALITIES)
    settings = {"score_weight": 4.0, "concordance_scale": 1.0}
    base = learn(policy, rollout, denominator, **settings)
    answers = learn(policy, rollout, denominator, score_weight=0.0)
    _, distributions = score_distributions([t.segments[-1].parsed for t in rollout.groups[0].trajectories])
    ours = {name: value - answers[name] for name, value in base.items()}
    for i in range(4):
        other_rollout = rollout_of(policy, ["1" if n == i else tenths[n] for n in range(4)], QUALITIES)
        other = learn(policy, other_rollout, denominator, **settings)
        other_answers = learn(policy, other_rollout, denominator, score_weight=0.0)
        for name in ours:
            changed = (other[name] - other_answers[name]) - (base[name] - answers[name])
            ours[name] += float(distributions[i, -1]) * changed
    policy.model.zero_grad()
    (-expected_auc(policy, rollout)).backward()
    expected = {name: p.grad for name, p in policy.model.named_parameters() if p.grad is not None}
    assert_gradients_close(*({n: g.type(torch.float32) for n, g in x.items()} for x in (ours, expected)))


def test_choices_lie_on_what_was_written(policy: Policy, rollout: Rollout) -> None:
    """ "0.7" passes "0 or 1" and then ten digits; "1.0" passes only the first."""
    [group] = rollout.groups
    [streams], _ = select(rollout, [credited(group)], True)
    places, weights, choices = stack_choices([streams])
    assert places[:, 0].tolist() == [0] * 7 and weights.tolist() == [1.0] * 7
    assert choices.rows.tolist() == [0, 0, 1, 1, 2, 3, 3]
    starts = [len(t.segments[0].tokens) for t in group.trajectories]
    assert choices.places.tolist() == [
        starts[0], starts[0] + 2, starts[1], starts[1] + 2, starts[2], starts[3], starts[3] + 2
    ]  # fmt: skip
    assert (choices.probability > 0).sum(-1).tolist() == [2, 10, 2, 10, 2, 2, 10]
    assert_close(choices.probability.sum(-1), torch.ones(7))
    mean = (choices.probability * choices.advantage).sum(-1)
    assert_close(mean, torch.zeros(7), size=float(choices.advantage.abs().max()))
    for row, place, tokens in zip(choices.rows, choices.places, choices.tokens, strict=True):
        assert group.trajectories[int(row)].tokens[int(place)] in tokens.tolist()
    # Right answers are to score high: at "0 or 1", which of the two is which?
    one = policy.tokenizer("1", add_special_tokens=False)["input_ids"][0]
    towards_one = choices.advantage[0][choices.tokens[0] == one]
    assert towards_one > 0


def test_a_malformed_score_is_punished_as_written(policy: Policy) -> None:
    rollout = rollout_of(policy, ["0.7", MALFORMED, "0.2"], [1.0, 0.0, 0.0])
    [group] = rollout.groups
    answer, score = credited(group, format_weight=0.25, kl=0.1)
    assert score.advantage.tolist() == [0, -0.25, 0]
    assert set(score.choices.rows.tolist()) == {0, 2}
    [streams], _ = select(rollout, [[answer, score]], True)
    trained = streams.channel_gr[1] == 1
    assert set(streams.advantage_gr[1][trained].tolist()) == {-0.25}
    for row in (0, 2):
        assert not streams.advantage_gr[row][streams.channel_gr[row] == 1].any()
        assert streams.kl_coef_gr[row][streams.channel_gr[row] == 1].tolist() == pytest.approx([0.1] * 5)


def test_an_answer_without_any_score_takes_no_part(rollout: Rollout) -> None:
    """Its last segment is the answer, which the task has parsed."""
    [group] = rollout.groups
    bare = group.trajectories[2]
    bare.segments, bare.scores = bare.segments[:1], {}
    bare.segments[0].parsed = make_task("digits-pick").judge(group.problem, Tagged({"answer": "1 2 3"}))
    bare.rewards |= {"score_opened": 0.0, "score_format": 0.0}
    _, score = credited(group)
    assert set(score.choices.rows.tolist()) == {0, 1, 3}


def test_scores_that_were_not_read_are_an_error(rollout: Rollout) -> None:
    """Learning nothing in silence would be worse."""
    [group] = rollout.groups
    del group.trajectories[1].scores["soft"]
    with pytest.raises(ValueError, match=r"digits-pick/train/0/0.*read_rollout"):
        credited(group)


def test_the_score_may_have_its_own_kl(rollout: Rollout) -> None:
    valid = valid_trajectories(rollout.groups[0], False)
    for options, expected in (({}, 0.3), ({"score_kl": 0.0}, 0.0), ({"score_kl": 0.02}, 0.02)):
        answer, score = make_method("adpo", kl=0.3, **options).credit(rollout.groups[0], valid)
        assert (answer.kl_coef, score.kl_coef) == (0.3, expected)


def test_clipping_stops_a_policy_that_has_moved_far_enough(policy: Policy, rollout: Rollout) -> None:
    """The distributions stay those of sampling: once every ratio with a positive gain has left the clip
    range and every loss too, the score's gradient is exactly 0."""
    [group] = rollout.groups
    [streams], _ = select(rollout, [credited(group, kl=0.0)], True)
    choices = streams.choices
    streams.advantage_gr.zero_()

    def gradient(old: list[torch.Tensor] | None) -> float:
        update(policy, [streams], old=old)
        return sum(float(p.grad.norm()) for p in policy.model.parameters() if p.grad is not None)

    later = [torch.zeros_like(streams.advantage_gr)]  # any old log-probs: no token has an advantage
    assert gradient(later) > 0
    # As if sampling had given the better half of the alternatives far less, and the worse half far more.
    better, given = choices.advantage > 0, choices.probability > 0
    choices.probability = torch.where(given, torch.where(better, 1e-9, 1e3), 0.0)
    assert gradient(later) == 0
    assert gradient(None) > 0  # the first update's old policy is the new one, whatever was read before


def test_what_is_read_is_what_is_learnt_at_any_temperature(policy: Policy) -> None:
    task = make_task("digits-pick")
    problems = [task.problem("train", 0, 0), task.problem("train", 0, 3)]
    texts = (["0.7", "0.2", "1.0"], ["0.1", "1.0", "0.9"])
    groups = [
        Group(problem, rollout_of(policy, scores, [1.0, 0.0, 0.0]).groups[0].trajectories)
        for problem, scores in zip(problems, texts, strict=True)
    ]
    rollout = Rollout(policy.encode(problems), groups)
    read_rollout_scores(policy, rollout, temperature=0.7)
    streams, _ = select(rollout, [credited(group, kl=0.0) for group in groups], True)
    assert update(policy, streams, temperature=0.7).largest["ratio"] == 1
    places, _, choices = stack_choices(streams)
    tokens = [[t.tokens for t in group.trajectories] for group in groups]
    _, again = policy.logprobs_and_choices(rollout.prompts, tokens, places, choices.tokens, temperature=0.7)
    assert_close(choice_probability(again, choices.probability > 0), choices.probability)


def test_one_channel_may_have_choices(rollout: Rollout) -> None:
    answer, score = credited(rollout.groups[0])
    answer.choices = score.choices
    with pytest.raises(ValueError, match=r"only one channel.*answer, score"):
        select(rollout, [[answer, score]], True)
    score.choices = None
    with pytest.raises(ValueError, match="outside their channel"):
        select(rollout, [[answer, score]], True)


def test_a_turn_that_was_not_to_be_the_last_has_no_choices(policy: Policy, rollout: Rollout) -> None:
    """A limit ended the conversation there: its tokens are an answer's, also if they begin with a 0."""
    last = rollout.groups[0].trajectories[3].segments.pop()
    zero = policy.tokenizer("0", add_special_tokens=False)["input_ids"]
    rollout.groups[0].trajectories[3].segments[-1] = Segment("answer", zero * 9, parsed=last.parsed)
    credits = credited(rollout.groups[0])
    choices = credits[1].choices
    assert set(choices.rows.tolist()) == {0, 1, 2}
    select(rollout, [credits], True)  # refuses choices outside of their channel


# --- invariants 2 and 3 -------------------------------------------------------------------------------------


def make_group(policy: Policy, index: int, qualities: list[float], scores: list[float | None]) -> Any:
    """A prompt and its group: sampled tokens, cut at half, with given qualities and scores."""
    problem = make_task("digits-pick").problem("train", 0, index)
    [prompt] = policy.encode([problem])
    sampling = SamplingConfig(group_size=len(qualities), top_p=1.0, max_new_tokens=6 + index)
    [samples] = policy.sample([prompt], sampling, seeds=[index])
    rows = []
    for sample, quality, score in zip(samples, qualities, scores, strict=True):
        half = (len(sample.tokens) + 1) // 2
        segments = [Segment("answer", sample.tokens[:half], sample.logprobs[:half])]
        segments.append(Segment("score", sample.tokens[half:], sample.logprobs[half:], finish="stop"))
        rows.append(judged(segments, quality, score))
    return prompt, Group(problem, rows)


def streams_of(method: Method, rollout: list[Any]) -> list[TokenStreams]:
    groups = Rollout([prompt for prompt, _ in rollout], [group for _, group in rollout])
    credits = [method.credit(group, valid_trajectories(group, False)) for group in groups.groups]
    kept, _ = select(groups, credits, drop_zero=True)
    return kept


# --- invariant 3: disjoint tokens -----------------------------------------------------------------------

ANSWER_ONLY = ([1.0, 0.0, 1.0, 0.0], [0.5, 0.5, 0.5, 0.5])  # ties: no score is better than another
SCORE_ONLY = ([1.0, 1.0, 1.0, 1.0], [0.9, 0.1, 0.5, 0.7])  # answers alike: nothing to learn from them
BOTH = ([1.0, 0.0, 1.0, 0.0], [0.9, 0.1, 0.5, 0.7])


@pytest.mark.parametrize("denominator", ["sequence", "channel", "batch"])
@pytest.mark.parametrize(
    ("case", "verification", "silent"),
    [(ANSWER_ONLY, "pairwise", {1}), (SCORE_ONLY, "binary", {0}), (BOTH, "pairwise", set())],
    ids=["only the answer learns", "only the score learns", "both learn"],
)
def test_gradient_on_logits_is_exactly_zero_where_nothing_is_credited(
    load_policy: Any, case: Any, verification: str, silent: set[int], denominator: str
) -> None:
    policy = load_policy()
    policy.shares_prefix = True
    [streams] = streams_of(
        make_method("adpo", kl=0.1, verification=verification), [make_group(policy, 1, *case)]
    )
    reference = drifted(policy, 0.97)
    seen, right = [], policy.head.logits

    def watched(hidden: torch.Tensor) -> torch.Tensor:
        logits = right(hidden)
        logits.retain_grad()
        seen.append(logits)
        return logits

    policy.head.logits = watched
    update(policy, [streams], reference, loss__denominator=denominator)
    [logits] = seen
    # The head runs on the trained tokens, in order.
    channels = streams.channel_gr[streams.channel_gr >= 0]
    assert len(channels) == len(logits) and set(channels.tolist()) == {0, 1}
    for channel in (0, 1):
        sizes = logits.grad[channels == channel].abs().amax(-1)
        assert bool((sizes == 0).all() if channel in silent else (sizes > 1e-6).all())


def test_a_credit_reaches_its_own_tokens_only() -> None:
    """By hand: what the environment wrote is not trained, in whatever channel it stands."""
    said = [Segment("answer", [1, 2]), Segment("observation", [3], author="environment")]
    said += [Segment("score", [4]), Segment("answer", [5], author="environment")]
    group = Group(Problem("p", []), [Trajectory(said), Trajectory([Segment("answer", [6])])])
    taught = [Credit("answer", torch.tensor([1.0, -1.0]), 0.5), Credit("score", torch.tensor([2.0, 3.0]))]
    streams = make_streams(Prompt("p", torch.tensor([1]), torch.tensor([[0]])), group, taught)
    assert streams.channel_gr.tolist() == [[0, 0, -1, 1, -1], [0, -1, -1, -1, -1]]
    assert streams.advantage_gr.tolist() == [[1, 1, 0, 2, 0], [-1, 0, 0, 0, 0]]
    assert streams.kl_coef_gr.tolist() == [[0.5, 0.5, 0, 0, 0], [0.5, 0, 0, 0, 0]]
    assert streams.sampler_logprobs_gr is None


# --- invariant 2: our GRPO is TRL's ---------------------------------------------------------------------


BETA = 2**-7
"""The coefficient of the KL, exact in float32."""


def test_grpo_update_is_trls(load_policy: Any, in_float64: Any) -> None:
    """TRL's own advantage and loss code on the same samples, rewards and log-probs."""
    pytest.importorskip("trl", exc_type=ImportError)
    trl = runpy.run_path(str(Path(__file__).parents[1] / "objectives" / "test_trl.py"))
    policy = in_float64(load_policy())
    policy.shares_prefix = True
    cases = [([1.0, 0.0, 1.0, 0.0], [0.9, None, 0.5, 0.2]), ([0.0, 0.0, 1.0, 0.0], [0.2, 0.1, None, 0.7])]
    rollout = [make_group(policy, index, *cases[index % 2]) for index in range(4)]
    reference = drifted(policy, 0.97)
    groups = streams_of(make_method("grpo", kl=BETA), rollout)
    totals = update(policy, groups, reference)
    ours = {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}

    policy.model.zero_grad()
    rewards = torch.tensor(
        [
            [t.rewards["answer"] + 0.1 * t.rewards["score_format"] for t in group.trajectories]
            for _, group in rollout
        ]
    )
    prompts = [prompt for prompt, _ in rollout]
    tokens = [[t.tokens for t in group.trajectories] for _, group in rollout]
    logprobs = policy.logprobs(prompts, tokens).flatten(0, 1)
    with torch.no_grad():
        ref = reference.logprobs(prompts, tokens).flatten(0, 1)
    mask = policy.stack(tokens).mask_bgr.flatten(0, 1).long()
    # Advantages are kept in float32: compared by themselves, then taken as they are.
    advantage = stack([g.advantage_gr for g in groups], policy.device).flatten(0, 1)[:, 0]
    assert_close(*(x.type(torch.float32) for x in (advantage, trl["trl_advantage"](rewards).flatten())))
    loss, metrics = trl["trl_loss"](logprobs, logprobs.detach(), ref, advantage, mask, "grpo", beta=BETA)
    loss.backward()

    assert_close(totals.sums["loss"], loss)
    assert_close(totals.metrics()["kl"], metrics["kl"][0])
    theirs = {n: p.grad for n, p in policy.model.named_parameters() if p.grad is not None}
    assert_gradients_close(ours, theirs)
    assert max(float(g.abs().max()) for g in ours.values()) > 1e-2
