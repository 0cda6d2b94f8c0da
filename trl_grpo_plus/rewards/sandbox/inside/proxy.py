"""A program's objects, as its tester sees them: proxies that answer by asking the program.

What is plain data comes over as data and is compared here. For everything else the rule is that the program may be
asked "what is your answer?", never "is this expected value right?":

- An operand that the test has chosen (the expected value, as a rule) goes to the program only where the tests
  themselves made the object, by calling a class that they name (`Vector(1, 2) * 2`), took it from one (`Color.RED`) or
  got it from arithmetic with such. What is left of the latter two when a plain value is subtracted has no size or
  truth (`abs(a * b - 11) < 1e-6`), and `in` looks through the items of the second here, as through those of what a
  function of the program returned, with which any arithmetic raises TypeError.
- Compared with plain data, an object is unequal; two objects are compared by the program only where the tests made
  one of them. An ordering with plain data raises TypeError.
- What is asked for without an operand (`len`, `float`, an attribute, the next item) is an answer like any other.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Protocol

_SPECIAL = ("__name__", "__doc__", "__qualname__", "__dict__", "__annotations__")
# Of texts, sets and tables: each asks whether the operand is right.
_JUDGES = ("startswith", "endswith", "issubset", "issuperset", "isdisjoint", "equals")
_get, _set = object.__getattribute__, object.__setattr__


class Asserts(Protocol):
    """Where the tests assert something: a `checks.Asserts`."""

    def lost_with(self, trace: TracebackType | None, frame: FrameType) -> bool:
        """Returns whether asserts would never be decided if a `with` statement swallowed an error."""


class Asks(Protocol):
    """The channel to the program: a `Session`."""

    @property
    def asserts(self) -> Asserts:
        """Where the tests assert something."""

    def ask(self, operation: str, *arguments: Any, mutates: bool = False, named: dict[str, Any] | None = None) -> Any:
        """Returns what the program answers, or raises what it says that it raised."""

    def call(self, proxy: Proxy, arguments: tuple[Any, ...], named: dict[str, Any], mutates: bool) -> Any:
        """Returns what a call of the program's object returns."""


def _made(value: Any) -> str:
    """Returns how the tests came by an object: `made`, `member`, `result`, `difference`; empty for an answer."""
    return str(_get(value, "_made")) if isinstance(value, Proxy) else ""


def _exact(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"the program's object is no {kind.__name__}")
    return value


