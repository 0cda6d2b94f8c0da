"""Generation without vLLM: completions for prompts of which each comes several times.

Stage: rollouts.

    prompt_ids, R lists  ->  generate_groups  ->  R completions, cut after the first EOS; token counts

A drop-in for what TRL does in `_generate_single_turn` (pad on the left, `model.generate`, cut after EOS): the same
distribution, and the same tokens when decoding greedily, for less work. TRL prefills all copies of a prompt and
decodes finished rows until the longest ends; see `decoding`. Prompts of different length are padded to the longest, as
in TRL: where a prompt runs once for its whole group, this padding costs little.

    reason = why_not(model, generation_config)
    if reason is None:
        completion_ids, stats = generate_groups(model, prompt_ids, generation_config, ...)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from transformers import GenerationConfig

from .decoding import GenerationStats, GroupDecoding
from .support import why_not, why_not_prefill_once

Switch = bool | Literal["auto"]


def generate_groups(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    generation_config: GenerationConfig,
    *,
    pad_token_id: int,
    eos_token_ids: Sequence[int],
    device: torch.device | str,
    prefill_once: Switch = "auto",
    drop_finished: Switch = "auto",
    chunk: int | Literal["auto"] = "auto",
    pad_to_multiple_of: int | None = None,
) -> tuple[list[list[int]], GenerationStats]:
    """Generates one completion for each entry of `prompt_ids`.

    Leaves the model as it is: training mode, adapters and gradient checkpointing are the caller's, as with `generate`.

    Args:
        model: A transformers model or a PEFT model around one, unwrapped from DDP.
        prompt_ids: R token lists. Equal lists are copies of one prompt, wherever they stand.
        generation_config: What TRL passes to `model.generate`.
        pad_token_id: Padding to the left of shorter prompts.
        eos_token_ids: A completion ends with the first of these, which stays in it.
        device: Where the ids are put.
        prefill_once: "auto" and True prefill each distinct prompt once, False prefills every row. Where dropout is
            active "auto" means False and True is an error, see `why_not_prefill_once`.
        drop_finished: "auto" and True let finished rows leave the batch, False keeps them to the end.
        chunk: Decode steps between two times that finished rows are dropped; "auto" weighs what a copy of the cache
            costs against what it saves, see `GroupDecoding`.
        pad_to_multiple_of: Rounds the padded prompt length up.

    Returns:
        The R completions in order, and the tokens that were run.

    Raises:
        ValueError: It would not be exact (the message says why), or an option has a value that it cannot have.
    """
    if (reason := why_not(model, generation_config)) is not None:
        raise ValueError(f"generate_groups is not exact here: {reason}. Use `model.generate`.")
    if chunk != "auto" and (isinstance(chunk, str) or chunk < 1):
        raise ValueError(f'`chunk` is {chunk!r}; it is "auto" or a number of decode steps from 1 upwards.')
    reason = why_not_prefill_once(model) if prefill_once else None
    if prefill_once is True and reason is not None:
        raise ValueError(f'`prefill_once=True` is not exact here: {reason}. Use "auto" or False.')

    stats = GenerationStats()
    if not prompt_ids:
        return [], stats
    prompt_of_row = _number_prompts(prompt_ids) if prefill_once and reason is None else list(range(len(prompt_ids)))
    input_ids, attention_mask = _pad_left(prompt_ids, pad_token_id, pad_to_multiple_of)
    decoding = GroupDecoding(prompt_of_row, drop_finished=bool(drop_finished), chunk=chunk, stats=stats)
    with torch.no_grad():
        output = model.generate(
            input_ids=input_ids.to(device),
            attention_mask=attention_mask.to(device),
            generation_config=generation_config,
            custom_generate=decoding,
        )
    return _cut_after_eos(output[:, input_ids.shape[1] :], eos_token_ids), stats


def generate_plain(
    model: Any,
    prompt_ids: Sequence[Sequence[int]],
    generation_config: GenerationConfig,
    *,
    pad_token_id: int,
    eos_token_ids: Sequence[int],
    device: torch.device | str,
) -> list[list[int]]:
    """Generates as `generate_groups` does, by transformers' own loop: for models where the other is not exact.

    Args:
        model: See `generate_groups`.
        prompt_ids: See `generate_groups`.
        generation_config: See `generate_groups`.
        pad_token_id: See `generate_groups`.
        eos_token_ids: See `generate_groups`.
        device: See `generate_groups`.
    """
    if not prompt_ids:
        return []
    input_ids, attention_mask = _pad_left(prompt_ids, pad_token_id, None)
    with torch.no_grad():
        output = model.generate(
            input_ids=input_ids.to(device),
            attention_mask=attention_mask.to(device),
            generation_config=generation_config,
        )
    return _cut_after_eos(output[:, input_ids.shape[1] :], eos_token_ids)


def _number_prompts(prompt_ids: Sequence[Sequence[int]]) -> list[int]:
    """For each entry the number of its prompt, counted in order of first appearance."""
    numbers: dict[tuple[int, ...], int] = {}
    return [numbers.setdefault(tuple(ids), len(numbers)) for ids in prompt_ids]


def _pad_left(
    prompt_ids: Sequence[Sequence[int]], pad_token_id: int, pad_to_multiple_of: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token lists -> ids and mask, (R, P) each."""
    width = max(len(ids) for ids in prompt_ids)
    if pad_to_multiple_of is not None:
        width = -(-width // pad_to_multiple_of) * pad_to_multiple_of
    input_ids = torch.tensor([[pad_token_id] * (width - len(ids)) + list(ids) for ids in prompt_ids])
    attention_mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompt_ids])
    return input_ids, attention_mask


def _cut_after_eos(completions: torch.Tensor, eos_token_ids: Sequence[int]) -> list[list[int]]:
    """(R, C) ids -> R lists, each up to and with its first EOS."""
    is_eos = torch.isin(completions, torch.tensor(list(eos_token_ids), device=completions.device))
    before = is_eos.int().cumsum(dim=1) - is_eos.int()  # EOS tokens to the left of each position
    lengths = (before == 0).sum(dim=1).tolist()
    return [row[:length] for row, length in zip(completions.tolist(), lengths, strict=True)]
