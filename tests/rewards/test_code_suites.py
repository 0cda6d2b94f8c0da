"""Tests as data sets keep them: beside a module, as methods of classes, for pytest, of LeetCode's methods."""

# ruff: noqa: E501  (programs as texts)

import math

import numpy as np
import pytest

from tests.rewards.test_code import verdict
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.rewards.sandbox.inside import pytest_names
from trl_grpo_plus.rewards.sandbox.plan import Calls, plan

ADD = "def add(a, b):\n    if not isinstance(a, int):\n        raise TypeError('no number')\n    return a + b\n"
WRONG = ADD.replace("a + b", "a - b")
STACK = """
class Stack:
    def __init__(self, items=()):
        self.items = list(items)
    def push(self, item):
        self.items.append(item)
    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()
"""

MODULES = [
    "from solution import add\ndef test_add():\n    assert add(1, 2) == 3\ndef test_negative():\n    assert add(-1, -2) == -3\n",
    "from solution import *\nx = 3\nassert add(1, 2) == x\n",
    "import solution\nassert solution.add(1, 2) == 3\n",
    "import math, solution as s\nassert s.add(1, 2) == math.ceil(2.5)\n",
    "from solution import add as plus\nthree = 3\nassert plus(1, 2) == three\n",
    "from .solution import add\nassert add(1, 2) == 3\n",
    "def test_one():\n    from solution import add\n    assert add(1, 2) == sum((1, 2))\n",
]
PYTEST = [
    "import pytest\n@pytest.mark.parametrize('a, b, c', [(1, 2, 3), pytest.param(2, 2, 4, id='even')])\ndef test_add(a, b, c):\n    assert add(a, b) == c\n",
    "import pytest\n@pytest.mark.parametrize('a', [1, 2])\n@pytest.mark.parametrize('b', (3, 4))\ndef test_add(a, b):\n    assert add(a, b) == b + a\n",
    "import pytest\ndef test_bad():\n    with pytest.raises(TypeError, match='no num'):\n        add(None, 1)\n    assert add(1, 2) == pytest.approx(3.0)\n",
    "import pytest\ndef test_bad():\n    with pytest.raises((TypeError, ValueError)) as caught:\n        add(None, 1)\n    assert 'number' in str(caught.value)\n    assert add(1, 1) == 2\n",
    "import pytest\n@pytest.fixture\ndef one():\n    yield 1\n@pytest.fixture()\ndef two(one):\n    return one + 1\ndef test_add(one, two):\n    assert add(one, two) == 3\n",
    "class TestAdd:\n    def setup_method(self):\n        self.one = 1\n    def test_add(self):\n        assert add(self.one, 2) == 3\n    def test_more(self):\n        assert add(2, 2) == 4\n",
]
ASYNC = [
    "async def test_add():\n    assert add(1, 2) == 3\n",
    "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n    async def test_add(self):\n        self.assertEqual(add(1, 2), 3)\n",
    "class TestAdd:\n    async def test_add(self):\n        assert add(1, 2) == 3\n",
]
UNITTEST = [
    "import unittest\nclass TestAdd(unittest.TestCase):\n    def setUp(self):\n        self.one = 1\n    def test_add(self):\n        self.assertEqual(add(self.one, 2), 3)\n    def test_bad(self):\n        with self.assertRaises(TypeError):\n            add(None, 1)\n    def test_more(self):\n        for i in range(3):\n            with self.subTest(i=i):\n                self.assertAlmostEqual(add(i, 1), i + 1)\nif __name__ == '__main__':\n    unittest.main()\n",
    "from unittest import TestCase\nclass Base(TestCase):\n    def test_zero(self):\n        self.assertIs(type(add(0, 0)), int)\nclass More(Base):\n    @classmethod\n    def setUpClass(cls):\n        cls.two = add(1, 1)\n    def test_two(self):\n        self.assertEqual(2, self.two)\n",
    "import unittest\nfrom solution import add\nclass AddTests(unittest.TestCase):\n    def test_add(self):\n        assert add(1, 2) == 3\n    @unittest.skip('elsewhere')\n    def test_skipped(self):\n        self.fail()\n",
]


