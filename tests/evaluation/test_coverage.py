"""How often 95 % intervals cover the truth, by simulation: 93 to 97 %, whatever varies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from selfverify.evaluation.statistics import (
    Measured,
    auc_statistic,
    average_precision_statistic,
    compare,
    interval,
    mean_statistic,
    measure,
)

Values = np.ndarray
"""Values of K seeds on P problems ``[K, P]``."""


def measured(values: Values, share: bool = False) -> list[Measured]:
    """The mean over problems of each seed, as `measure` has it of `mean_statistic`."""
    means, used = values.mean(1), np.ones(values.shape[1], dtype=bool)
    changes = (values - means[:, None]) / (values.shape[1] - 1)
    return [Measured(float(m), c, used, share) for m, c in zip(means, changes, strict=True)]


def effects(
    rng: np.random.Generator, k: int, problems: int, seed: float, problem: float, rest: float
) -> Values:
    """Random effects of seeds, of problems and of both with the samples, of these standard deviations."""
    crossed = rest * rng.standard_normal((k, problems)) + problem * rng.standard_normal(problems)
    return np.asarray(crossed + seed * rng.standard_normal((k, 1)))


def covered(draw: Callable[[np.random.Generator], list[float] | None], truth: float, runs: int) -> float:
    rng = np.random.default_rng(7)
    ends = [draw(rng) for _ in range(runs)]
    return float(np.mean([e is not None and e[0] <= truth <= e[1] for e in ends]))


def mean(k: int, problems: int, *deviations: float) -> Callable[[np.random.Generator], list[float] | None]:
    return lambda rng: interval(measured(effects(rng, k, problems, *deviations)))


def unpaired(
    k: int, problems: int, seed: float, problem: float, rest: float, other: float
) -> Callable[[np.random.Generator], list[float] | None]:
    """Two methods, whose seeds vary by ``seed`` and ``other`` times that, on the same problems."""

    def draw(rng: np.random.Generator) -> list[float] | None:
        own, against = (effects(rng, k, problems, seed * s, problem, rest) for s in (1.0, other))
        hard = 3 * rng.standard_normal(problems)  # for both, so that only pairing takes it off
        ends: list[float] | None = compare(measured(own + hard), measured(against + hard))["interval"]
        return ends

    return draw


def paired(k: int, problems: int, *deviations: float) -> Callable[[np.random.Generator], list[float] | None]:
    """The same seeds on both sides, which share what varies with them."""

    def draw(rng: np.random.Generator) -> list[float] | None:
        shared = effects(rng, k, problems, 2.0, 3.0, 0.0)
        gap = effects(rng, k, problems, *deviations)
        pairs = zip(measured(shared + gap), measured(shared), strict=True)
        ends: list[float] | None = compare([a - b for a, b in pairs])["interval"]
        return ends

    return draw


def rates(k: int, problems: int, rate: float) -> Callable[[np.random.Generator], list[float] | None]:
    """Right answers of 8 samples, where problems differ (a beta distribution) and seeds do not."""

    def draw(rng: np.random.Generator) -> list[float] | None:
        each = rng.beta(4 * rate, 4 * (1 - rate), problems)
        return interval(measured(rng.binomial(8, each, (k, problems)) / 8, share=True))

    return draw


def area(k: int, problems: int, shift: float) -> Callable[[np.random.Generator], list[float] | None]:
    """Pooled AUC of normal scores whose right answers lie ``shift`` higher, more with some seeds."""

    def draw(rng: np.random.Generator) -> list[float] | None:
        correct = rng.random((problems, 4)) < 0.5
        runs = []
        for _ in range(k):
            score = (
                rng.standard_normal((problems, 4))
                + shift * correct
                + 0.5 * rng.standard_normal((problems, 1))
            )
            runs.append(measure(auc_statistic(score, correct)))
        return interval(runs)

    return draw


@pytest.mark.parametrize("k", [2, 3, 5])
def test_intervals_cover(k: int) -> None:
    """Means, unpaired differences with equal and unequal variances, and paired ones.

    Where samples vary most, and seeds not at all, adding the seeds' variance as it is would cover 98 to 99 %.
    """
    found = {
        "seeds vary": covered(mean(k, 100, 0.3, 1.0, 1.0), 0, 500),
        "seeds do not": covered(mean(k, 100, 0.0, 0.1, 1.0), 0, 500),
        "few problems": covered(mean(k, 20, 0.3, 1.0, 1.0), 0, 500),
        "unpaired": covered(unpaired(k, 100, 0.3, 0.5, 1.0, 1.0), 0, 500),
        "unpaired, seeds do not vary": covered(unpaired(k, 100, 0.0, 0.1, 1.0, 1.0), 0, 500),
        "unequal": covered(unpaired(k, 20, 0.5, 0.5, 1.0, 0.1), 0, 500),
        "paired": covered(paired(k, 100, 0.3, 1.0, 1.0), 0, 500),
    }
    assert all(0.93 <= share <= 0.98 for share in found.values()), found


def test_shares_near_the_edges_and_areas_cover() -> None:
    """Few problems of which nearly none is solved, or nearly all, and a figure that is no mean."""
    area_of = float(stats.norm.cdf(1 / np.sqrt(2 * 1.25)))
    found = {
        **{f"{rate}, {k}": covered(rates(k, 20, rate), rate, 600) for rate in (0.05, 0.98) for k in (1, 3)},
        "area": covered(area(3, 40, 1.0), area_of, 300),
    }
    assert all(0.93 <= share <= 0.99 for share in found.values()), found


def test_one_seed_covers_that_model_alone() -> None:
    """With one seed the interval is of the model that was trained: it covers little of other trainings."""
    share = covered(mean(1, 100, 0.5, 1.0, 0.0), 0, 1000)
    assert share < 0.5
    rng = np.random.default_rng(0)
    hard, a, b = rng.random(200), *(0.05 * rng.random((2, 200)) + [[0.005], [0.0]])
    found, known = compare(*(measured((hard + of)[None]) for of in (a, b))), stats.ttest_rel(a, b)
    assert found["interval"] == pytest.approx(list(known.confidence_interval()))
    assert found["p"] == pytest.approx(known.pvalue)


def test_seeds_that_vary_alone_are_welchs_test() -> None:
    """Where every problem has its seed's value, only seeds count: 3 and 2 of them, by hand from SciPy."""
    a, b = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.35])
    found = compare(*(measured(np.repeat(of[:, None], 50, 1)) for of in (a, b)))
    known = stats.ttest_ind(a, b, equal_var=False)
    assert found["p"] == pytest.approx(known.pvalue)
    assert found["interval"] == pytest.approx(list(known.confidence_interval()))