class Proxy:
    """An object of the program: see the rule at the top of the file."""

    __slots__ = ("_session", "_number", "_kind", "_class", "_made")

    def __init__(self, session: Asks, number: int, kind: str) -> None:
        for name, value in (
            ("_session", session),
            ("_number", number),
            ("_kind", kind),
            ("_class", False),
            ("_made", ""),
        ):
            _set(self, name, value)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _get(self, "_session").call(self, arguments, named, False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _SPECIAL:  # others would change how Python treats the proxy
            raise AttributeError(name)
        value = _member(self, _get(self, "_session").ask("getattr", self, name))
        if name in _JUDGES and isinstance(value, Proxy) and not _made(self) and not _get(self, "_class"):
            return _judging(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        _get(self, "_session").ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        _get(self, "_session").ask("delattr", self, name)

    def __iter__(self) -> Iterator[Any]:
        iterator = _get(self, "_session").ask("iter", self)
        if not isinstance(iterator, Proxy):
            return iter(iterator)
        return _items(iterator, self)

    def __reversed__(self) -> Iterator[Any]:
        iterator = _get(self, "_session").ask("reversed", self)
        return _items(iterator, self) if isinstance(iterator, Proxy) else iter(iterator)

    def __next__(self) -> Any:
        return _get(self, "_session").ask("next", self)

    def __enter__(self) -> Any:
        return _get(self, "_session").ask("enter", self)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        known = kind if getattr(builtins, getattr(kind, "__name__", ""), None) is kind else None
        suppressed = _get(self, "_session").ask("exit", self, known or (Exception if kind else None))
        if suppressed is not True or error is None or isinstance(error, AssertionError):
            return False
        return not _get(self, "_session").asserts.lost_with(trace, sys._getframe(1))

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Proxy) and _get(self, "_session").ask("isinstance", instance, self) is True

    def __subclasscheck__(self, subclass: Any) -> bool:
        return isinstance(subclass, Proxy) and _get(self, "_session").ask("issubclass", subclass, self) is True

    def __getitem__(self, key: Any) -> Any:
        return _member(self, _get(self, "_session").ask("getitem", self, key))

    def __setitem__(self, key: Any, value: Any) -> None:
        _get(self, "_session").ask("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        _get(self, "_session").ask("delitem", self, key)

    def __contains__(self, item: Any) -> bool:
        if _made(self) in ("made", "result"):
            return _get(self, "_session").ask("contains", self, item) is True
        return any(mine is item or mine == item for mine in self)

    def __format__(self, specification: str) -> str:
        return str(_exact(_get(self, "_session").ask("format", self, specification), str))

    def __round__(self, digits: Any = None) -> Any:
        _refuse_difference(self)
        return _get(self, "_session").ask("round", self, *(() if digits is None else (digits,)))

    def __abs__(self) -> Any:
        _refuse_difference(self)
        return _get(self, "_session").ask("abs", self)

    def __neg__(self) -> Any:
        return _own(_get(self, "_session").ask("neg", self), self)

    def __pos__(self) -> Any:
        return _own(_get(self, "_session").ask("pos", self), self)

    def __invert__(self) -> Any:
        return _own(_get(self, "_session").ask("invert", self), self)

    def __hash__(self) -> int:
        if _made(self):
            return int(_exact(_get(self, "_session").ask("hash", self), int))
        return hash(("class", number_of(self))) if _get(self, "_kind") == "class" else id(self)

    def __eq__(self, other: object) -> bool:
        return self is other or _compare("eq", self, other, False)

    def __ne__(self, other: object) -> bool:
        return self is not other and _compare("ne", self, other, True)


class AsyncProxy(Proxy):
    """A coroutine function of the program; awaiting its call runs the whole coroutine over there."""

    __slots__ = ()

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _get(self, "_session").ask("await", self, *arguments, named=named)


def _items(iterator: Proxy, source: Proxy) -> Iterator[Any]:
    while True:
        try:
            item = _get(iterator, "_session").ask("next", iterator)
        except StopIteration:
            return
        yield _member(source, item)


def _member(source: Proxy, value: Any) -> Any:
    """Returns what a class that the tests name holds (`Color.RED`), marked as named by them: no answer of a call."""
    if isinstance(value, Proxy) and _get(value, "_kind") == "object" and _get(source, "_class"):
        _set(value, "_made", "member")
    return value


def _judging(name: str, method: Proxy) -> Callable[..., Any]:
    """Returns a method of an answer that can be asked about objects of the program alone."""

    def judge(*operands: Any, **named: Any) -> Any:
        if all(isinstance(operand, Proxy) for operand in (*operands, *named.values())):
            return method(*operands, **named)
        raise TypeError(f"the program's object is none whose `{name}` could be believed")

    return judge


def _own(value: Any, *sources: Any) -> Any:
    """Returns a result of arithmetic, marked as such where the tests have made one of its operands."""
    if isinstance(value, Proxy) and any(map(_made, sources)):
        _set(value, "_made", "difference" if "difference" in map(_made, sources) else "result")
    return value


def _refuse_difference(proxy: Proxy) -> None:
    if _made(proxy) == "difference":
        raise TypeError("what the program says of a difference from an expected value could not be believed")


def _compare(operation: str, mine: Proxy, other: object, otherwise: bool) -> bool:
    if isinstance(other, Proxy) and (_made(mine) or _made(other)):
        return _get(mine, "_session").ask(operation, mine, other) is True
    if isinstance(other, Proxy) and _get(mine, "_kind") == _get(other, "_kind") == "class":
        return is_same(mine, other) is not otherwise
    return otherwise


def _arithmetic(operation: str, reflected: bool) -> Callable[[Proxy, Any], Any]:
    def method(self: Proxy, other: Any) -> Any:
        if not _made(self) and not _made(other):
            return NotImplemented
        value = _get(self, "_session").ask(operation, *((other, self) if reflected else (self, other)))
        if operation == "sub" and _made(self) != "made" and not isinstance(other, Proxy):
            if not isinstance(value, Proxy):
                return NotImplemented
            _set(value, "_made", "difference")
            return value
        return _own(value, self, other)

    return method


def _ordering(operation: str) -> Callable[[Proxy, Any], Any]:
    def method(self: Proxy, other: Any) -> Any:
        if not isinstance(other, Proxy) or not (_made(self) or _made(other)):
            return NotImplemented
        return _get(self, "_session").ask(operation, self, other) is True

    return method


def _conversion(operation: str, kind: type) -> Callable[[Proxy], Any]:
    def method(self: Proxy) -> Any:
        if kind not in (str, bytes):
            _refuse_difference(self)
        return _exact(_get(self, "_session").ask(operation, self), kind)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "divmod", "pow", "matmul", "and", "or", "xor"):
    _operation = f"{_name}_" if _name in ("and", "or") else _name
    setattr(Proxy, f"__{_name}__", _arithmetic(_operation, False))
    setattr(Proxy, f"__r{_name}__", _arithmetic(_operation, True))
for _name in ("lshift", "rshift"):
    setattr(Proxy, f"__{_name}__", _arithmetic(_name, False))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Proxy, f"__{_name}__", _ordering(_name))
