"""What `math` stands on: values against sympy, equality for votes, sets, the fallback, speed."""

import random
import threading
import time
from fractions import Fraction

import pytest
import sympy

from trl_grpo_plus.rewards.math import equivalent
from trl_grpo_plus.rewards.math.equality import same_value
from trl_grpo_plus.rewards.math.fallback import NeedsMainThread, beyond_the_grammar, equal_by_math_verify
from trl_grpo_plus.rewards.math.grammar import NotRead, read
from trl_grpo_plus.rewards.math.normalise import normalise
from trl_grpo_plus.rewards.math.value import NoValue, TooLarge, exact


def expression(rng, depth):
    """Returns (LaTeX, sympy) of a random expression of numbers and x, written and built independently."""
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.4:
            return "x", sympy.Symbol("x", positive=True)
        n = rng.randint(0, 9)
        return str(n), sympy.Integer(n)
    kind = rng.choice("+-*/^rs")
    a, b = expression(rng, depth - 1), expression(rng, depth - 1)
    if kind == "+":
        return f"({a[0]} + {b[0]})", a[1] + b[1]
    if kind == "-":
        return f"({a[0]} - {b[0]})", a[1] - b[1]
    if kind == "*":
        return f"{a[0]} \\cdot {b[0]}", a[1] * b[1]
    if kind == "/":
        return f"\\frac{{{a[0]}}}{{{b[0]} + 11}}", a[1] / (b[1] + 11)
    if kind == "^":
        n = rng.randint(2, 3)
        return f"({a[0]})^{n}", a[1] ** n
    if kind == "r":
        return f"\\sqrt{{({a[0]})^2 + 2}}", sympy.sqrt(a[1] ** 2 + 2)
    return f"\\sin({a[0]})", sympy.sin(a[1])


def test_values_agree_with_sympy_on_random_expressions():
    from trl_grpo_plus.rewards.math.grammar import symbols
    from trl_grpo_plus.rewards.math.value import Numeric

    rng = random.Random(0)
    exact_ones = 0
    for _ in range(300):
        text, expected = expression(rng, 3)
        tree = read(normalise(text))
        at = Fraction(7, 4)
        value = Numeric(60, {"x": at}, False).value(tree)
        witness = sympy.N(expected.subs(sympy.Symbol("x", positive=True), sympy.Rational(7, 4)), 40)
        assert abs(float(value) - float(witness)) <= 1e-12 * max(1, abs(float(witness))), text
        if expected.is_Rational and not symbols(tree) and "\\sin" not in text and "sqrt" not in text:
            assert exact(tree) == Fraction(int(expected.p), int(expected.q)), text
            exact_ones += 1
    assert exact_ones > 10


def test_rewritten_expressions_are_equal_and_changed_ones_are_not():
    rng = random.Random(1)
    for _ in range(100):
        text, expected = expression(rng, 2)
        rewritten = sympy.latex(sympy.expand(expected), mul_symbol="dot")
        tree = read(normalise(text))
        assert same_value(tree, read(normalise(rewritten))), (text, rewritten)
        assert not same_value(tree, read(normalise(f"{rewritten} + \\frac{{1}}{{7}}"))), text


@pytest.mark.parametrize(
    ("a", "b"),
    [("1/2", "0.5"), (r"\frac12", "0.50"), ("1,000", "1000"), ("#### 7", "7"), (r"$\{1,2\}$", "2, 1"), ("x=3", "3")],
)
def test_votes_are_counted_together(a, b):
    assert equivalent(a, b) and equivalent(b, a)


@pytest.mark.parametrize(("a", "b"), [("1/2", "0.51"), ("(1,2)", "(2,1)"), ("5", "15"), ("", ""), ("yes", "no")])
def test_votes_that_differ(a, b):
    assert not equivalent(a, b) and not equivalent(b, a)


@pytest.mark.parametrize(
    "text",
    ["x+)", "2 3", "a/bc", "apples", "__import__('os')", "x..y", r"\unknown{2}", "1,2", "(" * 200 + ")" * 200, ""],
)
def test_what_can_be_read_in_two_ways_or_in_none_is_refused(text):
    with pytest.raises(NotRead):
        read(normalise(text))


@pytest.mark.parametrize(
    "text", ["9^{9^{9^9}}", "10^{10^6}", "(10^5)!", r"\prod_{k=1}^{10^8} k", r"\binom{10^9}{10^8}"]
)
def test_what_is_too_large_is_refused_at_once(text):
    start = time.monotonic()
    with pytest.raises(TooLarge):
        exact(read(normalise(text)))
    assert time.monotonic() - start < 0.5


def test_long_sums_of_polynomials_have_a_closed_form():
    tree = read(normalise(r"\sum_{k=3}^{10^9} (k^3 - 2k)"))
    n = 10**9
    assert exact(tree) == (n * (n + 1) // 2) ** 2 - n * (n + 1) - (1 + 8) + 2 * 3
    with pytest.raises(NoValue):
        exact(read(r"\sum_{k=1}^{10^9} \frac{1}{k}"))


def test_integrals_and_limits_go_to_math_verify_in_the_main_thread_only():
    assert beyond_the_grammar(r"\int_0^1 x dx", r"\frac12") and not beyond_the_grammar("x", "1")
    assert not beyond_the_grammar(r"\int_0^1 x^{9^{9}} dx", "1")
    assert equal_by_math_verify(r"\int_0^1 x dx", r"\frac12") is True
    assert equal_by_math_verify(r"\int_0^1 x dx", r"\frac13") is False
    raised = []

    def elsewhere():
        try:
            equal_by_math_verify(r"\int_0^1 x dx", r"\frac12")
        except NeedsMainThread:
            raised.append(True)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert raised == [True]
