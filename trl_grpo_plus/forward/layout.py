"""Layout of the shared-prompt forward: from TRL's padded rectangle to one packed row, and back.

TRL scores a micro-batch as a rectangle of B rows: the prompt, left-padded to P columns, then the completion,
right-padded to C columns. G completions of one prompt repeat it G times. Here every distinct prompt appears once:

    rectangle                       packed row (prompts first, then the completions' segments)
    . a b c | x y                  a b    r s t    c x    c    u v
    . a b c | z .          ->      prompt prompt   segments    segment
    r s t u | v w                  of abc of rstu  of abc      of rstu

The last prompt token heads each segment ("fork one token early"), because it is what predicts the first completion
token; the last completion token is not run, because it predicts nothing. So the N positions of the segments are
exactly those that score the N completion tokens, and they are one block at the end of the row. A token keeps the
column it had in the rectangle as its position, which is the position TRL's path gives it: rotary angles are the same
to the bit, and learned absolute positions hold too.

Names: B rows, T = P + C columns of the rectangle, L packed tokens, N scored tokens, S padded segment length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# Segments are padded to the longest of their bucket inside the attention. One bucket is enough when lengths are
# alike; with skewed lengths, halving the length from bucket to bucket keeps the padding under a factor of two.
_BUCKETS = 3
_FULL_ENOUGH = 0.8


class LayoutError(ValueError):
    """The rectangle is not of the form that can be packed (holes in the mask, an empty prompt)."""


@dataclass(frozen=True)
class Group:
    """One prompt and its completions in a row: `[prompt_start, prompt_stop)` and the segments `[start, stop)`."""

    prompt_start: int
    prompt_stop: int
    start: int
    stop: int
    segment_lengths: tuple[int, ...]


@dataclass(frozen=True)
class Bucket:
    """Segments of similar length, as the batch `(rows, length)` that the attention runs.

    `gather` (rows * length,) holds the packed index of every element, `real` the elements that are no padding and
    `place` (number of real,) where they lie in the row. All three are `None` when the segments are one block
    `[start, start + rows * length)` of the row without any padding.
    """

    rows: int
    length: int
    start: int
    gather: torch.Tensor | None = None
    real: torch.Tensor | None = None
    place: torch.Tensor | None = None


@dataclass(frozen=True)
class Spans:
    """What the attention has to know about a packed row of `length` tokens."""

    length: int
    groups: tuple[Group, ...]
    buckets: tuple[Bucket, ...]
    longest: int  # of the sequences (prompt and completion), in tokens: a window at least this long changes nothing
    cache: dict[Any, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)  # masks, one per kind


@dataclass(frozen=True)
class Chunk:
    """One forward: the packed row, and where its results go.

    Attributes:
        input_ids_L: Tokens of the row.
        position_ids_L: Their columns in the rectangle.
        labels_N: The tokens that the last N positions of the row predict.
        target_N: Indices of those tokens in the flattened (B, C) result.
        spans: The row's structure, for the attention.
    """

    input_ids_L: torch.Tensor
    position_ids_L: torch.Tensor
    labels_N: torch.Tensor
    target_N: torch.Tensor
    spans: Spans


@dataclass(frozen=True)
class Layout:
    """All forwards of a micro-batch.

    Attributes:
        chunks: The forwards, none when there is nothing to score.
        shape: (B, C) of the result.
        tokens_run: Tokens through the model, repeated prompts of a split group included.
        tokens_stock: Tokens TRL's rectangle would have run, padding included.
        skipped_B: Rows left out at the caller's request, on the inputs' device, or `None`.
        rows_skipped: Their number.
    """

    chunks: tuple[Chunk, ...]
    shape: tuple[int, int]
    tokens_run: int
    tokens_stock: int
    skipped_B: torch.Tensor | None = None
    rows_skipped: int = 0


def build_layout(
    input_ids_BT: torch.Tensor,
    attention_mask_BT: torch.Tensor,
    logits_to_keep: int,
    *,
    skip_rows_B: torch.Tensor | None = None,
    max_tokens: int | None = None,
) -> Layout:
    """Pack a rectangle.

    Rows are grouped by their prompts' token ids. A row without a completion token in the mask (TRL's
    `mask_truncated_completions`) has nothing to score and is left out.

    Args:
        input_ids_BT: Left-padded prompts and right-padded completions.
        attention_mask_BT: 1 on real tokens.
        logits_to_keep: C, the number of completion columns.
        skip_rows_B: True for rows to leave out.
        max_tokens: Token budget of one forward. A group may be split, its prompt is then run again. A single
            sequence longer than the budget gets a forward of its own.

    Raises:
        LayoutError: The mask has holes, or a row to score has no prompt token.
    """
    B, T = input_ids_BT.shape
    P = T - logits_to_keep
    skip_B1 = torch.zeros_like(input_ids_BT[:, :1]) if skip_rows_B is None else skip_rows_B.to(input_ids_BT)[:, None]
    # The structure is data-dependent, so it is worked out on the host: one copy there, one copy back per forward.
    host = torch.cat([input_ids_BT, attention_mask_BT.to(input_ids_BT), skip_B1], dim=1).cpu()
    ids_BT, mask_BT, skip_B = host[:, :T], host[:, T:-1] != 0, host[:, -1] != 0
    prompt_lengths_B, completion_lengths_B = mask_BT[:, :P].sum(1), mask_BT[:, P:].sum(1)
    columns = torch.arange(T)
    expected_BT = (columns >= P - prompt_lengths_B[:, None]) & (columns < P + completion_lengths_B[:, None])
    if not torch.equal(expected_BT, mask_BT):
        raise LayoutError("the attention mask has holes: prompts must be left-padded, completions right-padded")

    run_B = (completion_lengths_B > 0) & ~skip_B
    if bool((run_B & (prompt_lengths_B == 0)).any()):
        raise LayoutError("a row has an empty prompt: its first completion token has nothing that predicts it")
    prompt_lengths, completion_lengths = prompt_lengths_B.tolist(), completion_lengths_B.tolist()
    groups: dict[bytes, list[int]] = {}
    for row in run_B.nonzero()[:, 0].tolist():
        prompt = ids_BT[row, P - prompt_lengths[row] : P]
        groups.setdefault(prompt.numpy().tobytes(), []).append(row)

    prompts = [(prompt_lengths[rows[0]] - 1, rows) for rows in groups.values()]
    chunks = tuple(
        _build_chunk(ids_BT, P, plan, completion_lengths, input_ids_BT.device)
        for plan in _split(prompts, completion_lengths, max_tokens)
    )
    return Layout(
        chunks=chunks,
        shape=(B, logits_to_keep),
        tokens_run=sum(chunk.spans.length for chunk in chunks),
        tokens_stock=B * T,
        skipped_B=None if skip_rows_B is None else skip_rows_B.to(device=input_ids_BT.device, dtype=torch.bool),
        rows_skipped=int(skip_B.sum()),
    )


def should_pack(layout: Layout, at_most: float = 0.98) -> bool:
    """Whether packing pays (the "auto" gate): it runs noticeably fewer tokens than the rectangle."""
    return layout.tokens_run <= at_most * layout.tokens_stock


_Plan = list[tuple[int, list[int]]]  # (tokens of the prompt block, rows) for each group of a forward


def _split(prompts: _Plan, segment_lengths: Sequence[int], max_tokens: int | None) -> list[_Plan]:
    """Cut the groups into forwards of at most `max_tokens` tokens, splitting a group only if it does not fit whole."""
    if max_tokens is None:
        return [prompts] if prompts else []
    plans: list[_Plan] = []
    used = max_tokens  # no forward is open yet
    for prompt_length, rows in prompts:
        whole = prompt_length + sum(segment_lengths[row] for row in rows)
        if used + whole > max_tokens:
            used = max_tokens  # open a new forward rather than split a group that fits into one
        opened = False
        for row in rows:
            cost = segment_lengths[row] + (0 if opened else prompt_length)
            if used + cost > max_tokens:
                plans.append([])
                used, opened = 0, False
                cost = segment_lengths[row] + prompt_length
            if not opened:
                plans[-1].append((prompt_length, []))
                opened = True
            plans[-1][-1][1].append(row)
            used += cost
    return plans


def _build_chunk(
    ids_BT: torch.Tensor, P: int, plan: _Plan, segment_lengths: Sequence[int], device: torch.device
) -> Chunk:
    T = ids_BT.size(1)
    prompts = [(rows[0] * T + P - 1 - length, length) for length, rows in plan]
    segments = [(row * T + P - 1, segment_lengths[row]) for _, rows in plan for row in rows]
    flat_L = _ranges(prompts + segments)  # index of every packed token in the flattened rectangle
    tail = sum(length for _, length in prompts)  # where the segments begin

    groups, prompt_start, start = [], 0, tail
    for length, rows in plan:
        lengths = tuple(segment_lengths[row] for row in rows)
        stop = start + sum(lengths)
        groups.append(Group(prompt_start, prompt_start + length, start, stop, lengths))
        prompt_start, start = prompt_start + length, stop

    row_N, column_N = flat_L[tail:] // T, flat_L[tail:] % T
    target_N = row_N * (T - P) + column_N + 1 - P
    flat_ids = ids_BT.reshape(-1)

    host = [flat_ids[flat_L], flat_L % T, flat_ids[flat_L[tail:] + 1], target_N]
    buckets = _buckets([length for _, length in segments], tail)
    host += [index for bucket in buckets for index in (bucket.gather, bucket.real, bucket.place) if index is not None]
    arrived = iter(torch.split(torch.cat(host).to(device, non_blocking=True), [len(x) for x in host]))
    input_ids_L, position_ids_L, labels_N, target_N = (next(arrived) for _ in range(4))
    spans = Spans(
        length=len(flat_L),
        groups=tuple(groups),
        buckets=tuple(
            bucket
            if bucket.gather is None
            else Bucket(bucket.rows, bucket.length, bucket.start, next(arrived), next(arrived), next(arrived))
            for bucket in buckets
        ),
        longest=max(group.prompt_stop - group.prompt_start + max(group.segment_lengths) for group in groups),
    )
    return Chunk(input_ids_L, position_ids_L, labels_N, target_N, spans)


def _buckets(lengths: Sequence[int], tail: int) -> list[Bucket]:
    """Sort segments into buckets of similar length."""
    longest = max(lengths)
    if min(lengths) == longest:
        return [Bucket(len(lengths), longest, tail)]
    offsets = [tail]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    limits = [longest]
    if sum(lengths) < _FULL_ENOUGH * len(lengths) * longest:
        limits = [longest >> shift for shift in range(_BUCKETS)]
    buckets = []
    for limit, below in zip(limits, [*limits[1:], 0], strict=True):
        chosen = [i for i, length in enumerate(lengths) if below < length <= limit]
        if not chosen:
            continue
        width = max(lengths[i] for i in chosen)
        starts_n = torch.tensor([offsets[i] for i in chosen])
        lengths_n = torch.tensor([lengths[i] for i in chosen])
        column_S = torch.arange(width)
        # Padding points at the segment's last token: any finite row will do, since no real query ever sees it.
        gather_nS = starts_n[:, None] + torch.minimum(column_S, lengths_n[:, None] - 1)
        real_nS = column_S < lengths_n[:, None]
        buckets.append(
            Bucket(
                rows=len(chosen),
                length=width,
                start=tail,
                gather=gather_nS.reshape(-1),
                real=real_nS.reshape(-1).nonzero()[:, 0],
                place=gather_nS[real_nS],
            )
        )
    return buckets


def _ranges(spans: Iterable[tuple[int, int]]) -> torch.Tensor:
    """Concatenate `arange(start, start + length)` over the spans."""
    starts, lengths = torch.tensor(list(spans)).unbind(1)
    offsets = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) + (starts - offsets).repeat_interleave(lengths)
