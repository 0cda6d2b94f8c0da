"""Changing a container that an object of the program holds: `stack.items.append(1)`, `graph.edges["a"] = 2`.

What an attribute of a proxy returns is a copy. Where a test changes it in the same statement, the change is asked of
the program instead, for objects that the tests made themselves; of others the tests change their copy.
"""

from __future__ import annotations

import ast
import collections
from typing import Any

from . import proxy

NAME = "__member__"
_CONTAINERS = (list, dict, set, bytearray, collections.deque)
Step = tuple[str, Any]  # ("getattr", name) or ("getitem", key)


def rewritten(container: ast.expr) -> ast.expr:
    """Returns the expression of a container that is to be changed, `stack.items`, as one that reaches the program's.

    Args:
        container: The expression; returned as it is where it takes no attribute of anything.
    """
    steps: list[ast.expr] = []
    node, attributes = container, 0
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        attribute = isinstance(node, ast.Attribute)
        step: ast.expr = ast.Constant(node.attr) if isinstance(node, ast.Attribute) else node.slice
        if isinstance(step, ast.Slice):
            return container
        steps.insert(0, ast.Tuple([ast.Constant("getattr" if attribute else "getitem"), step], ast.Load()))
        attributes += attribute
        node = node.value
    if not attributes:
        return container
    call = ast.Call(ast.Name(NAME, ast.Load()), [node, *steps], [])
    for inner in (call, *(part for part in ast.walk(call) if not hasattr(part, "lineno"))):
        ast.copy_location(inner, container)
    return call


def member(root: Any, *steps: Step) -> Any:
    """Returns what the steps lead to from `root`: a `Member` for plain data of an object that the tests made."""
    value, holder, taken = root, None, 0
    for number, (operation, key) in enumerate(steps):
        if isinstance(value, proxy.Proxy):
            holder, taken = value, number
        value = getattr(value, key) if operation == "getattr" else value[key]
    changeable = isinstance(value, _CONTAINERS) or type(value).__module__ == "numpy"
    if not changeable or holder is None or not proxy.is_made_by_tests(holder):
        return value
    return Member(value, holder, steps[taken:])


class Member:
    """Plain data of an object of the program, to be changed there.

    Args:
        value: The copy that is here.
        holder: The object.
        steps: What leads from the object to the data.
    """

    def __init__(self, value: Any, holder: proxy.Proxy, steps: tuple[Step, ...]) -> None:
        self._value = value
        self._holder = holder
        self._steps = steps

    def _ask(self, operation: str, *arguments: Any, **named: Any) -> Any:
        return proxy.ask_within(self._holder, self._steps, operation, arguments, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not callable(getattr(self._value, name)):
            return getattr(self._value, name)
        return lambda *arguments, **named: self._ask(name, *arguments, **named)

    def __getitem__(self, key: Any) -> Any:
        return self._value[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("__setitem__", key, value)

    def __delitem__(self, key: Any) -> None:
        self._ask("__delitem__", key)
