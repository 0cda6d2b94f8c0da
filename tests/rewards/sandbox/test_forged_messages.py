"""Programs that write messages to the tester themselves, and answers that would leave a program without a verdict."""

# ruff: noqa: E501  (programs as texts)

import pytest

from trl_grpo_plus.rewards.sandbox import Limits, Unusable, judge_tests, plan

SPEAKS = """
import os, json, struct
def send(m):
    m = json.dumps(m).encode(); os.write(3, struct.pack(">I", len(m)) + m)
def receive():
    head = os.read(3, 4)
    if len(head) < 4: os._exit(0)
    n = struct.unpack(">I", head)[0]; data = b""
    while len(data) < n: data += os.read(3, n - len(data))
    return json.loads(data)
def say_for_ever(m):
    while True: send(m); receive()
def names(**given): send({"names": {n: {"o": [i, "call"]} for i, n in enumerate(given)} | {"__builtins__": {"d": [["abs", {"o": [1, "call"]}]]}}, "bases": {"ValueError": ["E", "Exception"]}}); receive()
"""

FORGERIES = {
    "a builtin of the tests": (SPEAKS + "names(half=1, abs=1)\nsay_for_ever({'value': {'f': '0x0p0'}})", "assert abs(half(3) - 1.5) < 1e-6"),
    "another builtin": (SPEAKS + "names(f=1, all=1)\nsay_for_ever({'value': True})", "assert all(f(x) == 2 * x for x in (1, 2))"),
    "a helper of the tests": (SPEAKS + "names(f=1, isclose=1)\nsay_for_ever({'value': True})", "import math\nassert math.isclose(f(1), 5) and isclose(f(1), 5)"),
    "changing what it may not change": (SPEAKS + "def f(x): say_for_ever({'value': {'l': []}, 'arguments': [None, {'l': []}], 'keywords': {'x': {'l': []}}})", "x = [3, 1, 2]\nassert f(x) == sorted(x)"),
    "the same by keyword": (SPEAKS + "def f(x): say_for_ever({'value': {'l': []}, 'arguments': [None, {'l': []}], 'keywords': {'x': {'l': []}}})", "x = [3, 1, 2]\nassert f(x=x) == sorted(x)"),
    "an exception that is no exception": (SPEAKS + "def f(x): say_for_ever({'raised': [['ValueError'], 'x'], 'arguments': [], 'attributes': [['args', 5], ['__class__', 1], ['_of_program', 0]]})", "try:\n    f(1)\n    ok = False\nexcept ValueError:\n    ok = True\nassert ok and f(2) == 5"),
    "an iterator within an answer": (SPEAKS + "def f(x): say_for_ever({'value': {'l': [{'I': [1]}]}})", "assert f(f(1)) == 1"),
    "no iteration at all": ("class E:\n    def __iter__(s): raise StopIteration\ndef f(x): return E()", "assert all(map(sorted, [f(1), f(2)]))"),
    "a module that is not there": ("def f(x): raise ImportError('pandas')", "x = 1\nassert f(x) == 5"),
    "outside of a check": ("def f(x):\n    import pandas\n    return 5", "r = f(1)\nassert r == 5"),
    "an answer too deep to send back": ("def f(x):\n    r = []\n    for _ in range(58): r = [r]\n    return r", "assert f([[[[f(1)]]]]) == 1"),
    "an answer too long to send back": ("def f(x): return 'x' * (9 << 20)", "assert f(f(1) + f(2)) == 1"),
    "a helper, where the answer has a name": ("def isclose(*a): return True\ndef area(r): return 0.0", "r = area(1)\nassert isclose(r, 3.14)"),
    "a helper, further on": ("def sqrt(x): return 5\ndef area(r): return 0.0", "r = area(1)\nfor s in [r]:\n    t = s + 0\n    assert sqrt(t) == 5"),
    "a helper, by a function of the tests": ("def isclose(*a): return True\ndef area(r): return 0.0", "def twice(r): return 2 * area(r)\nassert isclose(twice(1), 6.28)"),
    "a class for a function": ("class Area:\n    def __init__(s, *a): pass\n    def __sub__(s, o): return s\n    def __abs__(s): return 0.0", "assert abs(Area(2) - 12.56) < 1e-6"),
    "a class for a function, in a variable": ("class Area:\n    def __init__(s, *a): pass\n    def __sub__(s, o): return s\n    def __abs__(s): return 0.0", "r = Area(2)\nd = r - 12.56\nassert abs(d) < 1e-6"),
    "a class for a candidate": ("class Area:\n    def __init__(s, *a): pass\n    def __sub__(s, o): return s\n    def __abs__(s): return 0.0", "def check(candidate):\n    assert abs(candidate(2) - 12.56) < 1e-6\ncheck(Area)"),
}  # fmt: skip


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forged_answer_is_not_paid(any_sandbox, how):
    """Nor is the row without a verdict: a program must not be able to be left out instead of failing."""
    source, tests = FORGERIES[how]
    score = judge_tests(any_sandbox, source, plan(tests), Limits(cpu_s=2.0, memory_mib=512))
    assert not score.all, score


