r"""When two answers are equal: shape by shape.

Stage: rewards, `math`. In: two shapes. Order matters in a tuple and not in a set; ends matter in an interval; a list
is not one of its parts, so that a guess which names several candidates equals none of them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from .equality import decimals, exact_value, factor, same_value
from .grammar import Tree, symbols
from .sets import RealSet, real_set
from .shapes import Shape, as_list, shape_of, words
from .value import NoValue, Numeric

_MAX_CHARS = 3000  # longer answers are compared as text
_MAX_PAIRS = 400  # comparisons of parts in one comparison of answers


class _Comparison:
    """One comparison of two answers, of bounded size."""

    def __init__(self) -> None:
        self.left = _MAX_PAIRS

    def same(self, gold: Shape, answer: Shape) -> bool:
        self.left -= 1
        if self.left < 0:
            return False
        if gold.kind == answer.kind and gold.text == answer.text and gold.kind != "value" and gold.text:
            return gold.kind != "base" or gold.detail == answer.detail
        kinds = {gold.kind, answer.kind}
        if kinds == {"equation", "list"} and any(len(_each_name(shape)) > 1 for shape in (gold, answer)):
            return self.collections(gold, answer)
        if "equation" in kinds:
            return self.equations(gold, answer)
        if gold.kind == answer.kind == "value":
            return self.values(gold, answer)
        if kinds & {"union", "meet", "minus", "relation", "reals"} or ("seq" in kinds and "empty" in kinds):
            return self.regions(gold, answer)
        if "matrix" in kinds:
            return self.matrices(gold, answer)
        if "list" in kinds or "set" in kinds:
            return self.collections(gold, answer)
        if gold.kind == answer.kind == "seq":
            return gold.detail == answer.detail and self.each(gold.parts, answer.parts)
        if "ratio" in kinds or "clock" in kinds:
            return self.ratios(gold, answer)
        if gold.kind == "base" and answer.kind == "value":  # the question fixes the base: digits are enough
            return answer.text.upper().lstrip("0") == gold.text
        if answer.kind == "base" and gold.kind == "value":
            return bool(answer.detail == 10 and answer.text == gold.text)
        if gold.kind == answer.kind == "base":
            return gold.text == answer.text and gold.detail == answer.detail
        return self.said(gold, answer)

    def each(self, first: Sequence[Shape], second: Sequence[Shape]) -> bool:
        return len(first) == len(second) and all(self.same(a, b) for a, b in zip(first, second, strict=True))

    def unordered(self, first: Sequence[Shape], second: Sequence[Shape]) -> bool:
        """Whether the parts can be paired off."""
        if len(first) != len(second):
            return False
        left = list(second)
        for part in first:
            match = next((i for i, other in enumerate(left) if self.same(part, other)), None)
            if match is None:
                return False
            left.pop(match)
        return True

    def values(self, gold: Shape, answer: Shape) -> bool:
        a, b, one, other = gold.tree, answer.tree, gold.measured, answer.measured
        assert a is not None and b is not None and one is not None and other is not None
        if gold.text == answer.text and a == b:
            return a == b and same_value(a, b)
        if one.known and other.known and one.unit != other.unit:
            return False
        if one.percent == other.percent:
            return same_value(a, b)
        if one.known or other.known:  # a length or an amount of money is no percentage
            return False
        hundredth = ("num", Fraction(1, 100), "")
        if one.percent:  # gold 28%: 28% or 0.28 or, with the sign left out, 28
            value = exact_value(a)
            return same_value(("mul", a, hundredth), b) or (value is not None and abs(value) >= 1 and same_value(a, b))
        value = exact_value(a)  # gold 28 where the sign was left out of the gold; of a gold up to 1, the value
        if value is not None and abs(value) > 1:
            return same_value(a, b) or same_value(a, ("mul", b, hundredth))
        return same_value(a, ("mul", b, hundredth))

    def said(self, gold: Shape, answer: Shape) -> bool:
        """Words: equal as words; a word never equals a value."""
        if gold.kind == answer.kind == "words":
            return bool(gold.detail) and gold.detail == answer.detail
        if {gold.kind, answer.kind} == {"words", "value"}:
            texts = [shape.detail if shape.kind == "words" else words(shape.text) for shape in (gold, answer)]
            return bool(texts[0]) and texts[0].isalpha() and texts[0] == texts[1].replace(" ", "")
        return False

    def collections(self, gold: Shape, answer: Shape) -> bool:
        for one, other in ((gold, answer), (answer, gold)):
            if one.kind == "list" and other.kind == "value" and "," in other.text:
                again = as_list(other)
                if again.kind == "list":
                    return self.same(again, answer) if other is gold else self.same(gold, again)
        if {gold.kind, answer.kind} == {"list", "seq"}:
            seq = gold if gold.kind == "seq" else answer
            return seq.detail == "()" and self.each(gold.parts, answer.parts)
        parts = []
        for shape in (gold, answer):
            if shape.kind == "set":
                parts.append(self.distinct(shape.parts))
            elif shape.kind == "list":
                parts.append(self.distinct(shape.parts) if "\\pm" in shape.text else list(shape.parts))
            elif shape.kind in ("value", "words", "seq", "ratio", "base", "equation"):
                parts.append([shape])
            else:
                return False
        if any(_assignments(side) for side in parts):
            parts = [[each for part in side for each in _each_name(part)] for side in parts]
        parts = [
            _bare(side) if not _assignments(other) else side for side, other in zip(parts, parts[::-1], strict=True)
        ]
        ordered = any("\\ldots" in part.text for side in parts for part in side)
        if ordered or _assignments(parts[0]) != _assignments(parts[1]):  # x = 1, y = 2 against 1, 2
            return self.each(*parts)
        return self.unordered(*parts)

    def distinct(self, parts: Sequence[Shape]) -> list[Shape]:
        kept: list[Shape] = []
        for part in parts:
            if not any(self.same(part, other) for other in kept):
                kept.append(part)
        return kept

    def matrices(self, gold: Shape, answer: Shape) -> bool:
        if gold.kind == answer.kind:
            return len(gold.parts) == len(answer.parts) and all(
                self.each(a.parts, b.parts) for a, b in zip(gold.parts, answer.parts, strict=True)
            )
        matrix, other = (gold, answer) if gold.kind == "matrix" else (answer, gold)
        rows = [row.parts for row in matrix.parts]
        if other.kind == "seq" and other.detail == "[]" and all(row.kind == "seq" for row in other.parts):
            given = [row.parts for row in other.parts]  # [[1, 2], [3, 4]]
            return len(rows) == len(given) and all(self.each(a, b) for a, b in zip(rows, given, strict=True))
        if other.kind != "seq" or other.detail != "()":
            return False
        vector = (
            rows[0] if len(rows) == 1 else [row[0] for row in rows] if all(len(row) == 1 for row in rows) else None
        )
        return vector is not None and self.each(vector, other.parts)

    def ratios(self, gold: Shape, answer: Shape) -> bool:
        if gold.kind == answer.kind == "ratio":
            a, b = gold.parts, answer.parts
            if len(a) != len(b) or any(part.kind != "value" for part in (*a, *b)):
                return False
            # a : b = c : d as a d = b c
            return all(
                same_value(("mul", a[0].tree, b[i].tree), ("mul", a[i].tree, b[0].tree), exact_only=True)
                for i in range(1, len(a))
            ) and not any(exact_value(part.tree) == 0 for part in (a[0], b[0]) if part.tree is not None)
        ratio, other = (gold, answer) if gold.kind == "ratio" else (answer, gold)
        if ratio.kind == "ratio" and len(ratio.parts) == 2 and other.kind == "value" and other.tree is not None:
            sides = [part.tree for part in ratio.parts]
            if None not in sides:
                percent = other.measured is not None and other.measured.percent
                return not percent and same_value(("div", *sides), other.tree, exact_only=True)
        if {gold.kind, answer.kind} == {"ratio", "clock"}:  # 10:15 may be a ratio, if the other is none of the clock
            clock = gold if gold.kind == "clock" else answer
            parts = clock.text.split(":")
            if len(parts) == 2 and all(part.isdigit() for part in parts):
                return self.ratios(*(_as_ratio(shape) for shape in (gold, answer)))
        return False

    def regions(self, gold: Shape, answer: Shape) -> bool:
        """Sets of real numbers, however written; relations between more than one symbol as relations."""
        sets = [real_set(shape) for shape in (gold, answer)]
        if sets[0] is not None and sets[1] is not None:
            return _named_alike(gold, answer) and RealSet.equal(sets[0], sets[1], same_value)
        if gold.kind == answer.kind == "relation":
            return self.relations(gold, answer)
        if gold.kind == answer.kind and gold.kind in ("union", "meet"):
            return self.unordered(gold.parts, answer.parts)
        if gold.kind == answer.kind == "minus":
            return self.each(gold.parts, answer.parts)
        return False

    def relations(self, gold: Shape, answer: Shape) -> bool:
        if len(gold.parts) != len(answer.parts):
            return False
        turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
        if gold.detail == answer.detail and self.each(gold.parts, answer.parts):
            return True
        if gold.detail == tuple(turned[op] for op in reversed(answer.detail)) and self.each(
            gold.parts, answer.parts[::-1]
        ):
            return True
        if len(gold.parts) != 2 or any(part.tree is None for part in (*gold.parts, *answer.parts)):
            return False
        ratio = factor(*(("add", s.parts[0].tree, ("neg", s.parts[1].tree)) for s in (gold, answer)))
        if ratio is None:
            return False
        operator = answer.detail[0] if ratio > 0 else turned[answer.detail[0]]
        return bool(operator == gold.detail[0])

    def equations(self, gold: Shape, answer: Shape) -> bool:
        if gold.kind != "equation" or answer.kind != "equation":
            equation, other = (gold, answer) if gold.kind == "equation" else (answer, gold)
            if other.kind in ("list", "set") and not (
                other.kind == "list" and len(other.parts) > 1 and all(p.kind == "equation" for p in other.parts)
            ):
                value = _answer_of(equation)
                if value is not None and value.kind in ("list", "set", "value"):
                    return self.same(value, other) if equation is gold else self.same(other, value)
                return self.collections(gold, answer)
            if not _consistent(equation):
                return False
            candidates = _sides(equation)
            return any(self.same(side, other) if equation is gold else self.same(other, side) for side in candidates)
        a, b = gold.parts, answer.parts
        if len(a) == len(b) == 2:
            if self.each(a, b) or self.each(a, b[::-1]):
                return True
            named = [_target(equation) for equation in (gold, answer)]
            if named[0] is not None and named[1] is not None and named[0][0].text == named[1][0].text:
                return self.same(named[0][1], named[1][1])
            if all(part.tree is not None for part in (*a, *b)):
                return factor(*(("add", s[0].tree, ("neg", s[1].tree)) for s in (a, b))) is not None
            return False
        sides = [_answer_of(equation) for equation in (gold, answer)]
        if sides[0] is None or sides[1] is None or not _consistent(gold) or not _consistent(answer):
            return False
        return self.same(sides[0], sides[1])


def _named_alike(gold: Shape, answer: Shape) -> bool:
    """Whether relations speak of the same symbol, where both name one."""
    names = [frozenset().union(*(symbols(p.tree) for p in _leaves(s) if p.tree is not None)) for s in (gold, answer)]
    return not names[0] or not names[1] or names[0] == names[1]


def _leaves(shape: Shape) -> Iterator[Shape]:
    if not shape.parts:
        yield shape
    for part in shape.parts:
        yield from _leaves(part)


def _as_ratio(shape: Shape) -> Shape:
    if shape.kind == "ratio":
        return shape
    return Shape("ratio", shape.text, tuple(shape_of(part) for part in shape.text.split(":")))


# f(x), f^{-1}(x), a_n(x): what stands on the left of a definition
_FUNCTION_NAME = re.compile(r"[A-Za-z](?:_\{?\w+\}?|\^\{?-?\w\}?|')*\([A-Za-z](?:,[A-Za-z])*\)")


# P(X = 2), E[X], |AB|, dy/dx: what is asked for, though no expression of symbols
_QUANTITY = re.compile(
    r"(?:P|E|\\?Pr|Var|\\text\{(?:P|Pr|E|Var)\}|\\mathbb\{?[PE]\}?)[(\[].*[)\]]|\|[A-Z]{2,3}\|"
    r"|\\frac\{d(?:\^\d)?\w?\}\{d\w(?:\^\d)?\}"
)


def _is_name(shape: Shape) -> bool:
    """Whether a side is what is asked for: `x`, `f(x)`, `a_n`, `(x, y)`, a word."""
    if _QUANTITY.fullmatch(shape.text):
        return True
    if shape.kind in ("seq", "matrix", "row"):
        return all(_is_name(part) for part in shape.parts)
    if shape.kind == "words":
        return bool(shape.detail) and not any(c.isdigit() for c in shape.text) and len(shape.detail.split()) <= 6
    tree = shape.tree
    if tree is None:
        return False
    if _FUNCTION_NAME.fullmatch(shape.text):
        return True
    if tree[0] == "sym":
        return tree[1] not in ("e", "i", "\\pi", "\\infty")
    if tree[0] == "call" and tree[1].startswith("?"):
        return True
    # y(x), AB, \angle ABC: letters side by side, an argument
    return tree[0] == "mul" and all(part[0] == "sym" or part[0] == "mul" for part in tree[1:]) and bool(symbols(tree))


def _target(equation: Shape) -> tuple[Shape, Shape] | None:
    """Returns (what is asked for, its value) of `x = 5` and `5 = x`."""
    left, right = equation.parts[0], equation.parts[-1]
    if _is_name(left):
        return left, right
    return (right, left) if len(equation.parts) == 2 and _is_name(right) and not symbols_of(left) else None


def symbols_of(shape: Shape) -> frozenset[str]:
    """Returns the free symbols of all values in a shape."""
    return frozenset().union(*(symbols(leaf.tree) for leaf in _leaves(shape) if leaf.tree is not None))


def _sides(equation: Shape) -> list[Shape]:
    """Returns what an equation may state as a value: its last side, and the exact one before a rounding of it."""
    target = _target(equation)
    parts = equation.parts
    if len(parts) == 2 and not equation.detail[1]:
        if target is not None:
            return [target[1]]
        trees = [part.tree for part in parts]
        if trees[0] is None or trees[1] is None or symbols(trees[1]):
            return []
        asked = _is_asked(trees[0]) and exact_value(trees[1]) != 0  # `x - y = 0` is an equation
        return [parts[1]] if asked or not symbols(trees[0]) else []
    sides = [parts[-1]]
    if equation.detail[-1] and len(parts) >= 2:
        sides.append(parts[-2])
    return [side for side in sides if not _is_name(side)]


def _is_asked(tree: Tree) -> bool:
    r"""Whether an expression is one that may be asked for as it is: `x + y`, `a^2 + b^2`, `\\sin A`; no `2x + 1`."""
    if tree[0] in ("sym", "call"):
        return bool(symbols(tree))
    if tree[0] == "pow":
        return _is_asked(tree[1])
    if tree[0] == "div" and tree[1][:2] == tree[2][:2] == ("call", "ln"):  # a logarithm to some base
        return bool(symbols(tree[1]))
    return tree[0] in ("add", "mul", "div", "neg") and all(_is_asked(part) for part in tree[1:])


def _each_name(part: Shape) -> list[Shape]:
    """Returns `a = 1` and `b = 1` of `a = b = 1`, another part as it is."""
    if part.kind != "equation" or len(part.parts) < 3 or any(part.detail):
        return [part]
    *names, value = part.parts
    if not all(_is_name(name) for name in names):
        return [part]
    return [Shape("equation", f"{name.text}={value.text}", (name, value), detail=(False, False)) for name in names]


def _answer_of(equation: Shape) -> Shape | None:
    sides = _sides(equation)
    return sides[0] if sides else None


def _consistent(equation: Shape) -> bool:
    """Whether the numbers that an equation calls equal are: `2 + 3 = 5`, and not `4 = 5`."""
    parts = [part for part in equation.parts if part.tree is not None and not symbols(part.tree)]
    hundredth = ("num", Fraction(1, 100), "")  # 50% = 0.5
    trees: list[Tree] = [
        ("mul", part.tree, hundredth) if part.measured is not None and part.measured.percent else part.tree
        for part in parts
        if part.tree is not None and not (part.tree[0] == "call" and part.tree[1].startswith("?"))  # f(2) = 4
    ]
    return all(_agree(a, b) for a, b in itertools.pairwise(trees))


def _agree(a: Tree, b: Tree) -> bool:
    if same_value(a, b):
        return True
    try:
        one, other = (Numeric(60, {}, True).value(tree) for tree in (a, b))
    except NoValue:
        return False
    digits = max(decimals(a), decimals(b))
    whole = digits == 0
    return bool(abs(one - other) <= (0.5 if whole else 10.0**-digits) and (not whole or _rounds(a) or _rounds(b)))


def _rounds(tree: Tree) -> bool:
    value = exact_value(tree)
    return value is None or value.denominator != 1


def _assignments(parts: Sequence[Shape]) -> bool:
    return any(part.kind == "equation" for part in parts)


def _bare(parts: list[Shape]) -> list[Shape]:
    """Returns the values of `x = 1, x = 2`, which are all for the same name; other lists as they are."""
    targets = [_target(part) if part.kind == "equation" and len(part.parts) == 2 else None for part in parts]
    named = [target for target in targets if target is not None]
    if len(named) == 1 and targets[0] is not None and not any(p.kind in ("equation", "words") for p in parts[1:]):
        return [targets[0][1], *parts[1:]]  # x = 1, 2
    if len(named) == len(parts) and len({_root_name(target[0].text) for target in named}) == 1:
        return [target[1] for target in named]
    return parts


def _root_name(text: str) -> str:
    return text.split("_")[0]


def equal(gold: str, answer: str) -> bool:
    """Returns whether an answer equals the gold answer, both as text of one answer by itself."""
    if max(len(gold), len(answer)) > _MAX_CHARS:
        return gold.strip() == answer.strip()
    try:
        return _Comparison().same(shape_of(gold), shape_of(answer))
    except RecursionError:
        return gold.strip() == answer.strip()
