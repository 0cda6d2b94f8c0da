r"""Sets of real numbers: intervals, rays, unions, relations and points, in one form that can be compared.

Stage: rewards, `math`. `x > 2`, `(2, \infty)` and `\{x | x > 2\}` are one set; `[1,2] \cup [2,3]` is `[1,3]`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .grammar import Tree, has, symbols
from .shapes import Shape
from .value import NoValue, Numeric, TooLarge

_DIGITS = 60
_INFINITY: Tree = ("sym", "\\infty")
_TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}
_MINUS_INFINITY: Tree = ("neg", _INFINITY)


@dataclass(frozen=True)
class End:
    """One end of an interval: its expression, its numerical value, and whether it belongs to the interval."""

    tree: Tree
    value: Any
    closed: bool


@dataclass(frozen=True)
class RealSet:
    """Disjoint intervals in ascending order, each as its two ends."""

    intervals: tuple[tuple[End, End], ...]

    def complement(self) -> RealSet:
        """Returns the real numbers that are not in the set."""
        low = End(_MINUS_INFINITY, float("-inf"), False)
        found = []
        for start, stop in self.intervals:
            found.append((low, End(start.tree, start.value, not start.closed)))
            low = End(stop.tree, stop.value, not stop.closed)
        found.append((low, End(_INFINITY, float("inf"), False)))
        return merged(found)

    def union(self, other: RealSet) -> RealSet:
        """Returns the numbers that are in one of the sets."""
        return merged([*self.intervals, *other.intervals])

    def intersection(self, other: RealSet) -> RealSet:
        """Returns the numbers that are in both sets."""
        return self.complement().union(other.complement()).complement()

    @staticmethod
    def equal(a: RealSet, b: RealSet, same: Callable[[Tree, Tree], bool]) -> bool:
        """Returns whether two sets are equal; `same` compares finite ends."""
        if len(a.intervals) != len(b.intervals):
            return False
        for one, other in zip(a.intervals, b.intervals, strict=True):
            for end, opposite in zip(one, other, strict=True):
                if end.closed != opposite.closed:
                    return False
                infinite = abs(end.value) == float("inf"), abs(opposite.value) == float("inf")
                if any(infinite):
                    if end.value != opposite.value:
                        return False
                elif not same(end.tree, opposite.tree):
                    return False
        return True


def _touch(stop: End, start: End) -> bool:
    return bool(start.value < stop.value or (start.value == stop.value and (start.closed or stop.closed)))


def merged(intervals: list[tuple[End, End]]) -> RealSet:
    """Returns the union of intervals, in ascending order, with those that touch joined."""
    kept = [(a, b) for a, b in intervals if a.value < b.value or (a.value == b.value and a.closed and b.closed)]
    kept.sort(key=lambda interval: (interval[0].value, not interval[0].closed))
    result: list[tuple[End, End]] = []
    for start, stop in kept:
        if result and _touch(result[-1][1], start):
            first, last = result[-1]
            if (stop.value, stop.closed) > (last.value, last.closed):
                result[-1] = (first, stop)
        else:
            result.append((start, stop))
    return RealSet(tuple(result))


def _end(shape: Shape, closed: bool) -> End | None:
    tree = shape.tree
    if tree is None or (shape.measured is not None and shape.measured.percent):
        return None
    if tree in (_INFINITY, ("neg", _INFINITY)):
        return End(tree, float("inf") if tree == _INFINITY else float("-inf"), False)
    if symbols(tree) or has(tree, "sym", "i"):
        return None
    try:
        return End(tree, Numeric(_DIGITS, {}, False).value(tree), closed)
    except (NoValue, TooLarge, RecursionError):
        return None


def _ray(operator: str, end: End) -> RealSet:
    low, high = End(_MINUS_INFINITY, float("-inf"), False), End(_INFINITY, float("inf"), False)
    edge = End(end.tree, end.value, operator in ("<=", ">="))
    if operator == "!=":
        point = End(end.tree, end.value, True)
        return RealSet(((point, point),)).complement()
    return merged([(low, edge)] if operator in ("<", "<=") else [(edge, high)])


def real_set(shape: Shape) -> RealSet | None:
    """Returns the set of real numbers that a shape says, or `None` where it says none that can be told."""
    kind = shape.kind
    if kind == "empty":
        return RealSet(())
    if kind == "reals":
        return RealSet(()).complement()
    if kind == "seq" and len(shape.parts) == 2 and shape.detail[0] in "([" and shape.detail[1] in ")]":
        low, high = (_end(part, bracket in "[]") for part, bracket in zip(shape.parts, shape.detail, strict=True))
        return None if low is None or high is None or low.value > high.value else merged([(low, high)])
    if kind == "set" or (kind == "value" and shape.tree is not None and not symbols(shape.tree)):
        points = [_end(part, True) for part in (shape.parts if kind == "set" else (shape,))]
        known = [point for point in points if point is not None and abs(point.value) != float("inf")]
        return merged([(point, point) for point in known]) if len(known) == len(points) else None
    if kind in ("union", "meet", "minus"):
        parts = [real_set(part) for part in shape.parts]
        sets = [part for part in parts if part is not None]
        if len(sets) != len(parts):
            return None
        result = sets[0]
        for part in sets[1:]:
            if kind == "union":
                result = result.union(part)
            else:
                result = result.intersection(part if kind == "meet" else part.complement())
        return result
    return _relation(shape) if kind == "relation" else None


def _distance(shape: Shape) -> RealSet | None:
    """The set that `|x| < 2` or `|x| > 2` says."""
    if len(shape.parts) != 2:
        return None
    sides, operator = shape.parts, shape.detail[0]
    if sides[1].tree is not None and sides[1].tree[:2] == ("call", "abs"):
        sides, operator = sides[::-1], _TURNED[operator]
    tree = sides[0].tree
    if tree is None or tree[:2] != ("call", "abs") or tree[2][0] != "sym":
        return None
    end = _end(sides[1], True)
    if end is None or end.value < 0:
        return None
    above = _ray(operator, end)
    below = _ray(_TURNED[operator], End(("neg", end.tree), -end.value, True))
    return above.intersection(below) if operator in ("<", "<=", "!=") else above.union(below)


def _relation(shape: Shape) -> RealSet | None:
    """The set that a relation of one symbol with numbers says: `x > 2`, `1 < x < 4`; not `2x + 1 < 5`."""
    named = [
        i
        for i, part in enumerate(shape.parts)
        if part.tree is not None and part.tree[0] == "sym" and symbols(part.tree)
    ]
    if len(named) != 1:
        return _distance(shape) if not named else None
    place = named[0]
    result: RealSet | None = None
    for i, operator in enumerate(shape.detail):
        if place not in (i, i + 1):
            return None
        end = _end(shape.parts[i + 1 if place == i else i], True)
        if end is None:
            return None
        ray = _ray(operator if place == i else _TURNED[operator], end)
        result = ray if result is None else result.intersection(ray)
    return result
