"""How a row names what is under test: an entry point, and imports of the program as a module.

Tests that were written beside a file import it (`from solution import add`, `import solution`); here the program is no
file that they could import, so its names are put in place of the module.
"""

from __future__ import annotations

import ast
import copy

# Modules that data sets take the program for; none of them is in the standard library.
_PROGRAM = frozenset(("solution", "solutions", "my_solution", "your_solution", "main", "program", "submission"))


def holder_of(entry: str) -> str | None:
    """Returns the name that a program must define for an entry point, `Solution` for `Solution().two_sum`.

    Args:
        entry: A name, or a path of attributes and calls without arguments.

    Returns:
        The name; `None` where the entry point is anything else.
    """
    try:
        node: ast.AST = ast.parse(entry, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    while True:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute):
            node = node.value
        elif isinstance(node, ast.Call) and not node.args and not node.keywords:
            node = node.func
        else:
            return None


def without_imports(tree: ast.Module) -> tuple[ast.Module, tuple[str, ...]]:
    """Returns tests that import the program as ones that use its names, and the names that they import by name.

    Args:
        tree: The parsed tests; returned as it is where they import no program.
    """
    if not any(_imports_program(node) for node in ast.walk(tree)):
        return tree, ()
    imports = _Imports()
    made = imports.visit(copy.deepcopy(tree))
    if imports.modules:
        uses = _Uses(imports.modules)
        made = uses.visit(made)
        imports.names |= uses.names
    return ast.fix_missing_locations(made), tuple(sorted(imports.names))


def _imports_program(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level < 2 and (node.module or "").rpartition(".")[2] in _PROGRAM
    return isinstance(node, ast.Import) and any(alias.name in _PROGRAM for alias in node.names)


class _Imports(ast.NodeTransformer):
    def __init__(self) -> None:
        self.names: set[str] = set()
        self.modules: set[str] = set()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | list[ast.stmt]:
        if not _imports_program(node):
            return node
        names = [alias for alias in node.names if alias.name != "*"]
        self.names |= {alias.name for alias in names}
        renamed = (alias for alias in names if alias.asname and alias.asname != alias.name)
        made: list[ast.stmt] = [ast.parse(f"{alias.asname} = {alias.name}").body[0] for alias in renamed]
        return [ast.copy_location(statement, node) for statement in made or [ast.Pass()]]

    def visit_Import(self, node: ast.Import) -> ast.stmt:
        others = [alias for alias in node.names if alias.name not in _PROGRAM]
        self.modules |= {alias.asname or alias.name for alias in node.names if alias.name in _PROGRAM}
        if len(others) == len(node.names):
            return node
        return ast.copy_location(ast.Import(others) if others else ast.Pass(), node)


class _Uses(ast.NodeTransformer):
    """Puts `add` in place of `solution.add`."""

    def __init__(self, modules: set[str]) -> None:
        self.names: set[str] = set()
        self._modules = modules

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id in self._modules and isinstance(node.ctx, ast.Load):
            self.names.add(node.attr)
            return ast.copy_location(ast.Name(node.attr, ast.Load()), node)
        return node
