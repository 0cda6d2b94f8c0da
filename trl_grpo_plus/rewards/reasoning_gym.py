"""`reasoning_gym`: the score that a reasoning-gym dataset's own scorer gives.

Rows come from `prompts: {source: reasoning_gym:<name>}`, which keeps each task's whole entry as JSON. Scorers of
reasoning-gym differ: many give a little for a wrong answer in the right form; `exact` counts full marks only.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import UserError, did_you_mean
from .marks import final_mark
from .registry import Row, register
from .text import stated_part
from .verdict import Verdict

_MAX_CHARS = 50_000  # of a completion, from the end, in which a mark is looked for
_MAX_ANSWER_CHARS = 20_000


@functools.lru_cache(maxsize=256)
def _scorer(name: str) -> Callable[[Any, Any], float]:
    try:
        from reasoning_gym import get_score_answer_fn
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise UserError(
            "reward `reasoning_gym` needs the package: pip install 'trl-grpo-plus[reasoning-gym]'"
        ) from error
    if name not in DATASETS:
        raise UserError(f"reasoning_gym has no dataset `{name}`{did_you_mean(name, DATASETS)}")
    scorer: Callable[[Any, Any], float] = get_score_answer_fn(name)
    return scorer


@register(
    "reasoning_gym",
    description="The score of a reasoning-gym dataset's own scorer, in [0, 1]",
    columns=("entry",),
    optional=("prompt", "task"),
    accuracy=True,
    imports=("reasoning_gym",),
)
class ReasoningGym:
    """Scores a completion with the scorer of the dataset that its row comes from.

    The answer is the last `<answer>` tag or box, and all that follows the reasoning where there is neither. A row's
    `task` names its dataset, or its entry's `metadata.source_dataset` does.

    Args:
        dataset: The dataset's name, where rows do not tell.
        exact: 1.0 for full marks and 0.0 for less.
        column: Column of the entry: JSON text or a mapping with `question`, `answer` and `metadata`.

    Raises:
        UserError: The package is not installed, or has no such dataset.
    """

    def __init__(self, dataset: str | None = None, exact: bool = False, column: str = "entry") -> None:
        self.dataset, self.exact, self.column = dataset, exact, column
        _scorer(dataset or "chain_sum")  # the import takes seconds: here, and not while a completion's clock runs

    def verify(self, completion: str, row: Row) -> Verdict:
        """Returns the verdict on one completion."""
        entry = row.get(self.column)
        if isinstance(entry, str):
            try:
                entry = json.loads(entry)
            except ValueError as error:
                return Verdict.unscored(f"the row's `{self.column}` is not JSON: {error}")
        if not isinstance(entry, Mapping):
            return Verdict.unscored(f"the row has no `{self.column}` with a reasoning-gym entry")
        metadata = entry.get("metadata")
        named = metadata.get("source_dataset") if isinstance(metadata, Mapping) else None
        name = self.dataset or row.get("task") or named
        if not isinstance(name, str):
            return Verdict.unscored(f"the row's `{self.column}` does not name its dataset; set the option `dataset`")
        stated = stated_part(completion, row)
        if stated is None:
            return Verdict(0.0, None, "the reasoning is not closed")
        mark = final_mark(stated[-_MAX_CHARS:], said=False)
        if mark is not None and mark.cut_off:
            return Verdict(0.0, None, f"{mark.kind} is not closed")
        answer = (mark.content if mark is not None and mark.kind != "####" else stated).strip()
        if not answer or len(answer) > _MAX_ANSWER_CHARS:
            return Verdict(0.0, None, f"the answer has {len(answer)} characters")
        score = min(max(float(_scorer(name)(answer, entry)), 0.0), 1.0)
        if self.exact:
            score = float(score == 1.0)
        return Verdict(score, answer[:500], f"{name}: {score:g}")
