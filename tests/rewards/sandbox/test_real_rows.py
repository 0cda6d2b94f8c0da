"""What published tests ask of programs beyond calls and values: kinds found by running whole data sets of them."""

# ruff: noqa: E501  (programs as texts)

import collections

import pytest

from trl_grpo_plus.rewards.sandbox import Limits, Unusable, judge_tests, plan
from trl_grpo_plus.rewards.sandbox.plan import Calls, names_under_test

CASE = "import unittest\nclass T(unittest.TestCase):\n    def test_it(self):\n        "

HONEST = {
    "a view of keys": ("def f(d): return d.keys()", "assert f({1: 2}) == {1}\nassert f({}) == set()"),
    "a view of items": ("def f(d): return d.items()", "assert f({1: 'a', 2: 'b'}) == {(1, 'a'), (2, 'b')}"),
    "views, looked at": ("def f(d): return d.keys(), d.values()", "k, v = f({1: 2})\nassert list(k) == [1] and k == {1} and list(v) == [2] and len(v) == 1 and 2 in v"),
    "an ellipsis": ("def f(x): return ...", "assert f(1) == ..."),
    "an ellipsis, looked at": ("def f(x): return [...]", "x = 1\nassert f(x) == [...] and f(x)[0] is ..."),
    "a counter": ("from collections import Counter\ndef f(x): return Counter(x)", "from collections import Counter\nc = f('aab')\nassert isinstance(c, Counter) and c == {'a': 2, 'b': 1} and c['z'] == 0 and c.most_common(1) == [('a', 2)]"),
    "a counter for a dictionary": ("from collections import Counter\ndef f(x): return Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}"),
    "an ordered dictionary": ("from collections import OrderedDict\ndef f(): return OrderedDict([(2, 'b'), (1, 'a')])", "from collections import OrderedDict\nr = f()\nassert isinstance(r, OrderedDict) and list(r) == [2, 1] and r == {1: 'a', 2: 'b'} and r != OrderedDict([(1, 'a'), (2, 'b')])"),
    "a dictionary with defaults": ("from collections import defaultdict\ndef f():\n    d = defaultdict(list)\n    d[1].append(2)\n    return d", "r = f()\nassert r == {1: [2]} and r[5] == []"),
    "exceptions of the library": ("import json, binascii\ndef f(s): return json.loads(s)\ndef g(s): return binascii.unhexlify(s)", "import json, binascii\ntry:\n    f('{')\n    ok = False\nexcept json.JSONDecodeError as e:\n    ok = 'property name' in str(e) and e.pos == 1\nassert ok\ntry:\n    g('z')\n    ok = False\nexcept binascii.Error:\n    ok = True\nassert ok"),
    "seeds": ("import random\ndef f(): return random.randint(1, 10**9)", "import random\nrandom.seed(3)\nexpected = random.randint(1, 10**9)\nrandom.seed(3)\nassert f() == expected"),
    "numpy's seeds": ("import numpy as np\ndef f(): return np.random.rand(3)", "import numpy as np\nnp.random.seed(3)\nexpected = np.random.rand(3)\nnp.random.seed(3)\nassert np.allclose(f(), expected)"),
    "one function twice": ("class Bell:\n    def __init__(s): s.heard = set()\n    def add(s, f): s.heard.add(f)\n    def drop(s, f): s.heard.remove(f)\n    def ring(s):\n        for f in s.heard: f(1)", "got = []\nb = Bell()\nb.add(got.append)\nb.add(got.append)\nb.ring()\nassert got == [1]\nb.drop(got.append)\nb.ring()\nassert got == [1]"),
    "what is printed": ("print('loaded')\ndef f(x):\n    print('got', x)\n    return x", "import io, sys\nfrom contextlib import redirect_stdout\nout = io.StringIO()\nwith redirect_stdout(out):\n    f(1)\n    f(2)\nassert out.getvalue() == 'got 1\\ngot 2\\n'"),
    "what is printed, in a test case": ("class P:\n    def show(s): print('a', end='')", "import io, unittest\nfrom unittest.mock import patch\nclass T(unittest.TestCase):\n    @patch('sys.stdout', new_callable=io.StringIO)\n    def test_it(self, out):\n        P().show()\n        self.assertEqual(out.getvalue(), 'a')"),
    "what is printed, as pytest has it": ("def f(x):\n    print(x)\n    raise ValueError", "import pytest\ndef test_it(capsys):\n    with pytest.raises(ValueError):\n        f('é')\n    assert capsys.readouterr().out == 'é\\n'\n    assert capsys.readouterr().out == ''"),
    "what is printed by itself": ("import sys\ndef f():\n    sys.stdout.buffer.write(b'x')\n    sys.stdout.flush()", "import io, sys\nkept, sys.stdout = sys.stdout, io.StringIO()\nf()\ntext = sys.stdout.getvalue()\nsys.stdout = kept\nassert text == 'x'"),
    "a well-known name": ("def accumulate(xs, f): return [f(x) for x in xs]", CASE + "self.assertEqual(accumulate([1, 2], lambda x: x * x), [1, 4])"),
    "a variable called input": ("class Cell:\n    def __init__(s, v): s.value = v", "input = Cell(3)\nassert input.value == 3"),
}  # fmt: skip


@pytest.mark.parametrize("what", HONEST)
def test_an_honest_program_is_paid(any_sandbox, what):
    source, tests = HONEST[what]
    score = judge_tests(any_sandbox, source, plan(tests), Limits(cpu_s=5.0))
    assert score.all, score


