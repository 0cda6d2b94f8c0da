r"""When two expressions have the same value: as fractions, else to many digits, with symbols at several points.

Stage: rewards, `math`. A rounded decimal does not equal an exact value, with one concession: six decimals or more,
rightly rounded, of a number that no decimal can write out (0.333333 for 1/3), as `math-verify` has it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from .grammar import Tree, has, symbols
from .value import NoValue, Numeric, TooLarge, exact

_DIGITS = 60
_CHECK_DIGITS = 160
_MIN_DECIMALS = 6
_INFINITIES = (("sym", "\\infty"), ("neg", ("sym", "\\infty")))
_ENOUGH = 2  # points at which both sides must have a value


@functools.lru_cache(maxsize=8192)
def exact_value(tree: Tree) -> Fraction | None:
    try:
        return exact(tree)
    except (NoValue, RecursionError):
        return None


def decimals(tree: Tree) -> int:
    """Returns the digits after the point of a decimal literal, 0 of anything else."""
    if tree[0] == "neg":
        tree = tree[1]
    return len(tree[2].partition(".")[2]) if tree[0] == "num" and tree[2].replace(".", "").isdigit() else 0


def _is_rounded(literal: Tree, value: Fraction, other: Any, digits: int) -> bool:
    """Whether a decimal is the other value, rounded or cut off at its last digit; six digits or more, not zeros."""
    if digits < _MIN_DECIMALS or abs(value) < Fraction(1, 10 ** (digits - _MIN_DECIMALS + 1)):
        return False
    difference = abs(other - Fraction(value)) if isinstance(other, Fraction) else None
    if difference is None:
        ctx_value = Numeric(_DIGITS, {}, False)._fraction(value)
        return bool(abs(other - ctx_value) < ctx_value.context.mpf(10) ** -digits)
    denominator = other.denominator if isinstance(other, Fraction) else 1
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator != 1 and difference < Fraction(1, 10**digits)


def _points(names: Sequence[str]) -> Iterator[tuple[dict[str, Fraction], bool]]:
    """Yields (value of each symbol, whether all are whole numbers): positive, negative, small and whole ones."""
    source = random.Random(20240203)  # the same points for both sides, and in every run
    for low, high in ((1.1, 3.4), (0.1, 0.9), (-2.9, -0.2), (-2.2, 2.6), (2.0, 9.0)):
        yield {name: Fraction(round(source.uniform(low, high) * 1024) * 2 + 1, 2048) for name in names}, False
    for start, step in ((2, 1), (3, 2), (7, -1), (4, 3), (5, 5)):
        yield {name: Fraction(max(1, start + step * i)) for i, name in enumerate(names)}, True


def same_value(a: Tree, b: Tree, exact_only: bool = False) -> bool:
    """Returns whether two expressions are equal, wherever both have a value.

    Args:
        a: One expression.
        b: The other.
        exact_only: No concession to decimals of a number that none can write out.
    """
    try:
        return _same_value(a, b, exact_only)
    except RecursionError:
        return False


def _same_value(a: Tree, b: Tree, exact_only: bool) -> bool:
    if a == b and not symbols(a):
        return exact_value(a) is not None or _defined(a)
    first, second = exact_value(a), exact_value(b)
    rounded = 0 if exact_only else max(decimals(a), decimals(b))
    if first is not None and second is not None:
        if first == second:
            return True
        if rounded and decimals(a) >= decimals(b):
            return _is_rounded(a, first, second, rounded)
        return bool(rounded) and _is_rounded(b, second, first, rounded)
    if any(tree in _INFINITIES for tree in (a, b)):
        return a == b
    names = sorted(symbols(a) | symbols(b))
    complex_values = has(a, "sym", "i") or has(b, "sym", "i")
    if not names:
        return _same_number(a, b, first, second, rounded, complex_values)
    if len(names) > 12:
        return False
    strict = has(a, "call", "abs") != has(b, "call", "abs")
    both = 0
    for at, _ in _points(names):
        values = []
        for tree in (a, b):
            try:
                values.append(Numeric(_DIGITS, at, complex_values).value(tree))
            except TooLarge:
                return a == b
            except NoValue:
                values.append(None)
        if values[0] is None or values[1] is None:
            if strict and (values[0] is None) != (values[1] is None):
                return False
            continue
        if not _close(values[0], values[1], _DIGITS):
            return False
        both += 1
    return both >= _ENOUGH


def _defined(tree: Tree) -> bool:
    try:
        Numeric(_DIGITS, {}, has(tree, "sym", "i")).value(tree)
    except TooLarge:
        return True  # the same text, too large to compute: the same number
    except NoValue:
        return tree in _INFINITIES
    return True


def _same_number(
    a: Tree, b: Tree, first: Fraction | None, second: Fraction | None, rounded: int, complex_values: bool
) -> bool:
    for digits in (_DIGITS, _CHECK_DIGITS):
        try:
            one, other = (Numeric(digits, {}, complex_values).value(tree) for tree in (a, b))
        except NoValue:
            return False
        if not _close(one, other, digits):
            for literal, value, opposite in ((a, first, other), (b, second, one)):
                if value is not None and rounded and decimals(literal) == rounded:
                    return _is_rounded(literal, value, opposite, rounded)
            return False
    return True


def _close(a: Any, b: Any, digits: int) -> bool:
    difference = abs(a - b)
    # Twenty digits are left to rounding, and to what cancels on the way to a small value.
    return bool(difference <= difference.context.mpf(10) ** -(digits - 20) * max(abs(a), abs(b), 1))


def factor(a: Tree, b: Tree) -> Fraction | None:
    """Returns a number c, not zero, with a = c b, or `None` where there is none that is simple."""
    names = sorted(symbols(a) | symbols(b))
    if not names or symbols(a) != symbols(b):
        return None
    ratio = None
    for at, whole in _points(names):
        if whole:
            break
        try:
            one, other = (Numeric(_DIGITS, at, False).value(tree) for tree in (a, b))
        except (NoValue, RecursionError):
            continue
        if abs(other) < 1e-30 or abs(one) < 1e-30:
            continue
        ratio = one / other
        break
    if ratio is None:
        return None
    found = Fraction(str(ratio.context.nstr(ratio, 40))).limit_denominator(10**9)
    trees = [found] if abs(ratio - ratio.context.mpf(found.numerator) / found.denominator) < 1e-25 else []
    for candidate in trees:
        if candidate != 0 and same_value(a, ("mul", ("num", candidate, ""), b), exact_only=True):
            return candidate
    return None
