"""Intervals cover as they say, agree with scipy's BCa bootstrap, and the paired test is a permutation test."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from trl_grpo_plus.evaluation.estimators import pass_at_k
from trl_grpo_plus.evaluation.intervals import estimate_means, paired_difference


def one(values, **options):
    return estimate_means(np.asarray(values, dtype=float)[:, None], **{"shares": [True], **options})[0]


def test_the_interval_is_scipys():
    values = np.random.default_rng(0).beta(0.4, 1.2, size=60)
    theirs = stats.bootstrap((values,), np.mean, method="BCa", n_resamples=20000, rng=np.random.default_rng(1))
    ours = one(values, resamples=20000)
    width = theirs.confidence_interval.high - theirs.confidence_interval.low
    assert ours.value == pytest.approx(values.mean())
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.03 * width)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.03 * width)


@pytest.mark.parametrize(("problems", "n", "k", "rates"), [(100, 4, 1, (0.6, 1.4)), (60, 8, 4, (0.3, 1.5))])
def test_intervals_of_pass_at_k_cover_the_true_value(problems, n, k, rates):
    """Problems from a population with a known pass@k: 95 % of the intervals hold it."""
    generator = np.random.default_rng(7)
    a, b = rates
    truth = 1 - np.prod([(b + i) / (a + b + i) for i in range(k)])  # 1 - E[(1-p)^k] of a beta distribution
    runs = 400
    hits = 0
    for run in range(runs):
        right = generator.binomial(n, generator.beta(a, b, size=problems))
        found = one([pass_at_k(n, int(c), k) for c in right], seed=run, resamples=1000)
        hits += found.low <= truth <= found.high
    # Four standard errors of the simulation; half of them, or twice the width, would be seen.
    assert hits / runs == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / runs))


def test_no_spread_is_not_taken_for_certainty():
    none = one([0.0] * 100)
    assert none.low == 0 and none.high == pytest.approx(1 - 0.025 ** (1 / 100))  # Clopper and Pearson 1934
    assert one([1.0] * 100).low == pytest.approx(0.025 ** (1 / 100))
    assert one([5.0] * 10, shares=[False]) == one([5.0] * 10, shares=[False], seed=3)
    assert one([5.0] * 10, shares=[False]).high == 5.0


def test_missing_values_are_left_out_per_metric():
    values = np.array([[1.0, np.nan], [0.0, 0.5], [np.nan, np.nan], [1.0, 0.25]])
    first, second = estimate_means(values, shares=[True, True])
    assert (first.problems, first.value) == (3, pytest.approx(2 / 3)) and (second.problems, second.value) == (2, 0.375)
    (empty,) = estimate_means(np.full((3, 1), np.nan), shares=[True])
    assert empty.problems == 0 and math.isnan(empty.value)


def test_resampling_in_blocks_changes_nothing_but_the_memory(monkeypatch):
    from trl_grpo_plus.evaluation import intervals

    values = np.random.default_rng(0).random((50, 2))
    whole = estimate_means(values, shares=[True, True])
    monkeypatch.setattr(intervals, "_BLOCK", 50 * 7)
    assert estimate_means(values, shares=[True, True]) == whole


def test_the_paired_test_against_all_swaps():
    a, b = np.array([0.0, 0.5, 0.25, 1.0, 0.0, 0.5]), np.array([0.5, 0.75, 0.25, 1.0, 0.5, 0.25])
    d = b - a
    swaps = np.array(list(itertools.product([-1, 1], repeat=len(d)))) @ d
    at_least = (swaps >= d.sum() - 1e-12).mean()
    found = paired_difference(a, b)
    assert found.change.value == pytest.approx(d.mean()) and (found.a, found.b) == (a.mean(), b.mean())
    assert found.p_value == pytest.approx(min(1, 2 * at_least))
    assert paired_difference(b, a).change.value == -found.change.value
    assert paired_difference(a, a).p_value == 1.0


def test_the_paired_test_keeps_its_level_and_sees_a_difference():
    generator = np.random.default_rng(0)
    p_values, changed = [], []
    for run in range(100):
        p = generator.beta(1, 1, size=80)
        a, b, c = (generator.binomial(4, q) / 4 for q in (p, p, np.clip(p + 0.15, 0, 1)))
        p_values.append(paired_difference(a, b, seed=run, resamples=299).p_value)
        changed.append(paired_difference(a, c, seed=run, resamples=299).p_value)
    assert np.mean(np.array(p_values) < 0.05) < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 100)
    assert np.mean(np.array(changed) < 0.05) > 0.9
