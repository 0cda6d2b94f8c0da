r"""What an expression is worth: exactly as a fraction where it is rational, else to many digits at given points.

Stage: rewards, `math`. Every step is bounded, without signals or clocks, so that it is safe in any thread: exponents,
factorials, binomials and sums are measured before they are computed, and what is too large is refused.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import mpmath

from .grammar import Tree

MAX_BITS = 200_000  # size of exact integers
_MAX_STEPS = 20_000  # nodes visited by one evaluation, terms of sums included
_MAX_TERMS = 2000
_MAX_LOG2 = 1e7  # size of numerical values, as the logarithm to base 2
_MAX_DEGREE = 12  # of polynomials that are summed in closed form
_MAX_FACTORIAL = 3000

_local = threading.local()


class NoValue(ArithmeticError):
    """The expression has no value here: undefined, too large, or of another kind."""


class TooLarge(NoValue):
    """Computing it would take too long."""


class _Steps:
    """Counts work, and refuses to go on when there has been too much."""

    def __init__(self) -> None:
        self.left = _MAX_STEPS

    def take(self, bits: int = 0) -> None:
        self.left -= 1 + bits // 20_000
        if self.left < 0:
            raise TooLarge("too much work")


def exact(tree: Tree) -> Fraction:
    """Returns the value of a rational expression without free symbols.

    Raises:
        NoValue: It is not rational, has symbols, or is undefined; `TooLarge` where it is too large.
    """
    return _exact(tree, {}, _Steps())


def _exact(tree: Tree, at: Mapping[str, Fraction], steps: _Steps) -> Fraction:
    kind = tree[0]
    steps.take()
    if kind == "num":
        value: Fraction = tree[1]
        return value
    if kind == "sym":
        if tree[1] in at:
            return at[tree[1]]
        raise NoValue(f"{tree[1]} is not rational")
    if kind in ("sum", "prod"):
        return _series(tree, at, steps)
    if kind == "call":
        return _call(tree[1], [_exact(part, at, steps) for part in tree[2:]], steps)
    parts = [_exact(part, at, steps) for part in tree[1:]]
    first = parts[0]
    if kind == "add":
        return _checked(sum(parts[1:], first), steps)
    if kind == "neg":
        return -first
    if kind == "mul":
        return _checked(first * parts[1], steps)
    if kind == "div":
        if parts[1] == 0:
            raise NoValue("division by zero")
        return _checked(first / parts[1], steps)
    if kind == "pow":
        return _power(first, parts[1], steps)
    return _root(first, parts[1], steps)  # kind == "root"


def _checked(value: Fraction, steps: _Steps) -> Fraction:
    bits = value.numerator.bit_length() + value.denominator.bit_length()
    if bits > MAX_BITS:
        raise TooLarge(f"a number of {bits} bits")
    steps.take(bits)
    return value


def _power(base: Fraction, exponent: Fraction, steps: _Steps) -> Fraction:
    if exponent.denominator != 1:
        return _power(_root(base, Fraction(exponent.denominator), steps), Fraction(exponent.numerator), steps)
    n = exponent.numerator
    if base == 0 and n <= 0:
        raise NoValue("zero to a power that is not positive")
    if base in (0, 1):
        return base
    if base == -1:
        return Fraction(-1 if n % 2 else 1)
    if abs(n) * max(base.numerator.bit_length(), base.denominator.bit_length()) > MAX_BITS:
        raise TooLarge("a power that is too large")
    return _checked(base**n, steps)


def _root(base: Fraction, degree: Fraction, steps: _Steps) -> Fraction:
    if degree.denominator != 1 or not 1 <= degree <= 64:
        raise NoValue("a root of unusual degree")
    n = degree.numerator
    if base < 0 and n % 2 == 0:
        raise NoValue("an even root of a negative number")
    parts = [_integer_root(abs(part), n) for part in (base.numerator, base.denominator)]
    steps.take(base.numerator.bit_length() * n)
    value = Fraction(*parts)
    return -value if base < 0 else value


def _integer_root(value: int, n: int) -> int:
    if n == 1 or value in (0, 1):
        return value
    if n == 2:
        root = math.isqrt(value)
    else:
        low, high = 0, 1 << (value.bit_length() // n + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**n <= value else (low, middle - 1)
        root = low
    if root**n != value:
        raise NoValue("an irrational root")
    return root


def _call(name: str, arguments: list[Fraction], steps: _Steps) -> Fraction:
    first = arguments[0]
    if name == "abs":
        return abs(first)
    if name in ("floor", "ceil"):
        return Fraction(math.floor(first) if name == "floor" else math.ceil(first))
    if name in ("max", "min"):
        return max(arguments) if name == "max" else min(arguments)
    whole = all(argument.denominator == 1 for argument in arguments)
    if name == "factorial" and whole and first >= 0:
        if first > _MAX_FACTORIAL:
            raise TooLarge("a factorial that is too large")
        return _checked(Fraction(math.factorial(first.numerator)), steps)
    if name == "binomial" and whole and first >= 0 and arguments[1] >= 0:
        n, k = first.numerator, arguments[1].numerator
        k = min(k, n - k) if k <= n else k
        if k > _MAX_FACTORIAL or k * n.bit_length() > MAX_BITS:
            raise TooLarge("a binomial that is too large")
        return _checked(Fraction(math.comb(n, k)), steps)
    if name in ("gcd", "lcm") and whole:
        numbers = [argument.numerator for argument in arguments]
        return _checked(Fraction(math.gcd(*numbers) if name == "gcd" else math.lcm(*numbers)), steps)
    if name == "ln" and first == 1:
        return Fraction(0)
    raise NoValue(f"{name} is not rational")


def _series(tree: Tree, at: Mapping[str, Fraction], steps: _Steps) -> Fraction:
    kind, index, *_ = tree
    index = tree[1]
    first, last = (_exact(part, at, steps) for part in tree[2:4])
    body = tree[4]
    if first.denominator != 1 or last.denominator != 1:
        raise NoValue("bounds that are no whole numbers")
    a, b = first.numerator, last.numerator
    if b - a + 1 <= _MAX_TERMS:
        total = Fraction(0 if kind == "sum" else 1)
        for k in range(a, b + 1):
            term = _exact(body, {**at, index: Fraction(k)}, steps)
            total = _checked(total + term if kind == "sum" else total * term, steps)
        return total
    degree = _degree(body, index)
    if kind == "prod" or degree is None or degree > _MAX_DEGREE:
        raise TooLarge(f"{b - a + 1} terms")
    # The partial sums of a polynomial of degree d are a polynomial of degree d + 1: interpolate it.
    sums, total = [], Fraction(0)
    for k in range(a, a + degree + 2):
        total += _exact(body, {**at, index: Fraction(k)}, steps)
        sums.append(total)
    value, n = Fraction(0), b - a
    for i, s in enumerate(sums):
        weight = Fraction(1)
        for j in range(len(sums)):
            if j != i:
                weight *= Fraction(n - j, i - j)
        value += s * weight
    return _checked(value, steps)


def _degree(tree: Tree, index: str) -> int | None:
    """Returns the degree of a polynomial in `index` with rational coefficients, or `None` where it is none."""
    kind = tree[0]
    if kind == "num":
        return 0
    if kind == "sym":
        return 1 if tree[1] == index else None
    if kind not in ("add", "neg", "mul", "div", "pow"):
        return None
    degrees = [_degree(part, index) for part in tree[1:]]
    if any(degree is None for degree in degrees):
        return None
    known = [degree for degree in degrees if degree is not None]
    if kind == "mul":
        return sum(known)
    if kind == "div":
        return known[0] if known[1] == 0 else None
    if kind == "pow":
        power = tree[2]
        fits = power[0] == "num" and power[1].denominator == 1 and 0 <= power[1] <= _MAX_DEGREE
        return known[0] * int(power[1]) if fits else None
    return max(known)


def context(digits: int) -> Any:
    """Returns a context of mpmath with that many digits, of this thread alone: the global one is shared."""
    contexts = _local.__dict__.setdefault("contexts", {})
    if digits not in contexts:
        contexts[digits] = mpmath.MPContext()
        contexts[digits].dps = digits
    return contexts[digits]


class Numeric:
    """Evaluates expressions to many digits at one point.

    Args:
        digits: Digits of the computation.
        at: Values of the free symbols.
        complex_values: Whether results may leave the real line; else a root or logarithm of a negative number has no
            value, as in the real functions that are meant where nobody writes `i`.
    """

    def __init__(self, digits: int, at: Mapping[str, Fraction], complex_values: bool) -> None:
        self.ctx = context(digits)
        self.at = at
        self.complex = complex_values
        self.steps = _Steps()

    def value(self, tree: Tree) -> Any:
        """Returns the value as a number of mpmath.

        Raises:
            NoValue: The expression has no value at this point, or is too large.
        """
        try:
            value = self._value(tree, {})
        except (ValueError, ZeroDivisionError, OverflowError, TypeError, mpmath.libmp.NoConvergence) as error:
            raise NoValue(str(error)) from None
        if not self.ctx.isfinite(value):
            raise NoValue("not finite")
        return value

    def _fraction(self, value: Fraction) -> Any:
        return self.ctx.mpf(value.numerator) / value.denominator

    def _value(self, tree: Tree, index: Mapping[str, Fraction]) -> Any:
        self.steps.take()
        ctx, kind = self.ctx, tree[0]
        if kind == "num":
            return self._fraction(tree[1])
        if kind == "sym":
            return self._symbol(tree[1], index)
        if kind in ("sum", "prod"):
            return self._series(tree, index)
        if kind == "call":
            return self._call(tree[1], [self._value(part, index) for part in tree[2:]])
        if kind in ("pow", "root"):
            return self._power(tree, index)
        parts = [self._value(part, index) for part in tree[1:]]
        if kind == "add":
            return ctx.fsum(parts)
        if kind == "neg":
            return -parts[0]
        return parts[0] * parts[1] if kind == "mul" else parts[0] / parts[1]

    def _symbol(self, name: str, index: Mapping[str, Fraction]) -> Any:
        if name in index:
            return self._fraction(index[name])
        if name in self.at:
            return self._fraction(self.at[name])
        if name == "i":
            return self.ctx.j
        if name == "e":
            return +self.ctx.e
        if name == "\\pi":
            return +self.ctx.pi
        raise NoValue(f"{name} has no value")

    def _real(self, value: Any) -> Any:
        """Returns the value, where it may be complex or is real; a zero imaginary part is dropped."""
        if isinstance(value, self.ctx.mpc):
            if value.imag == 0:
                return value.real
            if not self.complex:
                raise NoValue("not real")
        return value

    def _power(self, tree: Tree, index: Mapping[str, Fraction]) -> Any:
        base = self._value(tree[1], index)
        try:
            exponent = _exact(tree[2], {**self.at, **index}, self.steps)
        except TooLarge:
            raise
        except NoValue:
            power = self._value(tree[2], index)
            return self._bounded(base, power if tree[0] == "pow" else 1 / power)
        if tree[0] == "root":
            if exponent == 0:
                raise NoValue("a root of degree zero")
            exponent = 1 / exponent
        if exponent.denominator == 1:
            return self._bounded(base, exponent.numerator)
        if not isinstance(base, self.ctx.mpc) and base < 0 and exponent.denominator % 2:
            value = self._bounded(-base, self._fraction(exponent))  # the real root, not the principal one
            return -value if exponent.numerator % 2 else value
        return self._bounded(base, self._fraction(exponent))

    def _bounded(self, base: Any, power: Any) -> Any:
        ctx = self.ctx
        if base == 0:
            if ctx.re(power) <= 0:
                raise NoValue("zero to a power that is not positive")
            return ctx.mpf(0)
        size = abs(ctx.log(abs(base), 2) * abs(power)) + abs(ctx.im(power)) * 5
        if size > _MAX_LOG2:
            raise TooLarge("a power that is too large")
        return self._real(ctx.power(base, power))

    def _series(self, tree: Tree, index: Mapping[str, Fraction]) -> Any:
        kind, name, first, last, body = tree
        try:
            a, b = (_exact(part, {**self.at, **index}, self.steps) for part in (first, last))
        except TooLarge:
            raise
        except NoValue:
            raise NoValue("bounds without a value") from None
        if a.denominator != 1 or b.denominator != 1:
            raise NoValue("bounds that are no whole numbers")
        if b - a + 1 > _MAX_TERMS:
            return self._fraction(_exact(tree, {**self.at, **index}, self.steps))
        terms = [self._value(body, {**index, name: Fraction(k)}) for k in range(int(a), int(b) + 1)]
        return self.ctx.fsum(terms) if kind == "sum" else self.ctx.fprod(terms)

    def _call(self, name: str, arguments: list[Any]) -> Any:
        ctx, first = self.ctx, arguments[0]
        if name.startswith("?"):  # a function that nothing is known of: some value that depends on its arguments only
            text = name + ",".join(ctx.nstr(argument, 25) for argument in arguments)
            return 1 + ctx.mpf(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "big")) / 2**128
        if name == "abs":
            return abs(first)
        if name in ("max", "min", "gcd", "lcm"):
            if name in ("gcd", "lcm"):
                whole = [Fraction(int(argument)) for argument in arguments if ctx.isint(argument)]
                if len(whole) != len(arguments) or max(abs(value) for value in whole) > 10**30:
                    raise NoValue(f"{name} of no whole numbers")
                return self._fraction(_call(name, whole, self.steps))
            return max(arguments) if name == "max" else min(arguments)
        if abs(first) > 10**6 and name not in ("ln", "lg", "floor", "ceil"):
            raise TooLarge(f"{name} of a large number")
        if name == "factorial":
            return ctx.factorial(first)
        if name == "binomial":
            if abs(arguments[1]) > 10**6:
                raise TooLarge("a binomial of a large number")
            return ctx.binomial(*arguments)
        if name in ("ln", "lg"):
            if first == 0:
                raise NoValue("logarithm of zero")
            return self._real(ctx.log(first)) / (ctx.log(10) if name == "lg" else 1)
        return self._real(getattr(ctx, name)(first))
