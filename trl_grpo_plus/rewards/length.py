r"""`length`: rewards on the number of tokens, to keep completions from running away.

`soft_overlong` is the punishment of DAPO (arXiv 2503.14476, eq. 13), in [-1, 0]. `cosine` scales a reward with the
length so that short right answers pay most and short wrong ones cost most (arXiv 2502.03373, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..errors import UserError, did_you_mean
from .registry import Row, get, register
from .verdict import Verdict

_RULES = ("soft_overlong", "cosine")


def soft_overlong(n_tokens: int, max_tokens: int, cache_tokens: int) -> float:
    """Returns the punishment in [-1, 0]: 0 up to `max_tokens - cache_tokens`, then falling to -1 at `max_tokens`.

    Equation 13 of DAPO (arXiv 2503.14476), with L_max = `max_tokens` and L_cache = `cache_tokens`.
    """
    free = max_tokens - cache_tokens
    if n_tokens <= free:
        return 0.0
    if n_tokens <= max_tokens:
        return (free - n_tokens) / cache_tokens
    return -1.0


def cosine(n_tokens: int, max_tokens: int, at_zero: float, at_max: float, exceeded: float | None = None) -> float:
    """Returns the reward that goes from `at_zero` to `at_max` along half a cosine as the length grows to `max_tokens`.

    CosFn of arXiv 2502.03373: eta_min + (eta_max - eta_min) (1 + cos(pi t / T)) / 2, with eta_max = `at_zero` and
    eta_min = `at_max`. Beyond `max_tokens` it stays at `at_max`, or is `exceeded` (r_e in the paper) where that is
    set: the bare formula would climb back.
    """
    if exceeded is not None and n_tokens >= max_tokens:
        return exceeded
    share = min(n_tokens / max_tokens, 1.0)
    return at_max + 0.5 * (at_zero - at_max) * (1.0 + math.cos(math.pi * share))


@register(
    "length",
    description="Soft punishment of overlong completions (DAPO), or a reward scaled with the length (cosine)",
    runs="inline",
)
class Length:
    """Scores the length of a completion in tokens, those that the trainer generated.

    Args:
        max_tokens: Length at which the punishment is full, and the cosine ends: usually `max_completion_length`.
        rule: `soft_overlong`, in [-1, 0], or `cosine`.
        cache_tokens: `soft_overlong`: width of the zone before `max_tokens` in which the punishment grows; `None`
            takes a fifth of `max_tokens`, as DAPO does (4,096 of 20,480).
        accuracy: `cosine`: name of the verifier that tells right from wrong: a value of 1.0 is right. `None` reads the
            row's `correct`.
        correct: `cosine`: least and greatest reward of a right answer: an empty one gets the greatest, one of
            `max_tokens` the least.
        wrong: `cosine`: least and greatest reward of a wrong answer: an empty one gets the least, one of `max_tokens`
            the greatest, so that thinking longer costs less.
        exceeded: `cosine`: reward from `max_tokens` on; `None` keeps the value at `max_tokens`.

    Raises:
        UserError: An option cannot work.
    """

    def __init__(
        self,
        max_tokens: int,
        rule: str = "soft_overlong",
        cache_tokens: int | None = None,
        accuracy: str | None = None,
        correct: Sequence[float] = (0.5, 1.0),
        wrong: Sequence[float] = (-1.0, -0.5),
        exceeded: float | None = None,
    ) -> None:
        if rule not in _RULES:
            raise UserError(f"reward `length`: rule must be one of {', '.join(_RULES)}{did_you_mean(rule, _RULES)}")
        if max_tokens < 1:
            raise UserError(f"reward `length`: max_tokens must be positive, found {max_tokens!r}")
        self.cache_tokens = max_tokens // 5 if cache_tokens is None else cache_tokens
        if not 0 <= self.cache_tokens <= max_tokens:
            raise UserError(f"reward `length`: cache_tokens must be in [0, {max_tokens}], found {cache_tokens!r}")
        for name, pair in (("correct", correct), ("wrong", wrong)):
            if len(pair) != 2 or pair[0] > pair[1]:
                raise UserError(f"reward `length`: {name} is a pair, least and greatest reward; found {pair!r}")
        self.rule, self.max_tokens, self.exceeded = rule, max_tokens, exceeded
        self.right, self.wrong = tuple(correct), tuple(wrong)
        entry = None if accuracy is None else get(accuracy)
        self._verify = None if entry is None else entry.build()

    def verify(self, completion: str, row: Row) -> Verdict:
        """Returns the verdict on one completion; the row's `completion_ids` are its tokens."""
        ids = row.get("completion_ids")
        if ids is None:
            return Verdict.unscored("the row has no `completion_ids`, the tokens whose number is scored")
        n_tokens = len(ids)
        if self.rule == "soft_overlong":
            value = soft_overlong(n_tokens, self.max_tokens, self.cache_tokens)
            return Verdict(value, None, f"{n_tokens} tokens")
        right = row.get("correct")
        if self._verify is not None:
            judged = self._verify(completion, row).value
            right = None if judged is None else judged == 1.0
        if right is None:
            return Verdict.unscored("not known whether the answer is right: set `accuracy`, or a column `correct`")
        at_zero, at_max = reversed(self.right) if right else self.wrong
        value = cosine(n_tokens, self.max_tokens, at_zero, at_max, self.exceeded)
        return Verdict(value, None, f"{n_tokens} tokens, {'right' if right else 'wrong'}")