def test_nothing_varies() -> None:
    """All problems differ alike, or there is one: no test, whatever the difference."""
    same = np.full((1, 5), 0.3)
    for values in (same, same[:, :1]):
        with np.errstate(invalid="ignore"):
            found = compare(measured(values + 0.5), measured(values))
        assert found["difference"] == pytest.approx(0.5) and found["interval"] is None and found["p"] is None


def test_seeds_that_are_level_by_chance_take_nothing_off() -> None:
    """Both solve half of the problems, and not the same: what the problems vary by is left, by hand."""
    values = np.array([[1.0, 0.0] * 10, [1.0, 1.0, 0.0, 0.0] * 5])
    low, high = interval(measured(values)) or (0.0, 0.0)
    error = values.mean(0).std(ddof=1) / 20**0.5
    assert (low + high) / 2 == pytest.approx(0.5)
    assert (high - low) / 2 == pytest.approx(stats.t.ppf(0.975, 19) * error)


def test_seeds_that_are_level_but_for_rounding_take_nothing_off() -> None:
    """Three seeds solve two of 20 problems each, and none the same: their values differ by 1e-17."""
    values = np.zeros((3, 20))
    values[np.arange(6) % 3, np.arange(6)] = 1
    ends = interval(measured(values + 1e-14 * np.arange(3)[:, None]))
    assert ends is not None and ends == pytest.approx(interval(measured(values.mean(0)[None])))


