"""`repetition`: a penalty for completions that say the same again and again.

The share of n-grams that are repetitions, times the largest penalty: with T n-grams of which U are different,
`max_penalty * (1 - U / T)` (arXiv 2502.03373, section 3.3, as a value per completion).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ..errors import UserError
from .registry import Row, register
from .verdict import Verdict


def repetition_penalty(items: Sequence[Hashable], ngram: int, max_penalty: float) -> float:
    """Returns `max_penalty` times the share of repeated n-grams, 0.0 where there is no n-gram.

    Args:
        items: Tokens or words.
        ngram: Length of an n-gram.
        max_penalty: The value when (in the limit) everything is repeated, at most 0.
    """
    total = len(items) - ngram + 1
    if total < 1:
        return 0.0
    different = len(set(zip(*(items[i:] for i in range(ngram)), strict=False)))
    return max_penalty * (1.0 - different / total)


@register(
    "repetition",
    description="A penalty for repeated n-grams: the share of n-grams that occurred before",
    optional=("completion_ids",),
    runs="inline",
)
class Repetition:
    """Scores `max_penalty` times the share of n-grams that are repetitions.

    Args:
        ngram: Length of an n-gram.
        max_penalty: The value when everything is repeated.
        unit: What n-grams are made of: `tokens` (the row's `completion_ids`) or `words` (split at white space).

    Raises:
        UserError: An option cannot work.
    """

    def __init__(self, ngram: int = 4, max_penalty: float = -1.0, unit: str = "tokens") -> None:
        if isinstance(ngram, bool) or not isinstance(ngram, int) or ngram < 1:
            raise UserError(f"reward `repetition`: ngram must be a positive whole number, found {ngram!r}")
        if max_penalty > 0:
            raise UserError(f"reward `repetition`: max_penalty must be at most 0, found {max_penalty!r}")
        if unit not in ("tokens", "words"):
            raise UserError(f"reward `repetition`: unit must be tokens or words, found {unit!r}")
        self.ngram, self.max_penalty, self.unit = ngram, max_penalty, unit

    def verify(self, completion: str, row: Row) -> Verdict:
        """Returns the verdict on one completion."""
        items: Sequence[Hashable] | None = row.get("completion_ids") if self.unit == "tokens" else completion.split()
        if items is None:
            return Verdict.unscored("the row has no `completion_ids`; set unit: words")
        value = repetition_penalty(items, self.ngram, self.max_penalty)
        return Verdict(value, None, f"{value / self.max_penalty if self.max_penalty else 0:.1%} repeated")
