"""The dataset's tests, in a process that the program cannot reach: what it says is what the tests found.

The tests run unchanged, except that every check is counted: each `assert` at the top of the module, of `check` or of a
`test_...` function, and each statement there that holds asserts further down, is a unit. A verdict is "passed" for all
units that are there, each reported by name; a unit that was never reached is not passed.

    report, a line each    [unit, 1 or 0, why]    then {"total", "answers", "broken"}    or {"unsupported": why}
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import os
import sys
import types
from typing import Any, NoReturn

from . import checks, pytest_names
from .collected import Collected
from .session import Session, is_of_program

CHANNEL, REPORT = 3, 4
_UNIT = "__unit__"
_DESCRIBED = 200  # characters


def holds_assert(node: ast.AST) -> bool:
    """Returns whether an `assert`, or `with raises(...)`, stands in a statement."""
    return any(isinstance(inner, ast.Assert) or _expects_error(inner) for inner in ast.walk(node))


def _expects_error(node: ast.AST) -> bool:
    context = node.context_expr if isinstance(node, ast.withitem) else None
    function = context.func if isinstance(context, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("raises", "assertRaises", "assertRaisesRegex")


def is_checking(function: ast.stmt) -> bool:
    """Returns whether a function is one that is run as a test: `check`, or `test...` without arguments."""
    if not isinstance(function, ast.FunctionDef):
        return False
    arguments = function.args
    bare = not (arguments.args or arguments.posonlyargs or arguments.kwonlyargs)
    return function.name == "check" or (function.name.startswith("test") and bare)


class Units:
    """The checks of a test source, and what became of them.

    Args:
        tree: The parsed tests; its checks are wrapped in place.
        go_on: Whether a failed check lets the next one run, for partial credit.
    """

    def __init__(self, tree: ast.Module, go_on: bool) -> None:
        self.total = 0
        self._go_on = go_on
        functions = (node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        self._checkers = {node.name for node in functions if holds_assert(node)}
        self._of_units = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and is_checking(node)}
        tree.body = self._wrapped(tree.body)
        ast.fix_missing_locations(tree)

    def _wrapped(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                if is_checking(node) and isinstance(node, ast.FunctionDef):
                    node.body = self._wrapped(node.body)
                made.append(node)
            elif holds_assert(node) or self._calls_checker(node):
                made.append(self._unit(node))
            else:
                made.append(node)
        return made

    def _calls_checker(self, node: ast.stmt) -> bool:
        """Whether a statement calls a function of the tests that asserts and is not itself made of units."""
        return any(
            isinstance(inner, ast.Call)
            and isinstance(inner.func, ast.Name)
            and inner.func.id in self._checkers - self._of_units
            for inner in ast.walk(node)
        )

    def _unit(self, node: ast.stmt) -> ast.stmt:
        number = self.total
        self.total += 1
        passed = ast.parse(f"{_UNIT}({number}, None)").body
        failed = ast.parse(f"{_UNIT}({number}, __error__)").body
        if not self._go_on:
            failed += [ast.Raise()]
        handler = ast.ExceptHandler(type=ast.Name("__caught__", ast.Load()), name="__error__", body=failed)
        return ast.copy_location(ast.Try(body=[node], handlers=[handler], orelse=passed, finalbody=[]), node)


def run(task: dict[str, Any]) -> NoReturn:
    """Runs the tests against the program on the channel and ends the process.

    Args:
        task: `source` of the tests; `entry`, what `check` is called with, or null; `helpers`, {name: [module,
            attribute or null]} that the tests use without importing; `names`, taken from the program; `classes`, those
            used as classes; `go_on`.
    """
    answers_so_far = [lambda: 0]

    def finish(record: dict[str, Any]) -> NoReturn:
        _write(record)
        os._exit(0)

    def give_up(reason: str) -> NoReturn:
        finish({"total": units.total + collected.total, "answers": answers_so_far[0](), "broken": reason})

    def unsupported(reason: str) -> NoReturn:
        finish({"unsupported": reason})

    _import_nothing_from(os.getcwd())
    tree = ast.parse(task["source"])
    sys.modules["pytest"] = pytest_names.module()
    collected = Collected(tree, task["go_on"], unsupported)
    asserts, epilogue = checks.Asserts(tree), _epilogue(tree, task["entry"])
    units = Units(tree, task["go_on"])
    checks.Rewritten(tree).visit(tree)
    session = Session(CHANNEL, frozenset(task["names"]), frozenset(task["classes"]), asserts, give_up, unsupported)
    answers_so_far[0] = lambda: session.answers
    names = _namespace(task["helpers"])
    names.update(session.hello())
    if "seed(" in task["source"]:
        _seed_both(session)

    found: dict[int, bool] = {}

    def report(number: int, error: BaseException | None) -> None:
        """Says once of a unit that it has passed, and once that it has not, however often it is run."""
        if found.get(number) is False or (error is None and number in found):
            return
        why = _describe(error) if error is not None and all(found.values()) else ""
        found[number] = error is None
        _write([number, int(error is None), why])

    names.update({_UNIT: report, "__caught__": Exception, **checks.MEANINGS})
    broken = ""
    for node in (*tree.body, *epilogue):
        try:
            exec(compile(ast.Module([node], []), checks.FILE, "exec", dont_inherit=True), names)
        except BaseException as error:
            if isinstance(error, ImportError) and not is_of_program(error):
                unsupported(f"the tests need a module that is not in the sandbox: {error}")
            broken = broken or f"line {getattr(node, 'lineno', 0)}: {_describe(error)}"
            if not task["go_on"]:
                break
    if collected.total and (task["go_on"] or not broken):
        collected.run(names, units.total, report)
    finish({"total": units.total + collected.total, "answers": session.answers, "broken": broken or session.lost})


def _import_nothing_from(directory: str) -> None:
    """Keeps imports of the tests from the scratch directory, which is the program's too."""

    class Nothing:
        """A finder that finds nothing."""

        @staticmethod
        def find_spec(name: str, target: types.ModuleType | None = None) -> None:
            """Finds nothing."""

    def hook(path: str) -> type[Nothing]:
        if os.path.realpath(path).startswith(directory):
            return Nothing
        raise ImportError

    if directory != "/":
        sys.path_hooks.insert(0, hook)


