"""Which names of the program tests use as classes, read from the tests.

An object that the tests make themselves may answer operations with their operands: `Vector(1, 2) * 2`. A function
under test must not: a program that defines `area` as a class would be told, by `abs(area(2) - 12.57)`, which value is
expected. Spelling does not tell them apart (datasets have functions called `Area`), so use decides.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence


def names_used_as_classes(tree: ast.AST, names: Sequence[str], entry: str | None = None) -> tuple[str, ...]:
    """Returns the names that the tests use as classes.

    Those are what stands in `isinstance`, `issubclass` and `except` or has an attribute taken (`Color.RED`), and other
    names that start with a capital letter, unless their objects meet plain values in arithmetic and are nowhere used
    like objects: by an attribute, an item, `with`, `str`, another object of the class, or as an argument.

    Args:
        tree: The tests.
        names: Names that the tests take from the program.
        entry: Name that `check` is called with, known in it by the name of its parameter.
    """
    named = set(_named(tree))
    found = {name for name in names if name in named}
    checked = {entry, *_checked(tree)}
    for name in names:
        if name.lstrip("_")[:1].isupper() and name not in found:
            uses = _Uses(tree, name, _parameters(tree) if name in checked else set(), names)
            if uses.like_an_object or not uses.with_plain_values:
                found.add(name)
    return tuple(sorted(found))


def _named(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        part: ast.AST | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            part = node.args[-1] if node.func.id in ("isinstance", "issubclass") else None
        elif isinstance(node, ast.ExceptHandler):
            part = node.type
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            part = node.value
        if part is not None:
            yield from (inner.id for inner in ast.walk(part) if isinstance(inner, ast.Name))


def _checked(tree: ast.AST) -> Iterator[str]:
    """Yields the names that `check` is called with."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check":
            yield from (argument.id for argument in node.args if isinstance(argument, ast.Name))


def _parameters(tree: ast.AST) -> set[str]:
    """Returns the names of `check`'s parameters."""
    checks = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "check")
    return {argument.arg for check in checks for argument in check.args.args}


_OF_OBJECTS = ("str", "repr", "len", "list", "tuple", "set", "sorted", "iter", "next", "hash", "vars")


class _Uses:
    """How tests use what calls of a name return."""

    def __init__(self, tree: ast.AST, name: str, aliases: set[str], names: Sequence[str]) -> None:
        self._callees = {name} | aliases
        self._variables: set[str] = set()
        bindings = [node for node in ast.walk(tree) if isinstance(node, (ast.Assign, ast.NamedExpr))]
        for _ in bindings:  # what is bound to a result of one is bound to an object as well
            for node in bindings:
                if self._holds(node.value):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    self._variables |= {target.id for target in targets if isinstance(target, ast.Name)}
        self.like_an_object = any(self._like_an_object(node, names) for node in ast.walk(tree))
        self.with_plain_values = any(self._with_plain_value(node) for node in ast.walk(tree))

    def _is_call(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self._callees

    def _is_object(self, node: ast.AST) -> bool:
        return self._is_call(node) or (isinstance(node, ast.Name) and node.id in self._variables)

    def _holds(self, node: ast.AST) -> bool:
        return any(self._is_object(inner) for inner in ast.walk(node))

    def _like_an_object(self, node: ast.AST, names: Sequence[str]) -> bool:
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            return self._holds(node.value)
        if isinstance(node, ast.withitem):
            return self._holds(node.context_expr)
        if isinstance(node, ast.BinOp):
            return self._holds(node.left) and self._holds(node.right)
        if isinstance(node, ast.Compare):
            return sum(self._holds(side) for side in (node.left, *node.comparators)) > 1
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in _OF_OBJECTS:
                return any(self._holds(argument) for argument in node.args)
            asked = isinstance(node.func, ast.Attribute) or (isinstance(node.func, ast.Name) and node.func.id in names)
            return asked and any(self._is_object(argument) for argument in node.args)
        return isinstance(node, ast.FormattedValue) and self._holds(node.value)

    def _with_plain_value(self, node: ast.AST) -> bool:
        if isinstance(node, ast.BinOp):
            return self._is_object(node.left) != self._is_object(node.right)
        return isinstance(node, ast.AugAssign) and (self._is_object(node.target) or self._is_object(node.value))
