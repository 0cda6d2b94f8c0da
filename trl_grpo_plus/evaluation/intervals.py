"""Confidence intervals over problems, and paired tests between two runs on the same problems.

Stage: evaluation. In: one value per problem and metric, NaN where a problem has none. Out: an interval of the mean
over problems. Problems are resampled, with all their samples: samples of one problem are not independent. An interval
therefore covers the choice of problems and the sampling of answers, not the choice of a training seed.

Intervals are BCa bootstraps (Efron 1987, "Better bootstrap confidence intervals"): as the percentile bootstrap, but
corrected for bias and skewness, which matter where few problems are solved.

Shapes: N problems, M metrics, R resamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

Array = npt.NDArray[np.float64]

LEVEL = 0.95
_RESAMPLES = 4000
_BLOCK = 1 << 22  # counts drawn at once: 32 MiB


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems and its 95 % interval.

    Args:
        value: The mean; NaN where no problem has a value.
        low: Lower end of the interval.
        high: Upper end.
        problems: Problems that have a value.
    """

    value: float
    low: float
    high: float
    problems: int


def estimate_means(
    values_NM: Array, *, shares: Sequence[bool], seed: int = 0, resamples: int = _RESAMPLES
) -> list[Estimate]:
    """Returns the mean over problems of each metric, with its interval; all metrics share the resamples.

    Args:
        values_NM: One row per problem, one column per metric, NaN where a problem has no value.
        shares: For each metric whether its values lie in [0, 1]. Where all values are equal a bootstrap sees no
            spread; of a share that is 0 or 1 on all problems the exact binomial (Clopper-Pearson) interval is given
            instead, which holds for any values in [0, 1].
        seed: Fixes the resamples.
        resamples: Bootstrap resamples, R.
    """
    values_NM = np.asarray(values_NM, dtype=np.float64)
    present_NM = np.isfinite(values_NM)
    filled_NM = np.where(present_NM, values_NM, 0.0)
    problems_M = present_NM.sum(axis=0)
    means_RM = _resampled_means(filled_NM, present_NM, seed, resamples)
    found = []
    for m, share in enumerate(shares):
        column = values_NM[present_NM[:, m], m]
        if not len(column):
            found.append(Estimate(np.nan, np.nan, np.nan, 0))
            continue
        mean = float(column.mean())
        if np.ptp(column) == 0:
            low, high = _of_equal_values(mean, len(column)) if share else (mean, mean)
        else:
            low, high = _bca(column, means_RM[:, m])
        found.append(Estimate(mean, low, high, int(problems_M[m])))
    return found


def _resampled_means(filled_NM: Array, present_NM: npt.NDArray[np.bool_], seed: int, resamples: int) -> Array:
    """Returns (R, M) means over resampled problems; NaN where a resample holds no problem with a value."""
    problems = len(filled_NM)
    generator = np.random.default_rng(seed)
    block = max(1, _BLOCK // max(problems, 1))
    means = []
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        # How often each problem is drawn: a mean over a resample is then a product of matrices.
        counts_RN = generator.multinomial(problems, np.full(problems, 1.0 / problems), size=size).astype(np.float64)
        with np.errstate(invalid="ignore", divide="ignore"):
            means.append(counts_RN @ filled_NM / (counts_RN @ present_NM.astype(np.float64)))
    return np.concatenate(means)


def _bca(column: Array, means_R: Array) -> tuple[float, float]:
    """Returns the BCa interval of the mean of `column` from its resampled means (Efron 1987, equation 2.3)."""
    means_R = np.sort(means_R[np.isfinite(means_R)])
    mean = column.mean()
    # Ties count half, as means over few problems take few values.
    below = (np.searchsorted(means_R, mean, "left") + np.searchsorted(means_R, mean, "right")) / (2 * len(means_R))
    bias = stats.norm.ppf(np.clip(below, 1 / len(means_R), 1 - 1 / len(means_R)))
    spread = mean - column  # of a mean, the jackknife's deviations are proportional to these
    acceleration = np.sum(-(spread**3)) / (6.0 * np.sum(spread**2) ** 1.5)
    z = stats.norm.ppf([(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    at = stats.norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z)))
    low, high = np.quantile(means_R, at)
    return float(low), float(high)


def _of_equal_values(share: float, problems: int) -> tuple[float, float]:
    if share not in (0.0, 1.0):
        return share, share
    interval = stats.binomtest(round(share * problems), problems).proportion_ci(LEVEL, method="exact")
    return float(interval.low), float(interval.high)


@dataclass(frozen=True, slots=True)
class Difference:
    """Run B minus run A on the problems that both have.

    Args:
        a: Mean of A.
        b: Mean of B.
        change: b - a, with its interval over problems.
        p_value: Two-sided p-value of the paired permutation test: under "no difference" the two values of a problem
            may be swapped, so each difference has either sign with equal chance.
    """

    a: float
    b: float
    change: Estimate
    p_value: float


def paired_difference(a_N: Array, b_N: Array, *, seed: int = 0, resamples: int = 9999) -> Difference:
    """Returns the difference of two runs, one value per problem each, in the same order; NaN pairs are left out.

    Args:
        a_N: Values of run A.
        b_N: Values of run B.
        seed: Fixes the resamples of the interval and of the test.
        resamples: Random swaps of the test; with few problems all of them are tried instead, and it is exact.
    """
    both = np.isfinite(a_N) & np.isfinite(b_N)
    a, b = np.asarray(a_N, dtype=np.float64)[both], np.asarray(b_N, dtype=np.float64)[both]
    (change,) = estimate_means((b - a)[:, None], shares=[False], seed=seed)
    if not len(a) or not np.any(a != b):
        return Difference(float(a.mean()) if len(a) else np.nan, float(b.mean()) if len(b) else np.nan, change, 1.0)
    test = stats.permutation_test(
        (b - a,),
        lambda d, axis: d.mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=resamples,
        batch=max(1, _BLOCK // len(a)),
        rng=np.random.default_rng(seed),
    )
    return Difference(float(a.mean()), float(b.mean()), change, float(test.pvalue))
