"""Rows of a `reasoning-gym` dataset: procedural tasks, seeded, with one gold answer each.

Stage: prompts. Splits are made by content: a question belongs to one split, by its hash, whatever the seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from datasets import Dataset

from ..errors import UserError, did_you_mean

_SPLITS = ("train", "validation", "test")
_MAX_DRAWS_PER_ROW = 50


def split_of(question: str) -> str:
    """Returns the split that a question belongs to: 6 in 8 are `train`, 1 `validation`, 1 `test`."""
    bucket = hashlib.md5(question.encode(), usedforsecurity=False).digest()[0] % 8
    return {0: "test", 1: "validation"}.get(bucket, "train")


def reasoning_gym_rows(name: str, split: str, size: int, seed: int, options: Mapping[str, Any]) -> Dataset:
    """Returns rows `{prompt, answer, task, entry}` of a reasoning-gym dataset.

    Args:
        name: The dataset's name (`chain_sum`).
        split: `train`, `validation` or `test`, disjoint by question.
        size: Number of rows, all different.
        seed: Seed of the generator.
        options: Options of the dataset's configuration.

    Returns:
        `task` is the dataset's name and `entry` its whole entry as JSON, which its own scorer reads.

    Raises:
        UserError: The package is not installed, the name, the split or an option is unknown, or the task has not that
            many different questions.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise UserError(
            "prompts.source: reasoning_gym tasks need the package: pip install 'trl-grpo-plus[reasoning-gym]'"
        ) from error
    if name not in DATASETS:
        raise UserError(f"prompts.source: reasoning_gym has no dataset `{name}`{did_you_mean(name, DATASETS)}")
    if split not in _SPLITS:
        raise UserError(f"prompts.split: reasoning_gym tasks have {', '.join(_SPLITS)}, found `{split}`")
    draws = size * _MAX_DRAWS_PER_ROW
    try:
        # Item i of a dataset is drawn from seed + i: seeds that follow each other would give the same items, shifted.
        start = int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:4], "big")
        entries = reasoning_gym.create_dataset(name, seed=start, size=draws, **options)
    except (TypeError, AssertionError, ValueError) as error:
        raise UserError(f"prompts.options: reasoning_gym:{name}: {error}") from error
    rows: dict[str, dict[str, Any]] = {}
    for index in range(draws):
        entry = entries[index]
        question = str(entry["question"])
        if split_of(question) != split or question in rows:
            continue
        rows[question] = {
            "prompt": question,
            "answer": str(entry["answer"]),
            "task": name,
            "entry": json.dumps(entry, default=str),
        }
        if len(rows) == size:
            return Dataset.from_list(list(rows.values()))
    raise UserError(
        f"prompts.size: reasoning_gym:{name} gave {len(rows)} different questions for the split `{split}` in {draws} "
        f"draws, {size} were asked for; lower prompts.size or widen the task with prompts.options"
    )
