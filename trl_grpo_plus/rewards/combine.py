"""Rewards made of rewards.

In a recipe:

rewards:
  - gate: {if: think_format, then: math}                  # math counts where the form holds, 0.0 elsewhere
  - clip: {of: {length: {max_tokens: 512}}, min: -0.5}    # no less than -0.5
  - sum: {of: [math, {think_format: 0.1}], name: total}   # one reward out of two

The list itself is a weighted sum: the trainer weighs each entry with its `weight` and adds them up.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..errors import UserError
from .function import Reward, Scored
from .registry import Row
from .routing import COLUMN, for_parts, routed_here, wanted
from .verdict import Verdict


class Sum(Reward):
    """The weighted sum of rewards. Where one of them failed or has no verdict, there is no sum.

    Rewards that a row does not ask for are left out of its sum.

    Args:
        name: Name in metrics.
        rewards: The rewards.
        weights: Their weights.
    """

    def __init__(self, name: str, rewards: Sequence[Reward], weights: Sequence[float]) -> None:
        columns = dict.fromkeys(column for reward in rewards for column in reward.columns)
        accuracy = len(rewards) == 1 and rewards[0].accuracy and weights[0] == 1.0
        super().__init__(name, tuple(columns), accuracy, rewards[0].same)
        self.rewards = tuple(rewards)
        self.weights = tuple(weights)

    def parts(self) -> Sequence[Reward]:
        """Returns the rewards that are summed."""
        return self.rewards

    def score(self, completions: Sequence[Any], rows: Sequence[Row]) -> Scored:
        """Returns the sums, with the answer of the first reward that found one."""
        began = time.perf_counter()
        rows = [for_parts(self.__name__, row) for row in rows]
        scored = [reward.score(completions, rows) for reward in self.rewards]
        applies = [any(s.applies[i] for s in scored) for i in range(len(completions))]
        verdicts = []
        for i in range(len(completions)):
            here = [
                (r, w, s.verdicts[i])
                for r, w, s in zip(self.rewards, self.weights, scored, strict=True)
                if s.applies[i]
            ]
            missing = next((f for f in here if f[2].value is None), None)
            if missing is not None:
                reward, _, verdict = missing
                verdicts.append(Verdict(None, verdict.answer, f"{reward.__name__}: {verdict.reason}", verdict.failure))
            elif not here:
                verdicts.append(scored[0].verdicts[i])
            else:
                answer = next((verdict.answer for _, _, verdict in here if verdict.answer is not None), None)
                value = sum(weight * (verdict.value or 0.0) for _, weight, verdict in here)
                reason = "; ".join(f"{reward.__name__}: {verdict.reason}" for reward, _, verdict in here)
                verdicts.append(Verdict(value, answer, here[0][2].reason if len(here) == 1 else reason))
        return Scored(verdicts, applies, sum(s.cache_hits for s in scored), time.perf_counter() - began)


class Gate(Reward):
    """A reward that counts only where a condition holds.

    Args:
        name: Name in metrics.
        condition: The reward that decides.
        inner: The reward that is paid; it is not asked where the condition does not hold.
        at_least: The condition holds where its value is at least this.
        otherwise: Value where it does not hold.
    """

    def __init__(
        self, name: str, condition: Reward, inner: Reward, at_least: float = 1.0, otherwise: float = 0.0
    ) -> None:
        columns = dict.fromkeys((*condition.columns, *inner.columns))
        super().__init__(name, tuple(columns), inner.accuracy and otherwise == 0.0, inner.same)
        self.condition, self.inner, self.at_least, self.otherwise = condition, inner, at_least, otherwise

    def parts(self) -> Sequence[Reward]:
        """Returns condition and inner reward."""
        return (self.condition, self.inner)

    @property
    def names(self) -> frozenset[str]:
        """The gate's name and those of what it pays for; not of the condition."""
        return frozenset({self.__name__}) | self.inner.names

    def score(self, completions: Sequence[Any], rows: Sequence[Row]) -> Scored:
        """Returns the inner verdicts where the condition holds."""
        began = time.perf_counter()
        verdicts: list[Verdict] = [Verdict.unscored(f"the row asks for {', '.join(wanted(row))}") for row in rows]
        applies = [routed_here(self.names, row) for row in rows]
        here = [i for i, applied in enumerate(applies) if applied]
        # A row that asks for what the gate pays for asks for its condition.
        bare = [{key: value for key, value in rows[i].items() if key != COLUMN} for i in here]
        decided = self.condition.score([completions[i] for i in here], bare)
        holds = []
        for i, verdict in zip(here, decided.verdicts, strict=True):
            value = None if verdict.value is None else self.otherwise
            verdicts[i] = Verdict(value, None, f"{self.condition.__name__}: {verdict.reason}", verdict.failure)
            if verdict.value is not None and verdict.value >= self.at_least:
                holds.append(i)
        parts = [for_parts(self.__name__, rows[i]) for i in holds]
        inner = self.inner.score([completions[i] for i in holds], parts)
        for i, verdict in zip(holds, inner.verdicts, strict=True):
            verdicts[i] = verdict
        hits = decided.cache_hits + inner.cache_hits
        return Scored(verdicts, applies, hits, time.perf_counter() - began)


class Clip(Reward):
    """A reward held between two bounds.

    Args:
        name: Name in metrics.
        inner: The reward.
        least: Lower bound, if any.
        most: Upper bound, if any.
    """

    def __init__(self, name: str, inner: Reward, least: float | None, most: float | None) -> None:
        super().__init__(name, inner.columns, inner.accuracy, inner.same)
        self.inner, self.least, self.most = inner, least, most

    def parts(self) -> Sequence[Reward]:
        """Returns the reward that is clipped."""
        return (self.inner,)

    def score(self, completions: Sequence[Any], rows: Sequence[Row]) -> Scored:
        """Returns the inner verdicts with their values clipped."""
        scored = self.inner.score(completions, [for_parts(self.__name__, row) for row in rows])
        verdicts = []
        for v in scored.verdicts:
            value = v.value
            if value is not None:
                value = value if self.least is None else max(value, self.least)
                value = value if self.most is None else min(value, self.most)
            verdicts.append(Verdict(value, v.answer, v.reason, v.failure))
        return Scored(verdicts, scored.applies, scored.cache_hits, scored.latency_s)


def number(where: str, value: Any) -> float:
    """Returns an option as a number.

    Raises:
        UserError: It is none; the message names `where`.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UserError(f"{where} must be a number, found {value!r}")
    return float(value)