@pytest.mark.parametrize("tests", [*MODULES, *PYTEST, *ASYNC, *UNITTEST])
def test_the_right_program_is_paid_and_the_wrong_one_is_not(tests):
    assert verdict(f"```python\n{ADD}```", tests).value == 1.0
    for wrong in (
        WRONG,
        "add = None\n1 / 0\n",
        "def add(a, b): return None",
        "import sys\ndef add(a, b): sys.exit(0)",
    ):
        found = verdict(f"```python\n{wrong}\n```", tests)
        assert found.value == 0.0, (wrong, found)


STACK_TESTS = """
import unittest
class StackTests(unittest.TestCase):
    def setUp(self):
        self.stack = Stack([1])
    def test_push(self):
        self.stack.push(2)
        self.assertEqual(self.stack.items, [1, 2])
    def test_pop(self):
        self.assertEqual(self.stack.pop(), 1)
        with self.assertRaisesRegex(IndexError, "empty"):
            self.stack.pop()
    def test_kind(self):
        self.assertIsInstance(self.stack, Stack)
        self.assertNotIsInstance(self.stack, list)
"""


def test_a_class_under_unittest():
    assert verdict(f"```python{STACK}```", STACK_TESTS).value == 1.0
    broken = STACK.replace("return self.items.pop()", "return self.items.pop(0) if len(self.items) > 1 else None")
    found = verdict(f"```python{broken}```", STACK_TESTS, credit="fraction")
    assert found.value == pytest.approx(2 / 3), found
    assert verdict(f"```python{broken}```", STACK_TESTS).value == 0.0


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (
            "class Always:\n    def __eq__(self, other): return True\ndef add(a, b): return Always()",
            "equal to everything",
        ),
        ("import unittest\ndef add(a, b): raise unittest.SkipTest('no')", "skips its tests"),
        ("import os\ndef add(a, b): os._exit(0)", "leaves"),
        ("import unittest\nunittest.TestCase.assertEqual = lambda *a: None\ndef add(a, b): return 0", "patches"),
        ("import sys\nsys.modules['pytest'] = sys\ndef add(a, b): raise SystemExit", "exits"),
        ("def add(a, b): raise AssertionError", "asserts"),
    ],
)
@pytest.mark.parametrize("tests", [UNITTEST[1], UNITTEST[2], PYTEST[0], PYTEST[5]])
def test_a_forgery_is_not_paid(program, why, tests):
    assert verdict(f"```python\n{program}\n```", tests).value == 0.0, why


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ("import pytest\n@pytest.mark.skipif(True, reason='')\ndef test_x():\n    assert add(1, 2) == 3\n", "skipif"),
        ("def test_x(tmp_path):\n    assert add(1, 2) == 3\n", "fixture"),
        ("import pytest\ndef test_x():\n    pytest.importorskip('x')\n    assert add(1, 2) == 3\n", "importorskip"),
        ("import unittest\nclass T(unittest.TestCase):\n    pass\nadd(1, 2)\n", "check nothing"),
        (
            "import unittest\nclass T(unittest.TestCase):\n    @unittest.skip('')\n    def test_x(self): add(1, 2)\n",
            "",
        ),
    ],
)
def test_what_is_not_there_is_no_verdict(tests, why):
    found = verdict(f"```python\n{ADD}```", tests)
    assert found.value is None and why in found.reason, found


NEVER_RUN = "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(add(1, 2), 3)\n1 / 0\n"


def test_tests_that_break_before_they_run_pay_nothing():
    assert verdict(f"```python\n{ADD}```", NEVER_RUN).value == 0.0


