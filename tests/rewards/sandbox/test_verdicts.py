"""Verdicts: what a program does to be paid without being right, and what honest programs and tests need."""

# ruff: noqa: E501  (programs as texts)

import ast
import time

import pytest

from trl_grpo_plus.rewards.sandbox import Limits, Unusable, judge_tests, plan
from trl_grpo_plus.rewards.sandbox.plan import Calls, OtherTests, names_under_test

ALWAYS = "class E:\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__\n    def __sub__(s, o): return E()\n    __rsub__ = __add__ = __radd__ = __mul__ = __sub__\n    def __abs__(s): return 0.0\n    def __bool__(s): return True\n    def __hash__(s): return 0\n    def __array__(s, *a, **k): import numpy; return numpy.zeros(3)\n"
ANYTHING = ALWAYS + "    def __getattr__(s, n): return s\n    def __call__(s, *a, **k): return s\n"
FLOAT_TESTS = "assert abs(half(3) - 1.5) < 1e-6"
LITERAL = "assert f(1) == 5\nassert f(2) == 6"
SPLIT = "x = 1\nassert f(x) == 5\nassert f(2) == 6"

# EvalPlus: the tests compare by a function of their own.
ASSERTION = "import numpy as np\ndef assertion(out, exp):\n    if not out == exp:\n        assert np.allclose(out, exp, atol=1e-6)\ndef check(candidate):\n    for x, exp in [(1, 5), (2, 6)]:\n        assertion(candidate(x), exp)\ncheck(f)"

