r"""`gsm8k`: 1.0 where the final number is the gold number.

GSM8K (arXiv 2110.14168) ends its solutions with `#### 72`. Models end theirs in many ways; the final number is
looked for, after the reasoning, in this order: the last `<answer>` tag, the last `\boxed{}`, the last `####`, the last
"answer is", and at last the last number of the text. Where the answer is marked, the mark decides, also a wrong one.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .registry import Row, register
from .text import marked_answer, without_reasoning
from .verdict import Verdict

_MAX_DIGITS = 100  # longer numbers are no answers, and arithmetic on them is slow
_INTEGER = r"(?:\d{1,3}(?:,\d{3})+(?!\d|,\d)|\d+)"
# A number: sign (a minus that follows a digit is a subtraction), currency, thousands, decimals, and a plain fraction.
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[-−–+]?)[$€£]?(?P<inner>[-−]?)"
    rf"(?P<value>{_INTEGER}(?:\.\d+)?|\.\d+)(?:\s*/\s*(?P<over>\d+))?"
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_SAID = re.compile(r"(?:answer\s*(?:is|:|=)|answer\s+would\s+be)", re.IGNORECASE)


def _numbers(text: str) -> list[tuple[str, Fraction]]:
    """Returns (as written, value) of each number in `text`, in order."""
    text = _FRACTION.sub(r"\1/\2", text)
    text = text.replace(r"\$", "$").replace(r"\!", "").replace(r"\,", "").replace("{,}", ",")
    found = []
    for match in _NUMBER.finditer(text):
        digits = match["value"].replace(",", "")
        if len(digits) > _MAX_DIGITS or len(match["over"] or "") > _MAX_DIGITS:
            continue
        value = Fraction(digits if not digits.startswith(".") else f"0{digits}")
        if match["over"]:
            if int(match["over"]) == 0:
                continue
            value /= int(match["over"])
        negative = match["sign"] in ("-", "−", "–") or bool(match["inner"])
        found.append((match.group().strip(), -value if negative else value))
    return found


def _said(text: str) -> tuple[str, str] | None:
    """Returns ("answer is", the rest of its sentence) for the last "answer is" in the text, or `None`."""
    said = list(_SAID.finditer(text))
    if not said:
        return None
    sentence = text[said[-1].end() :].strip(" *:$\n")
    return "answer is", re.split(r"\n|\.(?=\s|$)", sentence, maxsplit=1)[0]


def final_number(text: str) -> tuple[str | None, Fraction | None, str]:
    """Returns (as written, value, where it was found) of the final number of a solution.

    Args:
        text: The solution, without its reasoning part.

    Returns:
        The number as written and its value, both `None` where no single final number is stated, and where it was found
        or why there is none.
    """
    mark = marked_answer(text) or _said(text)
    if mark is not None:
        kind, marked = mark
        numbers = _numbers(marked.rsplit("=", 1)[-1])
        if kind == "answer is" and numbers:  # prose follows: the number that comes first is the one that is meant
            return (*numbers[0], kind)
        if kind != "answer is":
            if len({value for _, value in numbers}) == 1:
                return (*numbers[0], kind)
            return None, None, f"{len(numbers) or 'no'} numbers in {kind}, wanted one"
    numbers = _numbers(text)
    return (*numbers[-1], "last number") if numbers else (None, None, "no number")


@register(
    "gsm8k",
    description="1.0 where the final number equals the gold number (`#### 72`, or a bare number)",
    columns=("answer",),
    accuracy=True,
)
def gsm8k(completion: str, row: Row, *, column: str = "answer") -> Verdict:
    """Scores 1.0 where the completion's final number equals that of the gold solution, 0.0 elsewhere.

    Args:
        completion: The completion's text.
        row: The row; its gold answer is a GSM8K solution that ends with `#### number`, or a number.
        column: Column of the gold answer.
    """
    if row.get(column) is None:
        return Verdict.unscored(f"the row has no `{column}`")
    gold_text, gold, _ = final_number(str(row[column]))
    if gold is None:
        return Verdict.unscored(f"the row's `{column}` holds no final number: {str(row[column])[-80:]!r}")
    stated = without_reasoning(completion)
    if stated is None:
        return Verdict(0.0, None, "the reasoning is not closed")
    written, value, where = final_number(stated)
    if value is None:
        return Verdict(0.0, None, where)
    right = value == gold
    return Verdict(1.0 if right else 0.0, written, f"{where}: " + ("equal" if right else f"gold is {gold_text}"))