TWO_SUM = "def check(candidate):\n    assert candidate(nums = [2, 7], target = 9) == [0, 1]\n    assert candidate(nums = [3, 3], target = 6) == [0, 1]\n"
SOLUTION = "class Solution:\n    def twoSum(self, nums: List[int], target: int) -> List[int]:\n        seen = {}\n        for i, x in enumerate(nums):\n            if target - x in seen:\n                return [seen[target - x], i]\n            seen[x] = i\n"
PREAMBLE = "from typing import *\nfrom collections import *\ninf = float('inf')\n"


@pytest.mark.parametrize("tests", [TWO_SUM, TWO_SUM.replace("== [0, 1]", "== list(range(2))")], ids=["calls", "tests"])
def test_a_method_as_entry_point(tests):
    row = {
        "entry_point": "Solution().twoSum",
        "starter_code": "class Solution:\n    def twoSum(self, nums: List[int], target: int) -> List[int]:\n",
    }
    assert verdict(f"```python\n{SOLUTION}```", tests, row=row).value == 1.0
    assert verdict(f"```python\n{SOLUTION.replace('x in seen', 'x not in seen')}```", tests, row=row).value == 0.0
    assert verdict("```python\ndef twoSum(nums, target): return [0, 1]\n```", tests, row=row).value == 0.0
    assert (
        verdict(f"```python\n{SOLUTION}```", tests, row={"entry_point": "Solution().twoSum"}).value == 0.0
    )  # no List
    assert (
        verdict(
            f"```python\n{SOLUTION}```", tests, row={"entry_point": " Solution().twoSum ", "preamble": PREAMBLE}
        ).value
        == 1.0
    )
    found = verdict(f"```python\n{SOLUTION}```", tests, row={"entry_point": "Solution(1).twoSum"})
    assert found.value is None and "Solution(1).twoSum" in found.reason


def test_one_object_is_called_by_all_checks_as_they_say():
    stale = "class Solution:\n    seen = 0\n    def twoSum(self, nums, target):\n        self.seen += 1\n        return [0, self.seen]\n"
    assert (
        verdict(f"```python\n{stale}```", TWO_SUM, row={"entry_point": "Solution().twoSum"}, credit="fraction").value
        == 0.5
    )


def test_the_preamble_is_there_for_programs_and_for_tests():
    row = {"preamble": [PREAMBLE, "def double(x):\n    return 2 * x"]}
    tests = "limit = inf\nassert add(double(1), 2) == double(2)\nassert add(1, 2) < limit\n"
    using = "from __future__ import annotations\ndef add(a: int, b: int):\n    return Counter({'x': a})['x'] + double(b) // 2\n"
    assert verdict(f"```python\n{using}```", tests, row=row).value == 1.0
    cheat = "def double(x): return 0\ninf = 5\ndef add(a, b): return 0\n"
    assert verdict(f"```python\n{cheat}```", tests, row=row).value == 0.0
    assert verdict("```python\nprint(inf > 1, double(2))\n```", [["", "True 4"]], row=row).value == 1.0


def test_functions_of_literal_asserts_need_no_second_process():
    assert isinstance(plan(MODULES[0]), Calls) and plan(MODULES[0]).expected == (3, -3)
    assert isinstance(plan("from solution import gcd\nassert gcd(4, 6) == 2"), Calls)


def test_names_that_look_well_known_are_the_program_s_where_tests_import_them():
    tests = "from solution import gcd, sorted\ntwo = 2\nassert gcd(4, 6) == two\nassert sorted([2, 1]) == [two, 1]\n"
    assert verdict("```python\ndef gcd(a, b): return 2\ndef sorted(x): return x\n```", tests).value == 1.0
    assert verdict("```python\ndef gcd(a, b): return 1\ndef sorted(x): return x\n```", tests).value == 0.0


@pytest.mark.parametrize(
    "uses", ["datetime.now().year > 2000", "datetime.datetime.now().year > 2000", "datetime(2024, 1, 2).day == 2"]
)
def test_a_module_or_the_class_of_its_name(uses):
    assert verdict(f"```python\n{ADD}```", f"now = {uses}\nassert add(1, 2) == 2 + now\n").value == 1.0


