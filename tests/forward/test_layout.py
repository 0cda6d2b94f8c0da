"""The packed row, against a layout written with loops."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.forward.cases import micro_batch
from trl_grpo_plus.forward import LayoutError, build_layout, should_pack

ROW = st.tuples(st.integers(0, 3), st.integers(0, 6))


def by_hand(ids, mask, C, skip):
    """Prompts and segments as lists of (row, column), in row order."""
    P = ids.size(1) - C
    groups = {}
    for row in range(len(ids)):
        prompt = tuple(ids[row, c].item() for c in range(P) if mask[row, c])
        if mask[row, P:].any() and not skip[row]:
            groups.setdefault(prompt, []).append(row)
    prompts, segments = [], []
    for prompt, rows in groups.items():
        prompts += [(rows[0], c) for c in range(P - len(prompt), P - 1)]
        for row in rows:
            segments += [(row, c) for c in range(P - 1, P + int(mask[row, P:].sum()) - 1)]
    return prompts, segments


@given(
    lengths=st.lists(st.integers(1, 5), min_size=4, max_size=4),
    rows=st.lists(ROW, min_size=1, max_size=7),
    skip=st.lists(st.booleans(), min_size=7, max_size=7),
)
@settings(max_examples=60, deadline=None)
def test_a_row_holds_each_prompt_once_and_every_scoring_position(lengths, rows, skip):
    ids, mask, C = micro_batch(P=5, C=6, prompts=lengths, rows=rows)
    skip = torch.tensor(skip[: len(rows)])
    layout = build_layout(ids, mask, C, skip_rows_B=skip)
    prompts, segments = by_hand(ids, mask, C, skip)
    assert layout.rows_skipped == int(skip.sum())
    assert layout.tokens_stock == ids.numel()
    assert layout.tokens_run == len(prompts) + len(segments)
    if not segments:
        assert layout.chunks == ()
        return
    (chunk,) = layout.chunks
    order = prompts + segments
    assert chunk.input_ids_L.tolist() == [ids[r, c].item() for r, c in order]
    assert chunk.position_ids_L.tolist() == [c for _, c in order]
    assert chunk.labels_N.tolist() == [ids[r, c + 1].item() for r, c in segments]
    assert chunk.target_N.tolist() == [r * C + c + 1 - 5 for r, c in segments]


@given(rows=st.lists(ROW, min_size=1, max_size=7), budget=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_a_token_budget_splits_without_losing_a_token(rows, budget):
    ids, mask, C = micro_batch(P=5, C=6, prompts=(5, 3, 1, 4), rows=rows)
    whole, split = build_layout(ids, mask, C), build_layout(ids, mask, C, max_tokens=budget)
    for chunk in split.chunks:
        sequences = sum(len(group.segment_lengths) for group in chunk.spans.groups)
        assert chunk.spans.length <= budget or sequences == 1
    targets = [t for chunk in split.chunks for t in chunk.target_N.tolist()]
    assert sorted(targets) == sorted(t for chunk in whole.chunks for t in chunk.target_N.tolist())
    assert split.tokens_run >= whole.tokens_run


def test_a_group_that_fits_a_forward_of_its_own_is_not_split():
    ids, mask, C = micro_batch(P=9, C=4, prompts=(9, 8), rows=((0, 4), (1, 4), (1, 4)))
    layout = build_layout(ids, mask, C, max_tokens=16)
    assert [len(chunk.spans.groups) for chunk in layout.chunks] == [1, 1]


@pytest.mark.parametrize("lengths", [(8, 8, 8), (8, 7, 8), (40, 1, 2, 11, 25), (1, 64)])
def test_buckets_hold_every_segment_position_once(lengths):
    ids, mask, C = micro_batch(P=3, C=max(lengths), prompts=(3, 2), rows=[(i % 2, n) for i, n in enumerate(lengths)])
    (chunk,) = build_layout(ids, mask, C).chunks
    places = []
    for bucket in chunk.spans.buckets:
        if bucket.gather is None:
            places += range(bucket.start, bucket.start + bucket.rows * bucket.length)
        else:
            assert torch.equal(bucket.gather[bucket.real], bucket.place)
            assert len(bucket.gather) == bucket.rows * bucket.length
            places += bucket.place.tolist()
    assert sorted(places) == list(range(3 - 1 + 2 - 1, chunk.spans.length))
    padded = sum(bucket.rows * bucket.length for bucket in chunk.spans.buckets)
    assert padded <= 2 * sum(lengths)


def test_equal_lengths_need_no_gather():
    ids, mask, C = micro_batch(prompts=(9, 5), rows=((0, 8), (1, 8), (0, 8)))
    (chunk,) = build_layout(ids, mask, C).chunks
    assert [bucket.gather for bucket in chunk.spans.buckets] == [None]


def test_what_cannot_be_packed_is_an_error():
    ids, mask, C = micro_batch()
    holes = mask.clone()
    holes[0, -C + 1] = 0
    with pytest.raises(LayoutError, match="holes"):
        build_layout(ids, holes, C)
    right_padded = mask.clone()
    right_padded[1, :9] = right_padded[1, :9].flip(0)
    with pytest.raises(LayoutError, match="left-padded"):
        build_layout(ids, right_padded, C)
    no_prompt = mask.clone()
    no_prompt[0, :-C] = 0
    with pytest.raises(LayoutError, match="empty prompt"):
        build_layout(ids, no_prompt, C)


def test_the_gate_asks_for_fewer_tokens():
    shared = micro_batch(prompts=(9,), rows=((0, 8), (0, 8)))
    assert should_pack(build_layout(*shared))
    alone = micro_batch(prompts=(9, 9), rows=((0, 8), (1, 8)))
    layout = build_layout(*alone)
    assert layout.tokens_run == layout.tokens_stock - 2  # the last completion tokens
    assert not should_pack(layout, at_most=0.9)
