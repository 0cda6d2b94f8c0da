"""Values on their way out of a program's process: JSON with a tag for every type that JSON lacks. Never pickle.

A claimed value is data: subclasses collapse to the value of their base, so that no `__eq__` of the program's own
survives, and what is not plain data is a handle (`{"o": ...}`), which only its own process can use. What comes in is
from an enemy: only the forms below are accepted, to a bounded depth, and only exact built-in types are made of them.

    None bool str, int below 2**53   themselves       list tuple set frozenset deque    l t S F q
    int float complex                i f c (hex)      dict, namedtuple                  d, n
    bytes bytearray                  b B (hex)        Decimal Fraction date datetime    D Q a A
    str with lone surrogates         s (hex)          range, slice, timedelta           r, h, e
    a builtin type, as `int`         y                iterator (of a test), numpy array I, N
    Counter, OrderedDict, defaultdict M               view of a dictionary, `...`       V, E
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import functools
import itertools
import json
import math
import sys
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 60
MAX_ITERATOR = 100_000
_INLINE = 2**53
_MAX_RATIONAL_HEX = 4096  # digits: making a fraction takes a greatest common divisor, quadratic in them
_ARRAY_KINDS = "biufcU"
_EXAMPLES: tuple[Any, ...] = ({}.keys(), {}.values(), {}.items(), iter([]), iter(()), (_ for _ in ()))
_ITERATORS: tuple[Any, ...] = (map, filter, zip, enumerate, reversed, *map(type, _EXAMPLES))
_CONTAINERS: dict[type, str] = {list: "l", tuple: "t", set: "S", frozenset: "F"}
_BASES = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, collections.deque)
_MAPPINGS = (collections.Counter, collections.OrderedDict, collections.defaultdict)
_VIEWS: dict[type, str] = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}
_TYPES: dict[str, type] = {kind.__name__: kind for kind in _BASES[:-1]}


class Unsendable(TypeError):
    """A value cannot be sent."""


class TooMuch(Unsendable):
    """A value is too deep, or does not end."""


def _text(value: str) -> Any:
    try:
        value.encode("utf-8")
        return value
    except UnicodeEncodeError:
        return {"s": value.encode("utf-8", "surrogatepass").hex()}


def _real(value: float) -> str:
    return value.hex() if math.isfinite(value) else repr(value)


def encode(value: Any, handle: Callable[[Any], Any], depth: int = 0) -> Any:
    """Returns the JSON form of a value.

    Args:
        value: Anything.
        handle: Makes a JSON value of what is not plain data, or raises `Unsendable`.
        depth: How deep in a nested value this one is.

    Raises:
        TooMuch: The value is nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise TooMuch("nested too deeply")
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if -_INLINE < value < _INLINE else {"i": hex(value)}
    if kind is str:
        return _text(value)
    if kind is float:
        return {"f": _real(value)}
    below = depth + 1
    tag = _CONTAINERS.get(kind)
    if tag is not None:
        return {tag: [encode(v, handle, below) for v in value]}
    if kind is dict:
        return {"d": [[encode(k, handle, below), encode(v, handle, below)] for k, v in value.items()]}
    if kind in _MAPPINGS:
        pairs = [[encode(k, handle, below), encode(v, handle, below)] for k, v in dict.items(value)]
        factory: Any = getattr(value, "default_factory", None)
        return {"M": [kind.__name__, pairs, factory.__name__ if factory in _TYPES.values() else None]}
    if kind in _VIEWS:
        return {"V": [_VIEWS[kind], [encode(v, handle, below) for v in value]]}
    if value is ...:
        return {"E": 0}
    if kind is bytes or kind is bytearray:
        return {"b" if kind is bytes else "B": value.hex()}
    if kind is complex:
        return {"c": [_real(value.real), _real(value.imag)]}
    if kind is range:
        return {"r": [hex(value.start), hex(value.stop), hex(value.step)]}
    if kind is decimal.Decimal:
        return {"D": str(value)}
    if kind is fractions.Fraction:
        return {"Q": [hex(value.numerator), hex(value.denominator)]}
    if kind is collections.deque:
        return {"q": [[encode(v, handle, below) for v in value], value.maxlen]}
    if kind is datetime.date or kind is datetime.datetime:
        return {"a" if kind is datetime.date else "A": value.isoformat()}
    if kind is datetime.timedelta:
        return {"e": [value.days, value.seconds, value.microseconds]}
    if kind is slice:
        return {"h": [encode(v, handle, below) for v in (value.start, value.stop, value.step)]}
    if kind is type and value in _TYPES.values():
        return {"y": value.__name__}
    if getattr(kind, "__module__", "") == "numpy" and "numpy" in sys.modules:
        return _encode_numpy(value, handle, depth)
    for base in _BASES:
        if isinstance(value, base) and issubclass(kind, base):
            return _encode_subclass(value, base, handle, depth)
    return {"o": handle(value)}