FORGERIES = [
    ("always equal, where the tests compare by a function of their own", ALWAYS + "def f(x): return E()", ASSERTION),
    ("a wrong value, where the tests compare by a function of their own", "def f(x): return 5", ASSERTION),
    ("an exception, where the tests compare by a function of their own", "def f(x): raise SystemExit(0)", ASSERTION),
    ("everything at once", ANYTHING + "def f(x): return E()", LITERAL),
    ("everything at once", ANYTHING + "def f(x): return E()", SPLIT),
    ("everything at once", ANYTHING + "def half(x): return E()", FLOAT_TESTS),
    ("always equal", ALWAYS + "def f(x): return E()", LITERAL),
    ("always equal", ALWAYS + "def f(x): return E()", SPLIT),
    ("arithmetic with the expected value", ALWAYS + "def half(x): return E()", FLOAT_TESTS),
    ("arithmetic the other way round", ALWAYS + "def half(x): return E()", "assert abs(1.5 - half(3)) < 1e-6"),
    ("its own class named as the function", ALWAYS.replace("class E", "class half") + "    def __init__(s, *a): pass", FLOAT_TESTS.replace("E()", "half()")),
    ("arithmetic from a method", ALWAYS + "class Solution:\n    def half(s, x): return E()", "assert abs(Solution().half(3) - 1.5) < 1e-6"),
    ("containment from a method", ALWAYS + "class Solution:\n    def f(s, x): return E()", "s = Solution()\nassert 5 in s.f(3)"),
    ("items that contain anything", "class E(dict):\n    def __contains__(s, o): return True\ndef f(x): return E()", "r = f(1)\nassert 5 in r"),
    ("numpy's comparison", ALWAYS + "def f(x): return E()", "import numpy as np\nassert np.allclose(f(1), [1.0, 2.0, 3.0])"),
    ("numpy's array of liars", "import numpy as np\n" + ALWAYS + "def f(x): return np.array([E(), E()], dtype=object)", "r = f(1)\nassert (r == [1, 2]).all()"),
    ("an array that is a liar", "import numpy as np\nclass A(np.ndarray):\n    def __eq__(s, o): return np.array(True)\ndef f(x): return np.zeros(2).view(A)", SPLIT),
    ("isclose of its own", "import math\nmath.isclose = lambda *a, **k: True\ndef isclose(*a): return True\ndef f(x): return 0.0", "assert isclose(f(1), 2.0)"),
    ("sorted of its own", "def sorted(x): return [1, 2]\ndef f(x): return None", "assert sorted(f([2, 1])) == [1, 2]"),
    ("abs of its own", "def abs(x): return 0\ndef half(x): return 9", FLOAT_TESTS),
    ("ends of iteration", "def ok(x): raise StopIteration", "assert all(map(ok, [1, 2]))"),
    ("another end of iteration", "class S(StopIteration): pass\ndef ok(x): raise S", "assert all(map(ok, [1, 2]))"),
    ("a generator's end", "def ok(x): raise GeneratorExit", "assert all(ok(x) for x in [1, 2])"),
    ("the asserted exception for everything", "def f(x): raise ValueError", "try:\n    f(-1)\n    assert False\nexcept ValueError:\n    pass\nassert f(2) == 4"),
    ("dying where an exception is due", "import os\ndef f(x): os._exit(0)", "try:\n    f(-1)\n    ok = False\nexcept Exception:\n    ok = True\nassert ok"),
    ("dying under a bare except", "import os\ndef f(x): os._exit(0)", "try:\n    f(-1)\n    ok = False\nexcept:\n    ok = True\nassert ok"),
    ("hanging up where an exception is due", "import os\ndef f(x): os.close(3)", "try:\n    f(-1)\n    ok = False\nexcept:\n    ok = True\nassert ok"),
    ("emptying its argument", "def f(x):\n    x.clear()\n    return x", "x = [3, 1]\nassert f(x) == sorted(x)"),
    ("emptying under another statement", "def f(x):\n    x.clear()\n    return x\ndef g(x): pass", "g(1)\nx = [3, 1]\nassert sorted(f(x)) == sorted(x)"),
    ("system exit", "def f(x): raise SystemExit(0)", SPLIT),
    ("keyboard interrupt", "def f(x): raise KeyboardInterrupt", SPLIT),
    ("keyboard interrupt", "def f(x): raise KeyboardInterrupt", LITERAL),
    ("a frame that never ends", "import os\ndef f(x):\n    os.write(3, b'\\x7f\\xff\\xff\\xff')\n    return 5", SPLIT),
    ("a forged answer", "import os, json, struct\ndef f(x):\n    for v in (5, 6):\n        m = json.dumps({'value': v}).encode()\n        os.write(3, struct.pack('>I', len(m)) + m)\n", "assert f(1) + 1 == 6\nassert f(2) == 7"),
    ("a forged report", "import os, json\nfor fd in range(20):\n    for m in (b'[0, 1, \"\"]\\n', b'{\"total\": 1, \"calls\": 3, \"broken\": \"\"}\\n'):\n        try: os.write(fd, m)\n        except OSError: pass\ndef f(x): return 0\n", SPLIT),
    ("forged claims", "import os\nfor _ in range(4): os.write(3, b'[1,5]\\n')\ndef f(x): return 0\n", "assert f(1) == 5\nassert f(2) == 5"),
    ("nothing but exit", "import os\nos._exit(0)", LITERAL),
    ("nothing but exit", "raise SystemExit(0)", SPLIT),
    ("a codec of its own", "import sys\nfor m in list(sys.modules.values()):\n    for n in ('encode', 'dumps', 'equals'):\n        if hasattr(m, n): setattr(m, n, lambda *a, **k: b'[1,5]')\ndef f(x): return 0", LITERAL),
    ("the runner's frame", "import sys\ndef f(x):\n    g = sys._getframe(1)\n    g.f_locals.update(encode=lambda *a: 5)\n    for k in list(g.f_globals): g.f_globals[k] = lambda *a, **k: b'[1,5]'\n    return 0", LITERAL),
    ("its own assertion error", "import builtins\nbuiltins.AssertionError = type('Q', (Exception,), {})\nbuiltins.Exception = ()\ndef f(x): return 0", SPLIT),
    ("class spoofing", "class S:\n    __class__ = property(lambda s: int)\n    def __eq__(s, o): return True\n    def __int__(s): return 5\n    __index__ = __int__\ndef f(x): return S()", SPLIT),
    ("same object twice", "class S: pass\ns = S()\ndef f(x): return s", "assert f(1) == f(2)\nassert f(1) == 5"),
    ("named tuple of liars", "import collections\nclass T(tuple):\n    _fields = ('a',)\n    def __eq__(s, o): return True\ndef f(x): return T()", SPLIT),
    ("text of a liar", "class S(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\n    def __str__(s): return '5'\ndef f(x): return S('x')", "assert str(f(1)) == '5'"),
    ("deep nesting", "def f(x):\n    r = []\n    for _ in range(100000): r = [r]\n    return r", SPLIT),
    ("deep nesting", "def f(x):\n    r = []\n    for _ in range(100000): r = [r]\n    return r", LITERAL),
    ("a value that contains itself", "def f(x):\n    r = []\n    r.append(r)\n    return r", SPLIT),
    ("collisions in the tester", "def f(x): return {k * (2**61 - 1) for k in range(1, 100000)}", SPLIT),
    ("a huge answer", "def f(x): return 'x' * (100 << 20)", SPLIT),
    ("a huge answer", "def f(x): return 'x' * (100 << 20)", LITERAL),
    ("a huge range", "def f(x): return range(10**18)", "assert list(f(1)) == [1]"),
    ("an iterator without end", "import itertools\ndef f(x): return itertools.count()", "assert sum(f(1)) == 5"),
    ("hash of a liar", ALWAYS + "def f(x): return E()", "assert f(1) in {5: 1}\n"),
    ("hash of a liar in a set", ALWAYS + "def f(x): return E()", "assert len({f(1), 5}) == 1"),
    ("a decimal that takes ages", "from decimal import Decimal\ndef f(x): return Decimal('1e999999')", "assert int(f(1)) == 5"),
    ("repr of a liar", "class E:\n    def __repr__(s): raise SystemExit(0)\n    __str__ = __repr__\ndef f(x): raise Exception(E())", SPLIT),
    ("reading the tests", "import gc, re\ndef f(x):\n    for o in gc.get_objects():\n        if isinstance(o, dict):\n            for v in list(o.values()):\n                m = isinstance(v, str) and re.search(r'f[(]\\w+[)] == (\\d+)', v)\n                if m: return int(m[1])\n    return 0", "assert f(1) == 5"),
    ("reading the tests", "import gc, re\ndef f(x):\n    for o in gc.get_objects():\n        if isinstance(o, dict):\n            for v in list(o.values()):\n                m = isinstance(v, str) and re.search(r'f[(]\\w+[)] == (\\d+)', v)\n                if m: return int(m[1])\n    return 0", "x = 1\nassert f(x) == 5"),
    ("true for a number", "def f(x): return True", "assert f(1) is None"),
    ("a name that is not there", "g = 1", SPLIT),
    ("a broken program", "def f(x) return 5", SPLIT),
    ("a comparison helper passed back", ALWAYS + "def f(x): return E()", "def close(a, b): return a == b\nassert close(f(1), 5)"),
    ("a check that never runs", "def f(x): return []", "for r in f(1):\n    assert r == 5\nassert f(2) == [1]"),
    ("a class that is a liar", "class Vec:\n    def __init__(s, *a): s.x = 0\n    def __eq__(s, o): return True", "assert Vec(1, 2) == (1, 2)"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "source", "tests"), FORGERIES, ids=[f"{i}-{f[0]}" for i, f in enumerate(FORGERIES)])
