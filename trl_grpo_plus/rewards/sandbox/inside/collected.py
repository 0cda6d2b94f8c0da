"""Tests that a runner collects: methods of test classes, and test functions with parameters; each run is a unit.

`unittest` runs its own classes. What tests take from pytest is here in a small form of its own (`pytest_names`), since
pytest is not in the sandbox.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from . import pytest_names

Report = Callable[[int, BaseException | None], None]


def is_test_class(node: ast.ClassDef) -> bool:
    """Returns whether a class's methods are run as tests: a `TestCase`, or by its name."""
    bases = (b.attr if isinstance(b, ast.Attribute) else getattr(b, "id", "") for b in node.bases)
    return node.name.startswith("Test") or any("Test" in base for base in bases)


def least_number(tree: ast.Module) -> int:
    """Returns how many tests are collected at least, read from the source."""
    functions, classes = _collected(tree)
    return len(functions) + sum(_is_test(node) for made in classes for node in made.body)


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _collected(tree: ast.Module) -> tuple[list[_Function], list[ast.ClassDef]]:
    """Returns the test functions with parameters, which the tests do not call themselves, and the test classes.

    Coroutines are among the functions, with parameters or without.
    """
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    called = {function.id for function in calls if isinstance(function, ast.Name)}
    functions = [n for n in tree.body if isinstance(n, _Function) and _is_test(n) and n.name not in called]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and is_test_class(node)]
    return [n for n in functions if n.args.args or n.args.kwonlyargs or isinstance(n, ast.AsyncFunctionDef)], classes


def _is_test(node: ast.stmt) -> bool:
    return isinstance(node, _Function) and node.name.startswith("test")


class Collected:
    """The collected tests of a source.

    Args:
        tree: The parsed tests.
        go_on: Whether a failed test lets the next one run.
        unsupported: Called with a reason where a test needs what is not here; does not return.
    """

    def __init__(self, tree: ast.Module, go_on: bool, unsupported: Callable[[str], NoReturn]) -> None:
        self.total = least_number(tree)
        functions, classes = _collected(tree)
        self._chosen = {node.name for node in (*functions, *classes)}
        self._nodes = [node for node in tree.body if isinstance(node, _Function | ast.ClassDef)]
        self._go_on = go_on
        self._unsupported = unsupported

    def run(self, names: dict[str, Any], first: int, report: Report) -> None:
        """Runs the tests, in their order.

        Args:
            names: Namespace in which they have been defined.
            first: Number of the first unit.
            report: Told the number and the error of each test.
        """
        number, skipped, failed = 0, 0, False
        for node in self._nodes:
            if failed and not self._go_on:
                break
            made: Any = names.get(node.name)
            if isinstance(node, ast.ClassDef) and self._is_case(made):
                result = _run_case(made, first + number, report, self._go_on)
                number, skipped, failed = number + result.ran, skipped + len(result.skipped), failed or result.failed
                continue
            for test in self._tests(made, names) if node.name in self._chosen else ():
                error: BaseException | None = None
                try:
                    test()
                except Exception as caught:
                    error = caught
                report(first + number, error)
                number += 1
                failed = failed or error is not None
                if failed and not self._go_on:
                    break
        self.total = max(self.total - skipped, number)

    @staticmethod
    def _is_case(made: Any) -> bool:
        unittest = sys.modules.get("unittest")
        return unittest is not None and isinstance(made, type) and issubclass(made, unittest.TestCase)

    def _tests(self, made: Any, names: dict[str, Any]) -> Iterator[Callable[[], Any]]:
        if not isinstance(made, type):
            yield from self._cases(made, names, None)
            return
        for name in [name for name in dir(made) if name.startswith("test")]:
            yield from self._cases(getattr(made, name), names, made)

    def _cases(self, function: Any, names: dict[str, Any], owner: type | None) -> Iterator[Callable[[], Any]]:
        """Yields a test per set of parameters, each with fixtures, and an instance, of its own."""
        marked = pytest_names.parameters_of(function)
        for chosen in itertools.product(*marked):
            given = {name: value for part in chosen for name, value in part.items()}
            yield lambda given=given: self._one(function, given, names, owner)  # type: ignore[misc]

    def _one(self, function: Any, given: dict[str, Any], names: dict[str, Any], owner: type | None) -> None:
        with contextlib.ExitStack() as stack:
            instance = [] if owner is None else [owner()]
            for each in instance:
                with contextlib.suppress(AttributeError):
                    stack.callback(each.teardown_method)
                if hasattr(each, "setup_method"):
                    each.setup_method(*[function] * (len(inspect.signature(each.setup_method).parameters)))
            wanted = list(inspect.signature(function).parameters)[len(instance) :]
            arguments = {n: given[n] if n in given else self._fixture(n, names, stack) for n in wanted}
            ended = function(*instance, **arguments)
            if inspect.iscoroutine(ended):
                import asyncio  # large, and rarely needed

                asyncio.run(ended)

    def _fixture(self, name: str, names: dict[str, Any], stack: contextlib.ExitStack) -> Any:
        function: Any = names.get(name)
        if name == "capsys" and function is None:
            return stack.enter_context(pytest_names.Captured())
        if not pytest_names.is_fixture(function):
            self._unsupported(f"the tests need a fixture that is not in the sandbox: {name}")
        arguments = {n: self._fixture(n, names, stack) for n in inspect.signature(function).parameters}
        if inspect.isgeneratorfunction(function):
            return stack.enter_context(contextlib.contextmanager(function)(**arguments))
        return function(**arguments)


def _run_case(case: type, first: int, report: Report, go_on: bool) -> Any:
    """Returns the result of a `TestCase`: how many tests `ran`, whether one `failed`, and those `skipped`."""
    import unittest

    class Result(unittest.TestResult):
        ran = 0
        failed = False

        def _end(self, error: BaseException | None) -> None:
            report(first + self.ran, error)
            self.ran += 1
            self.failed = self.failed or error is not None
            if self.failed and not go_on:
                self.stop()

        def addSuccess(self, test: Any) -> None:
            self._end(None)

        def addFailure(self, test: Any, err: Any) -> None:
            self._end(err[1])

        addError = addFailure

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                self._end(err[1])

        def addExpectedFailure(self, test: Any, err: Any) -> None:
            self._end(None)

        def addUnexpectedSuccess(self, test: Any) -> None:
            self._end(AssertionError("a test that should fail did not"))

    result = Result()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result