def encode_argument(value: Any, handle: Callable[[Any], Any]) -> Any:
    """Returns the JSON form of an argument of a test: as `encode`, and iterators are sent as what they yield.

    It may be nested twice as deeply: what a program has answered can be sent back to it within values of the tests.

    Raises:
        TooMuch: An iterator does not end soon, or as `encode`.
    """
    if isinstance(value, _ITERATORS):
        items = list(itertools.islice(value, MAX_ITERATOR + 1))
        if len(items) > MAX_ITERATOR:
            raise TooMuch("an iterator that does not end")
        return {"I": [encode(v, handle, 1 - MAX_DEPTH) for v in items]}
    return encode(value, handle, -MAX_DEPTH)


def _encode_subclass(value: Any, base: type, handle: Callable[[Any], Any], depth: int) -> Any:
    """Returns the form of the base's value, read with the base's own methods."""
    if base in (int, float, complex):
        return encode(
            {int: int.__int__, float: float.__float__, complex: complex.__complex__}[base](value), handle, depth
        )
    if base is str:
        return _text("".join(str.__getitem__(value, slice(None))))
    if base in (bytes, bytearray):
        return encode(base(base.__getitem__(value, slice(None))), handle, depth)
    if base is dict:
        return encode(dict(dict.items(value)), handle, depth)
    items = list(base.__iter__(value))  # type: ignore[attr-defined]
    fields = getattr(type(value), "_fields", None) if base is tuple else None
    if isinstance(fields, tuple) and all(type(f) is str for f in fields) and len(fields) == len(items):
        return {"n": [list(fields), [encode(v, handle, depth + 1) for v in items]]}
    return encode(base(items), handle, depth)


def _encode_numpy(value: Any, handle: Callable[[Any], Any], depth: int) -> Any:
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.generic):
        plain = value.item()
        return {"o": handle(value)} if isinstance(plain, numpy.generic) else encode(plain, handle, depth)
    if type(value) is numpy.ndarray and value.dtype.kind in _ARRAY_KINDS:
        flat = [encode(v, handle, depth + 1) for v in value.ravel().tolist()]
        return {"N": [value.dtype.str, list(value.shape), flat]}
    if type(value) is numpy.ndarray and value.dtype == object:
        return {"N": ["O", list(value.shape), [encode(v, handle, depth + 1) for v in value.ravel().tolist()]]}
    return {"o": handle(value)}


def _whole(text: Any) -> int:
    if type(text) is not str:
        raise ValueError("not a number")
    return int(text, 16)


def _float(text: Any) -> float:
    if type(text) is not str:
        raise ValueError("not a number")
    return float(text) if text in ("nan", "inf", "-inf") else float.fromhex(text)


def _decimal(text: Any) -> decimal.Decimal:
    if type(text) is not str or len(text) > 10_000:
        raise ValueError("not a decimal number")
    return decimal.Decimal(text)


def _fraction(pair: Any) -> fractions.Fraction:
    top, bottom = pair
    if max(len(top), len(bottom)) > _MAX_RATIONAL_HEX:
        raise ValueError("a fraction of too many digits")
    return fractions.Fraction(_whole(top), _whole(bottom))


