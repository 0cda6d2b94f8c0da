"""The decoding loop: prefill each distinct prompt once, decode its copies, drop the finished rows.

Stage: rollouts. transformers lets the caller of `generate` bring the decoding loop (`custom_generate=`), and prepares
everything else: the merged generation config, the padding mask, the position ids, the cache, the logits processors and
the stopping criteria. `GroupDecoding` is such a loop. It differs from transformers' own (`GenerationMixin._sample`) in
three ways, none of which changes the distribution of a row:

1. A prompt runs once for all the rows that share it; its cache is then copied to them.
2. Finished rows leave the batch, where `_sample` feeds them padding until the longest row ends.
3. Ids, mask and cache are buffers written in place, where `_sample` concatenates at every step.

Random draws are those of `_sample` (one `torch.multinomial` over the rows of the batch) until the first row leaves.
With `drop_finished=False` a seed therefore gives the samples that `generate` gives, up to rounding.

Shapes: U distinct prompts, R rows in the batch, T tokens (the final width, prompt included), V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .kv_cache import rebuild
from .support import processors_are_row_wise, select_processor_rows

# Decode steps for which the cache has room after a rebuild. More costs memory, less costs copies: with a quarter of
# the present length a cache is at most 25 % too large, and all copies together are a small multiple of its final size.
_LEAST_ROOM = 64

# Cost of a rebuild, in decode steps of the rows that stay: it reads and writes their cache once, a step reads it once.
_REBUILD_STEPS = 2.0


@dataclass
class GenerationStats:
    """Token positions that ran through the model, and those that plain `generate` would have run.

    Plain `generate` prefills every row, and decodes every row until the longest one ends. Padding counts in both.
    """

    prefill_tokens: int = 0
    decode_tokens: int = 0
    stock_prefill_tokens: int = 0
    stock_decode_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prefill_tokens + self.decode_tokens

    @property
    def stock_tokens(self) -> int:
        return self.stock_prefill_tokens + self.stock_decode_tokens


@dataclass
class _Batch:
    """What is kept for each row that is decoded."""

    ids: torch.Tensor  # (R, T) the prompt and what was generated, padding after
    mask: torch.Tensor | None  # (R, T) 0 on the padding before the prompt; None where no row has any
    position: torch.Tensor  # (R, 1) position id of the newest token
    finished: torch.Tensor  # (R,)
    home: torch.Tensor  # (R,) the row of the result

    @classmethod
    def start(
        cls,
        input_ids: torch.Tensor,
        mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        limit: int,
        pad: torch.Tensor | None,
    ) -> _Batch:
        """From prompts of width P, buffers of the width `limit` that a row can reach."""
        rows, width = input_ids.shape
        ids = input_ids.new_full((rows, limit), 0 if pad is None else int(pad))
        ids[:, :width] = input_ids
        if mask is not None:
            mask = torch.cat([mask, mask.new_ones(rows, limit - width)], dim=1)
        finished = torch.zeros(rows, dtype=torch.bool, device=ids.device)
        return cls(ids, mask, position_ids[:, -1:], finished, home=torch.arange(rows, device=ids.device))

    def select(self, rows: torch.Tensor) -> _Batch:
        mask = None if self.mask is None else self.mask[rows]
        return _Batch(self.ids[rows], mask, self.position[rows], self.finished[rows], self.home[rows])


class GroupDecoding:
    """A decoding loop for `model.generate(custom_generate=...)` over rows of which several share a prompt.

    When are finished rows dropped? Dropping copies the cache of the rows that stay, so it is not done for every row
    that ends. With `chunk="auto"` it is done once the finished rows have wasted as many row-steps as the copy costs
    (the rule for renting or buying skis: at most twice the cost of having known all lengths), if the steps that are
    left may save as much, and always when the cache has to be made longer anyway. The rule looks at lengths and not
    at a clock, so that a seed gives the same samples on every run. With a number, it is done every `chunk` steps.

    Args:
        prompt_of_row: For each row the index of its distinct prompt, in 0 .. U-1.
        drop_finished: Whether finished rows leave the batch.
        chunk: See above.
        stats: The counts are added here.
    """

    def __init__(
        self,
        prompt_of_row: Sequence[int],
        *,
        drop_finished: bool = True,
        chunk: int | str = "auto",
        stats: GenerationStats | None = None,
    ) -> None:
        self.prompt_of_row = list(prompt_of_row)
        self.drop_finished = drop_finished
        self.chunk = chunk
        self.stats = GenerationStats() if stats is None else stats

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        **model_kwargs: Any,
    ) -> torch.Tensor:
        """Takes what `GenerationMixin._sample` takes, and returns what it returns.

        Args:
            model: The transformers model.
            input_ids: (R, P) prompts, padded on the left.
            logits_processor: The prepared processors.
            stopping_criteria: The prepared criteria.
            generation_config: The prepared config.
            **model_kwargs: What the forward takes: mask, position ids, the empty cache, flags.

        Returns:
            (R, longest) prompts and completions, padded on the right.
        """
        n_rows, length = input_ids.shape
        device = input_ids.device
        limit = stopping_criteria.max_length
        pad = generation_config._pad_token_tensor
        cache = model_kwargs["cache" if "cache" in model_kwargs else "past_key_values"]
        mask, position_ids = model_kwargs.pop("attention_mask"), model_kwargs.pop("position_ids")
        drop_finished = self.drop_finished and processors_are_row_wise(logits_processor)

        def forward(ids: torch.Tensor, mask: torch.Tensor | None, position: torch.Tensor, first: bool) -> torch.Tensor:
            inputs = model.prepare_inputs_for_generation(
                ids, attention_mask=mask, position_ids=position, is_first_iteration=first, **model_kwargs
            )
            logits: torch.Tensor = model(**inputs, return_dict=True).logits
            # A copy, so that whatever was computed for other positions is freed.
            return logits[:, -1].to(copy=True, dtype=torch.float32, device=device)

        # Prefill the first row of each distinct prompt; `cache_rows` is the row of the cache that each row continues.
        n_prompts = max(self.prompt_of_row) + 1
        prompts = torch.tensor([self.prompt_of_row.index(u) for u in range(n_prompts)], device=device)
        cache_rows = torch.tensor(self.prompt_of_row, device=device)
        prompt_mask = None if mask is None else mask[prompts]
        logits = forward(input_ids[prompts], prompt_mask, position_ids[prompts], first=True)[cache_rows]
        self.stats.prefill_tokens += n_prompts * length
        self.stats.stock_prefill_tokens += n_rows * length

        batch = _Batch.start(input_ids, mask, position_ids, limit, pad)
        result = batch.ids.clone()
        room, wasted = 0, 0  # columns left in the cache; row-steps that finished rows took since the last rebuild
        with _decode_kernels(model):
            while True:
                tokens = _choose(logits_processor(batch.ids[:, :length], logits), generation_config.do_sample)
                batch.ids[:, length] = tokens if pad is None else torch.where(batch.finished, pad, tokens)
                length += 1
                batch.finished = batch.finished | stopping_criteria(batch.ids[:, :length], None)
                rows, idle = batch.finished.numel(), int(batch.finished.sum())
                if idle == rows:
                    break

                steps_left = limit - length
                if room == 0 or (drop_finished and self._drop_now(rows - idle, idle, wasted, steps_left)):
                    if drop_finished and idle:
                        result[batch.home] = batch.ids
                        alive = (~batch.finished).nonzero().squeeze(1)
                        batch, cache_rows = batch.select(alive), cache_rows[alive]
                        select_processor_rows(logits_processor, alive)
                        rows, idle = rows - idle, 0
                    room, wasted = min(steps_left, self._room(length)), 0
                    rebuild(cache, cache_rows, room)
                    cache_rows = torch.arange(rows, device=device)

                batch.position = batch.position + 1
                step_mask = None if batch.mask is None else batch.mask[:, :length]
                logits = forward(batch.ids[:, length - 1 : length], step_mask, batch.position, first=False)
                room, wasted = room - 1, wasted + idle
                self.stats.decode_tokens += rows
                self.stats.stock_decode_tokens += n_rows

        result[batch.home] = batch.ids
        return result[:, :length]

    def _room(self, length: int) -> int:
        return max(_LEAST_ROOM, length // 4) if self.chunk == "auto" else int(self.chunk)

    def _drop_now(self, alive: int, idle: int, wasted: int, steps_left: int) -> bool:
        """Whether the finished rows are dropped before the cache is full; see the class."""
        cost = _REBUILD_STEPS * alive
        return self.chunk == "auto" and idle > 0 and wasted >= cost and idle * steps_left >= cost


def _choose(scores: torch.Tensor, do_sample: bool) -> torch.Tensor:
    """Next tokens (R,) from processed scores (R, V), as `_sample` chooses them."""
    if do_sample:
        return torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1).squeeze(1)
    return torch.argmax(scores, dim=-1)


def _decode_kernels(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Mixture-of-experts models run other kernels in decoding; `_sample` switches them the same way."""
    switch = getattr(model, "_optimize_model_for_decode", None)
    return contextlib.nullcontext() if switch is None else switch()