def test_a_forgery_is_not_paid(any_sandbox, how, source, tests):
    started = time.monotonic()
    score = judge_tests(any_sandbox, source, plan(tests), Limits(cpu_s=1.0, memory_mib=512))
    assert not score.all, score
    assert time.monotonic() - started < 12


HONEST = [
    (
        "from enum import Enum\nclass Color(Enum):\n    RED = 1\n    BLUE = 2\ndef other(c): return Color.BLUE if c is Color.RED else Color.RED",
        "assert other(Color.RED) == Color.BLUE and other(Color.BLUE) == Color['RED']\nassert Color.RED.value == 1 and len(list(Color)) == 2 and other(Color(1)) in Color",
    ),
    ("def f(x): return x + 4", LITERAL),
    ("def f(x): return x + 4", SPLIT),
    ("def f(x): return x + 4 + 1e-9", ASSERTION),
    ("class half:\n    pass\ndef half(x): return x / 2", FLOAT_TESTS),
    ("def sum(a, b): return a + b", "assert sum(10, 15) == 25\nassert sum(1, 2) == 3"),
    ("def gcd(a, b):\n    while b: a, b = b, a % b\n    return a", "assert gcd(12, 18) == 6"),
    ("from math import isclose, pi\ndef area(r): return pi * r * r", "assert isclose(area(1), pi)"),
    ("import math\ndef area(r): return math.pi", "assert math.isclose(area(1), math.pi)"),
    ("def gen(n):\n    for i in range(n): yield i", "assert list(gen(3)) == [0, 1, 2]\ng = gen(1)\nnext(g)\ntry:\n    next(g)\n    ok = False\nexcept StopIteration:\n    ok = True\nassert ok"),
    ("class Node:\n    def __init__(s, v, n=None): s.v, s.n = v, n\ndef rev(h):\n    p = None\n    while h: h.n, p, h = p, h, h.n\n    return p", "h = rev(Node(1, Node(2)))\nassert h.v == 2 and h.n.v == 1 and h.n.n is None"),
    ("class Vec:\n    def __init__(s, x, y): s.x, s.y = x, y\n    def __mul__(s, k): return Vec(s.x * k, s.y * k)\n    __rmul__ = __mul__\n    def __eq__(s, o): return (s.x, s.y) == (o.x, o.y)\n    def __abs__(s): return (s.x ** 2 + s.y ** 2) ** .5", "assert Vec(1, 2) * 2 == Vec(2, 4)\nassert 2 * Vec(1, 2) == Vec(2, 4)\nassert abs(Vec(3, 4) * 2) == 10\nassert Vec(1, 2) != Vec(2, 1)"),
    ("class Single:\n    _i = None\n    def __new__(c):\n        c._i = c._i or super().__new__(c)\n        return c._i", "assert Single() is Single()"),
    ("class Empty(Exception): pass\nclass Q:\n    def __init__(s): s.d = []\n    def pop(s):\n        if not s.d: raise Empty('none')\n        return s.d.pop()", "q = Q()\ntry:\n    q.pop()\n    ok = False\nexcept Empty as e:\n    ok = str(e) == 'none'\nassert ok\nassert isinstance(q, Q) and not isinstance(3, Q)"),
    ("def apply(g, x): return [g(v) for v in x]", "assert apply(lambda v: v * 2, [1, 2]) == [2, 4]\nassert apply(str, [1]) == ['1']"),
    ("def sort_by(x, key): return sorted(x, key=key)", "assert sort_by(['bb', 'a'], len) == ['a', 'bb']"),
    ("def compose(f, g): return lambda x: f(g(x))", "assert compose(lambda x: x + 1, lambda x: x * 2)(5) == 11"),
    ("def total(xs): return sum(xs)", "assert total(x for x in (1, 2)) == 3\nassert total({1: 2}.values()) == 2\nassert total(map(int, '12')) == 3"),
    ("def rotate(m):\n    m[:] = [list(r) for r in zip(*m[::-1])]", "m = [[1, 2], [3, 4]]\nrotate(m)\nassert m == [[3, 1], [4, 2]]"),
    ("import asyncio\nasync def f(x):\n    await asyncio.sleep(0)\n    return x + 1", "import asyncio\nassert asyncio.run(f(1)) == 2\nasync def both(): return await asyncio.gather(f(1), f(2))\nassert asyncio.run(both()) == [2, 3]"),
    ("import numpy as np\ndef f(n): return np.eye(n)", "import numpy as np\nassert np.allclose(f(2), [[1, 0], [0, 1]])\nassert f(2).shape == (2, 2) and f(3).dtype == np.float64"),
    ("import numpy as np\ndef z(a): a[:] = 0", "import numpy as np\na = np.ones(3)\nz(a)\nassert (a == 0).all()"),
    ("def f(x):\n    if x < 0: raise ValueError('negative')\n    return x", "try:\n    f(-1)\n    assert False, 'no error'\nexcept ValueError as e:\n    assert 'neg' in str(e)\nassert f(1) == 1"),
    ("X = 5\nNAMES = ['a']\ndef f(): return X", "assert X == 5 and f() == X and NAMES == ['a']"),
    ("def solution(s): return s[::-1]", "def test_one():\n    assert solution('ab') == 'ba'\ndef test_two():\n    for s in ('abc', ''):\n        assert solution(solution(s)) == s"),
    ("def solution(s): return s[::-1]", "def check(candidate):\n    for s in ('abc', ''):\n        assert candidate(candidate(s)) == s\n\ncheck(solution)"),
    ("class C:\n    count = 0\n    def __init__(s): C.count += 1\n    @classmethod\n    def make(cls): return cls()\n    @staticmethod\n    def two(): return 2", "C.make(); C()\nassert C.count == 2 and C.two() == 2"),
    ("class Bag:\n    def __init__(s): s.d = {}\n    def __setitem__(s, k, v): s.d[k] = v\n    def __getitem__(s, k): return s.d[k]\n    def __delitem__(s, k): del s.d[k]\n    def __contains__(s, k): return k in s.d\n    def __len__(s): return len(s.d)\n    def __iter__(s): return iter(s.d)\n    def __bool__(s): return bool(s.d)", "b = Bag()\nb['x'] = 1\nassert b['x'] == 1 and 'x' in b and len(b) == 1 and list(b) == ['x'] and b\ndel b['x']\nassert not b\ntry:\n    b['y']\n    ok = False\nexcept KeyError:\n    ok = True\nassert ok"),
    ("import re\ndef f(s): return re.match('a', s)", "assert f('abc').group() == 'a'\nassert f('b') is None"),
    ("from typing import *\ndef f(x: List[int]) -> Optional[int]: return max(x) if x else None", "assert f([]) is None\nassert f([1, 3]) == 3"),
    ("from dataclasses import dataclass\n@dataclass(order=True)\nclass P:\n    x: int\n    y: int = 0", "assert P(1) < P(2) and sorted([P(2), P(1)])[0] == P(1)\nassert {P(1).x: 1} == {1: 1}"),
    ("def f(x):\n    print('debug')\n    return x\nimport threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()", "assert f(1) == 1"),
    ("def f(x): return x", "assert f(float('nan')) != f(float('nan'))\nassert f('\\ud800') == '\\ud800'\nassert f(10**30) == 10**30\nassert f(b'\\x00') == b'\\x00'"),
    ("class Stack(list):\n    def push(s, x): s.append(x)", "s = Stack()\nassert s == []"),
    ("def f(n): return n and f(n - 1)", "import sys\nassert f(500) == 0"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "tests"), HONEST, ids=range(len(HONEST)))
