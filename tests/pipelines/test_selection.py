"""Rejection sampling against a slow second version, exhaustive search for the balance, and its invariances."""

import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.pipelines.selection import Candidate, balanced_limit, difficulty_of, normalized, select


def samples_of(values_by_problem, text=lambda p, s: f"solution {s} of {p}"):
    return [
        Candidate(p, s, text(p, s), value)
        for p, values in enumerate(values_by_problem)
        for s, value in enumerate(values)
    ]


def test_a_small_case_by_hand():
    samples = samples_of([[1, 1, 1, 1], [1, 0, 0, None], [0, 0, 0, 0], [None] * 4])
    samples[1] = samples[1]._replace(text=" solution  0 of\n0 ")  # the same as the first but for white space
    found = select(samples, max_per_prompt=2, max_share=1.0)
    assert dict(found.pass_rates) == {0: 1.0, 1: 1 / 3, 2: 0.0}
    expected = {"problems": 4, "samples": 16, "unscored": 5, "wrong": 6, "duplicate": 1, "over_cap": 1}
    expected |= {"unbalanced": 0, "kept": 3, "problems_kept": 2, "kept/easy": 2, "kept/hard": 1, "kept/medium": 0}
    assert found.counts == expected
    assert [c.problem for c in found.kept] == [0, 0, 1] and len({normalized(c.text) for c in found.kept}) == 3


def test_no_difficulty_outweighs_the_others_and_every_problem_is_heard_first():
    values = [[1] * 8] * 20 + [[1, 1, 1, 1, 0, 0, 0, 0]] * 4 + [[1, 1] + [0] * 6] * 3
    found = select(samples_of(values), max_per_prompt=4, max_share=0.5)
    per_bin = Counter(difficulty_of(found.pass_rates[c.problem]) for c in found.kept)
    assert per_bin == {"easy": 22, "medium": 16, "hard": 6}
    easy = Counter(c.problem for c in found.kept if found.pass_rates[c.problem] == 1)
    assert len(easy) == 20 and sorted(easy.values())[-2:] == [2, 2]  # each once before any of them twice
    alone = select(samples_of([[1] * 8] * 3), max_share=0.5)  # one difficulty only: nothing to balance against
    assert alone.counts["kept"] == 12


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0, None]), min_size=1, max_size=6), min_size=1, max_size=8),
    st.sampled_from([0.5, 1.0]),
    st.integers(1, 4),
    st.sampled_from([0.34, 0.5, 0.8, 1.0]),
    st.integers(0, 3),
)
def test_counts_add_up_and_the_order_does_not_matter(values, threshold, cap, share, seed):
    options = {"threshold": threshold, "max_per_prompt": cap, "max_share": share, "seed": seed}
    samples = samples_of(values, lambda p, s: f"text {s // 2}")  # every second one is a duplicate
    found = select(samples, **options)
    shuffled = list(samples)
    random.Random(1).shuffle(shuffled)
    assert select(shuffled, **options) == found
    left_out = ("unscored", "wrong", "duplicate", "over_cap", "unbalanced")
    assert found.counts["samples"] == found.counts["kept"] + sum(found.counts[name] for name in left_out)
    texts = defaultdict(list)
    for c in found.kept:
        assert c.value is not None and c.value >= threshold
        texts[c.problem].append(c.text)
    assert all(len(t) <= cap and len(set(t)) == len(t) for t in texts.values())
    if share == 1.0:  # without a balance: min(cap, distinct right texts) of every problem
        for p, each in enumerate(values):
            distinct = {s // 2 for s, v in enumerate(each) if v is not None and v >= threshold}
            assert len(texts.get(p, [])) == min(cap, len(distinct))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=4), st.sampled_from([0.3, 0.4, 0.5, 0.7, 1.0]))
def test_the_balance_keeps_as_much_as_an_exhaustive_search(sizes, share):
    limit = balanced_limit(sizes, share)
    filled = [size for size in sizes if size]
    if not filled:
        assert limit == 0
        return
    allowed = max(share, 1 / len(filled))
    best = 0
    for tried in range(1, max(filled) + 1):
        left = [min(size, tried) for size in filled]
        if all(each <= allowed * sum(left) + 1e-9 for each in left):
            best = max(best, sum(left))
    assert sum(min(size, limit) for size in filled) == best > 0


def test_another_seed_keeps_others():
    samples = samples_of([[1] * 8] * 10)
    first, second = (select(samples, max_per_prompt=2, seed=seed).kept for seed in (0, 1))
    assert first != second and len(first) == len(second) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [({"max_per_prompt": 0}, "max_per_prompt must be positive"), ({"max_share": 0}, r"max_share must be in \(0, 1\]")],
)
def test_mistakes(options, message):
    with pytest.raises(UserError, match=message):
        select([], **options)
