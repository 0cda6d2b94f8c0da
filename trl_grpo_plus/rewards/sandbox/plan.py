"""From a dataset's tests to how they are run, with what of them a program's process may know.

Tests of the form `assert f(<literals>) == <literal>` are split: the program's process gets the calls alone, and what
it claims is compared with the expected values in the trainer. Any other tests run in a tester process. Which names
the tests take from the program is read from the tests, never from the program: a program that defines its own
`abs`, `sorted` or `isclose` cannot slip it under a test that only uses them.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import json
import symtable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from .class_names import names_used_as_classes
from .inside.collected import least_number
from .inside.program import CANDIDATE
from .inside.tester import holds_assert, is_checking
from .one_process import why_in_one_process
from .program_names import holder_of, without_imports

_ROWS = 64  # whose plans are kept: all answers of a group have the same tests
_BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__"}
# Modules of which tests use names that only the solution has imported.
_HELPER_MODULES = (
    "math",
    "itertools",
    "functools",
    "collections",
    "typing",
    "string",
    "decimal",
    "fractions",
    "datetime",
)
_MODULES = frozenset(
    (
        *_HELPER_MODULES,
        "re",
        "os",
        "sys",
        "json",
        "random",
        "copy",
        "operator",
        "statistics",
        "heapq",
        "bisect",
        "time",
    )
)


class Unusable(ValueError):
    """Tests from which no verdict can be had: the row is at fault, not the program."""


@dataclass(frozen=True)
class Calls:
    """Tests that are calls with expected values.

    Args:
        expressions: Source of each call.
        expected: The value that each must return.
        identical: Whether it must be the very object (`is None`).
        candidate: Source of what they call as `CANDIDATE`, evaluated once before them; empty where they name it.
    """

    expressions: tuple[str, ...]
    expected: tuple[Any, ...]
    identical: tuple[bool, ...]
    candidate: str = ""


@dataclass(frozen=True)
class OtherTests:
    """Tests that run in a tester process.

    Args:
        source: The tests.
        entry: What `check` is called with, if the tests leave that to their harness.
        names: Names that the tests take from the program.
        helpers: Names that the tests use without importing: where they come from.
        classes: Names that the tests use as classes.
    """

    source: str
    entry: str | None
    names: tuple[str, ...]
    helpers: dict[str, tuple[str, str | None]]
    classes: tuple[str, ...]

    def task(self, go_on: bool) -> bytes:
        """Returns what the tester is told."""
        task = {"source": self.source, "entry": self.entry, "helpers": self.helpers, "names": self.names}
        return json.dumps({**task, "classes": self.classes, "go_on": go_on}).encode("utf-8", "surrogatepass")


@functools.lru_cache(_ROWS)
def plan(source: str, entry: str | None = None) -> Calls | OtherTests:
    """Returns how tests are run.

    Args:
        source: Python source of the tests.
        entry: What is under test, where the tests are a `check(candidate)` that nothing calls: a name, or a method as
            `Solution().two_sum`.

    Raises:
        Unusable: They do not parse, hold no check, or leave open what is tested.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unusable(f"the tests do not parse: {error}") from None
    if not holds_assert(tree) and not least_number(tree):
        raise Unusable("the tests check nothing")
    entry, holder = (entry.strip(), holder_of(entry.strip())) if entry else (None, None)
    if entry is not None and holder is None:
        raise Unusable(f"entry_point {entry!r:.80} is neither a name nor a method as in `Solution().two_sum`")
    left_open = leaves_check_open(tree)
    if left_open and entry is None:
        raise Unusable("the tests define check(candidate) and the row does not say what to call it with")
    given = tree
    tree, imported = without_imports(given)
    if (calls := _as_calls(tree, entry if left_open else None, imported)) is not None:
        return calls
    try:
        names, helpers = _names_under_test(tree, imported)
    except (SyntaxError, RecursionError) as error:
        raise Unusable(f"the tests do not compile: {error}") from None
    if holder is not None and holder not in names:
        names = (*names, holder)
        helpers.pop(holder, None)
    if not names:
        raise Unusable("the tests call nothing of the program")
    if (against := why_in_one_process(tree)) is not None:
        raise Unusable(against)
    classes = names_used_as_classes(tree, names, holder if left_open else None)
    if tree is not given:
        source = ast.unparse(tree)
    return OtherTests(source, entry if left_open else None, names, helpers, classes)


