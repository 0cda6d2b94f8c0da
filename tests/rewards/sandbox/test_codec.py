"""Values through the codec, honest and hostile, and the comparison of claims against Python's own `==`."""

# ruff: noqa: E501  (tables of cases)

import collections
import contextlib
import datetime
import decimal
import enum
import fractions
import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_grpo_plus.rewards.sandbox.compare import equals, same_output
from trl_grpo_plus.rewards.sandbox.inside import codec


def refuse(value):
    raise codec.Unsendable(type(value).__name__)


def there_and_back(value):
    def unknown(body):
        raise ValueError(body)

    return codec.decode(json.loads(codec.dumps(codec.encode(value, refuse))), unknown)


def claim(value):
    return json.loads(codec.dumps(codec.encode(value, lambda _: None)))


numbers = st.one_of(st.booleans(), st.integers(), st.floats(), st.complex_numbers())
scalars = st.one_of(st.none(), numbers, st.text(), st.binary())
keys = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.tuples(st.integers(), st.text(max_size=2)))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
    ),
    max_leaves=12,
)


def same(a, b):
    """Equality of values that tells types apart and takes NaN to be itself; sets have no order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b if isinstance(a, (set, frozenset)) else repr(a) == repr(b)


@given(values)
def test_plain_values_come_back_as_they_were(value):
    assert same(there_and_back(value), value)


@settings(max_examples=300)
@given(values, values)
def test_claims_are_compared_as_python_compares(claimed, expected):
    assert equals(claim(claimed), expected) == (claimed == expected) or has_nan(claimed)
    if not has_nan(expected):
        assert equals(claim(expected), expected)


def has_nan(value):
    return "nan" in repr(value).lower()


def test_what_is_equal_across_types():
    pairs = [
        (1, True), (1.0, 1), (decimal.Decimal(2), 2), (fractions.Fraction(1, 2), 0.5), (frozenset({1}), {1}),
        (collections.Counter("aab"), {"a": 2, "b": 1}), (collections.OrderedDict(a=1), {"a": 1}), (2**70, 2**70),
        (collections.namedtuple("P", "x y")(1, 2), (1, 2)), (bytearray(b"x"), b"x"), ({1: "a"}, {True: "a"}),
    ]  # fmt: skip
    for claimed, expected in pairs:
        assert equals(claim(claimed), expected) == (claimed == expected) is True, (claimed, expected)
    for claimed, expected in [((1, 2), [1, 2]), ("1", 1), (None, 0), ([], ()), ({}, set()), ([1, [2]], [1, [3]])]:
        assert not equals(claim(claimed), expected)
    assert equals(None, None, identical=True) and not equals(1, True, identical=True)
    assert not equals(claim([]), None, identical=True)


class Liar(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__

    def __index__(self):
        return 99


class ListLiar(list):
    def __eq__(self, other):
        return True

    def __iter__(self):
        return iter([1, 2, 3])


class TextLiar(str):
    def __eq__(self, other):
        return True

    def __str__(self):
        return "right"

    __hash__ = str.__hash__


class Colour(int, enum.Enum):
    RED = 3


def test_subclasses_collapse_to_their_bases_value():
    assert there_and_back(Liar(5)) == 5 and type(there_and_back(Liar(5))) is int
    assert there_and_back(ListLiar([7])) == [7]
    assert there_and_back(TextLiar("wrong")) == "wrong"
    assert there_and_back(Colour.RED) == 3

    class Spoof:
        __class__ = int

        def __int__(self):
            return 3

    with pytest.raises(codec.Unsendable):
        codec.encode(Spoof(), refuse)


def test_further_types_and_numpy():
    numpy = pytest.importorskip("numpy")
    for value in (
        collections.deque([1, 2], 5), datetime.date(2024, 2, 29), datetime.datetime(2024, 1, 1, 2, 3), range(3, 9, 2),
        fractions.Fraction(-3, 7), decimal.Decimal("1.50"), "\ud800", frozenset({frozenset({1})}), bytearray(b"\x00"),
        1 << 100_000,
    ):  # fmt: skip
        back = there_and_back(value)
        assert back == value and type(back) is type(value)
    assert there_and_back(numpy.float64(0.1)) == 0.1 and there_and_back(numpy.int64(3)) == 3
    assert there_and_back(numpy.bool_(True)) is True
    array = numpy.arange(6, dtype=numpy.int32).reshape(2, 3)
    back = there_and_back(array)
    assert back.dtype == array.dtype and (back == array).all()
    record = there_and_back(collections.namedtuple("P", "x y")(1, 2))
    assert record.x == 1 and record == (1, 2)


HOSTILE = [
    [], {}, 1.5, {"l": 3}, {"l": [{"l": 1}]}, {"t": {"a": 1}}, {"i": 3}, {"i": "zz"}, {"f": "1e5x"}, {"D": "x" * 20_000},
    {"Q": ["0x1", "0x0"]}, {"Q": ["0x" + "f" * 100_000, "0x" + "e" * 100_000]}, {"s": "zz"}, {"d": [[1]]}, {"r": ["0x1"]},
    {"r": ["0x0", "0x1", "0x0"]}, {"n": [["x"], [1, 2]]}, {"n": [["__class__", "1"], [1, 2]]}, {"S": [{"l": []}]},
    {"l": [1], "t": [2]}, {"unknown": 1}, {"a": "yesterday"}, {"q": [[], -1]}, {"c": ["0x1p0"]}, {"o": [0, "object"]},
    {"N": ["O8", [10**9], []]}, {"N": ["<i8", [3], [1]]}, {"N": ["V8", [0], []]}, {"N": ["<M8[D]", [0], []]}, None,
    {"i": "0x" + "f" * 1_000_000}, {"f": "0x1p999999999999"}, {"b": "0"}, {"I": 3}, {"D": "1e999999999999"},
]  # fmt: skip


@pytest.mark.parametrize("form", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_form_is_refused_or_is_data(form):
    started = time.perf_counter()
    for expected in (3, "x", [1], {"a": 1}, {1}, (1, 3), None, 1.5, b"x", 1j):
        assert equals(form, expected) in ((form is None and expected is None), False)
    with contextlib.suppress(ValueError, TypeError, ArithmeticError, LookupError, AttributeError):
        codec.decode(form, lambda body: (_ for _ in ()).throw(ValueError(body)))
    assert time.perf_counter() - started < 1.0


def test_the_work_of_a_comparison_is_bounded_by_what_is_expected():
    modulus = 2**61 - 1
    collisions = {"S": [{"i": hex(k * modulus)} for k in range(1, 60_000)]}
    deep = json.loads("[" * 500 + "]" * 500)
    started = time.perf_counter()
    assert not equals(collisions, {1, 2, 3})
    assert not equals({"d": [[c, 1] for c in collisions["S"]]}, {1: 2})
    assert not equals({"l": collisions["S"]}, [1, 2])
    assert not equals({"S": [{"t": [collisions]}]}, {(1,)})
    assert not equals(deep, [[1]])
    assert time.perf_counter() - started < 0.5


def test_random_bytes_never_raise():
    rng = random.Random(0)
    tags = [*"ltSFdbBcirsDQqnNaAIo", "zz"]

    def form(depth):
        kind = rng.randrange(6)
        if kind == 0 or depth > 4:
            return rng.choice([None, True, 0, 1, "", "0x1", "nan", -(2**60)])
        if kind == 1:
            return [form(depth + 1) for _ in range(rng.randrange(4))]
        return {rng.choice(tags): form(depth + 1) for _ in range(rng.choice([1, 1, 1, 1, 2]))}

    for _ in range(3000):
        made = form(0)
        for expected in (1, [1], {1: 2}, {1}, "a", (1,)):
            equals(made, expected)


@pytest.mark.parametrize(
    ("found", "expected", "right"),
    [
        ("6\n", "6", True), ("6 \n\n", "6\n", True), ("6\r\n7\r\n", "6\n7\n", True), ("", "", True), (" 6", "6", False),
        ("6\n7", "6 7", False), ("a  b", "a b", False), ("0.3333333333", "0.333333", True), ("0.33", "0.333333", False),
        ("1.0", "1", False), ("1000000000000000001", "1000000000000000000", False), ("1", "1.0", True), ("nan", "1.0", False),
        ("inf", "1e400", False), ("1_0.0", "10.0", False), ("x 2.5000001 y", "x 2.5 y", True), ("x 2.5 z", "x 2.5 y", False),
        ("2.5", "v2.5", False), ("1e-7", "0.0", True), ("1.0000001e10", "1.0e10", True), ("Yes", "YES", False),
        ("٣.5", "3.5", False),
    ],
)  # fmt: skip
def test_output(found, expected, right):
    assert same_output(found, expected, 1e-6) is right
    if found.strip() != expected.strip() and found.split() != expected.split():
        assert not same_output(found, expected, 0.0)
