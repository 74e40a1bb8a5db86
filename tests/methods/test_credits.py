"""What GRPO and ADPO credit, worked out by hand on small groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.methods.test_without_the_model_stack import normalised

from selfverify.core.errors import ConfigError
from selfverify.core.problem import Problem
from selfverify.core.trajectory import Group, Segment, Trajectory, valid_trajectories
from selfverify.experiments.registry import make_method
from tables import yaml_cases

MALFORMED, MISSING = "malformed", "missing"


def trajectory(
    quality: float, score: float | str, answer_ok: bool = True, finish: Any = "stop"
) -> Trajectory:
    """One judged trajectory; ``score`` is a number, or says why there is none."""
    segments = [Segment("answer", [10, 11, 12], [-1.0, -1.0, -1.0])]
    if score != MISSING:
        segments.append(Segment("score", [13, 14], [-1.0, -1.0]))
    segments[-1].finish = finish
    readable = isinstance(score, float)
    rewards = {"answer": quality, "correct": float(quality > 0.5), "answer_format": float(answer_ok)}
    formats = {"score_format": float(readable), "score_opened": float(score != MISSING)}
    return Trajectory(segments, {"sampled": score} if isinstance(score, float) else {}, rewards | formats)


def group(*trajectories: Trajectory) -> Group:
    return Group(Problem("p", []), list(trajectories))


def mixed() -> Group:
    """Right .9, wrong .2, right with a malformed score, wrong without a score."""
    return group(
        trajectory(1.0, 0.9), trajectory(0.0, 0.2), trajectory(1.0, MALFORMED), trajectory(0.0, MISSING)
    )


def crossed() -> Group:
    """Right .9, wrong .2, right .4, wrong .5: one of the four pairs is the wrong way round."""
    return group(trajectory(1.0, 0.9), trajectory(0.0, 0.2), trajectory(1.0, 0.4), trajectory(0.0, 0.5))


def credits(method: str, of: Group, drop_truncated: bool = False, **options: Any) -> dict[str, Any]:
    """Credits by channel."""
    found = make_method(method, **options).credit(of, valid_trajectories(of, drop_truncated))
    assert len({credit.channel for credit in found}) == len(found)
    return {credit.channel: credit for credit in found}


def close(found: torch.Tensor, expected: list[float]) -> None:
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


# --- GRPO -----------------------------------------------------------------------------------------------


def test_grpo_pays_answer_and_format_on_all_tokens() -> None:
    found = credits("grpo", mixed(), kl=0.03)
    # The format part needs both: 1 + .1, 0 + .1, 1 + 0 and 0 + 0.
    for channel in ("answer", "score"):
        close(found[channel].advantage, normalised(1.1, 0.1, 1.0, 0.0))
        assert found[channel].kl_coef == 0.03
    # By hand: mean .55, std sqrt((.3025 + .2025 + .2025 + .3025) / 3) = .580230.
    assert float(found["answer"].advantage[0]) == pytest.approx(0.55 / 0.580330, abs=1e-5)


def test_grpo_without_format_weight_or_scaling() -> None:
    found = credits("grpo", mixed(), format_weight=0.0, scale_advantage=False)
    close(found["answer"].advantage, [0.5, -0.5, 0.5, -0.5])


def test_grpo_pays_every_turn_of_the_policy() -> None:
    """Calls of tools learn with the answer that they led to; what the environment said learns nothing."""
    of = group(trajectory(1.0, 0.9), trajectory(0.0, 0.2))
    called = [Segment("action", [7], [-1.0]), Segment("observation", [8], author="environment", turn=1)]
    of.trajectories[0].segments[:0] = called
    found = credits("grpo", of)
    assert [*found] == ["answer", "score", "action"]
    close(found["action"].advantage, found["answer"].advantage.tolist())


def test_score_format_has_a_weight_of_its_own() -> None:
    """Right, wrong: tags earn .2; the malformed score loses .05 of that, in ADPO on its own tokens."""
    weights = {"format_weight": 0.2, "score_format_weight": 0.05}
    of = mixed()
    close(credits("grpo", of, **weights)["answer"].advantage, normalised(1.2, 0.2, 1.15, 0.0))
    found = credits("adpo", of, **weights)
    close(found["answer"].advantage, normalised(1.2, 0.2, 1.2, 0.0))
    close(found["score"].advantage, normalised(1.0, 1.0, -0.05, 0.0))
    # An answer without order in its tags earns nothing, and has nothing to lose for its score in GRPO.
    of = group(trajectory(1.0, MALFORMED, answer_ok=False), trajectory(0.0, 0.5))
    close(credits("grpo", of, **weights)["answer"].advantage, normalised(1.0, 0.2))


@pytest.mark.parametrize("method", ["grpo", "adpo"])
def test_truncated_leaves_before_the_mean_is_taken(method: str) -> None:
    cut = trajectory(0.0, 0.3, finish="length")
    of = group(trajectory(1.0, 0.9), cut, trajectory(1.0, 0.4), trajectory(0.0, 0.5))
    found = credits(method, of, drop_truncated=True)
    a, b, c = normalised(1.1, 1.1, 0.1)
    close(found["answer"].advantage, [a, 0.0, b, c])
    assert found["answer"].valid.tolist() == [True, False, True, True]
    kept = credits(method, of, drop_truncated=False)
    close(kept["answer"].advantage, normalised(1.1, 0.1, 1.1, 0.1))


def test_truncated_is_in_nobodys_contrastive_set() -> None:
    cut = trajectory(0.0, 0.95, finish="length")
    of = group(trajectory(1.0, 0.9), cut, trajectory(1.0, 0.4), trajectory(0.0, 0.5))
    # Without the cut one: .9 > .5 is right, .4 > .5 is not, and .5 is below one of two.
    a, b, c = normalised(1.0, 0.0, 0.5)
    close(credits("adpo", of, drop_truncated=True)["score"].advantage, [a, 0.0, b, c])
    # With it .9 is above one of two only, and so on.
    close(credits("adpo", of)["score"].advantage, normalised(0.5, 0.0, 0.0, 0.5))


# --- ADPO, decoupled ------------------------------------------------------------------------------------


def test_malformed_and_missing_scores() -> None:
    of = mixed()
    found = credits("adpo", of)
    # A missing score is the answer's fault, a malformed one the score's.
    close(found["answer"].advantage, normalised(1.1, 0.1, 1.1, 0.0))
    close(found["score"].advantage, normalised(1.0, 1.0, 0.0 - 0.1, 0.0))
    assert [t.rewards["verification"] for t in of.trajectories] == [1.0, 1.0, 0.0, 0.0]


def test_class_mean() -> None:
    # Means: right .65, wrong .35; every score is on its side of the other's mean. So nothing to learn.
    close(credits("adpo", crossed(), verification="class_mean")["score"].advantage, [0.0] * 4)
    of = group(trajectory(1.0, 0.9), trajectory(0.0, 0.2), trajectory(1.0, 0.1), trajectory(0.0, 0.6))
    # Means: right .5, wrong .4; .9 and .2 are on their sides, .1 and .6 are not.
    close(credits("adpo", of, verification="class_mean")["score"].advantage, normalised(1, 1, 0, 0))


def test_binary() -> None:
    # Right above .5, wrong below .5; .5 itself is on no side.
    close(credits("adpo", crossed(), verification="binary")["score"].advantage, normalised(1, 1, 0, 0))
    found = credits("adpo", crossed(), verification="binary", tau_score=0.3)
    close(found["score"].advantage, normalised(1, 1, 1, 0))


def test_margin_of_the_contrastive_set() -> None:
    of = group(trajectory(0.9, 0.5), trajectory(0.6, 0.7), trajectory(0.1, 0.6))
    # All pairs: .9/.6 is the wrong way round, .9/.1 too, .6/.1 is right.
    close(credits("adpo", of)["score"].advantage, normalised(0.0, 0.5, 0.5))
    # Only pairs that differ by more than .6: .9 and .1, the wrong way round.
    close(credits("adpo", of, gamma=0.6)["score"].advantage, [0.0, 0.0, 0.0])


# --- ADPO, ablations and the concordance credit -----------------------------------------------------------


def test_grpo_without_scores_pays_the_answers_format() -> None:
    """The twin of a task with `score: false`: nothing is paid for a score, and nothing lost."""
    of = group(trajectory(1.0, MISSING), trajectory(0.0, MISSING), trajectory(0.0, MISSING, answer_ok=False))
    for one in of.trajectories:
        del one.rewards["score_format"], one.rewards["score_opened"]
    close(credits("grpo", of)["answer"].advantage, normalised(1.1, 0.1, 0.0))
    with pytest.raises(
        ConfigError, match=r"teaches scores, and the task asks for none: set task\.score=true"
    ):
        credits("adpo", of)


@yaml_cases
def test_options_that_change_nothing_or_contradict_are_refused(
    method: str, options: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        make_method(method, **options)


def test_entangled_adds_the_rewards() -> None:
    found = credits("adpo", mixed(), credit="entangled")
    # Answer 1.1 .1 1.1 0, verification 1 1 0 0, malformed -.1.
    for channel in ("answer", "score"):
        close(found[channel].advantage, normalised(2.1, 1.1, 1.0, 0.0))


def test_concordance_is_not_normalised() -> None:
    found = credits("adpo", crossed(), verification_credit="concordance", concordance_scale=4.0)
    # Four pairs. Concordant minus discordant: 2, 2, 0, 0; halved, over 4 pairs, times 4.
    close(found["score"].advantage, [1.0, 1.0, 0.0, 0.0])
    close(found["answer"].advantage, normalised(1.1, 0.1, 1.1, 0.1))


def test_concordance_with_malformed_and_missing_scores() -> None:
    found = credits("adpo", mixed(), verification_credit="concordance", concordance_scale=1.0)
    # One pair, concordant: 1/2 each; the malformed one pays .1 of format.
    close(found["score"].advantage, [0.5, 0.5, -0.1, 0.0])


def test_concordance_penalty_skips_invalid_trajectories() -> None:
    cut = trajectory(1.0, MALFORMED, finish="length")
    of = group(trajectory(1.0, 0.9), trajectory(0.0, 0.2), cut)
    found = credits("adpo", of, drop_truncated=True, verification_credit="concordance", concordance_scale=1.0)
    close(found["score"].advantage, [0.5, 0.5, 0.0])
