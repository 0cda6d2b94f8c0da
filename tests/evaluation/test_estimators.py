"""pass@k and maj@k against the mean over all subsets of k samples, written as the definition says."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_grpo_plus.evaluation.estimators import maj_at_k, pass_at_k


def slow_pass(right, k):
    subsets = list(itertools.combinations(right, k))
    return Fraction(sum(any(subset) for subset in subsets), len(subsets))


def slow_maj(answers, is_right, k):
    """`answers`: one per sample, None abstains."""
    subsets = list(itertools.combinations(answers, k))
    total = Fraction(0)
    for subset in subsets:
        votes = Counter(a for a in subset if a is not None)
        if votes:
            winners = [a for a, v in votes.items() if v == max(votes.values())]
            total += Fraction(sum(is_right[a] for a in winners), len(winners))
    return total / len(subsets)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_pass_at_k_is_the_mean_over_subsets(right, data):
    k = data.draw(st.integers(1, len(right)))
    assert pass_at_k(len(right), sum(right), k) == pytest.approx(float(slow_pass(right, k)), abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([None, 0, 1, 2, 3]), min_size=1, max_size=9), st.data())
def test_maj_at_k_is_the_mean_over_subsets(answers, data):
    k = data.draw(st.integers(1, len(answers)))
    is_right = data.draw(st.lists(st.booleans(), min_size=4, max_size=4))
    votes = Counter(a for a in answers if a is not None)
    found = maj_at_k(list(votes.values()), [is_right[a] for a in votes], answers.count(None), k)
    assert found == pytest.approx(float(slow_maj(answers, is_right, k)), abs=1e-10)


def test_by_hand():
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)  # 3 of 6 pairs hold it
    assert pass_at_k(3, 3, 1) == pass_at_k(3, 1, 3) == 1.0 and pass_at_k(3, 0, 3) == 0.0
    assert maj_at_k([1, 1], [True, False], 0, 2) == 0.5, "a tie counts as a random choice"
    assert maj_at_k([1], [True], 3, 4) == 1.0, "those who abstain outvote nobody"
    assert maj_at_k([], [], 4, 2) == 0.0, "nobody votes"
    assert maj_at_k([2, 1], [False, True], 0, 3) == 0.0
    assert maj_at_k([1], [True], 1, 1) == pytest.approx(0.5), "an abstention takes one of the places"
    assert maj_at_k([1, 1, 1], [True, True, False], 0, 3) == pytest.approx(2 / 3)


@given(st.integers(1, 2000), st.data())
@settings(max_examples=50, deadline=None)
def test_large_numbers_stay_in_range(n, data):
    right, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    exact = 1 - Fraction(math.comb(n - right, k), math.comb(n, k))
    assert pass_at_k(n, right, k) == pytest.approx(float(exact), abs=1e-9)


def test_maj_of_many_samples_matches_two_classes_in_closed_form():
    n, right, k = 600, 290, 65  # two classes, odd k, no ties: a hypergeometric tail
    tail = sum(math.comb(right, x) * math.comb(n - right, k - x) for x in range(k // 2 + 1, k + 1))
    exact = float(Fraction(tail, math.comb(n, k)))
    assert maj_at_k([right, n - right], [True, False], 0, k) == pytest.approx(exact, abs=1e-9)
    assert maj_at_k([7] * 9, [True] * 9, 1, 30) == pytest.approx(1.0)


def test_too_few_samples_are_no_number_and_mistakes_are_refused():
    assert math.isnan(pass_at_k(3, 1, 4)) and math.isnan(maj_at_k([2], [True], 1, 4))
    for call in (lambda: pass_at_k(3, 4, 1), lambda: pass_at_k(3, 1, 0), lambda: maj_at_k([0], [True], 0, 1)):
        with pytest.raises(ValueError):
            call()