# Forms that hold no other values.
LEAVES: dict[str, Callable[[Any], Any]] = {
    "i": _whole,
    "f": _float,
    "c": lambda v: complex(_float(v[0]), _float(v[1])),
    "s": lambda v: bytes.fromhex(v).decode("utf-8", "surrogatepass"),
    "b": bytes.fromhex,
    "B": bytearray.fromhex,
    "D": _decimal,
    "Q": _fraction,
    "r": lambda v: range(*(_whole(x) for x in v)),
    "a": datetime.date.fromisoformat,
    "A": datetime.datetime.fromisoformat,
    "e": lambda v: datetime.timedelta(*(int(x) for x in v)),
    "y": _TYPES.__getitem__,
    "E": lambda _: ...,
}


def decode(form: Any, handle: Callable[[Any], Any], depth: int = 0) -> Any:
    """Returns the value of a JSON form that may come from an enemy.

    Args:
        form: What `json.loads` returned.
        handle: Makes an object of a handle, or raises `ValueError`.
        depth: How deep in a nested value this one is.

    Raises:
        ValueError: It is none of the known forms (also `TypeError`, `ArithmeticError` from malformed parts).
    """
    if depth > MAX_DEPTH + 2:
        raise ValueError("nested too deeply")
    if form is None or type(form) in (bool, int, str):
        return form
    if type(form) is not dict or len(form) != 1:
        raise ValueError("not a value")
    ((tag, body),) = form.items()
    if tag in LEAVES:
        return LEAVES[tag](body)

    def inner(part: Any) -> Any:
        return decode(part, handle, depth + 1)

    if tag == "o":
        return handle(body)
    if tag in ("l", "t", "S", "F"):
        made: Any = {"l": list, "t": tuple, "S": set, "F": frozenset}[tag]
        return made(inner(v) for v in body)
    if tag == "h":
        return slice(*(inner(v) for v in body))
    if tag == "d":
        return {inner(k): inner(v) for k, v in body}
    if tag == "M":
        return _mapping(body[0], {inner(k): inner(v) for k, v in body[1]}, body[2])
    if tag == "V":
        return _view(body[0], [inner(v) for v in body[1]])
    if tag == "q":
        return collections.deque((inner(v) for v in body[0]), body[1])
    if tag == "n":
        return _record(tuple(str(f) for f in body[0]))(*(inner(v) for v in body[1]))
    if tag == "N":
        return _decode_numpy(body, inner)
    raise ValueError("not a value")


def _mapping(name: str, items: dict[Any, Any], factory: str | None) -> Any:
    if name == "defaultdict":
        return collections.defaultdict(None if factory is None else _TYPES[factory], items)
    return {"Counter": collections.Counter, "OrderedDict": collections.OrderedDict}[name](items)


def _view(name: str, items: list[Any]) -> Any:
    if name == "keys":
        return dict.fromkeys(items).keys()
    return dict(enumerate(items)).values() if name == "values" else dict(items).items()


@functools.lru_cache(maxsize=64)
def _record(fields: tuple[str, ...]) -> Callable[..., Any]:
    return collections.namedtuple("record", fields, rename=True)


def decode_argument(form: Any, handle: Callable[[Any], Any]) -> Any:
    """Returns the value of what `encode_argument` made.

    Raises:
        ValueError: As `decode`.
    """
    if type(form) is dict and "I" in form:
        return iter([decode(v, handle, 1 - MAX_DEPTH) for v in form["I"]])
    return decode(form, handle, -MAX_DEPTH)


def _decode_numpy(body: Any, inner: Callable[[Any], Any]) -> Any:
    import numpy

    dtype, shape, flat = body
    if dtype == "O":
        array = numpy.empty(len(flat), dtype=object)
        for i, part in enumerate(flat):
            array[i] = inner(part)
        return array.reshape([int(n) for n in shape])
    if numpy.dtype(dtype).kind not in _ARRAY_KINDS:
        raise ValueError("an array of another kind")
    return numpy.array([inner(part) for part in flat], dtype=dtype).reshape([int(n) for n in shape])


def dumps(form: Any) -> bytes:
    """Returns a form as bytes without line ends."""
    return json.dumps(form, separators=(",", ":"), allow_nan=False).encode()


loads = json.loads
