"""Leaving out rows that are too long: prompts beyond what was planned for, demonstrations that would be cut off.

Stage: prompts. A demonstration that is cut off has no answer: it teaches to reason without end.
"""

from __future__ import annotations

import logging
from typing import Any

from datasets import Dataset

from ..errors import UserError
from .spec import PromptSpec

logger = logging.getLogger(__name__)
_BATCH = 256  # rows that are tokenized at once: only their lengths are kept


def without_long_rows(rows: Dataset, spec: PromptSpec, tokenizer: Any, completions: tuple[str, ...] = ()) -> Dataset:
    """Returns the rows of at most `spec.max_tokens` tokens, and warns of how many were left out.

    Args:
        rows: Rows as they are put to the model: `prompt`, and the columns of `completions`, texts or messages.
        spec: The specification.
        tokenizer: The model's tokenizer.
        completions: Columns that follow the prompt; the longest of them counts. Without them prompts are measured, up
            to where the model begins.

    Raises:
        UserError: There is no tokenizer, or no row is short enough.
    """
    if spec.max_tokens is None:
        return rows
    if tokenizer is None:
        raise UserError("prompts.max_tokens needs the model's tokenizer, and there is none here")
    kept: list[int] = []
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        lengths = [0] * len(batch["prompt"])
        for column in completions or ("",):
            texts = [
                _text(prompt, batch[column][i] if column else None, tokenizer)
                for i, prompt in enumerate(batch["prompt"])
            ]
            ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
            lengths = [max(length, len(each)) for length, each in zip(lengths, ids, strict=True)]
        kept += [start + i for i, length in enumerate(lengths) if length <= spec.max_tokens]
    if not kept:
        raise UserError(
            f"prompts.max_tokens: none of the {len(rows)} rows of {spec.source} has at most {spec.max_tokens} tokens"
        )
    if len(kept) < len(rows):
        logger.warning(
            "prompts.source %s: %d of %d rows have more than %d tokens and are left out",
            spec.source,
            len(rows) - len(kept),
            len(rows),
            spec.max_tokens,
        )
    return rows.select(kept)


def _text(prompt: Any, completion: Any, tokenizer: Any) -> str:
    """Returns what the model reads of a row."""
    if isinstance(prompt, str):
        return prompt + (completion or "")
    messages = [*prompt, *(completion or ())]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=completion is None))
