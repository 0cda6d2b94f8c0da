r"""pass@k and maj@k of one problem from n >= k samples, without bias: the mean over all subsets of k samples.

Stage: evaluation. In: counts of one problem's samples. Out: a number in [0, 1], or NaN where fewer than k samples are
scored. Both are exact, not simulated: every one of the C(n, k) subsets counts once.

pass@k (Chen et al., arXiv 2107.03374, equation 1) is the chance that a subset holds a right sample:

    pass@k = 1 - C(n - c, k) / C(n, k)                                  n scored samples, c of them right

maj@k is the chance that the most frequent answer of a subset is right (self-consistency, arXiv 2203.11171; reported as
maj@64 by DeepSeekMath, arXiv 2402.03300). What the papers leave open is settled here:

- Samples vote with their extracted answer; equal answers (1/2 and 0.5) are one class, see `scoring`.
- A sample without an extracted answer abstains: it takes one of the k places and votes for nothing.
- A tie is broken at random, in expectation: where r of the m classes with most votes are right, it counts r/m.
- Where nobody votes, it counts 0.
- Unscored samples (verdict `None`) are left out before subsets are drawn, for both estimates: they are not wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

Array = npt.NDArray[np.float64]


def pass_at_k(scored: int, right: int, k: int) -> float:
    """Returns pass@k of one problem, NaN where `scored < k`.

    Args:
        scored: Samples with a verdict, n.
        right: Right ones among them, c.
        k: Size of a subset.

    Raises:
        ValueError: Counts that no samples can have.
    """
    _check(scored, k)
    if not 0 <= right <= scored:
        raise ValueError(f"{right} of {scored} samples cannot be right")
    if scored < k:
        return math.nan
    # C(n-c, k) / C(n, k) as a product of factors in [0, 1]: binomials of large n would overflow.
    missed = np.arange(scored - right - k + 1, scored - right + 1) / np.arange(scored - k + 1, scored + 1)
    return float(1.0 - np.prod(np.clip(missed, 0.0, None)))


def maj_at_k(votes: Sequence[int], right: Sequence[bool], abstained: int, k: int) -> float:
    """Returns maj@k of one problem, NaN where it has fewer than k scored samples.

    Args:
        votes: For each class of equal answers the number of samples that gave it.
        right: For each class whether it is right.
        abstained: Scored samples without an answer.
        k: Size of a subset.

    Raises:
        ValueError: Counts that no samples can have.
    """
    scored = sum(votes) + abstained
    _check(scored, k)
    if len(votes) != len(right) or any(v < 1 for v in votes) or abstained < 0:
        raise ValueError(f"each class needs a vote and a side: votes {votes}, right {right}, abstained {abstained}")
    if scored < k:
        return math.nan
    if k == scored:  # one subset
        most = max(votes, default=0)
        winners = [side for v, side in zip(votes, right, strict=True) if v == most]
        return sum(winners) / len(winners) if winners else 0.0
    return min(1.0, sum(_wins(votes, i, abstained, k) for i, side in enumerate(right) if side))


def _wins(votes: Sequence[int], which: int, abstained: int, k: int) -> float:
    """Returns the chance that class `which` wins a subset of k, a tie among m counted 1/m.

    The votes in a random subset are multivariate hypergeometric: independent binomials with any one success rate,
    given that they sum to k. So for each number x of votes of the class, polynomials of the other classes are
    multiplied, whose coefficients are probabilities (z counts votes, t counts classes that tie):

        prod_j ( sum_{y<x} P(Y_j = y) z^y + t P(Y_j = x) z^x ) * sum_y P(Y_abstain = y) z^y

    and the coefficients of z^(k-x) t^m are summed with weights 1/(1+m), over P(the sum is k).
    """
    scored = sum(votes) + abstained
    rate = k / scored
    others = [v for j, v in enumerate(votes) if j != which]
    total = 0.0
    for x in range(1, min(votes[which], k) + 1):
        left = k - x
        ties = min(left // x, len(others))
        # ways_TK[m, s]: the classes so far have s votes, m of them tie
        ways_TK = np.zeros((ties + 1, left + 1))
        ways_TK[0] = _pmf(abstained, rate, left)
        for count in others:
            pmf = _pmf(count, rate, min(count, x, left))
            below = pmf[:x]
            grown = np.stack([np.convolve(row, below)[: left + 1] for row in ways_TK])
            if len(pmf) > x and ties:
                grown[1:, x:] += pmf[x] * ways_TK[:-1, : left + 1 - x]
            ways_TK = grown
        chance = ways_TK[:, left] @ (1.0 / np.arange(1, ties + 2))
        total += float(_pmf(votes[which], rate, x)[x] * chance)
    return total / float(_pmf(scored, rate, k)[k])


def _pmf(count: int, rate: float, upto: int) -> Array:
    """Returns P(Y = 0..upto) of a binomial with `count` trials, 0 beyond `count`."""
    y = np.arange(upto + 1)
    ways = gammaln(count + 1) - gammaln(y + 1) - gammaln(count - y + 1)  # log-gamma is infinite where y > count
    chances: Array = np.exp(ways + y * math.log(rate) + (count - y) * math.log1p(-rate))
    return chances


def _check(scored: int, k: int) -> None:
    if k < 1 or scored < 0:
        raise ValueError(f"pass@k and maj@k need k >= 1 and a number of samples, found k={k}, n={scored}")
