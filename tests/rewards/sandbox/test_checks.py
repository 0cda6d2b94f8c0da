"""Checks that a program would hide, dodge or answer itself, and what tests ask of Python about its objects."""

# ruff: noqa: E501  (programs as texts)

import pytest

from trl_grpo_plus.rewards.sandbox import Limits, judge_tests, plan

from .test_forged_messages import SPEAKS

ANY = "class E:\n    def __getattr__(s, n):\n        if n.startswith('__'): raise AttributeError(n)\n        return lambda *a, **k: True\ndef f(*x): return E()\n"
SWALLOWS = "class C:\n    def __init__(s, *a): pass\n    def __enter__(s): return s\n    def __exit__(s, *a): return True\n    v = property(lambda s: object())\n    def fail(s): raise KeyError(1)\ndef f(x): return C()\n"
CALLS = "def apply(g, x):\n    try: g(x + 1)\n    except BaseException: pass\n    return x\n"

LIAR = "class V:\n    name = 'v'\n    def __init__(s, *a): pass\n    def __mul__(s, o): return s\n    def __sub__(s, o): return 0\n    __rsub__ = __sub__\n    def __contains__(s, o): return True\nV.PI = V()\n"
SHIM = 'import os\nos.write(4, b\'[0, 1, 0]\\n{"total": 1, "answers": 1, "broken": 0}\\n\')\nos._exit(0)'
PLANTS = f"try:\n    with open('unittest.py', 'w') as file: file.write({SHIM!r})\nexcept OSError: pass\ndef f(x): return 5\n"

FORGERIES = {
    "asked whether it starts so": (ANY, "assert f(1).startswith('hello')"),
    "asked whether it is a subset": (ANY, "r = f(1)\nassert r.issubset({1, 2}) and r.issuperset(other=[1])"),
    "asked whether it is equal": (ANY, "r = f(1)\nassert r.equals([1, 2])"),
    "swallowing a comparison that fails": (SWALLOWS, "with f(1) as r:\n    assert r.v < 3"),
    "the same in a function": (SWALLOWS, "def small(r):\n    assert r.v < 3\nwith C(1) as r:\n    small(r)\nassert f(1) != 2"),
    "the same by a test case": (SWALLOWS, "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        with f(1) as r:\n            self.assertLess(r.v, 3)"),
    "the same by numpy": (SWALLOWS, "import numpy as np\nassert f(1) != 2\nwith f(1) as r:\n    np.testing.assert_array_less(r.v, 3)"),
    "never getting to a check of a test case": (SWALLOWS, "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        with f(1) as r:\n            t = r.fail()\n            self.assertEqual(t, 3)"),
    "the same beside others": (SWALLOWS, "with C(0) as q, f(1) as r:\n    x = 1\n    assert r.v < 3"),
    "never getting to a check": (SWALLOWS, "with f(1) as r:\n    t = r.fail()\n    assert t == 3"),
    "never getting to a check in a loop": (SWALLOWS, "with f(1) as r:\n    for k in range(3):\n        t = r.fail()\n        assert t == k"),
    "nothing to ask": (SWALLOWS.replace("return s\n", "return None\n", 1), "with f(1) as r:\n    assert r.value == 3"),
    "hiding what a function of the tests found": (CALLS, "def must(x):\n    assert x == 5\nassert apply(must, 5) == 5"),
    "hiding it behind another error": (CALLS.replace("x + 1", "object()"), "def must(x):\n    assert x < 5\nassert apply(must, 5) == 5"),
    "what stands under a main guard": ("def f(x): return 1", "if __name__ == '__main__':\n    assert f(2) == 2\nassert f(3) == 1"),
    "a check in a coroutine": ("async def f(x): return 1", "import asyncio\nasync def main():\n    assert await f(2) == 2\nasyncio.run(main())"),
    "a helper that checks": ("def f(x): return 1", "def same(v, want):\n    assert f(v) == want\nsame(1, 1)\nsame(2, 2)"),
    "another exception": ("class App(Exception): pass\nclass Low(Exception): pass\ndef f(x): raise Low()", "try:\n    f(1)\n    ok = False\nexcept App:\n    ok = True\nexcept Low:\n    ok = False\nassert ok"),
    "subtracting from a result": (LIAR, "v = V(1, 2)\nassert isinstance(v, V)\nassert abs(V(1, 2) * V(3, 4) - 11) < 1e-6"),
    "subtracting from a result, in steps": (LIAR.replace("return 0", "return s") + "V.__abs__ = V.__float__ = lambda s: 0.0\nV.__bool__ = lambda s: False\n", "v = V(1, 2)\nassert isinstance(v, V)\nassert abs(v * v - 11) < 1e-6 or float(-(v * v - 11) * 2) == 0.0 or not (v * v - 11)"),
    "subtracting from a member": (LIAR, "assert V(1).name == 'v'\nassert abs(V.PI - 3.14) < 1e-2 or abs(3.14 - V.PI) < 1e-2"),
    "what a member holds": (LIAR, "assert V(1).name == 'v'\nassert 'abc' in V.PI"),
    "swallowing from a stack of contexts": (SWALLOWS, "import contextlib\nwith contextlib.ExitStack() as stack:\n    r = stack.enter_context(f(1))\n    t = r.fail()\n    assert t == 3"),
    "a module of its own for the tests": (PLANTS, "import sys\nsys.path.insert(0, '.')\nx = f(1)\nimport unittest\nassert x == 6"),
    "a type that is none of its own": (SPEAKS + "def f(x):\n    send({'value': {'o': [1, 'object']}})\n    while True:\n        receive(); send({'value': {'y': 'int'}})", "r = f(1)\nassert type(r) is int"),
    "one object for another": ("class A: pass\na, b = A(), A()\ndef get(x): return b if x else a\nget.last = 0", "assert get(0) is get(1)"),
    "a class for a type": ("class M(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\nclass A(metaclass=M): pass\ndef f(x): return A()", "assert type(f(1)) == int or type(f(1)) is float"),
    "a sequence too long to send on": ("def f(x): return list(range(200_000))\ndef g(x): return 5", "assert g(v for v in f(1)) == 6"),
    "a result too long to send back": ("def apply(g): return g('x' * (5 << 20))", "try:\n    apply(lambda v: v * 4)\n    ok = False\nexcept ValueError:\n    ok = True\nassert ok"),
}  # fmt: skip


