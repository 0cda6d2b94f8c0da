"""Comparing what a program claims with what a test expects, in the trainer: bounded work, and nothing built from it.

A claim is walked side by side with the expected value, so that the work is bounded by the latter: a claimed set of a
million colliding numbers never becomes a set. Equality is Python's (`1 == 1.0 == True`, a list is no tuple), with
every subclass collapsed to its base.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import math
from dataclasses import dataclass
from typing import Any

from .inside import codec

_NUMBERS = (bool, int, float, complex)
_NUMERIC_TAGS = ("i", "f", "c", "D", "Q")


class _No(Exception):
    """Not equal, whatever else follows."""


@dataclass(frozen=True)
class FromJson:
    """An expected value that was kept as JSON, which has no tuples and rounds what a program computes.

    Args:
        values: Values of which any is right.
        tolerance: How far a number may be off, absolute or relative, where a float is expected.
    """

    values: tuple[Any, ...]
    tolerance: float = 0.0


def equals(claim: Any, expected: Any, identical: bool = False) -> bool:
    """Returns whether a claim, as JSON, equals an expected plain value.

    Args:
        claim: What `json.loads` made of the program's answer; may be anything.
        expected: A value of literals, or a `FromJson`: a tuple is then as good as a list.
        identical: Whether it must be the very object, for `is None` and `is True`.
    """
    if identical:
        return type(claim) is type(expected) and bool(claim == expected)
    if isinstance(expected, FromJson):
        return any(_compared(claim, value, expected.tolerance) for value in expected.values)
    return _compared(claim, expected, None)


def _compared(claim: Any, expected: Any, tolerance: float | None) -> bool:
    try:
        return _equals(claim, expected, tolerance)
    except (_No, ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError):
        return False


def _tagged(claim: Any) -> tuple[str, Any]:
    if type(claim) is not dict or len(claim) != 1:
        raise _No
    ((tag, body),) = claim.items()
    return tag, body


def _equals(claim: Any, expected: Any, tolerance: float | None) -> bool:
    """Returns whether they are equal; with a tolerance, as what was kept as JSON is."""
    kind = type(expected)
    from_json = tolerance is not None
    if expected is None:
        return claim is None
    if kind in _NUMBERS:
        number = _number(claim)
        if tolerance is not None and kind is float and not isinstance(number, complex):
            return math.isclose(float(number), expected, rel_tol=tolerance, abs_tol=tolerance)
        return bool(number == expected)
    if kind is str:
        if type(claim) is str:
            return bool(claim == expected)
        tag, body = _tagged(claim)
        return tag == "s" and bool(codec.LEAVES["s"](body) == expected)
    tag, body = _tagged(claim)
    if expected is ...:
        return tag == "E"
    if kind is bytes:
        return tag in ("b", "B") and bytes.fromhex(body) == expected
    if kind in (list, tuple):
        if tag == "n" and (kind is tuple or from_json):
            body = body[1]
        elif tag != ("l" if kind is list else "t") and not (from_json and tag == "t"):
            return False
        pairs = zip(body, expected, strict=True)
        return type(body) is list and len(body) == len(expected) and all(_equals(c, e, tolerance) for c, e in pairs)
    if kind is dict:
        tag, body = ("d", body[1]) if tag == "M" else (tag, body)
        if tag != "d" or len(body) < len(expected):
            return False
        claimed: dict[Any, Any] = {}
        for key, value in body[: 2 * len(expected) + 1]:
            claimed[_hashable(key)] = value
        if len(body) > 2 * len(expected) + 1 or claimed.keys() != expected.keys():
            return False
        return all(_equals(claimed[key], value, tolerance) for key, value in expected.items())
    if kind in (set, frozenset):
        tag, body = ("S", body[1]) if tag == "V" and body[0] in ("keys", "items") else (tag, body)
        if tag not in ("S", "F") or len(body) != len(expected):
            return False
        return bool({_hashable(item) for item in body} == expected)
    return False


def _number(claim: Any) -> Any:
    if type(claim) in (bool, int):
        return claim
    tag, body = _tagged(claim)
    if tag not in _NUMERIC_TAGS:
        raise _No
    return codec.LEAVES[tag](body)


def _hashable(claim: Any) -> Any:
    """Returns a key or an element: what literals can hold, so no sets."""
    if claim is None or type(claim) in (bool, int, str):
        return claim
    tag, body = _tagged(claim)
    if tag in ("t", "n"):
        return tuple(_hashable(item) for item in (body if tag == "t" else body[1]))
    if tag not in (*_NUMERIC_TAGS, "s", "b"):
        raise _No
    value = codec.LEAVES[tag](body)
    if not isinstance(value, (int, float, complex, str, bytes, decimal.Decimal, fractions.Fraction, datetime.date)):
        raise _No
    return value


def same_output(found: str, expected: str, tolerance: float) -> bool:
    """Returns whether what a program printed is what was expected.

    White space at the ends of lines and at the end of the text does not count. Where the expected text has a number
    with a decimal point or an exponent, a number within `tolerance` of it, absolute or relative, will do; whole
    numbers and all other text are compared as they stand.

    Args:
        found: What the program printed.
        expected: What it should have.
        tolerance: 0 compares numbers as texts, too.
    """
    mine, theirs = _lines(found), _lines(expected)
    if mine == theirs:
        return True
    if not tolerance or len(mine) != len(theirs):
        return False
    return all(a == b or _close_line(a, b, tolerance) for a, b in zip(mine, theirs, strict=True))


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _close_line(found: str, expected: str, tolerance: float) -> bool:
    mine, theirs = found.split(), expected.split()
    if len(mine) != len(theirs) or mine == theirs:  # the latter: other white space within the line
        return False
    return all(a == b or _close(a, b, tolerance) for a, b in zip(mine, theirs, strict=True))


def _close(found: str, expected: str, tolerance: float) -> bool:
    if not any(c in expected for c in ".eE") or len(found) > 400 or not (found + expected).isascii() or "_" in found:
        return False
    try:
        mine, theirs = float(found), float(expected)
    except ValueError:
        return False
    return math.isfinite(mine) and math.isclose(mine, theirs, rel_tol=tolerance, abs_tol=tolerance)
