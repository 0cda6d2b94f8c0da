"""What tests use of pytest, for a process in which it is not: `raises`, `approx`, `fixture` and `mark.parametrize`.

Meanings are those of pytest's reference (docs.pytest.org, "API Reference"), with fixtures made anew for each test.
"""

from __future__ import annotations

import collections
import io
import math
import re
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

_PARAMETERS, _FIXTURE = "__parameters__", "__fixture__"
_RELATIVE, _ABSOLUTE = 1e-6, 1e-12


class NotHere(ImportError):
    """Tests use more of pytest than this."""


class _Raises:
    """`with pytest.raises(ValueError, match="...") as caught`; `caught.value` is the exception."""

    def __init__(self, expected: Any, match: str | None) -> None:
        self._expected = expected
        self._pattern = match
        self.value: Any = None
        self.type: Any = None

    def __enter__(self) -> _Raises:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if kind is None:
            raise AssertionError(f"DID NOT RAISE {self._expected!r:.80}")
        if not issubclass(kind, self._expected):
            return False
        self.type, self.value = kind, error
        if self._pattern is not None:
            self.match(self._pattern)
        return True

    def match(self, pattern: str) -> bool:
        """Checks the exception's text by `re.search`."""
        if not re.search(pattern, str(self.value)):
            raise AssertionError(f"{str(self.value)!r:.80} does not match {pattern!r:.80}")
        return True


def raises(expected: Any, *call: Any, match: str | None = None, **named: Any) -> _Raises:
    """Returns a context that must raise, or calls a function that must."""
    context = _Raises(expected, match)
    if call:
        with context:
            call[0](*call[1:], **named)
    return context


class approx:
    """A number, or a sequence or mapping of numbers, that others are equal to within a tolerance."""

    __array_ufunc__ = None  # arrays leave the comparison to this
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False
    ) -> None:
        self._expected = expected
        self._relative = rel if rel is not None else 0.0 if abs is not None else _RELATIVE
        self._absolute = _ABSOLUTE if abs is None else abs
        self._nan_ok = nan_ok

    def __eq__(self, actual: object) -> bool:
        return self._equal(actual, self._expected)

    def _equal(self, actual: Any, expected: Any) -> bool:
        if hasattr(expected, "tolist"):
            expected = expected.tolist()
        if hasattr(actual, "tolist"):
            actual = actual.tolist()
        if isinstance(expected, Mapping):
            same = isinstance(actual, Mapping) and actual.keys() == expected.keys()
            return same and all(self._equal(actual[key], value) for key, value in expected.items())
        if isinstance(expected, (list, tuple)):
            same = isinstance(actual, (list, tuple)) and len(actual) == len(expected)
            return same and all(map(self._equal, actual, expected))
        if actual == expected:
            return True
        try:
            if expected != expected or actual != actual:
                return self._nan_ok and expected != expected and actual != actual
            if math.inf in (abs(expected), abs(actual)):
                return False
            return bool(abs(actual - expected) <= max(self._relative * abs(expected), self._absolute))
        except TypeError:
            return False

    def __repr__(self) -> str:
        return f"approx({self._expected!r})"


def param(*values: Any, **_: Any) -> tuple[Any, ...]:
    """Returns a set of values for `parametrize`."""
    return _Param(values)


class _Param(tuple[Any, ...]):
    """Values of all names, even where there is one."""


class _Mark:
    def parametrize(self, names: Any, values: Any, **_: Any) -> Callable[[Any], Any]:
        split = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
        sets = [tuple(v) if len(split) > 1 or isinstance(v, _Param) else (v,) for v in values]

        def decorate(function: Any) -> Any:
            given = [dict(zip(split, each, strict=True)) for each in sets]
            setattr(function, _PARAMETERS, [*getattr(function, _PARAMETERS, []), given])
            return function

        return decorate

    def __getattr__(self, name: str) -> Any:
        if name in ("skip", "skipif", "xfail", "usefixtures"):
            raise NotHere(f"pytest.mark.{name}")
        return lambda *given, **_: given[0] if given and callable(given[0]) else lambda function: function


def parameters_of(function: Any) -> list[list[dict[str, Any]]]:
    """Returns the sets of parameters that each `parametrize` gives to a test, none where there is none."""
    found: list[list[dict[str, Any]]] = getattr(function, _PARAMETERS, [])
    return found


def fixture(function: Any = None, **options: Any) -> Any:
    """Marks a function whose value tests get by its name."""
    if options.get("autouse") or options.get("params"):
        raise NotHere("pytest.fixture with autouse or params")
    if function is None:
        return fixture
    setattr(function, _FIXTURE, True)
    return function


class Captured:
    """The fixture `capsys`: what is printed while it is there."""

    def __enter__(self) -> Captured:
        self._texts = (io.StringIO(), io.StringIO())
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._texts
        return self

    def __exit__(self, *_: Any) -> None:
        sys.stdout, sys.stderr = self._before

    def readouterr(self) -> Any:
        """Returns what was printed since the last time, as `out` and `err`."""
        found = _Printed(*(text.getvalue() for text in self._texts))
        for text in self._texts:
            text.seek(0)
            text.truncate()
        return found


_Printed = collections.namedtuple("_Printed", ("out", "err"))


def is_fixture(function: Any) -> bool:
    """Returns whether a function is marked as a fixture."""
    return getattr(function, _FIXTURE, False) is True


def fail(reason: str = "", **_: Any) -> None:
    """Fails a test."""
    raise AssertionError(reason)


def module() -> types.ModuleType:
    """Returns a module `pytest` of what is here."""

    def missing(name: str) -> Any:
        raise NotHere(f"pytest.{name}")

    made = types.ModuleType("pytest")
    made.__dict__.update(raises=raises, approx=approx, param=param, mark=_Mark(), fixture=fixture, fail=fail)
    made.__dict__["__getattr__"] = missing
    return made
