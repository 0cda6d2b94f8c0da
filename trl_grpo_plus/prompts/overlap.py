"""Problems that stand on both sides of a split: the same text, or nearly the same.

Stage: prompts. In: the problems of training and of evaluation, as texts. Out: an `Overlap`. A score on problems that
were trained on measures memory; the split's name does not tell.

- The same: equal after normalising (Unicode forms, case, punctuation and white space aside).
- Nearly the same: of the runs of eight words of a held-out problem, at least 80 % stand in one training problem. Eight
  words is between the 13 of GPT-3's decontamination (arXiv 2005.14165, appendix C) and what short problems allow;
  problems of fewer words are compared for equality only. Runs that stand in more than a tenth of the held-out problems
  are the wording of the task ("put your final answer within ...") and do not count.

Time and memory grow with the number of words, not with the number of pairs.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_RUN = 8
_NEAR = 0.8
_COMMON = 0.1
_LEAST_COMMON = 3  # a run in so few problems is no wording, however few there are
_WORD = re.compile(r"\w+|[^\w\s]")
_KEPT_SIGNS = frozenset("+-*/=<>^%!|&~")  # 3+4 and 3-4 are not the same problem


@dataclass(frozen=True)
class Overlap:
    """What was found.

    Args:
        held_out: Number of held-out problems.
        exact: Pairs (held-out problem, a training problem with the same text), by index.
        near: Triples (held-out problem, training problem, share of its word runs that stand there), without `exact`.
    """

    held_out: int
    exact: tuple[tuple[int, int], ...]
    near: tuple[tuple[int, int, float], ...]

    @property
    def problems(self) -> int:
        """Held-out problems that stand in the training data, exactly or nearly."""
        return len(self.exact) + len(self.near)

    def describe(self) -> str:
        """Returns one line for a person."""
        if not self.problems:
            return f"none of {self.held_out:,} held-out problems stands in the training data"
        return (
            f"{self.problems:,} of {self.held_out:,} held-out problems stand in the training data "
            f"({len(self.exact):,} the same, {len(self.near):,} nearly)"
        )


def text_of(prompt: Any) -> str:
    """Returns the problem of a prompt: a text as it is, of messages what the user said."""
    if isinstance(prompt, str):
        return prompt
    return "\n".join(str(message["content"]) for message in prompt if message.get("role") != "system")


def words_of(text: str) -> tuple[str, ...]:
    """Returns the normalised words and signs of a text."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("−", "-")
    return tuple(w for w in _WORD.findall(folded) if w[0].isalnum() or w in _KEPT_SIGNS)


def find_overlap(train: Iterable[Any], held_out: Sequence[Any]) -> Overlap:
    """Returns the held-out problems that stand in the training data; each is reported with one training problem.

    Args:
        train: Training problems, texts or messages; read once.
        held_out: Held-out problems.
    """
    texts = [words_of(text_of(problem)) for problem in held_out]
    same: dict[tuple[str, ...], list[int]] = {}
    for i, words in enumerate(texts):
        same.setdefault(words, []).append(i)
    runs = [_runs(words) for words in texts]
    often = Counter(run for each in runs for run in each)
    limit = max(_LEAST_COMMON, _COMMON * len(texts))
    telling = [{run for run in each if often[run] <= limit} for each in runs]
    holders: dict[int, list[int]] = {}
    for i, each in enumerate(telling):
        for run in each:
            holders.setdefault(run, []).append(i)

    exact: dict[int, int] = {}
    near: dict[int, tuple[int, float]] = {}
    for j, problem in enumerate(train):
        words = words_of(text_of(problem))
        for i in same.get(words, ()):
            exact.setdefault(i, j)
        shared = Counter(i for run in _runs(words) for i in holders.get(run, ()))
        for i, count in shared.items():
            share = count / len(telling[i])
            if share >= _NEAR and share > near.get(i, (0, 0.0))[1]:
                near[i] = (j, share)
    return Overlap(
        len(texts),
        tuple(sorted(exact.items())),
        tuple((i, j, share) for i, (j, share) in sorted(near.items()) if i not in exact),
    )


def _runs(words: Sequence[str]) -> set[int]:
    """Returns the hashes of all runs of eight words."""
    return {hash(tuple(words[k : k + _RUN])) for k in range(len(words) - _RUN + 1)}