def test_crossed_effects_by_hand() -> None:
    """Two seeds on three problems: the residuals of the rows are (1/2, -1/2, 0) and their opposites.

    The means over seeds are 1, 2 and 4.5: a variance of 3.25, over P = 3. The seeds' means are 1 and 4: a
    variance of 4.5, over K = 2. The residuals' squares sum to 1, over (K - 1) (P - 1) K P = 12.
    """
    values = np.array([[0.0, 0.0, 3.0], [2.0, 4.0, 6.0]])
    problems, seeds = 3.25 / 3 - 1 / 12, 4.5 / 2
    share = (seeds / (problems + seeds)) ** 1.2
    reach = (1 - share) * stats.t.ppf(0.975, 2) + share * stats.t.ppf(0.975, 1)
    half = reach * (problems + seeds) ** 0.5
    for given in (values, values[::-1], values[:, [2, 0, 1]], values + 1e4):  # order and level are nothing
        found = interval(measured(given))
        assert found == pytest.approx([given.mean() - half, given.mean() + half])


@pytest.mark.parametrize("problems", [2, 3, 12])
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("other", [1, 3])
def test_p_is_below_five_percent_exactly_where_the_interval_excludes_0(
    problems: int, k: int, other: int
) -> None:
    """Of differences that are near the interval's end, or 0, or of seeds alone; both ways round."""
    rng = np.random.default_rng(problems + k)
    for number in range(20):
        a, b = (effects(rng, n, problems, 0.5, number % 2, number % 3) for n in (k, other))
        ends = compare(measured(a), measured(b))["interval"]
        if ends is None:
            continue
        middle, half = sum(ends) / 2, (ends[1] - ends[0]) / 2
        for gap in (0.0, 0.99 * half, 1.01 * half, 2 * half):
            own, against = measured(a - middle + gap), measured(b)
            found, back = compare(own, against), compare(against, own)
            low, high = found["interval"]
            assert (found["p"] < 0.05) == (low > 0 or high < 0)
            assert [-high, -low] == pytest.approx(back["interval"])
            assert found["p"] == pytest.approx(back["p"], rel=1e-4)


def test_an_area_is_no_surer_than_its_few_right_answers_make_it() -> None:
    """Two of 100 problems have a right answer, which is above all others: as sure as two answers."""
    correct = np.zeros((100, 4))
    correct[:2, 0] = 1
    score = 0.5 * np.random.default_rng(0).random((100, 4)) + 0.4 * correct
    two = interval([measure(mean_statistic([1.0, 1.0]))])
    for statistic in (auc_statistic, average_precision_statistic):
        found = measure(statistic(score, correct))
        assert found.value == 1 and interval([found]) == pytest.approx(two)
        assert (found - found).decided_by == 2


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("problems", [20, 200])
def test_intervals_cover_whatever_varies_most(k: int, problems: int) -> None:
    """Seeds' share of the variance from none to nearly all, with much and with little noise of samples."""
    found = {}
    for problem, rest in ((1.0, 0.3), (1.0, 1.0), (0.3, 1.0), (0.0, 1.0)):
        for ratio in (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0):
            seed = float(np.sqrt(ratio * (problem**2 * k + rest**2) / problems))
            found["mean", problem, rest, ratio] = covered(mean(k, problems, seed, problem, rest), 0, 2000)
            for other in (1.0, 0.1):
                draw = unpaired(k, problems, seed, problem, rest, other)
                found["unpaired", problem, rest, ratio, other] = covered(draw, 0, 2000)
    least, most = (0.92, 0.985) if k == 2 else (0.93, 0.975)
    assert all(least <= share <= most for share in found.values()), found
    assert 0.935 <= np.mean([*found.values()]) <= 0.968