def _epilogue(tree: ast.Module, entry: str | None) -> list[ast.stmt]:
    """Returns the calls that the tests leave to their harness: `check(entry)`, and every `test_...` function."""
    called = {
        inner.func.id
        for node in tree.body
        if not isinstance(node, ast.FunctionDef)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name)
    }
    source = []
    for node in tree.body:
        if is_checking(node) and isinstance(node, ast.FunctionDef) and node.name not in called:
            if node.name != "check":
                source.append(f"{node.name}()")
            elif entry is not None:
                source.append(f"check({entry})")
    return ast.parse("\n".join(source)).body


def _namespace(helpers: dict[str, list[Any]]) -> dict[str, Any]:
    module = types.ModuleType("__main__")  # so that what stands under a main guard is run as well
    names = module.__dict__
    names["__builtins__"] = builtins
    for name, (home, attribute) in helpers.items():
        found = importlib.import_module(home)
        names[name] = found if attribute is None else getattr(found, attribute)
    return names


def _seed_both(session: Session) -> None:
    """Lets the tests' `random.seed` seed the program as well, numpy's too where there is one."""
    import random

    homes: dict[str, Any] = {"random": random}
    if "numpy" in sys.modules:
        homes["numpy"] = sys.modules["numpy"].random

    def seeding(module: str, plain: Any) -> Any:
        def seed(value: Any = None, *rest: Any, **named: Any) -> None:
            plain(value, *rest, **named)
            if value is None or type(value) in (int, float, str, bytes):
                session.seed(module, value)

        return seed

    for module, home in homes.items():
        home.seed = seeding(module, home.seed)


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_DESCRIBED].rstrip(": ")
    except Exception:  # an error of the tests' own may not be able to say what it is
        return type(error).__name__


def _write(record: Any) -> None:
    view = memoryview(json.dumps(record).encode() + b"\n")
    while view:
        view = view[os.write(REPORT, view) :]