@pytest.mark.parametrize("how", FORGERIES)
def test_a_check_is_not_dodged(any_sandbox, how):
    source, tests = FORGERIES[how]
    score = judge_tests(any_sandbox, source, plan(tests), Limits(cpu_s=2.0, memory_mib=512))
    assert not score.all, score


KEEPS = "class Keeps:\n    def __init__(s, *kinds): s.kinds, s.hit = kinds, False\n    def __enter__(s): return s\n    def __exit__(s, kind, e, b):\n        s.hit = kind is not None and issubclass(kind, s.kinds)\n        return s.hit\n"
KINDS = "class A: pass\nclass B(A): pass\ndef make(k): return {'a': A, 'b': B}[k]()\n"
APP = "class App(Exception): pass\nclass Low(App): pass\nclass Lower(Low):\n    def __init__(s, n): s.need = n\ndef f(x):\n    if x: raise Lower(x)\n    return x\n"
VECTOR = "class V:\n    def __init__(s, x, y): s.x, s.y = x, y\n    def __add__(s, o): return V(s.x + o.x, s.y + o.y)\n    def __sub__(s, o): return V(s.x - o, s.y - o) if isinstance(o, int) else V(s.x - o.x, s.y - o.y)\n    def __mul__(s, k): return V(s.x * k, s.y * k)\n    __rmul__ = __mul__\n    def __eq__(s, o): return (s.x, s.y) == (o.x, o.y)\nV.UNIT = V(1, 0)\n"
HONEST = {
    "swallowing an error": (KEEPS, "with Keeps(ValueError) as k:\n    raise ValueError('x')\nassert k.hit"),
    "up to where no check is to be": (KEEPS, "with Keeps(ZeroDivisionError) as k:\n    1 / 0\n    assert False, 'not reached'\nassert k.hit"),
    "checks around the error": (KEEPS, "with Keeps(KeyError) as a:\n    with Keeps(ValueError) as b:\n        assert not a.hit\n        raise ValueError(1)\n    assert b.hit\nassert a.hit is False"),
    "errors of a function of the tests": ("def retry(f):\n    for _ in range(2):\n        try: return f()\n        except ValueError: pass\n    return f()", "calls = []\ndef flaky():\n    calls.append(1)\n    if len(calls) < 3: raise ValueError('no')\n    assert len(calls) == 3\n    return 7\nassert retry(flaky) == 7"),
    "functions that are to fail": ("def run(fs):\n    found = []\n    for f in fs:\n        try: f(); found.append(True)\n        except AssertionError: found.append(False)\n    return found", "def good(): assert True\ndef bad(): assert 1 == 2\nassert run([good, bad]) == [True, False]"),
    "texts as answers": ("def f(x): return 'hello'\ndef g(x): return {1}", "assert f(1).startswith('he') and g(1).issubset({1, 2})"),
    "objects of the tests": ("class Trie:\n    def __init__(s, *w): s.w = w\n    def startswith(s, p): return any(w.startswith(p) for w in s.w)", "t = Trie('abc')\nassert t.startswith('ab') and not t.startswith('b')"),
    "an object's object": ("class P:\n    def __init__(s, v): s.v = v\n    def equals(s, o): return s.v == o.v\ndef make(v): return P(v)", "assert make(1).equals(make(1)) and not make(1).equals(make(2))"),
    "one object": ("class L: pass\nl = L()\ndef get(): return l", "assert get() is get() and id(get()) == id(get())\na = get()\nassert a is get()"),
    "two objects": ("class L: pass\ndef get(): return L()", "a, b = get(), get()\nassert a is not b and id(a) != id(b) and a is a"),
    "a member of an enumeration": ("from enum import Enum\nclass C(Enum):\n    RED = 1\n    BLUE = 2\ndef f(x): return C.RED", "assert f(1) is C.RED\nassert f(1) is not C.BLUE"),
    "a node by its neighbour": ("class N:\n    def __init__(s, v): s.v, s.next = v, None", "a, b = N(1), N(2)\na.next = b\nassert a.next is b and b.next is None and a.next is not a"),
    "types": (KINDS, "assert type(make('a')) is A and type(make('b')) == B and type(make('b')) is not A\nassert {type(make('a')): 1}[A] == 1"),
    "names of types": (KINDS, "assert type(make('b')).__name__ == 'B' and make('a').__class__.__name__ == 'A' and type(3).__name__ == 'int' and 'x'.__class__ is str"),
    "a type of the tests' own": ("def f(x): return x", "class T: pass\nt = T()\nassert type(t) is T and t.__class__ is T and type(f(1)) is int"),
    "tests under a main guard": ("def f(x): return x", "def test_f():\n    assert f(1) == 1\nif __name__ == '__main__':\n    test_f()"),
    "a test that cannot run twice": ("n = [0]\ndef bump():\n    n[0] += 1\n    return n[0]", "def test_bump():\n    assert bump() == 1\ntest_bump()"),
    "a test that takes arguments": ("def f(x): return x", "def test_f(v, want):\n    assert f(v) == want\nfor v in (1, 2):\n    test_f(v, v)"),
    "a helper that checks": ("def f(x): return x", "def same(v, want):\n    assert f(v) == want\nsame(1, 1)\nsame(2, 2)"),
    "a check in a coroutine": ("async def f(x): return x", "import asyncio\nasync def main():\n    assert await f(2) == 2\nasyncio.run(main())"),
    "exceptions of exceptions": (APP, "try:\n    f(1)\n    ok = False\nexcept App as e:\n    ok = isinstance(e, Low) and isinstance(e, Lower) and e.need == 1\nassert ok and f(0) == 0"),
    "its name as a parameter": ("def f(x): return x + 1", "def run(f, x):\n    return f(x)\nassert run(f, 1) == 2 and [f for f in range(2)] == [0, 1] and (lambda f: f)(3) == 3"),
    "arithmetic with results": (VECTOR, "a, b = V(1, 2), V(3, 4)\nassert (a + b) * 2 == V(8, 12) and 2 * (a + b) - a == V(7, 10) and a - 1 == V(0, 1)\nassert (a - 1) + b == V(3, 5) and V.UNIT * 3 == V(3, 0) and V.UNIT - a == V(0, -2)"),
    "arithmetic that goes on": ("class Value:\n    def __init__(s, d): s.data = d\n    def __mul__(s, o): return Value(s.data * (o.data if isinstance(o, Value) else o))\n    def __sub__(s, o): return Value(s.data - o)\n    def __repr__(s): return f'Value({s.data})'", "a = Value(2)\nb = a * 3 - 1\nc = b * b\nassert b.data == 5 and repr(b) == 'Value(5)' and c.data == 25"),
    "members alone": ("from enum import Enum\nclass C(Enum):\n    RED = 1", "assert C.RED.value == 1 and C.RED.name == 'RED'"),
    "thousands of records": ("from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(n): return [P(i, i) for i in range(n)]", "r = f(5000)\nassert r[-1].x == 4999"),
}  # fmt: skip