for _name, _kind in (("len", int), ("str", str), ("repr", str), ("bool", bool), ("int", int), ("float", float)):
    setattr(Proxy, f"__{_name}__", _conversion(_name, _kind))
Proxy.__complex__ = _conversion("complex", complex)  # type: ignore[attr-defined]
Proxy.__bytes__ = _conversion("bytes", bytes)  # type: ignore[attr-defined]
Proxy.__index__ = _conversion("index", int)  # type: ignore[attr-defined]


def number_of(proxy: Proxy) -> int:
    """Returns the number by which the program knows an object."""
    return int(_get(proxy, "_number"))


def is_same(one: Any, other: Any) -> bool:
    """Returns what `is` does, where two proxies may stand for one object."""
    if isinstance(one, Proxy) and isinstance(other, Proxy):
        return number_of(one) == number_of(other)
    return one is other


def type_of(value: Any) -> Any:
    """Returns the class of a value, the program's where it is the program's object: no plain type, then."""
    if not isinstance(value, Proxy):
        return type(value)
    kind = _get(value, "_session").ask("type", value)
    if not isinstance(kind, Proxy):
        raise TypeError("the program's object is of no class of its own")
    return kind


def named_class(proxy: Proxy) -> None:
    """Notes that the tests name an object and use it as a class."""
    _set(proxy, "_class", _get(proxy, "_kind") == "class")


def is_named_class(proxy: Proxy) -> bool:
    """Returns whether an object is a class that the tests name."""
    return bool(_get(proxy, "_class"))


def made_by_tests(proxy: Proxy) -> None:
    """Notes that the tests themselves have made an object."""
    _set(proxy, "_made", "made")


def in_place(function: Any) -> Callable[..., Any]:
    """Returns a call that brings back what the program did to the arguments: for `sort(x)` as a statement of its own.

    Elsewhere an argument is a copy: `assert sorted(f(x)) == sorted(x)` must not see a list that `f` has emptied.
    """
    if not isinstance(function, Proxy) or isinstance(function, AsyncProxy):
        chosen: Callable[..., Any] = function
        return chosen

    def call(*arguments: Any, **named: Any) -> Any:
        return _get(function, "_session").call(function, arguments, named, True)

    return call


def is_made_by_tests(value: Any) -> bool:
    """Returns whether a value is an object that the tests themselves have made."""
    return _made(value) in ("made", "result")


def ask_within(holder: Proxy, steps: Any, operation: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Returns what a method of plain data returns that an object of the program holds, run there."""
    return _get(holder, "_session").ask("within", holder, list(steps), operation, *arguments, named=named)