NUMBERS = [
    0,
    1,
    1.0,
    1.0000005,
    1.00001,
    -1,
    1e-13,
    1e-11,
    1e6,
    1e6 + 0.5,
    math.nan,
    math.inf,
    -math.inf,
    1 + 1e-9j,
]
OTHERS = [
    None,
    "1",
    [1.0, 2.0],
    (1.0, 2.0000001),
    [1.0],
    {"a": 1.0},
    {"a": 1.0000001},
    {"b": 1.0},
    np.array([1.0, 2.0]),
]


@pytest.mark.parametrize(
    "options", [{}, {"abs": 1e-3}, {"rel": 1e-3}, {"rel": 1e-9, "abs": 0.0}, {"nan_ok": True}], ids=str
)
def test_approx_is_pytest_s(options):
    for group in (NUMBERS, OTHERS):
        for expected in group:
            if options and isinstance(expected, (str, type(None))):  # pytest raises for some
                continue
            for actual in group:
                theirs = bool(actual == pytest.approx(expected, **options))
                assert bool(actual == pytest_names.approx(expected, **options)) is theirs, (actual, expected, options)


GRAPH = """
class Graph:
    def __init__(self):
        self.edges = {}
        self.names = ["a"]
        self.rows = [[0, 0], [0, 0]]
        self._log = self.names
    def degree(self, name):
        return len(self.edges.get(name, ())) + self.names.count(name)
    def total(self):
        return sum(map(sum, self.rows)) + len(self._log)
    def area(self):
        return self.width() * 2
    def width(self):
        return 1
"""
CHANGES = [
    "g.names.append('a')\nassert g.degree('a') == two\nassert g.total() == two\n",
    "g.edges['b'] = [1, two]\nassert g.degree('b') == two\ndel g.edges['b']\nassert g.degree('b') == 0\n",
    "g.rows[0][1] = two\ng.rows[1][0] += 1\nassert g.total() == 4\nassert g.rows == [[0, two], [1, 0]]\n",
    "g.rows[1].extend([two, 3])\ng.edges.setdefault('c', []).append(1)\nassert g.total() == 6\n",
    "g.edges.update(a=[1])\ng.names.clear()\nassert g.degree('a') == 1\n",
    "import unittest\nfrom unittest.mock import MagicMock\ng.width = MagicMock(return_value=two)\nassert g.area() == 4\ng.width.assert_called_once()\n",
]


@pytest.mark.parametrize("changes", CHANGES)
def test_tests_change_what_their_objects_hold(changes):
    tests = f"two = 2\ng = Graph()\n{changes}"
    names = {}
    exec(GRAPH + tests, names)  # as Python runs them
    assert verdict(f"```python{GRAPH}```", tests).value == 1.0
    for broken in ("+ self.names.count(name)", "sum(map(sum, self.rows)) +", "self.edges.get(name, ())"):
        program = GRAPH.replace(broken, "()" if broken.startswith("self") else "")
        try:
            exec(program + tests, {})
            right = 1.0
        except AssertionError:
            right = 0.0
        assert verdict(f"```python{program}```", tests).value == right, program


def test_what_a_function_returned_is_changed_as_a_copy_alone():
    program = "class Holder:\n    items = []\ndef make(): return Holder()\ndef told(): return Holder.items\n"
    tests = "two = 2\nx = make()\nx.items.append(two)\nassert told() == []\n"
    assert verdict(f"```python\n{program}```", tests).value == 1.0


def test_packages_that_the_reward_names_can_be_imported():
    program = (
        "```python\nimport yaml, six\ndef load(text): return yaml.safe_load(text)['a'] + six.integer_types[0](0)\n```"
    )
    tests = ["assert load('a: 1') == 1"]
    assert verdict(program, tests, packages=["yaml", "six"]).value == 1.0
    assert verdict(program, tests).value == 0.0
    for wrong in (["no_such_package_here"], ["os.path"], [""], "yaml"):
        with pytest.raises(UserError, match="packages"):
            verdict(program, tests, packages=wrong)
