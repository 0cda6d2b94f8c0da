"""Rows for supervised stages: demonstrations for SFT, and preferences for a reward model.

Stage: prompts. In: the recipe's section, in the same words as for GRPO, so that a template holds for all stages of a
pipeline. Out: a `datasets.Dataset` of `{prompt, completion}`, or `{prompt, chosen, rejected}`, as TRL's trainers take.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from datasets import Dataset

from ..errors import UserError, did_you_mean
from .lengths import without_long_rows
from .loaders import join_rows, read_rows, wants_chat
from .spec import PromptSpec

_MESSAGES = ("messages", "conversations", "conversation")
_PROMPT = ("prompt", "question", "problem", "query", "instruction")
_COMPLETION = ("completion", "response", "output", "solution")
logger = logging.getLogger(__name__)
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}


def load_demonstrations(spec: PromptSpec, tokenizer: Any = None) -> Dataset:
    """Returns rows `{prompt, completion}`, both chat messages or both texts.

    Args:
        spec: The specification. A source has either whole conversations (`messages`, or `conversations` with `from`
            and `value`), of which the last answer is what is learned, or a prompt and a completion. Conversations
            that do not end with an answer are left out, with a warning that counts them.
        tokenizer: As in `load_prompts`.

    Raises:
        UserError: As `load_prompts`; or no conversation ends with an answer.
    """
    if spec.parts:
        parts = [load_demonstrations(part, tokenizer) for part in spec.parts]
        return join_rows(parts, [part.source for part in spec.parts])
    rows = read_rows(spec)
    chat = wants_chat(spec, tokenizer)
    column = _column(rows, spec, "messages", _MESSAGES)
    if column is not None and "completion" not in spec.columns:
        whole = [conversation for conversation in rows[column] if _is_answered(conversation)]
        if len(whole) < len(rows):
            logger.warning(
                "prompts.source %s: %d of %d conversations do not end with an answer and are left out",
                spec.source,
                len(rows) - len(whole),
                len(rows),
            )
        if not whole:
            raise UserError(f"prompts.source {spec.source}: no conversation in `{column}` ends with an answer")
        pairs = [_split(conversation, spec, i) for i, conversation in enumerate(whole)]
    else:
        prompt, completion = (
            _needed(rows, spec, ours, usual) for ours, usual in (("prompt", _PROMPT), ("completion", _COMPLETION))
        )
        pairs = list(zip(rows[prompt], rows[completion], strict=True))
    made = Dataset.from_dict(
        {
            "prompt": [spec.put(prompt, chat) for prompt, _ in pairs],
            "completion": [_answer(completion, chat) for _, completion in pairs],
        }
    )
    return without_long_rows(made, spec, tokenizer, ("completion",))


def load_preferences(spec: PromptSpec, tokenizer: Any = None) -> Dataset:
    """Returns rows `{prompt, chosen, rejected}`, all chat messages or all texts.

    Args:
        spec: The specification. Where a source has no prompt column, `chosen` and `rejected` are conversations that
            differ in the last answer only.
        tokenizer: As in `load_prompts`.

    Raises:
        UserError: As `load_prompts`; or a pair of conversations differs before the last answer.
    """
    if spec.parts:
        parts = [load_preferences(part, tokenizer) for part in spec.parts]
        return join_rows(parts, [part.source for part in spec.parts])
    rows = read_rows(spec)
    chat = wants_chat(spec, tokenizer)
    chosen = rows[_needed(rows, spec, "chosen", ("chosen",))]
    rejected = rows[_needed(rows, spec, "rejected", ("rejected",))]
    column = _column(rows, spec, "prompt", _PROMPT)
    if column is not None:
        prompts = list(rows[column])
    else:
        halves = [[_split(c, spec, i) for i, c in enumerate(side)] for side in (chosen, rejected)]
        for i, (good, bad) in enumerate(zip(*halves, strict=True)):
            if good[0] != bad[0]:
                raise UserError(
                    f"prompts.source {spec.source}: row {i}: `chosen` and `rejected` answer different prompts"
                )
        prompts = [prompt for prompt, _ in halves[0]]
        chosen, rejected = ([answer for _, answer in side] for side in halves)
    made = Dataset.from_dict(
        {
            "prompt": [spec.put(prompt, chat) for prompt in prompts],
            "chosen": [_answer(each, chat) for each in chosen],
            "rejected": [_answer(each, chat) for each in rejected],
        }
    )
    return without_long_rows(made, spec, tokenizer, ("chosen", "rejected"))


def _column(rows: Dataset, spec: PromptSpec, ours: str, usual: Sequence[str]) -> str | None:
    theirs = spec.columns.get(ours) or next((name for name in usual if name in rows.column_names), None)
    if theirs is not None and theirs not in rows.column_names:
        raise UserError(
            f"prompts.columns: {spec.source} has no column `{theirs}` for `{ours}`"
            f"{did_you_mean(theirs, rows.column_names)}; its columns: {', '.join(rows.column_names)}"
        )
    return theirs


def _needed(rows: Dataset, spec: PromptSpec, ours: str, usual: Sequence[str]) -> str:
    theirs = _column(rows, spec, ours, usual)
    if theirs is None:
        raise UserError(
            f"prompts.columns: {spec.source} has no column for `{ours}` (looked for {', '.join(usual)}); its columns: "
            f"{', '.join(rows.column_names)}. Write `columns: {{{ours}: <one of these>}}`"
        )
    return theirs


def _is_answered(conversation: Any) -> bool:
    """Returns whether the last of several messages is the assistant's, with a text (a call of a tool has none)."""
    if not conversation or len(conversation) < 2:
        return False
    last = conversation[-1]
    text = last.get("value") if "from" in last else last.get("content")
    return _message(last)["role"] == "assistant" and bool(text)


def _split(conversation: Any, spec: PromptSpec, row: int) -> tuple[list[dict[str, str]], str]:
    """Returns (what comes before the last answer, the last answer) of a conversation."""
    messages = [_message(message) for message in conversation]
    if len(messages) < 2 or messages[-1]["role"] != "assistant":
        raise UserError(f"prompts.source {spec.source}: row {row}: the conversation does not end with an answer")
    return messages[:-1], messages[-1]["content"]


def _message(message: Mapping[str, Any]) -> dict[str, str]:
    if "from" in message:  # the form of ShareGPT
        role = _ROLES.get(str(message["from"]), str(message["from"]))
        return {"role": role, "content": str(message["value"] or "")}
    return {"role": str(message["role"]), "content": str(message["content"] or "")}


def _answer(completion: Any, chat: bool) -> Any:
    if not isinstance(completion, str):  # messages, of which the last one is the answer
        completion = str(completion[-1]["content"])
    return [{"role": "assistant", "content": completion}] if chat else completion
