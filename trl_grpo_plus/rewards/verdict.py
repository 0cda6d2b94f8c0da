"""What a verifier says about one completion.

Stage: rewards. In: one completion and its row. Out: a `Verdict`. A verdict is not a reward yet: `None` means "not
scored" and is left out of the group's baseline, which is different from 0.0, "wrong".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

Failure = Literal["error", "timeout", "crash"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's answer about one completion.

    Args:
        value: Score of the completion, by convention in [0, 1] for correctness; `None` when it could not be scored
            (the row has no gold answer, the verifier failed or ran out of time). `None` is left out of the mean and
            the standard deviation of the group, as TRL does with reward functions that return `None`.
        answer: What the verifier took as the completion's answer, for the completion log; `None` when it found none.
        reason: Why the value is what it is, in a few words; always set when `value` is `None`.
        failure: What went wrong where the value is `None` for no fault of the row or the completion: the verifier
            raised (`error`), ran out of time (`timeout`) or its process died (`crash`). Such verdicts are counted as
            failures and never cached: another try may succeed.
    """

    value: float | None
    answer: str | None = None
    reason: str = ""
    failure: Failure | None = None

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("a Verdict with value=None must say why in `reason`")
        if self.value is not None and self.failure is not None:
            raise ValueError("a Verdict with a value has no `failure`")

    @classmethod
    def unscored(cls, reason: str) -> Verdict:
        """Returns a verdict that is left out of the group baseline, for `reason`."""
        return cls(None, None, reason)

    @classmethod
    def failed(cls, reason: str, failure: Failure = "error") -> Verdict:
        """Returns a verdict that is left out of the group baseline because the verifier, not the row, is at fault."""
        return cls(None, None, reason, failure)


def as_verdict(returned: Any) -> Verdict:
    """Returns what a verifier returned as a verdict: a user's own may return a number, or `None`.

    Raises:
        TypeError, ValueError: It is none of these.
    """
    if isinstance(returned, Verdict):
        verdict = returned
    else:
        verdict = Verdict.unscored("returned None") if returned is None else Verdict(float(returned))
    if verdict.value is not None and not math.isfinite(verdict.value):
        return Verdict.failed(f"the verifier returned {verdict.value}")
    return verdict
