r"""`math`: 1.0 where the final answer is mathematically equal to the gold answer.

The final answer is the one that the completion marks last (`marks`), or states as its conclusion (`prose`). It is
brought into one form (`normalise`, `units`), read into a shape (`shapes`) whose values are expression trees
(`grammar`), and compared part by part (`compare`, `sets`), exactly or to many digits (`value`). What is beyond that
grammar, integrals and limits, goes to `math-verify` (`fallback`).

Why not `math-verify` alone: it takes the last thing that parses for the answer, rounds to six digits, and needs
signals against power towers, which only the main thread has. Here nothing runs longer than its size allows, in any
thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..marks import final_mark
from ..registry import Row, register
from ..text import stated_part
from ..verdict import Verdict
from .compare import equal
from .fallback import NeedsMainThread, beyond_the_grammar, equal_by_math_verify
from .prose import conclusion, spoken
from .shapes import shape_of

_MAX_CHARS = 50_000  # of a completion, from the end
_MAX_ANSWER_CHARS = 20_000
_MAX_GOLD_WORDS = 20
_SENTENCE = re.compile(r"(?:so|thus|hence|therefore)\b", re.IGNORECASE)  # short words can be read as symbols, too


def equivalent(a: str, b: str) -> bool:
    r"""Returns whether two answers are the same, for votes: `1/2`, `0.5` and `\frac12` are.

    Args:
        a: An answer by itself, or text that marks one.
        b: Another one.
    """
    first, second = (_gold_text(text) for text in (str(a), str(b)))
    return equal(first, second) or equal(second, first)


def _gold_text(solution: str) -> str:
    """Returns the answer in a gold column: a bare answer, or a solution that marks it."""
    mark = final_mark(solution[-_MAX_CHARS:])
    if mark is None or mark.cut_off:
        return solution.strip()
    return spoken(mark.content) if mark.kind == "answer is" else mark.content


def _gold(value: Any) -> str:
    """Returns the gold answer as text.

    Raises:
        ValueError: There is none; the message says why.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != 1:
            raise ValueError(f"holds {len(value)} answers; give one as text")
        value = value[0]
    if value is None or isinstance(value, Mapping):
        raise ValueError("holds no answer")
    text = _gold_text(str(value))
    if not text or text in ("nan", "NaN", "None"):
        raise ValueError("is empty")
    shape = shape_of(text[:_MAX_ANSWER_CHARS])
    if shape.kind == "words" and len(str(shape.detail).split()) > _MAX_GOLD_WORDS:
        raise ValueError("holds prose and marks no answer in it")
    return text


def _answer(stated: str) -> tuple[str | None, str]:
    """Returns the final answer of a completion, and where it stands or why there is none."""
    mark = final_mark(stated)
    if mark is not None:
        if mark.cut_off:
            return None, f"{mark.kind} is not closed"
        if mark.kind in ("answer is", "<answer>"):
            said = spoken(mark.content)
            sentence = _SENTENCE.match(said) or shape_of(said[:_MAX_ANSWER_CHARS]).kind == "words"
            if mark.kind == "<answer>" and sentence:
                said = conclusion(mark.content) or said
            return said, mark.kind
        return mark.content, mark.kind
    answer = conclusion(stated)
    return answer, "conclusion" if answer is not None else "no answer is marked"


@register(
    "math",
    description="1.0 where the final answer equals the gold answer mathematically",
    columns=("answer",),
    optional=("prompt",),
    aliases=("math_verify",),
    accuracy=True,
    version=3,
    same=equivalent,
    imports=("mpmath", "math_verify"),
)
def math(completion: str, row: Row, *, column: str = "answer") -> Verdict:
    """Scores 1.0 where the final answer equals the gold answer, 0.0 elsewhere.

    Args:
        completion: The completion's text.
        row: The row with the gold answer.
        column: Column of the gold answer: a number or a text, bare, in `$...$`, or a solution that marks its answer.
    """
    try:
        gold = _gold(row.get(column))
    except ValueError as error:
        return Verdict.unscored(f"the row's `{column}` {error}")
    stated = stated_part(completion, row)
    if stated is None:
        return Verdict(0.0, None, "the reasoning is not closed")
    answer, where = _answer(stated[-_MAX_CHARS:])
    if answer is None:
        return Verdict(0.0, None, where)
    shown = answer[:500]
    if len(answer) > _MAX_ANSWER_CHARS:
        return Verdict(0.0, shown, f"the answer has {len(answer)} characters")
    if equal(gold, answer):
        return Verdict(1.0, shown, f"{where}: equal")
    if beyond_the_grammar(gold, answer):
        try:
            right = equal_by_math_verify(gold, answer)
        except NeedsMainThread as error:
            return Verdict.unscored(str(error))
        if right is not None:
            return Verdict(float(right), shown, f"{where}: {'equal' if right else 'not equal'} by math-verify")
    return Verdict(0.0, shown, f"{where}: gold is {gold[:80]}")