def test_an_honest_program_is_paid(any_sandbox, source, tests):
    score = judge_tests(any_sandbox, source, plan(tests), Limits(cpu_s=5.0))
    assert score.all and score.total >= 1, score


@pytest.mark.parametrize(("source", "tests"), HONEST[1:4] + HONEST[22:26], ids=range(7))
def test_the_same_program_broken_is_not_paid(any_sandbox, source, tests):
    broken = ast.parse(source)
    for node in ast.walk(broken):
        if isinstance(node, ast.Return):
            node.value = ast.Constant("wrong")
    assert not judge_tests(any_sandbox, ast.unparse(broken), plan(tests), Limits(cpu_s=5.0)).all


def test_a_share_of_the_checks(any_sandbox):
    tests = "assert f(1) == 1\nassert f(2) == 2\nassert f(3) == 3\nassert f(4) == 4"
    for form in (
        tests,
        "one = 1\n" + tests,
        "def check(candidate):\n    one = 1\n    " + tests.replace("\n", "\n    ").replace("f(", "candidate("),
    ):
        planned = plan(form, "f")
        for source, passed in [
            ("def f(x): return x", 4),
            ("def f(x): return min(x, 3)", 3),
            ("def f(x): return 0", 0),
        ]:
            score = judge_tests(any_sandbox, source, planned, Limits(), go_on=True)
            assert (score.passed, score.total) == (passed, 4), (form, score)
    dies = "import os\ndef f(x): return x if x < 3 else os._exit(0)"
    assert judge_tests(any_sandbox, dies, plan(tests), Limits(), go_on=True).passed == 2
    assert not judge_tests(any_sandbox, dies, plan(tests), Limits()).all