def leaves_check_open(tree: ast.Module) -> bool:
    """Returns whether the tests define `check(candidate)` and never call it."""
    defined = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
    outside = (node for node in tree.body if not isinstance(node, ast.FunctionDef))
    called = any(
        isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "check"
        for node in outside
        for inner in ast.walk(node)
    )
    return defined and not called


@functools.lru_cache(_ROWS)
def names_under_test(source: str) -> tuple[str, ...]:
    """Returns the names that tests take from the program, none where they do not parse."""
    try:
        return _names_under_test(*without_imports(ast.parse(source)))[0]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


# Calls with literal arguments and literal expectations.


def _as_calls(tree: ast.Module, entry: str | None, imported: Sequence[str]) -> Calls | None:
    """Returns the tests as calls, or `None` where one of them is something else."""
    candidate = entry if entry is None or entry.isidentifier() else CANDIDATE
    body = [inner for node in tree.body for inner in (node.body if _is_test(node) else [node])]
    parameter = None
    if entry is not None:
        body = []
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == "check" and len(node.args.args) == 1:
                parameter, body = node.args.args[0].arg, node.body
            elif not _is_inert(node):
                return None
    found = []
    for node in body:
        if _is_inert(node):
            continue
        check = _as_call(node, parameter, candidate, imported)
        if check is None:
            return None
        found.append(check)
    if not found:
        return None
    expressions, expected, identical = zip(*found, strict=True)
    made = entry if entry is not None and candidate == CANDIDATE else ""
    return Calls(tuple(expressions), tuple(expected), tuple(identical), made)


def _is_test(node: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    """Whether a statement is a function that is run as a test by itself."""
    return isinstance(node, ast.FunctionDef) and is_checking(node) and not node.decorator_list and node.name != "check"


def _is_inert(node: ast.stmt) -> bool:
    """Whether a statement does nothing that a check could depend on: a text, `METADATA = {...}`, `pass`."""
    if isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return names == ["METADATA"]
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


def _as_call(
    node: ast.stmt, parameter: str | None, candidate: str | None, imported: Sequence[str]
) -> tuple[str, Any, bool] | None:
    if not isinstance(node, ast.Assert):
        return None
    test = node.test
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.Is))):
        return None
    call, other = test.left, test.comparators[0]
    if not isinstance(call, ast.Call) and isinstance(other, ast.Call):
        call, other = other, call
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
        return None
    name = call.func.id
    if parameter is not None and name == parameter and candidate is not None:
        name = candidate
    elif parameter is not None or (name not in imported and (name in _BUILTINS or name in _well_known())):
        return None  # whose function that is takes a closer look
    try:
        expected = ast.literal_eval(other)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            ast.literal_eval(argument)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    identical = isinstance(test.ops[0], ast.Is)
    if identical and not (expected is None or isinstance(expected, bool)):
        return None
    called = ast.Call(ast.Name(name, ast.Load()), call.args, call.keywords)
    return ast.unparse(called), expected, identical


# Which names come from the program.


def _well_known() -> dict[str, tuple[str, str | None]]:
    """Returns the names that tests may use without importing, and where they come from."""
    if not _WELL_KNOWN:
        for module in _HELPER_MODULES:
            home = importlib.import_module(module)
            for name in getattr(home, "__all__", dir(home)):
                if not name.startswith("_"):
                    _WELL_KNOWN.setdefault(name, (module, name))
        _WELL_KNOWN.update({module: (module, None) for module in _MODULES})
        _WELL_KNOWN["datetime"] = ("datetime", None)
    return _WELL_KNOWN


_WELL_KNOWN: dict[str, tuple[str, str | None]] = {}


