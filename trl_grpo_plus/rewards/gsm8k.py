r"""`gsm8k`: 1.0 where the final number is the gold number.

GSM8K (arXiv 2110.14168) ends its solutions with `#### 72`. Models end theirs in many ways: what the text marks as its
answer decides, also where it is wrong (`<answer>`, `\boxed{}`, `####`, "the answer is": the one that comes last); only
where nothing is marked, the last number of the text. Several numbers where one is asked for are a hedge, and no
answer. Numbers are compared exactly, as fractions.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from typing import NamedTuple

from .marks import final_mark
from .registry import Row, register
from .text import stated_part
from .verdict import Verdict

_MAX_CHARS = 20_000  # looked at, from the end
_MAX_ASIDE = 200
_MAX_DIGITS = 100  # longer numbers are no answers, and arithmetic on them is slow
_INTEGER = r"(?:\d{1,3}(?:,\d{3})+(?!\d|,\d)|\d{1,2}(?:,\d{2})+,\d{3}(?!\d|,\d)|\d++)"
# A number: sign (a minus that follows a digit is a subtraction), currency, thousands, decimals, a plain fraction, a
# mixed number, e-notation.
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[-+]?)\s?[$€£¥]?\s?(?P<inner>-?)"
    rf"(?P<value>{_INTEGER}(?:\.\d+)?|\.\d+)(?P<power>[eE][-+]?\d+)?(?:(?P<mixed>\s+\d+)?\s*/\s*(?P<over>\d+))?"
    r"(?:\s*(?P<scale>hundred|thousand|million|billion|trillion)s?\b|\s*(?P<cjk>[万亿]))?"
    r"(?!\d|\.\d|h\d|(?:st|nd|rd|th)\b)",
)
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALES |= {"万": 10**4, "亿": 10**8}
_ARGUMENT = r"\s*(?:\{{\s*(?P<{0}>-?\d+)\s*\}}|(?P<{0}_>\d))"  # `\frac12` is 1 over 2
_FRACTION = re.compile(r"(?P<whole>\d)?\s*\\[dtc]?frac" + _ARGUMENT.format("over") + _ARGUMENT.format("under"))
_POWER_OF_TEN = re.compile(
    r"(?<![\w.])(?:(\d+(?:\.\d+)?)\s*(?:\\times|\\cdot|[*×·xX])\s*)?10\s*(?:\^|\*\*)\s*(?:\{\s*(-?\d{1,3})\s*\}|(-?\d{1,3}))"
)
_VULGAR = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
_CJK = re.compile(r"(?<=[\u3000-\u9fff])(?=[-+$€£¥]?\d)")  # no space parts words from numbers there
_INVISIBLE = re.compile(r"[\u200b-\u200f\u2060\ufeff\u00ad]")
_MARKUP = re.compile(r"<<[^<>]*>>|\\(?:text|mathrm|textbf|mathbf|mbox)\b|[{}*_`~]|\\boxed|\\[()\[\]]|\\(?=[$%#&])")
_GROUPING = re.compile(r"(?<=\d)(?:\\[,!;: ]|\{,\}|,\\!\s?|[\u00a0\u2009\u202f])(?=\d{3}(?!\d))")
_DASHES = str.maketrans("\u2212\u2013\u2010\u2011\ufe63", "-----")
_NOT_BUT = re.compile(r"^\s*not\b.{1,40}?\bbut\b", re.IGNORECASE)
_SPACED = re.compile(r"(?<![\d.,/])(\d{1,3})((?: \d{3})+)(?![\d.,/])")  # 72 000
_COUNTED = re.compile(r"\d[^\W\d]{0,3}(?:\s+[^\W\d]+){0,3}[.,]?\s*\Z")  # a number and its noun, at a text's end
_BOUND = re.compile(
    r"(?<![-=])[<>≤≥]\s*[$€£¥]?[-+]?\d[\d.,]*+(?!>)|\d[^\W\d]?\s+or\s+(?:more|less|fewer|over|above|below)\b"
)
_NOT = re.compile(r"(?:\bnot|n't)\s+(?:[$€£¥-])?\Z")
_PARENTHESES = re.compile(r"\([^()]*\)")
# Between two numbers: what makes one of them an alternative to the other, the end of a range, or one of a list.
_ALTERNATIVE = re.compile(
    r"[^\d.;\n]{0,20}?(?:\bor\b|\bto\b|\band/or\b|\band\b|,|/|[-~\u2014]|\bthrough\b)[^\d.;\n=]{0,20}"
)
_REFUSAL = re.compile(
    r"\b(?:cannot|can't|can not|could not|couldn't|don't know|do not know|not sure|unable|unclear|unsure)\b"
)


class Number(NamedTuple):
    """A number in a text: as written, its value, and where it stands."""

    written: str
    value: Fraction
    start: int
    end: int


def _plain(text: str) -> str:
    """Returns the text with one form for what has many: digits, dashes, separators of thousands, fractions, markup."""
    text = _GROUPING.sub(",", text.replace("{,}", ","))
    text = text.replace(r"\!", "").replace(r"\,", "")
    text = _FRACTION.sub(_fraction, _POWER_OF_TEN.sub(lambda m: f"{m[1] or 1}e{m[2] or m[3]}", text))
    text = unicodedata.normalize("NFKC", _VULGAR.sub(" ", _INVISIBLE.sub("", text)))
    return _CJK.sub(" ", _MARKUP.sub("", text.translate(_DASHES).replace("\u2044", "/")))


def _fraction(match: re.Match[str]) -> str:
    over, under = match["over"] or match["over_"], match["under"] or match["under_"]
    return f"{match['whole']} {over}/{under}" if match["whole"] else f"{over}/{under}"


def numbers(text: str) -> list[Number]:
    """Returns the numbers in a text, in order; those of more than 100 digits, and divisions by zero, are left out."""
    found = []
    for match in _NUMBER.finditer(text):
        digits, power, over = match["value"].replace(",", ""), match["power"] or "", match["over"]
        if max(len(digits), len(over or ""), len(match["mixed"] or "")) > _MAX_DIGITS:
            continue
        if len(power) > 4 or abs(int(power[1:] or 0)) > _MAX_DIGITS:
            continue
        value = Fraction((digits if not digits.startswith(".") else f"0{digits}") + power)
        if over:
            if int(over) == 0:
                continue
            value = value + Fraction(int(match["mixed"]), int(over)) if match["mixed"] else value / int(over)
        value *= _SCALES.get(match["scale"] or match["cjk"] or "", 1)
        negative = match["sign"] == "-" or bool(match["inner"])
        found.append(Number(match.group().strip(), -value if negative else value, match.start(), match.end()))
    return found


def _one(text: str) -> tuple[Number | None, str]:
    """Returns the one number that a marked answer states, or `None` and why there is none."""
    text = _SPACED.sub(lambda m: m[1] + m[2].replace(" ", ""), text.rsplit("=", 1)[-1])
    outside = _PARENTHESES.sub(" ", text)
    found = numbers(outside) or numbers(text)
    if _BOUND.search(text):
        return None, "a bound"
    if len({number.value for number in found}) == 1:
        return found[0], ""
    return None, f"{len(found) or 'no'} numbers"


def _spoken(text: str) -> tuple[Number | None, str]:
    """Returns the first number of "the answer is 72 apples, 3 each", unless the next is an alternative to it."""
    text = _NOT_BUT.sub("", _PARENTHESES.sub(" ", text.rsplit("=", 1)[-1]))
    found = numbers(text)
    if not found:
        return None, "no number"
    first, *others = found
    if others and others[0].value != first.value and _ALTERNATIVE.fullmatch(text, first.end, others[0].start):
        return (
            (first, "") if re.search(r"[A-Za-z]{3}\W*,", text[first.end : others[0].start]) else (None, "alternatives")
        )
    return first, ""


def _aside(text: str) -> int | None:
    """Returns where a note in parentheses begins that follows the last number, as in `$72 (48 + 24)`."""
    text = text.rstrip(" .!\n")
    start = text.rfind("(")
    if not text.endswith(")") or start < len(text) - _MAX_ASIDE or ")" in text[start:-1]:
        return None
    return start if _COUNTED.search(text[max(start - _MAX_ASIDE, 0) : start]) else None


def _last(text: str) -> tuple[Number | None, str]:
    """Returns the last number of a text that marks no answer."""
    found = numbers(text)
    if not found:
        return None, "no number"
    last = found[-1]
    aside = _aside(text)
    if aside is not None and (stated := [number for number in found if number.start < aside]):
        found, last = stated, stated[-1]
    if _NOT.search(text, max(last.start - 20, 0), last.start):
        return None, "no answer is given"
    if _REFUSAL.search(text, max(text.rfind("\n"), text.rfind(". "), 0)):
        return None, "no answer is given"
    if len(found) > 1 and found[-2].value != last.value:
        between = text[found[-2].end : last.start]
        if re.fullmatch(r"\s*(?:,|,?\s*or|,?\s*and|to|~)\s*", between):
            return None, "alternatives"
    return last, ""


def final_number(text: str) -> tuple[Number | None, str]:
    """Returns the final number of a solution, and where it was found or why there is none.

    Args:
        text: The solution, without its reasoning part.
    """
    mark = final_mark(text)
    if mark is not None and mark.cut_off:
        return None, f"{mark.kind} is not closed"
    if mark is None:
        number, why = _last(_plain(text))
        return number, why or "last number"
    number, why = (_spoken if mark.kind == "answer is" else _one)(_plain(mark.content))
    return number, f"{why} in {mark.kind}, wanted one" if why else mark.kind


def same_number(a: str, b: str) -> bool:
    """Returns whether two answers state the same final number."""
    first, second = (final_number(str(text)[-_MAX_CHARS:])[0] for text in (a, b))
    return first is not None and second is not None and first.value == second.value


@register(
    "gsm8k",
    description="1.0 where the final number equals the gold number (`#### 72`, or a bare number)",
    columns=("answer",),
    optional=("prompt",),
    accuracy=True,
    version=3,
    runs="inline",
    same=same_number,
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
    solution = str(row[column])
    gold, _ = final_number(solution[-_MAX_CHARS:])
    if gold is None:
        return Verdict.unscored(f"the row's `{column}` holds no final number: {solution[-80:]!r}")
    stated = stated_part(completion, row)
    if stated is None:
        return Verdict(0.0, None, "the reasoning is not closed")
    number, where = final_number(stated[-_MAX_CHARS:])
    if number is None:
        return Verdict(0.0, None, where)
    right = number.value == gold.value
    return Verdict(
        1.0 if right else 0.0, number.written, f"{where}: " + ("equal" if right else f"gold is {gold.written}")
    )
