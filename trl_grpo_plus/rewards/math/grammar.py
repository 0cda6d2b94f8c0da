r"""The grammar of expressions: from normalised text to a tree, or a refusal.

Stage: rewards, `math`. Numbers, + - * / ^ !, fractions, roots, mixed numbers, functions, binomials, absolute values,
sums and products, symbols with subscripts, implicit products. What it does not know, and what can be read in two ways
(`a/bc`), it refuses: such answers are compared as text. Nothing is evaluated here, and no code is ever run.

A tree is a tuple: ("num", Fraction, written), ("sym", name), ("add", a, b, ...), ("mul", a, b), ("div", a, b),
("pow", a, b), ("neg", a), ("root", a, n), ("call", name, args...), ("sum" | "prod", name, first, last, body).
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

Tree = tuple[Any, ...]

MAX_CHARS = 2000
_MAX_DEPTH = 60
_MAX_DIGITS = 4000  # Python refuses integers of more than 4,300 digits
_TOKEN = re.compile(
    r"\s*(?:(?P<num>(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,5}(?![\w.]))?)|(?P<cmd>\\[A-Za-z]+)|(?P<word>[A-Za-z]+)"
    r"|(?P<op>\\[{}|%]|[-+*/^_!(){}\[\]|,=']))"
)
_FUNCTIONS_WORDS = (
    "sin cos tan cot sec csc arcsin arccos arctan asin acos atan sinh cosh tanh ln log lg exp abs floor ceil"
)
_FUNCTIONS = frozenset(_FUNCTIONS_WORDS.split())
_CALLS = {"arcsin": "asin", "arccos": "acos", "arctan": "atan"}
_SEVERAL = {"gcd", "lcm", "max", "min"}  # functions of several arguments
_CONSTANTS = {"pi": "\\pi", "infty": "\\infty", "inf": "\\infty", "infinity": "\\infty", "oo": "\\infty"}
_GREEK_WORDS = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi chi psi omega"
)
_GREEK = tuple(_GREEK_WORDS.split())
_SYMBOL_COMMANDS = {*_GREEK, *(name.capitalize() for name in _GREEK), "ell", "hbar"}
_UNKNOWN_FUNCTIONS = set("fghFGH")
_CLOSING = {"(": ")", "[": "]", "{": "}", r"\{": r"\}"}


class NotRead(ValueError):
    """The text is no expression of this grammar."""


def _number(written: str) -> Fraction:
    if len(written) > _MAX_DIGITS:
        raise NotRead("a number with too many digits")
    exponent = re.search(r"[eE]([-+]?\d+)$", written)
    if exponent and abs(int(exponent[1])) > _MAX_DIGITS:
        raise NotRead("a number with too many digits")
    return Fraction(f"0{written}" if written.startswith(".") else written)


class _Reader:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARS:
            raise NotRead(f"{len(text)} characters")
        self.tokens: list[tuple[str, str, bool]] = []  # kind, text, preceded by space
        at = 0
        text = text.rstrip()
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                raise NotRead(f"unexpected {text[at : at + 10]!r}")
            kind = match.lastgroup or ""
            spaced = match.start(kind) > at
            if kind == "word":
                self._words(match[kind], spaced)
            else:
                self.tokens.append((kind, match[kind], spaced))
            at = match.end()
        self.at = 0
        self.depth = 0

    def _words(self, run: str, spaced: bool) -> None:
        """Splits letters without spaces: a function or a constant by its name, else up to three symbols."""
        if run in _FUNCTIONS or run in _SEVERAL or run in _CONSTANTS:
            self.tokens.append(("cmd", f"\\{run}", spaced))
            return
        for name in ("arcsin", "arccos", "arctan", "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "pi"):
            if run.startswith(name) and len(run) - len(name) <= 2:
                self.tokens.append(("cmd", f"\\{name}", spaced))
                self._words(run[len(name) :], False) if run != name else None
                return
            if run.endswith(name) and len(run) - len(name) <= 2:
                self._words(run[: -len(name)], spaced)
                self.tokens.append(("cmd", f"\\{name}", False))
                return
        if len(run) > 3:
            raise NotRead(f"the word {run[:20]!r}")
        self.tokens += [("sym", letter, spaced and i == 0) for i, letter in enumerate(run)]

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][0] if self.at + ahead < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.peek()
        if not token or (wanted and token not in wanted):
            raise NotRead(f"expected {' or '.join(wanted) or 'more'}, found {token!r}")
        self.at += 1
        return token

    def whole(self) -> Tree:
        tree = self.sum()
        if self.peek() == r"\choose":
            self.take()
            tree = ("call", "binomial", tree, self.sum())
        if self.at < len(self.tokens):
            raise NotRead(f"unexpected {self.peek()!r}")
        return tree

    def sum(self) -> Tree:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise NotRead("nested too deeply")
        terms = [self.product()]
        while self.peek() in ("+", "-"):
            sign = self.take()
            right = self.product()
            terms.append(right if sign == "+" else ("neg", right))
        self.depth -= 1
        return terms[0] if len(terms) == 1 else ("add", *terms)

    def product(self) -> Tree:
        negative = False
        while self.peek() in ("+", "-"):
            negative ^= self.take() == "-"
        tree, slash = self.power(), False
        while True:
            if self.peek() in ("*", r"\cdot"):
                self.take()
                tree, slash = ("mul", tree, self.signed()), False
            elif self.peek() == "/":
                self.take()
                below = self.signed()
                tree, slash = ("div", tree, below), below[0] != "num"
            elif self.starts_operand():
                if slash:
                    raise NotRead("a/bc can be read in two ways")
                if self.kind() == "num" and self.tokens[self.at - 1][0] == "num":
                    raise NotRead("two numbers side by side")
                tree = ("mul", tree, self.power())
            else:
                return ("neg", tree) if negative else tree

    def signed(self) -> Tree:
        """An operand after an operator: it may have a sign of its own, as in `2 * -3`."""
        if self.peek() in ("+", "-"):
            sign = self.take()
            inner = self.power()
            return ("neg", inner) if sign == "-" else inner
        return self.power()

    def starts_operand(self) -> bool:
        token, kind = self.peek(), self.kind()
        if kind in ("num", "sym"):
            return True
        if kind == "cmd":
            return token not in (r"\cdot", r"\circ", r"\choose", r"\rfloor", r"\rceil")
        if token == "|":
            return not self.bars
        return token in ("(", "[", "{", r"\{")

    bars = 0  # absolute values that are open

    def power(self) -> Tree:
        base = self.operand()
        while True:
            token = self.peek()
            if token == "!":
                self.take()
                if self.peek() == "!":
                    raise NotRead("double factorial")
                base = ("call", "factorial", base)
            elif token == "^":
                self.take()
                if self.degree():
                    base = ("div", ("mul", base, ("sym", "\\pi")), ("num", Fraction(180), "180"))
                    continue
                return self.after_power(("pow", base, self.exponent()))
            else:
                return base

    def after_power(self, tree: Tree) -> Tree:
        while self.peek() == "!":
            self.take()
            tree = ("call", "factorial", tree)
        return tree

    def degree(self) -> bool:
        if self.peek() == r"\circ":
            self.take()
            return True
        if self.peek() == "{" and self.peek(1) == r"\circ" and self.peek(2) == "}":
            self.at += 3
            return True
        return False

    def exponent(self) -> Tree:
        if self.peek() in ("+", "-"):
            return ("neg", self.exponent()) if self.take() == "-" else self.exponent()
        inner = self.atom()  # of a number all digits: x^10 is meant as x^{10}
        return ("pow", inner, self.exponent()) if self.peek() == "^" and self.take() else inner

    def group(self) -> Tree:
        r"""`{...}`, or the single token that LaTeX takes as an argument: `\frac12` is 1 over 2."""
        if self.peek() == "{":
            self.take()
            inner = self.sum()
            if self.peek() == r"\choose":
                self.take()
                inner = ("call", "binomial", inner, self.sum())
            self.take("}")
            return inner
        if self.kind() == "num" and len(self.peek()) > 1:
            kind, text, spaced = self.tokens[self.at]
            if not text.isdigit():
                raise NotRead(f"no argument: {text!r}")
            self.tokens[self.at] = (kind, text[1:], False)
            return ("num", Fraction(text[0]), text[0])
        return self.atom()

    def operand(self) -> Tree:
        if self.kind() != "num":
            return self.atom()
        written = self.take()
        number: Tree = ("num", _number(written), written)
        if written.isdigit():  # a mixed number: 2\frac{1}{2}, 1 1/4
            fraction = self.fraction_of_integers()
            if fraction is not None:
                return ("add", number, fraction)
        return number

    def fraction_of_integers(self) -> Tree | None:
        at = self.at
        if self.peek() == r"\frac":
            tree = self.atom()
            if all(part[0] == "num" and part[2].isdigit() for part in tree[1:]):
                return tree
            self.at = at
            return None
        if self.kind() == "num" and self.peek(1) == "/" and self.kind(2) == "num" and self.tokens[at][2]:
            over, _, under = self.peek(), self.take(), self.peek(1)
            self.at += 2
            if over.isdigit() and under.isdigit():
                return ("div", ("num", Fraction(over), over), ("num", Fraction(under), under))
            self.at = at
        return None

    def atom(self) -> Tree:
        kind, token = self.kind(), self.peek()
        if not token:
            raise NotRead("the expression ends too early")
        if kind == "num":
            self.take()
            return ("num", _number(token), token)
        if kind == "sym":
            return self.symbol(self.take())
        if kind == "cmd":
            return self.command()
        if token == "{":
            return self.group()
        if token in ("(", "["):
            self.take()
            saved, self.bars = self.bars, 0
            inner = self.sum()
            self.bars = saved
            self.take(_CLOSING[token])
            return inner
        if token == "|":
            self.take()
            self.bars += 1
            inner = self.sum()
            self.bars -= 1
            self.take("|")
            return ("call", "abs", inner)
        raise NotRead(f"unexpected {token!r}")

    def symbol(self, name: str) -> Tree:
        while self.peek() in ("_", "'"):
            if self.take() == "'":
                name += "'"
                continue
            name += f"_{self.subscript()}"
        if name[0] in _UNKNOWN_FUNCTIONS and self.peek() == "(":
            return ("call", f"?{name}", *self.arguments())
        return ("sym", name)

    def subscript(self) -> str:
        if self.peek() != "{":
            return self.take()
        self.take()
        depth = 1
        parts: list[str] = []
        while True:
            token = self.take()
            depth += (token == "{") - (token == "}")
            if depth == 0:
                return "".join(parts)
            parts.append(token)

    def arguments(self) -> list[Tree]:
        closing = _CLOSING[self.take("(", "{")]
        arguments = [self.sum()]
        while self.peek() == ",":
            self.take()
            arguments.append(self.sum())
        self.take(closing)
        return arguments

    def command(self) -> Tree:
        name = self.take()[1:]
        if name == "frac":
            return ("div", self.group(), self.group())
        if name == "sqrt":
            degree: Tree = ("num", Fraction(2), "2")
            if self.peek() == "[":
                self.take()
                degree = self.sum()
                self.take("]")
            return ("root", self.atom(), degree)  # of a number all digits: nobody means 1 under the root of \sqrt12
        if name == "binom":
            return ("call", "binomial", self.group(), self.group())
        if name in ("lfloor", "lceil"):
            inner = self.sum()
            self.take("\\rfloor" if name == "lfloor" else "\\rceil")
            return ("call", "floor" if name == "lfloor" else "ceil", inner)
        if name in ("sum", "prod"):
            return self.series(name)
        if name in _SEVERAL:
            return ("call", name, *self.arguments())
        if name in _FUNCTIONS:
            return self.function(_CALLS.get(name, name))
        if name in _CONSTANTS:
            return ("sym", _CONSTANTS[name])
        if name in _SYMBOL_COMMANDS:
            return self.symbol(f"\\{name}")
        raise NotRead(f"the command \\{name}")

    def function(self, name: str) -> Tree:
        r"""A function and its argument: `\sin^2 x`, `\log_2 8`, `\ln(x+1)`, `\sin 2x`, `\sin^{-1} x`."""
        base: Tree | None = None
        power: Tree | None = None
        while self.peek() in ("_", "^"):
            if self.take() == "_":
                base = self.group()
            else:
                power = self.exponent()
        if name in ("abs", "floor", "ceil", "exp") and self.peek() not in ("(", "{"):
            raise NotRead(f"{name} without parentheses")
        argument = self.atom() if self.peek() in ("(", "{", "[") else self.bare_argument()
        if base is not None:
            if name != "log":
                raise NotRead(f"{name} with a subscript")
            tree: Tree = ("div", ("call", "ln", argument), ("call", "ln", base))
        else:
            tree = ("call", "ln" if name == "log" else name, argument)
        if power == ("neg", ("num", Fraction(1), "1")):
            if name not in ("sin", "cos", "tan"):
                raise NotRead("an inverse function")
            return ("call", f"a{name}", argument)
        return tree if power is None else ("pow", tree, power)

    def bare_argument(self) -> Tree:
        r"""What `\sin 2x \\cos y` takes without parentheses: factors up to the next function, bracket or operator."""
        if not self.starts_operand():
            raise NotRead("a function without an argument")
        tree = self.power()
        if self.peek() == "/" and self.kind(1) in ("num", "sym"):  # \sin \pi/6 is the sine of the quotient
            raise NotRead("an argument that can be read in two ways")
        while self.kind() in ("num", "sym") or self.peek()[1:] in ("pi", *_GREEK):
            if self.kind() == "num" and tree[0] == "num":
                raise NotRead("two numbers side by side")
            tree = ("mul", tree, self.power())
        return tree

    def series(self, name: str) -> Tree:
        self.take("_")
        self.take("{")
        index = self.symbol(self.take())
        self.take("=")
        first = self.sum()
        self.take("}")
        self.take("^")
        last = self.group()
        if index[0] != "sym":
            raise NotRead("an index that is no symbol")
        return (name, index[1], first, last, self.product())


def read(text: str) -> Tree:
    """Returns the tree of an expression in normalised form.

    Raises:
        NotRead: The text is no expression of the grammar, or can be read in two ways.
    """
    try:
        return _Reader(text).whole()
    except RecursionError:
        raise NotRead("nested too deeply") from None


def symbols(tree: Tree) -> frozenset[str]:
    r"""Returns the names of the free symbols of a tree, without the constants `e`, `i`, `\pi` and `\infty`."""
    if tree[0] == "sym":
        return frozenset() if tree[1] in ("e", "i", "\\pi", "\\infty") else frozenset({tree[1]})
    if tree[0] == "num":
        return frozenset()
    found: frozenset[str] = frozenset()
    for part in tree[1:]:
        if isinstance(part, tuple):
            found |= symbols(part)
    return found - {tree[1]} if tree[0] in ("sum", "prod") else found


def has(tree: Tree, kind: str, name: str) -> bool:
    """Returns whether a node `(kind, name, ...)` occurs in a tree."""
    if tree[0] == kind and tree[1] == name:
        return True
    return any(has(part, kind, name) for part in tree[1:] if isinstance(part, tuple))
