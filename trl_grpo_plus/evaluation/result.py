"""From scored samples to numbers: pass@k, maj@k, rewards, length and truncation, each with an interval over problems.

Stage: evaluation. In: `Scored` samples. Out: an `EvalResult`. A metric is the mean over problems of the problem's own
mean over its samples (or of its pass@k), so that every problem weighs the same. Names are TRL's where TRL has the
metric.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UserError
from .estimators import maj_at_k, pass_at_k
from .intervals import Estimate, estimate_means
from .scoring import Scored

Array = npt.NDArray[np.float64]

METRICS = {
    "pass@k": "chance that at least one of k samples is right; unbiased, from all n",
    "maj@k": "chance that the most frequent answer of k samples is right; exact over all subsets of the n",
    "reward": "weighted sum of the rewards",
    "rewards/<name>/mean": "mean value of one reward",
    "format_rate": "share of samples with the full mark of every reward with `format` in its name",
    "answered": "share of scored samples from which an answer could be extracted",
    "unscored": "share of samples of which no verifier could say whether they are right",
    "completions/mean_length": "tokens, the end token included",
    "completions/clipped_ratio": "share of samples cut off at max_new_tokens",
}


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation found.

    Args:
        metrics: Name (see `METRICS`) -> mean over problems, with its 95 % interval.
        values: Name -> (N,) the value of each problem, NaN where it has none; not part of the JSON.
        problems: Number of problems, N.
        samples_per_problem: n.
        scored: The samples with their verdicts; not part of the JSON.
        details: What was run: model, data, settings, seconds, environment.
    """

    metrics: Mapping[str, Estimate]
    values: Mapping[str, Array] = field(repr=False)
    problems: int
    samples_per_problem: int
    scored: Sequence[Scored] = field(repr=False)
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values; a number that does not exist is `None`."""
        metrics = {name: {k: _json(v) for k, v in asdict(e).items()} for name, e in self.metrics.items()}
        return {
            "problems": self.problems,
            "samples_per_problem": self.samples_per_problem,
            "metrics": metrics,
            **self.details,
        }

    def to_json(self) -> str:
        """Returns `to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def flat(self, prefix: str = "") -> dict[str, float]:
        """Returns the numbers for a trainer's log; of pass@k and maj@k the interval as well, `<name>/low` and `/high`.

        Args:
            prefix: Put before each name, such as `eval_`.
        """
        found = {}
        for name, e in self.metrics.items():
            if e.problems:
                found[f"{prefix}{name}"] = e.value
                if name.startswith(("pass@", "maj@")):
                    found |= {f"{prefix}{name}/low": e.low, f"{prefix}{name}/high": e.high}
        return found


def _json(value: float) -> float | None:
    return value if math.isfinite(value) else None


def check_k(ks: Sequence[int], n: int) -> tuple[int, ...]:
    """Returns the sizes k, sorted, each once, and 1 among them.

    Raises:
        UserError: One of them is not in 1..n.
    """
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= n:
            raise UserError(f"k must be between 1 and n={n}, found {k!r}: pass@k is estimated from n >= k samples")
    return tuple(sorted({1, *ks}))


def problem_values(scored: Sequence[Scored], problems: int, ks: Sequence[int]) -> dict[str, Array]:
    """Returns the value of each problem for each metric, (N,) each, NaN where it has none.

    Args:
        scored: The samples.
        problems: Number of problems, N.
        ks: Sizes k of pass@k and maj@k.
    """
    of_problem: list[list[Scored]] = [[] for _ in range(problems)]
    for each in scored:
        of_problem[each.sample.problem].append(each)
    columns: dict[str, list[float]] = {}
    votes = any(each.vote is not None for each in scored)
    for samples in of_problem:
        row = {f"pass@{k}": value for k, value in zip(ks, _passes(samples, ks), strict=True)}
        if votes:
            row |= {f"maj@{k}": _majority(samples, k) for k in ks if k > 1}
        row |= _means(samples)
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return {name: np.array(values) for name, values in columns.items()}


def _passes(samples: Sequence[Scored], ks: Sequence[int]) -> list[float]:
    decided = [s.right for s in samples if s.right is not None]
    return [pass_at_k(len(decided), sum(decided), k) for k in ks]


def _majority(samples: Sequence[Scored], k: int) -> float:
    decided = [s for s in samples if s.right is not None]
    votes = Counter(s.vote for s in decided if s.vote is not None)
    # The members of a class should all be right or all wrong; where a verifier also looks at the form, most decide.
    right = [2 * sum(bool(s.right) for s in decided if s.vote == v) > votes[v] for v in votes]
    return maj_at_k(list(votes.values()), right, len(decided) - votes.total(), k)


def _means(samples: Sequence[Scored]) -> dict[str, float]:
    names = list(samples[0].verdicts) if samples else []
    row = {"reward": _mean([s.reward for s in samples])}
    for name in names:
        row[f"rewards/{name}/mean"] = _mean([s.verdicts[name].value for s in samples])
    forms = [name for name in names if "format" in name]
    if forms:
        values = [[s.verdicts[name].value for name in forms] for s in samples]
        row["format_rate"] = _mean(
            [None if None in each else float(all(v >= 1 for v in each if v is not None)) for each in values]
        )
    decided = [s for s in samples if s.right is not None]
    row["answered"] = _mean([float(s.answer is not None) for s in decided])
    row["unscored"] = _mean([float(s.right is None) for s in samples])
    row["completions/mean_length"] = _mean([float(len(s.sample.ids)) for s in samples])
    row["completions/clipped_ratio"] = _mean([float(s.sample.truncated) for s in samples])
    return row


def _mean(values: Sequence[float | None]) -> float:
    present = [v for v in values if v is not None]
    return math.fsum(present) / len(present) if present else math.nan


def is_share(name: str) -> bool:
    """Returns whether a metric's values lie in [0, 1] by their meaning."""
    return name.startswith(("pass@", "maj@")) or name in (
        "format_rate",
        "answered",
        "unscored",
        "completions/clipped_ratio",
    )


def summarize(
    scored: Sequence[Scored],
    problems: int,
    ks: Sequence[int],
    *,
    seed: int = 0,
    details: Mapping[str, Any] | None = None,
) -> EvalResult:
    """Returns the metrics of scored samples with their intervals.

    Args:
        scored: All samples.
        problems: Number of problems.
        ks: Sizes k of pass@k and maj@k.
        seed: Fixes the resamples of the intervals.
        details: What was run, for the record.
    """
    values = problem_values(scored, problems, ks)
    names = list(values)
    values_NM = np.stack([values[name] for name in names], axis=1)
    found = estimate_means(values_NM, shares=[is_share(name) for name in names], seed=seed)
    return EvalResult(
        dict(zip(names, found, strict=True)), values, problems, len(scored) // max(problems, 1), scored, details or {}
    )