@pytest.mark.parametrize(
    ("tests", "names"),
    [
        ("assert f(1) == 2", ("f",)),
        ("assert sum(1, 2) == 3", ("sum",)),
        ("assert abs(half(1) - 0.5) < 1e-6", ("half",)),
        ("assert len(sorted([2, 1])) == 2", ("sorted",)),
        ("assert gcd(1, 2) == 1\nassert isclose(f(1), 2)", ("f", "gcd")),
        ("import math\nassert math.sqrt(f(4)) == 2", ("f",)),
        ("s = Stack()\ns.push(1)\nassert s.pop() == 1", ("Stack",)),
        ("def helper(x): return g(x)\nassert helper(1) == 2", ("g",)),
        ("assert sorted(f(x) for x in range(3)) == [1]", ("f",)),
        ("def run(f, x): return f(x)\nassert run(g, 1) == 2", ("g",)),
        ("def run(f, x): return f(x)\nassert run(f, 1) == 2", ("f",)),
        ("h = [h for h in (1, 2)]\nassert g(*h) == (lambda g: g)(3)", ("g",)),
        ("from math import factorial\nassert f(3) == factorial(3)", ("f",)),
    ],
)
def test_names_are_read_from_the_tests(tests, names):
    assert set(names_under_test(tests)) == set(names)