def _of_module(source: str) -> tuple[set[str], set[str]]:
    """Returns (names that the tests bind in their module, names that they take from it anywhere)."""
    bound: set[str] = set()
    taken: set[str] = set()
    scopes = [symtable.symtable(source, "<tests>", "exec")]
    for scope in scopes:
        scopes += scope.get_children()
        module = scope.get_type() == "module"
        for symbol in scope.get_symbols():
            if module or symbol.is_global():
                bound |= {symbol.get_name()} if symbol.is_assigned() or symbol.is_imported() else set()
                taken |= {symbol.get_name()} if symbol.is_referenced() else set()
    return bound, taken


def _free(tree: ast.AST, bound: set[str]) -> list[str]:
    loads = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load))
    return list(dict.fromkeys(name for name in loads if name not in bound))


def _innermost(tree: ast.AST, among: Sequence[str]) -> list[str]:
    """Returns the called names whose arguments hold no further call of those names."""
    calls = [
        n for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in among
    ]
    inner = [c for c in calls if not any(d is not c and d in calls for d in ast.walk(c))]
    return [c.func.id for c in inner if isinstance(c.func, ast.Name)]


def _is_check(node: ast.AST) -> bool:
    """Whether a node is an `assert`, or a call of a `TestCase`'s: `self.assertEqual(gcd(4, 6), 2)`."""
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(node, ast.Assert) or (isinstance(function, ast.Attribute) and function.attr.startswith("assert"))


def _names_under_test(
    tree: ast.Module, imported: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, tuple[str, str | None]]]:
    """Returns (names that the tests take from the program, helpers that they use without importing).

    Those that they import from it are its, and those that are neither builtin nor well known. A well-known one (`gcd`)
    is where a check names nothing else of the program, nor what came from it, and calls it innermost; a builtin one
    (`sum`) where no check names anything else.
    """
    (bound, taken), known = _of_module(ast.unparse(tree)), _well_known()
    free = [name for name in _free(tree, bound) if name in taken]
    own = [name for name in free if name in imported or (name not in _BUILTINS and name not in known)]
    answers = _bound_to_answers(tree, own)
    checks = [node for node in ast.walk(tree) if _is_check(node)]
    for check in checks:
        if not any(name in own or name in answers for name in _free(check, set())):
            own += _innermost(check, [name for name in free if name in known and known[name][1] is not None])
    if not own and not any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in tree.body):
        for check in checks:
            own += _innermost(check, [name for name in free if name in _BUILTINS])
    names = tuple(dict.fromkeys(own))
    return names, {name: _home(tree, name) for name in free if name in known and name not in names}


def _home(tree: ast.AST, name: str) -> tuple[str, str | None]:
    """Returns where a well-known name comes from: `datetime` is a class where tests write `datetime.now()`."""
    module, attribute = _well_known()[name]
    home = importlib.import_module(module)
    if attribute is not None or not hasattr(home, name):
        return module, attribute
    for node in ast.walk(tree):
        used = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Attribute) else None
        if not (isinstance(used, ast.Name) and used.id == name):
            continue
        if isinstance(node, ast.Call) or not hasattr(home, getattr(node, "attr", name)):
            return module, name
    return module, None


def _bound_to_answers(tree: ast.AST, own: Sequence[str]) -> set[str]:
    """Returns the names that the tests bind to what comes from names of the program: `r` in `r = f(1)`."""
    answers: set[str] = set()
    while True:
        found = {
            target.id
            for node in ast.walk(tree)
            if isinstance(node, (ast.stmt, ast.NamedExpr, ast.comprehension)) and not isinstance(node, ast.ClassDef)
            for target in _bindings(node)
            if target.id not in answers and any(name in own or name in answers for name in _free(node, set()))
        }
        if not found:
            return answers
        answers |= found


def _bindings(node: ast.AST) -> list[ast.Name]:
    """Returns the names that a statement or a part of an expression binds to values; `def helper` as well."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [ast.Name(node.name, ast.Store())]
    kinds = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)
    if not isinstance(node, (*kinds, ast.NamedExpr, ast.comprehension)):
        return []
    return [inner for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)]