@pytest.mark.parametrize("what", HONEST)
def test_what_tests_may_ask_for(any_sandbox, what):
    source, tests = HONEST[what]
    score = judge_tests(any_sandbox, source, plan(tests), Limits(cpu_s=2.0))
    assert score.all, score


def test_an_exception_changes_no_members_of_builtin_ones(any_sandbox):
    """What they write about themselves is read from memory at places that the members name."""
    raises = "def f(x):\n    e = UnicodeDecodeError('utf-8', b'a', 0, 1, 'odd')\n    e.__dict__.update(object=[0] * 1000, start=900, end=901, more=7)\n    raise e"
    score = judge_tests(any_sandbox, raises, plan("r = f(1)\nassert r == 5"), Limits())
    assert not score.all and "0x61 in position 0: odd" in score.reason
    kept = "try:\n    f(1)\nexcept UnicodeError as e:\n    more = e.more\nassert more == 7"
    assert judge_tests(any_sandbox, raises, plan(kept), Limits()).all


def test_a_program_cannot_make_the_report_too_long(any_sandbox):
    tests = "x = 1\n" + "\n".join(f"assert f({i}) == {i}" for i in range(700))
    often = "def test_all():\n    assert f(1) == 1\nfor _ in range(200_000): test_all()"
    source = "def f(x): raise ValueError('\U0001f600' * 300)"
    for limits in (Limits(), Limits(file_kib=64, output_kib=64)):
        score = judge_tests(any_sandbox, source, plan(tests), limits, go_on=True)
        assert (score.passed, score.total) == (0, 700) and score.reason.startswith("ValueError: \U0001f600")
    constant = "class F:\n    def __init__(s): s.n = 0\nf = 1"
    assert judge_tests(any_sandbox, constant, plan(often.replace("f(1)", "f")), Limits(cpu_s=20.0)).all


def test_a_program_that_ends_late_has_answered_all_the_same(any_sandbox):
    """Large memory is slow to give back, and a busy machine slow in all: that is no time that it has used."""
    hangs = "import os, time\ndef late(status):\n    time.sleep(60)\nos._exit = late\ndef f(x): return x"
    limits = Limits(cpu_s=2.0)
    assert judge_tests(any_sandbox, hangs, plan("x = 1\nassert f(x) == 1"), limits).all
    assert not judge_tests(any_sandbox, hangs, plan("x = 1\nassert f(x) == 2"), limits).all
    spins = hangs.replace("time.sleep(60)", "while True: pass")
    assert judge_tests(any_sandbox, spins, plan("x = 1\nassert f(x) == 1"), limits).all
