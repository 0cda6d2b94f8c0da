"""Grading a file of completions, to look for bugs of a reward before a training run finds them."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError
from .build import Weighted, build_rewards, check_columns
from .function import Reward
from .runtime import Runtime
from .verdict import Verdict

_FIELDS = ("completion", "completions", "response", "responses", "output")


@dataclass(frozen=True)
class Column:
    """A reward's verdicts on a file.

    Args:
        name: The reward's name.
        weight: Its weight.
        verdicts: One per completion.
        metrics: As logged in training: shares, and the latency in seconds.
    """

    name: str
    weight: float
    verdicts: list[Verdict]
    metrics: dict[str, float]

    def summary(self) -> dict[str, Any]:
        """Returns mean and standard deviation of the values, the metrics, and the most frequent reasons by value."""
        values = [v.value for v in self.verdicts if v.value is not None]
        mean = sum(values) / len(values) if values else math.nan
        std = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values)) if values else math.nan
        reasons = Counter((v.value, v.reason[:80]) for v in self.verdicts)
        return {
            "reward": self.name,
            "weight": self.weight,
            "mean": mean,
            "std": std,
            **self.metrics,
            "reasons": [[value, reason, n] for (value, reason), n in reasons.most_common(8)],
        }


def read_completions(path: str | Path, field: str | None = None) -> tuple[list[Any], list[dict[str, Any]]]:
    """Returns (completions, rows) of a JSONL file; a row with a list of completions is there once for each.

    Args:
        path: The file.
        field: The field that holds the completion, or a list of them; found by its usual names if `None`.

    Raises:
        UserError: The file, the field or the form of a line is wrong; the message names the line.
    """
    file = Path(path)
    if not file.is_file():
        raise UserError(f"no such file: {file}")
    completions: list[Any] = []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UserError(f"{file}, line {number} is not JSON: {error}") from error
        if not isinstance(row, dict):
            raise UserError(f"{file}, line {number} must be an object, found {type(row).__name__}")
        name = field or next((f for f in _FIELDS if f in row), None)
        if name is None or name not in row:
            raise UserError(
                f"{file}, line {number} has no {f'`{field}`' if field else 'completion'}: its fields are "
                f"{', '.join(row)}; name the one that holds the completion with --field"
            )
        for completion in _several(row.pop(name)):
            completions.append(completion)
            rows.append(row)
    if not completions:
        raise UserError(f"{file} holds no completions")
    return completions, rows


def _several(value: Any) -> Iterator[Any]:
    """Yields the completions of a field: one text, one list of messages, or a list of either."""
    if isinstance(value, list) and not (value and all(isinstance(m, dict) and "content" in m for m in value)):
        yield from value
    else:
        yield value


def score(completions: Sequence[Any], rows: Sequence[dict[str, Any]], spec: Any, runtime: Runtime) -> list[Column]:
    """Returns the verdicts of each reward on all completions.

    Args:
        completions: Texts or messages.
        rows: The row of each.
        spec: The rewards, as in a recipe.
        runtime: Workers, cache and limits.

    Raises:
        UserError: A reward is unknown, or needs a column that no row has.
    """
    rewards = build_rewards(spec, runtime)
    check_columns(rewards, sorted({name for row in rows for name in row}), "the file")
    return [_column(reward, completions, rows) for reward in rewards]


def _column(reward: Weighted, completions: Sequence[Any], rows: Sequence[dict[str, Any]]) -> Column:
    if isinstance(reward.function, Reward):
        scored = reward.function.score(completions, rows)
        return Column(reward.name, reward.weight, scored.verdicts, scored.metrics())
    names = sorted({name for row in rows for name in row} - {"prompt"})
    columns = {name: [row.get(name) for row in rows] for name in names}
    prompts = [row.get("prompt", "") for row in rows]
    returned: Any = reward.function(prompts=prompts, completions=list(completions), **columns)
    if inspect.isawaitable(returned):
        returned = asyncio.run(_await(returned))
    verdicts = [Verdict.unscored("returned None") if v is None else Verdict(float(v)) for v in returned]
    unscored = sum(v.value is None for v in verdicts) / len(verdicts)
    return Column(reward.name, reward.weight, verdicts, {"unscored": unscored})


async def _await(awaitable: Any) -> Any:
    return await awaitable
