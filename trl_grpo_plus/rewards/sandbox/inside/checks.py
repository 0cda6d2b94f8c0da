"""What tests mean by a name or an operator, where an object of the program stands behind a proxy; and lost checks.

The tests run as they are written, but for what Python decides without asking the object: `a is b`, `type(a)`,
`a.__class__` and `id(a)`. A program commits itself to which of its objects it has answered with before it can know
which one is expected, so the number of an object tells whether it is another.
"""

from __future__ import annotations

import ast
from types import FrameType, TracebackType
from typing import Any

from . import members, proxy

FILE = "<tests>"
IN_PLACE, SAME, TYPE, ID = "__in_place__", "__same__", "__type__", "__id__"


class Rewritten(ast.NodeTransformer):
    """Rewrites tests in place.

    A call that is a statement of its own, `sort(x)`, is marked: it is expected to change `x`.

    Args:
        tree: The tests, for the names that they bind themselves.
    """

    def __init__(self, tree: ast.Module) -> None:
        stored = (n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        arguments = (n.arg for n in ast.walk(tree) if isinstance(n, ast.arg))
        self._bound = {*stored, *arguments, *(n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))}

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        """Marks calls that are statements, and leaves out `unittest.main()`: the tests are run here."""
        if any(_runs_tests(inner) for inner in ast.walk(node)):
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        if isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute):
                function.value = members.rewritten(function.value)
            node.value.func = _call(IN_PLACE, function)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        """Rewrites `stack.items` where an item of it is set or deleted."""
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            node.value = members.rewritten(node.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """Rewrites `a is b`."""
        self.generic_visit(node)
        sides = (node.left, *node.comparators)
        if len(sides) > 2 or any(isinstance(side, ast.Constant) for side in sides):
            return node
        if not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return node
        same = _call(SAME, *sides)
        return same if isinstance(node.ops[0], ast.Is) else ast.copy_location(ast.UnaryOp(ast.Not(), same), node)

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Rewrites `type(a)` and `id(a)`."""
        self.generic_visit(node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("type", "id") and name not in self._bound and len(node.args) == 1 and not node.keywords:
            return _call(TYPE if name == "type" else ID, *node.args)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Rewrites `a.__class__`."""
        self.generic_visit(node)
        return _call(TYPE, node.value) if node.attr == "__class__" and isinstance(node.ctx, ast.Load) else node


def _runs_tests(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(function, ast.Attribute) or function.attr != "main":
        return False
    return isinstance(function.value, ast.Name) and function.value.id in ("unittest", "pytest")


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    call = ast.Call(ast.Name(name, ast.Load()), list(arguments), [])
    for node in (call, call.func):
        ast.copy_location(node, arguments[0])
        node.end_lineno, node.end_col_offset = arguments[-1].end_lineno, arguments[-1].end_col_offset
    return call


MEANINGS: dict[str, Any] = {
    IN_PLACE: proxy.in_place,
    members.NAME: members.member,
    SAME: proxy.is_same,
    TYPE: proxy.type_of,
    ID: lambda value: -1 - proxy.number_of(value) if isinstance(value, proxy.Proxy) else id(value),
}


class Asserts:
    """Where the asserts of the tests stand.

    Those of a constant (`assert False`) are not meant to be reached, and none is lost with them.

    Args:
        tree: The parsed tests.
    """

    def __init__(self, tree: ast.Module) -> None:
        withs = (n for n in ast.walk(tree) if isinstance(n, (ast.With, ast.AsyncWith)))
        # What they hold is found now: rewritten, calls are no longer what they look like.
        self._withs = [(n, max(map(_last_line, self._asserts(n)), default=0)) for n in withs]
        self._lines = {line for node in self._asserts(tree) for line in range(node.lineno, _last_line(node) + 1)}

    @staticmethod
    def _asserts(tree: ast.AST) -> list[ast.stmt]:
        return [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _checks_something(node)]

    def within(self, trace: TracebackType | None) -> bool:
        """Returns whether an error came up while an assert of the tests was evaluated."""
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == FILE and trace.tb_lineno in self._lines:
                return True
            trace = trace.tb_next
        return False

    def lost_with(self, trace: TracebackType | None, frame: FrameType) -> bool:
        """Returns whether asserts of a `with` statement would never be decided if it swallowed an error.

        Args:
            trace: The error's.
            frame: The frame that leaves the statement, or one that it called.
        """
        if trace is None or self.within(trace):
            return True
        leaving: FrameType | None = frame
        while leaving is not None and leaving.f_code.co_filename != FILE:
            leaving = leaving.f_back  # an `ExitStack`, say
        if leaving is None:
            return False
        line = leaving.f_lineno
        last = [last for n, last in self._withs if n.lineno <= line < max(n.body[0].lineno, n.lineno + 1)]
        return bool(last) and last[-1] >= trace.tb_lineno


def _checks_something(node: ast.stmt) -> bool:
    """Whether a statement is an assert of something, or calls one: `self.assertEqual(...)`, `assert_allclose(...)`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return str(name).startswith("assert")
    asserted = ast.walk(node.test) if isinstance(node, ast.Assert) else ()
    return any(isinstance(inner, (ast.Name, ast.Call)) for inner in asserted)


def _last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno
