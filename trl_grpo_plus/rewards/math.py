r"""`math`: 1.0 where the final answer is mathematically equal to the gold answer, by `math-verify`.

The gold answer is taken as given (`\frac12`, `1/2`, `$\frac{1}{2}$`, a solution ending in `\boxed{}` or `####`). The
completion's answer is the last `<answer>` tag, `\boxed{}` or `####` after the reasoning; only where it has none is the
whole text searched, as `math-verify` does.

Comparisons run under `math-verify`'s own timeouts, which need the main thread; elsewhere they run without, as in TRL.
"""

from __future__ import annotations

import re
import threading
from typing import Any

from .marks import final_mark
from .registry import Row, register
from .text import stated_part
from .verdict import Verdict

_MAX_ANSWER_CHARS = 1000
# Powers that would not fit in memory; sympy would try them in C code, where no timeout is heard.
_HUGE_POWER = re.compile(
    r"(?:\*\*|\^)\s*\{?\s*(?:\d{5,}|[^}]{0,20}(?:\*\*|\^)\s*\{?\s*\d{2,}|\d+\s*\{?\s*(?:\*\*|\^))"
)


def _marked(text: str) -> str | None:
    mark = final_mark(text)
    return None if mark is None else mark.content


def _parse(text: str, timeout_s: int | None) -> list[Any]:
    from math_verify import parse

    return list(parse(text, parsing_timeout=timeout_s))


def _parse_bare(text: str, timeout_s: int | None) -> list[Any]:
    """Parses an answer that stands alone: as LaTeX where that works, else as a plain expression."""
    return (_parse(f"${text}$", timeout_s) if "$" not in text else []) or _parse(text, timeout_s)


@register(
    "math",
    description="1.0 where the final answer equals the gold answer mathematically (math-verify)",
    columns=("answer",),
    aliases=("math_verify",),
    accuracy=True,
)
def math(completion: str, row: Row, *, column: str = "answer", timeout_s: int = 5) -> Verdict:
    """Scores 1.0 where the final answer equals the gold answer, 0.0 elsewhere.

    Args:
        completion: The completion's text.
        row: The row with the gold answer.
        column: Column of the gold answer.
        timeout_s: Seconds for each of: parsing the gold answer, parsing the completion, comparing. One that runs out
            leaves the completion unscored.
    """
    from math_verify import verify
    from math_verify.errors import TimeoutException

    if row.get(column) is None:
        return Verdict.unscored(f"the row has no `{column}`")
    solution = str(row[column])
    gold_text = _marked(solution) or solution.strip()
    stated = stated_part(completion, row)
    if stated is None:
        return Verdict(0.0, None, "the reasoning is not closed")
    marked = _marked(stated)
    answer_text = marked if marked is not None else stated
    if marked is not None and len(marked) > _MAX_ANSWER_CHARS:
        return Verdict(0.0, None, f"the answer has {len(marked)} characters")
    if _HUGE_POWER.search(answer_text):
        return Verdict(0.0, answer_text[-80:], "a power too large to compute")
    limit = timeout_s if threading.current_thread() is threading.main_thread() else None
    try:
        gold = _parse_bare(gold_text, limit)
        if not gold:
            return Verdict.unscored(f"the row's `{column}` does not parse: {gold_text[:80]!r}")
        answer = _parse_bare(answer_text, limit) if marked is not None else _parse(answer_text, limit)
        if not answer:
            return Verdict(0.0, None, "no answer found")
        right = bool(verify(gold, answer, timeout_seconds=limit, raise_on_error=True))
    except TimeoutException:
        return Verdict.unscored(f"not decided within {timeout_s} s")
    written = str(answer[-1]) if marked is None else marked
    return Verdict(1.0 if right else 0.0, written, "equal" if right else f"gold is {gold_text[:80]}")