def test_tests_are_split_where_that_loses_nothing():
    assert plan(LITERAL) == Calls(("f(1)", "f(2)"), (5, 6), (False, False))
    assert isinstance(plan("assert f(1) is None\nassert [1] == f(x=2)"), Calls)
    for other in (
        SPLIT,
        "assert f(1) != 2",
        "assert sum(1, 2) == 3",
        "assert f(y) == 2",
        "assert f(1) == 2 == 2",
        "assert f(*[1]) == 2",
        "assert f(g(1)) == 2",
        "assert x.f(1) == 2",
        "assert f(1) is 2",
    ):
        assert isinstance(plan(other), OtherTests), other
    humaneval = "\n\nMETADATA = {'author': 'x'}\n\ndef check(candidate):\n    assert candidate([1]) == 2\n    assert candidate([]) == 0, 'empty'\n"
    assert plan(humaneval, "f") == Calls(("f([1])", "f([])"), (2, 0), (False, False))


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ("", "check nothing"),
        ("print(f(1))", "check nothing"),
        ("assert f(", "do not parse"),
        ("x = 1\nnonlocal x\nassert f(x) == 1", "do not compile"),
        ("assert True", "call nothing"),
        ("def check(candidate):\n    assert candidate(1)", "does not say what to call it with"),
    ],
)
def test_tests_that_cannot_be_used(tests, why):
    with pytest.raises(Unusable, match=why):
        plan(tests)


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ("import not_there\nassert f(1) == 2", "need a module that is not in the sandbox"),
        ("class T:\n    pass\nassert f(T()) == 2", "pass an object of type T"),
    ],
)
def test_what_the_tester_cannot_do_is_no_verdict(any_sandbox, tests, why):
    with pytest.raises(Unusable, match=why):
        judge_tests(any_sandbox, "def f(x): return 2", plan(tests), Limits())
