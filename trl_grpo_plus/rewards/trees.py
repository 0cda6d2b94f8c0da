"""What a parsed program binds, defines, misses and does, as far as its text says it.

Stage: rewards. Nothing here runs a program.
"""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator

_BUILTIN_NAMES = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_PLAIN = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr, *_OPERATIONS, *_COMPREHENSIONS)


def _at_the_top(tree: ast.AST | None) -> Iterator[ast.AST]:
    """Yields what a module runs when it is loaded, branches included, and not what is inside its functions."""
    pending: list[ast.AST] = list(ast.iter_child_nodes(tree)) if tree is not None else []
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            pending += node.decorator_list
        elif not isinstance(node, ast.Lambda):
            pending += ast.iter_child_nodes(node)


def bound(tree: ast.AST | None) -> set[str]:
    """Returns the names that a module binds at its top, in branches as well."""
    names: set[str] = set()
    for node in _at_the_top(tree):
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def defined(tree: ast.AST | None) -> set[str]:
    """Returns the names that a module gives a function or a class, or what may be one.

    Left out are what it only imports, plain values, what is made from the name itself (`f = f(3)`), and functions
    without a body (`pass`, `...`).
    """
    names: set[str] = set()
    for node in _at_the_top(tree):
        if isinstance(node, ast.ClassDef) or (isinstance(node, _FUNCTIONS) and not _is_stub(node)):
            names.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value and not isinstance(node.value, _PLAIN):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)} - _used(node.value)
    return names


def _is_stub(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    def does_nothing(node: ast.stmt) -> bool:
        if isinstance(node, ast.Raise):
            return node.exc is not None and "NotImplementedError" in _used(node.exc)
        return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))

    return all(map(does_nothing, function.body))


def _used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def missing(code: str) -> set[str]:
    """Returns the names that a module uses and does not bind, a text that does not compile as far as can be told."""
    tree = ast.parse(code)
    try:
        tables, names = [symtable.symtable(code, "<program>", "exec")], set[str]()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _used(tree) - bound(tree) - _BUILTIN_NAMES
    while tables:
        table = tables.pop()
        tables += table.get_children()
        outermost = table.get_type() == "module"
        names |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (outermost or s.is_global())}
    return names - bound(tree) - _BUILTIN_NAMES


def calls(tree: ast.AST | None) -> bool:
    """Whether a module calls anything, if only in its functions: prose and numbers can be Python as well."""
    return tree is not None and any(isinstance(node, ast.Call) for node in ast.walk(tree))


def acts(tree: ast.AST | None) -> bool:
    """Whether a module calls anything when it is run, or is decorated by what may."""
    return any(
        isinstance(node, ast.Call) or (isinstance(node, (*_FUNCTIONS, ast.ClassDef)) and bool(node.decorator_list))
        for node in _at_the_top(tree)
    )