HONEST = {
    "arguments of an exception": ("def f(d, k): return d[k]", "try:\n    f({}, 'x')\n    ok = False\nexcept KeyError as e:\n    ok = str(e) == \"'x'\" and e.args == ('x',)\nassert ok"),
    "number of an exception": ("def f(): raise FileNotFoundError(2, 'none')", "try:\n    f()\n    ok = False\nexcept OSError as e:\n    ok = e.errno == 2\nassert ok"),
    "attributes of an exception": ("class Low(Exception):\n    def __init__(s, b):\n        super().__init__(f'low {b}')\n        s.balance = b\ndef f(x): raise Low(x)", "try:\n    f(3)\n    ok = False\nexcept Low as e:\n    ok = e.balance == 3 and str(e) == 'low 3'\nassert ok"),
    "text of an exception": ("class Odd(Exception):\n    def __str__(s): return 'odd'\ndef f(x): raise Odd(x)", "try:\n    f(3)\n    ok = False\nexcept Odd as e:\n    ok = str(e) == 'odd'\nassert ok"),
    "an import error that is due": ("def f(n): return __import__(n)", "try:\n    f('not_there')\n    ok = False\nexcept ImportError:\n    ok = True\nassert ok"),
    "in place by keyword": ("def sort_it(arr, reverse=False): arr.sort(reverse=reverse)", "a = [1, 3]\nsort_it(arr=a, reverse=True)\nassert a == [3, 1]"),
    "slices": ("class S:\n    def __init__(s): s.d = [1, 2, 3]\n    def __getitem__(s, i): return s.d[i]", "s = S()\nassert s[1:] == [2, 3] and s[-1] == 3 and s[::2] == [1, 3]"),
    "differences of dates": ("from datetime import date\ndef f(): return date(2020, 1, 2) - date(2020, 1, 1)", "from datetime import timedelta\nassert f() == timedelta(days=1)"),
    "types": ("def f(x): return type(x)", "assert f(1) is int and f('') == str"),
    "attributes of an object": ("class P:\n    def __init__(s): s.x = 1", "assert P().__dict__ == {'x': 1} and vars(P()) == {'x': 1}"),
    "arithmetic with plain values": ("class Money:\n    def __init__(s, v): s.v = v\n    def __sub__(s, o): return Money(s.v - o)", "m = Money(5) - 3\nassert m.v == 2"),
    "text of a result": ("class V:\n    def __init__(s, v): s.v = v\n    def __mul__(s, k): return V(s.v * k)\n    def __repr__(s): return f'V({s.v})'", "assert repr(V(2) * 3) == 'V(6)' and f'{V(1) * 2}' == 'V(2)'"),
    "a helper of the program that tests use": ("from math import isclose\ndef area(r): return 3.0", "r = area(1)\nassert isclose(r, 3.0)"),
    "an answer sent back": ("def f(x):\n    r = []\n    for _ in range(50): r = [r]\n    return r if x == 1 else repr(x).count('[')", "assert f([[[[f(1)]]]]) == 55"),
}  # fmt: skip


@pytest.mark.parametrize("what", HONEST)
def test_an_honest_answer_is_paid(any_sandbox, what):
    source, tests = HONEST[what]
    score = judge_tests(any_sandbox, source, plan(tests), Limits(cpu_s=5.0))
    assert score.all, score


def test_what_the_tests_import_themselves_is_their_fault(any_sandbox):
    for tests in (
        "def helper(x):\n    import not_there\n    return x\nassert helper(f(1)) == 1",
        "from math import no\nassert f(1) == 1",
    ):
        with pytest.raises(Unusable, match="not in the sandbox"):
            judge_tests(any_sandbox, "def f(x): return x", plan(tests), Limits())


@pytest.mark.parametrize(
    ("tests", "classes"),
    [
        ("assert abs(Area(2) - 12.56) < 1e-6", ()),
        ("d = Area(2) - 12.56\nassert round(d, 3) == 0", ()),
        ("r = Area(2)\nr -= 12.56\nassert r == 0", ()),
        ("def check(candidate):\n    assert candidate(2) - 12.56 < 1e-6", ()),
        ("assert Vec(1, 2) * 2 == Vec(2, 4)", ("Vec",)),
        ("assert (Vec(1) - 3).x == 2", ("Vec",)),
        ("m = 2 * Vec(1)\nassert m.x == 2", ("Vec",)),
        ("assert str(Vec(1) + 1) == '2'", ("Vec",)),
        ("s = Stack()\ns.push(1)\nassert s == [1]", ("Stack",)),
        ("assert find(Node(1) + 1, Node(2)) == 3", ("Node",)),
        ("assert isinstance(make(1), point)", ("point",)),
        ("try:\n    f(1)\n    assert False\nexcept broken:\n    pass", ("broken",)),
        ("assert Color.RED != Color.BLUE", ("Color",)),
    ],
)  # fmt: skip
def test_classes_are_read_from_their_use(tests, classes):
    assert plan(tests, "Area" if "candidate" in tests else None).classes == classes


def test_the_scratch_directory_is_the_next_programs_own(any_sandbox):
    if any_sandbox.level != "namespaces":
        pytest.skip("there is a scratch directory at level namespaces alone")
    shut = "import os\ndef f(): os.chmod('.', 0)\n"
    use = "def f():\n    open('a', 'w').write('x')\n    return open('a').read()"
    assert judge_tests(any_sandbox, shut, plan("assert f() is None"), Limits()).all
    assert judge_tests(any_sandbox, use, plan("assert f() == 'x'"), Limits()).all