ALWAYS = "    def __eq__(s, o): return True\n    __hash__ = None\n"
WRONG = {
    "a view of other keys": ("def f(d): return {2: 1}.keys()", "assert f({1: 2}) == {1}\nassert f({}) == set()"),
    "more keys": ("def f(d): return {1: 2, 2: 3}.keys()", "assert f({1: 2}) == {1}"),
    "keys for a list": ("def f(d): return d.keys()", "assert f({1: 2}) == [1]"),
    "values for a set": ("def f(d): return d.values()", "assert f({1: 2}) == {2}"),
    "a view of a liar": ("class K(type({}.keys()).__mro__[1]):\n" + ALWAYS + "def f(d): return K()", "x = {1: 2}\nassert f(x) == {1}"),
    "an ellipsis for none": ("def f(x): return ...", "assert f(1) == None"),
    "another counter": ("from collections import Counter\ndef f(x): return Counter(x[1:])", "assert f('aab') == {'a': 2, 'b': 1}"),
    "a counter of a liar": ("from collections import Counter\nclass C(Counter):\n" + ALWAYS + "    def __missing__(s, k): return 2\ndef f(x): return C()", "from collections import Counter\nc = f('aab')\nassert c == Counter('aab')\nassert c['a'] == 2"),
    "defaults of a liar": ("from collections import defaultdict\nclass E:\n" + ALWAYS + "def f(): return defaultdict(E)", "r = f()\nassert r[5] == []"),
    "an exception of the library for another": ("import json\ndef f(s): raise json.JSONDecodeError('x', '', 0)", "import json\ntry:\n    f('{')\n    ok = False\nexcept KeyError:\n    ok = True\nassert ok"),
    "a class that says it is of the library": ("class Error(Exception): pass\nError.__module__ = 'no_such_module'\ndef f(s): raise Error", "import binascii\ntry:\n    f('z')\n    ok = False\nexcept binascii.Error:\n    ok = True\nassert ok"),
    "a test that the program skips": ("import unittest\ndef f(x): raise unittest.SkipTest('no')", CASE + "self.assertEqual(f(1), 2)"),
    "nothing but seeds": ("def f(x): return 0", "import random\ndef test_one():\n    random.seed(1)\n    assert random.random() < 1 or f(1)"),
    "something else printed": ("def f(x): print(x, x)", "import io\nfrom contextlib import redirect_stdout\nout = io.StringIO()\nwith redirect_stdout(out):\n    f(1)\nassert out.getvalue() == '1\\n'"),
    "printed too early": ("print(1)\ndef f(x): pass", "import io\nfrom contextlib import redirect_stdout\nout = io.StringIO()\nwith redirect_stdout(out):\n    f(1)\nassert out.getvalue() == '1\\n'"),
    "printed by a liar": ("import sys\nclass S(str):\n    def __eq__(s, o): return True\n    __hash__ = None\ntype(sys.stdout).take = lambda s: S('no')\ndef f(x): pass", "import io\nfrom contextlib import redirect_stdout\nout = io.StringIO()\nwith redirect_stdout(out):\n    f(1)\nassert out.getvalue() == '1\\n'"),
    "printing without end": ("def f(x):\n    while True: print('x' * 10**6)", "import io\nfrom contextlib import redirect_stdout\nout = io.StringIO()\nwith redirect_stdout(out):\n    f(1)\nassert out.getvalue() == '1\\n'"),
    "the helper, not the program": ("def accumulate(xs, f): return []", CASE + "self.assertEqual(accumulate([1, 2], lambda x: x * x), [1, 4])"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_program_is_not_paid(any_sandbox, what):
    """Nor is its row without a verdict."""
    source, tests = WRONG[what]
    score = judge_tests(any_sandbox, source, plan(tests), Limits(cpu_s=5.0))
    assert not score.all, score


def test_literal_tests_stay_calls():
    assert isinstance(plan("assert f({1: 2}) == {1}\nassert f(1) == ..."), Calls)


def test_no_class_of_the_library_is_loaded_on_a_programs_word(any_sandbox):
    loads = "import sys\nclass Error(Exception): pass\nError.__module__ = 'antigravity'\ndef f(x): raise Error"
    tests = (
        "import sys\ntry:\n    f(1)\nexcept Exception:\n    pass\nassert 'antigravity' not in sys.modules\nassert f"
    )
    assert judge_tests(any_sandbox, loads, plan(tests), Limits()).all


def test_a_well_known_name_in_a_test_case():
    assert names_under_test(CASE + "self.assertEqual(gcd(4, 6), 2)") == ("gcd",)
    assert names_under_test(CASE + "self.assertTrue(isclose(area(1), 3.14))") == ("area",)


@pytest.mark.parametrize(
    "tests",
    [
        "from unittest.mock import patch\nx = 1\nwith patch('random.random', return_value=x):\n    assert f(x) == 1",
        "from unittest import mock\nx = 1\nwith mock.patch.object(x, 'y'):\n    assert f(x) == 1",
        CASE.replace("    def", "    @unittest.mock.patch('builtins.open')\n    def") + "self.assertEqual(f(1), 1)",
        "def test_f(monkeypatch):\n    monkeypatch.setattr('os.getcwd', lambda: 1)\n    assert f(1) == 1",
        "import io, sys\nsys.stdin = io.StringIO('1')\nassert f(1) == 1",
    ],
)
def test_tests_that_need_one_process_say_so(tests):
    with pytest.raises(Unusable, match="another process|the program's stdin"):
        plan(tests)


def test_counters_keep_their_order_and_kind():
    from trl_grpo_plus.rewards.sandbox.inside import codec

    for value in (collections.Counter("aab"), collections.OrderedDict(b=1, a=2), collections.defaultdict(int, x=1)):
        found = codec.decode(codec.loads(codec.dumps(codec.encode(value, str))), str)
        assert type(found) is type(value) and list(found.items()) == list(value.items())
    assert found.default_factory is int
