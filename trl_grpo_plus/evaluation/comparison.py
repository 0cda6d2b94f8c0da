"""Two evaluations on the same problems, compared problem by problem: what changed, and whether chance explains it.

Stage: evaluation. In: the directories of two finished evaluations. Out: a `Comparison`. Problems are paired by their
content (what the model was asked, and the gold answer), so the order and the number of problems may differ.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UserError
from ..rewards import Verdict
from .intervals import Difference, paired_difference
from .result import problem_values
from .sampling import Sample
from .scoring import Scored
from .store import read_run


@dataclass(frozen=True)
class Comparison:
    """Run B against run A.

    Args:
        differences: Metric -> B minus A, over the problems that both have.
        paired: Number of those problems.
        only_a: Problems that only run A has.
        only_b: Problems that only run B has.
    """

    differences: Mapping[str, Difference]
    paired: int
    only_a: int
    only_b: int


def compare(run_a: str | Path, run_b: str | Path, *, ks: Sequence[int] | None = None, seed: int = 0) -> Comparison:
    """Returns the paired differences of two evaluations.

    Args:
        run_a: Directory of a finished evaluation.
        run_b: Directory of another one.
        ks: Sizes k of pass@k and maj@k; by default those that both runs reported.
        seed: Fixes the resamples.

    Raises:
        UserError: A directory holds no finished evaluation, a run has fewer than k samples, or no problem is common.
    """
    first, second = _load(run_a), _load(run_b)
    sizes = sorted(set(first.ks) & set(second.ks) or {1}) if ks is None else list(ks)
    for run, directory in ((first, run_a), (second, run_b)):
        if max(sizes) > run.n:
            raise UserError(f"k={max(sizes)}: {directory} has {run.n} samples per problem")
    common = [key for key in first.keys if key in second.keys]
    if not common:
        raise UserError(f"{run_a} and {run_b} have no problem in common: nothing to compare")
    rows_a, rows_b = ([run.keys[key] for key in common] for run in (first, second))
    values_a, values_b = (problem_values(run.scored, len(run.keys), sizes) for run in (first, second))
    differences = {
        name: paired_difference(values_a[name][rows_a], values_b[name][rows_b], seed=seed)
        for name in values_a
        if name in values_b
    }
    return Comparison(differences, len(common), len(first.keys) - len(common), len(second.keys) - len(common))


@dataclass(frozen=True)
class _Run:
    keys: Mapping[tuple[Any, ...], int]  # content of a problem -> its index
    scored: Sequence[Scored]
    ks: Sequence[int]
    n: int


def _load(directory: str | Path) -> _Run:
    problems, rows = read_run(directory)
    keys: dict[tuple[Any, ...], int] = {}
    seen: dict[tuple[Any, ...], int] = {}
    for i, problem in enumerate(problems):
        content = (str(problem.get("prompt")), str(problem.get("answer")))
        seen[content] = seen.get(content, 0) + 1
        keys[(*content, seen[content])] = i  # a problem that stands there twice is paired in order
    names = [column[8:-7] for column in rows[0] if column.startswith("rewards/") and column.endswith("/reason")]
    result = json.loads((Path(directory) / "result.json").read_text())
    ks = [int(name[5:]) for name in result["metrics"] if name.startswith("pass@")]
    return _Run(keys, [_scored(row, names) for row in rows], ks, int(result["samples_per_problem"]))


def _scored(row: Mapping[str, Any], names: Sequence[str]) -> Scored:
    sample = Sample(row["problem"], row["number"], row["completion"], row["ids"], row["truncated"])
    verdicts = {}
    for name in names:
        column = f"rewards/{name}"
        verdicts[name] = Verdict(_number(row[column]), row[f"{column}/answer"], row[f"{column}/reason"] or "not said")
    return Scored(
        sample, verdicts, _number(row["reward"]), _number(row["value"]), row["right"], row["answer"], row["vote"]
    )


def _number(value: Any) -> float | None:
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else float(value)


def as_json(found: Comparison) -> dict[str, Any]:
    """Returns a comparison as JSON values."""
    metrics = {}
    for name, d in found.differences.items():
        numbers = {"a": d.a, "b": d.b, "change": d.change.value, "low": d.change.low, "high": d.change.high}
        metrics[name] = {k: v if np.isfinite(v) else None for k, v in numbers.items()} | {"p_value": d.p_value}
    return {"paired": found.paired, "only_a": found.only_a, "only_b": found.only_b, "metrics": metrics}
