"""Which sampled solutions become training data: rejection sampling as in DeepSeek-R1 (arXiv 2501.12948v1, 2.3.3).

Stage: pipelines. In: every sample of every problem with its verdict. Out: the samples that are kept, and a count of
what each step left out:

    samples -> verified (value >= threshold) -> deduplicated within a problem -> capped per problem -> balanced

The paper keeps the correct responses of each prompt. The cap and the balance are ours: without them the problems that
the model always solves, which teach least, make up most of the data.

Everything is decided by the content and the seed, never by the order of the samples: a resumed run keeps the same.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import UserError

# Upper ends, inclusive, of the share of right samples of a problem; one that was never solved has nothing to keep.
DIFFICULTIES: Mapping[str, float] = {"hard": 1 / 3, "medium": 2 / 3, "easy": 1.0}


class Candidate(NamedTuple):
    """One sampled solution.

    Args:
        problem: Which problem: its index.
        sample: Which sample of that problem.
        text: The completion.
        value: The verdict's value; `None` where it could not be scored.
    """

    problem: int
    sample: int
    text: str
    value: float | None


@dataclass(frozen=True)
class Selection:
    """What is kept, and why the rest is not.

    Args:
        kept: Kept candidates, by problem and sample.
        pass_rates: Problem -> share of right ones among its scored samples, in [0, 1]; problems without a scored
            sample are absent.
        counts: `problems`, `samples`, then the samples that each step left out (`unscored`, `wrong`, `duplicate`,
            `over_cap`, `unbalanced`), `kept`, `problems_kept`, and `kept/<difficulty>`.
    """

    kept: tuple[Candidate, ...]
    pass_rates: Mapping[int, float]
    counts: Mapping[str, int]


def difficulty_of(pass_rate: float) -> str:
    """Returns the difficulty of a problem with this share of right samples, in [0, 1]."""
    return next(name for name, upper in DIFFICULTIES.items() if pass_rate <= upper + 1e-9)


def select(
    candidates: Sequence[Candidate],
    *,
    threshold: float = 1.0,
    max_per_prompt: int = 4,
    max_share: float = 0.5,
    seed: int = 0,
) -> Selection:
    """Returns what to keep of the samples.

    Args:
        candidates: All samples of all problems.
        threshold: A sample is right from this value on.
        max_per_prompt: Kept samples of one problem, at most.
        max_share: No difficulty makes up more than this share of what is kept, in (0, 1]; where fewer difficulties
            than that allows have anything, they are made equal. 1 does not balance.
        seed: Decides which of equals are kept.

    Raises:
        UserError: An option is out of its range.
    """
    if max_per_prompt < 1:
        raise UserError(f"max_per_prompt must be positive, found {max_per_prompt}")
    if not 0 < max_share <= 1:
        raise UserError(f"max_share must be in (0, 1], found {max_share}")
    by_problem: dict[int, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        by_problem[candidate.problem].append(candidate)
    counts: Counter[str] = Counter(problems=len(by_problem), samples=len(candidates))
    pass_rates: dict[int, float] = {}
    # (rank within the problem, draw, candidate): first samples of all problems go before the second of any.
    bins: dict[str, list[tuple[int, bytes, Candidate]]] = {name: [] for name in DIFFICULTIES}
    for problem, samples in by_problem.items():
        scored = [c for c in samples if c.value is not None]
        right = [c for c in scored if c.value is not None and c.value >= threshold]
        counts["unscored"] += len(samples) - len(scored)
        counts["wrong"] += len(scored) - len(right)
        if scored:
            pass_rates[problem] = len(right) / len(scored)
        distinct: dict[str, Candidate] = {}
        for candidate in sorted(right, key=lambda c: c.sample):
            distinct.setdefault(normalized(candidate.text), candidate)
        counts["duplicate"] += len(right) - len(distinct)
        drawn = sorted((_draw(seed, problem, text), c) for text, c in distinct.items())
        counts["over_cap"] += max(0, len(drawn) - max_per_prompt)
        for rank, (draw, candidate) in enumerate(drawn[:max_per_prompt]):
            bins[difficulty_of(pass_rates[problem])].append((rank, draw, candidate))
    limit = balanced_limit([len(each) for each in bins.values()], max_share)
    kept: list[Candidate] = []
    for name, ranked in bins.items():
        chosen = [candidate for _, _, candidate in sorted(ranked)[:limit]]
        counts["unbalanced"] += len(ranked) - len(chosen)
        counts[f"kept/{name}"] = len(chosen)
        kept += chosen
    counts["kept"] = len(kept)
    counts["problems_kept"] = len({c.problem for c in kept})
    for name in ("unscored", "wrong", "duplicate", "over_cap", "unbalanced"):
        counts.setdefault(name, 0)
    return Selection(tuple(sorted(kept, key=lambda c: (c.problem, c.sample))), pass_rates, dict(counts))


def normalized(text: str) -> str:
    """Returns a text as it counts for duplicates: Unicode's compatibility form, white space folded."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def balanced_limit(sizes: Sequence[int], max_share: float) -> int:
    """Returns the largest limit such that, with each bin cut to it, no bin exceeds its share of all that is left.

    Args:
        sizes: Items in each bin.
        max_share: In (0, 1]. Where fewer than 1 / max_share bins have items, no limit can do: then the smallest size
            of a bin with items, which makes them equal.
    """
    filled = sorted(size for size in sizes if size)
    if not filled:
        return 0
    share = max(max_share, 1 / len(filled))
    for limit in range(filled[-1], filled[0], -1):
        left = [min(size, limit) for size in filled]
        if max(left) <= share * sum(left) + 1e-9:
            return limit
    return filled[0]


def _draw(seed: int, problem: int, text: str) -> bytes:
    return hashlib.sha256(f"{seed}\n{problem}\n{text}".encode()).digest()
