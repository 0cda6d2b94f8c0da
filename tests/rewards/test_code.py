"""The `code` reward: extraction, forms of tests, and real inputs on which graders failed."""

import json
import time
from pathlib import Path

import pytest

from tests.rewards.sandbox.conftest import start
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.rewards import build_rewards
from trl_grpo_plus.rewards.code_task import Task, with_fewer_cases

DATA = Path(__file__).parents[1] / "data"
ADD = "def add(a, b):\n    return a + b"
TESTS = ["assert add(2, 3) == 5", "assert add(-1, 1) == 0"]


def cases():
    for name in ("reward_cases.jsonl", "reward_cases_own.jsonl"):
        for line in (DATA / name).read_text().splitlines():
            case = json.loads(line)
            if case["kind"] == "code" and not case.get("ambiguous"):
                yield pytest.param(case, id=case["id"])


def verdict(completion, answer=TESTS, prompt="p", row=(), **options):
    function = build_rewards([{"code": options}])[0].function
    return function.verdict(completion, {"prompt": prompt, "answer": answer, **dict(row)})


@pytest.mark.parametrize("case", cases())
def test_the_corpus(case):
    began = time.monotonic()
    options = (
        {"cpu_s": min(2.0, case.get("timeout_s", 2.0))}
        if "timeout" in case.get("tags", ()) or case.get("danger")
        else {}
    )
    found = verdict(case["completion"], case["gold"], case.get("prompt"), **options)
    expected = case["expected"]
    if isinstance(expected, (int, float)):
        assert found.value == expected, (case["why"], found)
    else:
        assert found.value in (None, 0.0), (case["why"], found)
    assert time.monotonic() - began < case.get("must_return_within_s", 60)


FORMS = [
    TESTS,
    "\n".join(TESTS),
    json.dumps(TESTS),
    {"mode": "assert", "tests": TESTS},
    {
        "tests": "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate(-1, 1) == 0",
        "entry_point": "add",
    },
    {"inputs": [[2, 3], [-1, 1]], "outputs": [5, 0], "fn_name": "add"},
    json.dumps({"inputs": [[2, 3], [-1, 1]], "outputs": [[5], [0]], "fn_name": "add"}),
    str(TESTS),
    json.dumps({"inputs": ["2\n3", "-1\n1"], "outputs": ["5", "0"], "fn_name": "add"}),
    json.dumps([{"type": "function_call", "fn_name": "add", "input": [2, 3], "output": 5}]),
    [{"input": "2\n3", "output": "5", "testtype": "functional", "metadata": {"func_name": "add"}}],
    {
        "language": "python",
        "test_cases": [{"type": "function_call", "fn_name": "add", "input": [2, 3], "output": [5]}],
    },
    {"tests": {"inputs": [[2, 3]], "outputs": [5]}, "fn_name": "add"},
    {"inputs": None, "outputs": None, "tests": TESTS},
]
SCRIPT = "print(sum(map(int, input().split())))"
SCRIPT_FORMS = [
    [{"input": "1 2\n", "output": "3\n"}],
    [["1 2", "3"]],
    {"mode": "stdio", "tests": [{"input": "1 2\n", "output": "3\n"}]},
    {"inputs": ["1 2\n"], "outputs": ["3\n"]},
    {"input": "1 2", "output": "3"},
    json.dumps({"inputs": [["1 2"]], "outputs": [["3"]]}),
    {"mode": "stdio", "tests": {"inputs": ["1 2"], "outputs": ["3"]}},
    {"language": "python", "test_cases": [{"type": "stdin_stdout", "fn_name": None, "input": "1 2", "output": "3"}]},
    str([{"input": "1 2", "output": "3", "testtype": "stdin"}]),
    [{"stdin": "1 2", "expected_output": "3"}],
    {"input": ["1 2\n", "2 2\n"], "output": ["3\n", "4\n"]},
]


@pytest.mark.parametrize("answer", FORMS, ids=range(len(FORMS)))
def test_forms_of_tests(answer):
    assert verdict(f"```python\n{ADD}\n```", answer).value == 1.0
    assert verdict(f"```python\n{ADD.replace('+', '-')}\n```", answer).value == 0.0


@pytest.mark.parametrize("answer", SCRIPT_FORMS, ids=range(len(SCRIPT_FORMS)))
def test_forms_of_cases(answer):
    assert verdict(f"```python\n{SCRIPT}\n```", answer).value == 1.0
    assert verdict(f"```python\n{SCRIPT} + 1\n```", answer).value == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        *(None, "", [], {}, "[]", {"tests": []}, {"inputs": [], "outputs": []}, "72", {"x": 1}, [1], 5),
        [{"input": "1", "output": None}],
        {"inputs": ["1"], "outputs": [None]},
        {"language": "cpp", "test_cases": [["1", "1"]]},
        [{"type": "function_call", "input": [2, 3], "output": 5}],
        {"inputs": ["2 3"], "outputs": ["5"], "fn_name": "add"},
        *({"inputs": [[[2, 3]]], "outputs": [5]}, {"inputs": [[2, 3]], "outputs": [5]}),
        {"inputs": ["[2"], "outputs": ["5"], "fn_name": "add"},
        {"tests": "def check(candidate):\n    assert candidate(1, 1) == 2", "entry_point": "add(1"},
    ],
)
def test_a_row_without_tests_is_not_scored(answer):
    found = verdict(f"```python\n{ADD}\n```", answer)
    assert found.value is None and found.failure is None and found.reason


def test_setup_and_entry_point_of_the_row():
    row = {"test_setup_code": "base = 3", "test_imports": ["import math"]}
    assert verdict(ADD, ["assert add(base, math.floor(2.5)) == 5"], row=row).value == 1.0
    assert (
        verdict(ADD, "def check(candidate):\n    assert candidate(1, 1) == 2", row={"entry_point": "add"}).value == 1.0
    )
    open_check = "def check(candidate):\n    assert candidate(1, 1) == 2"
    assert verdict(ADD, open_check).value is None
    assert verdict(ADD, open_check, prompt="def add(a, b):\n").value == 1.0


def test_what_calls_are_of_may_stand_in_another_column():
    given = {"starter_code": "class Solution:\n    def add(self, a: List[int], b):\n        "}
    method = "class Solution:\n    def add(self, a: List[int], b):\n        return a + b"
    called = [{"input": "2\n3", "output": "5", "testtype": "functional"}]
    for answer in (called, json.dumps({"inputs": ["2\n3"], "outputs": ["5"]})):
        assert verdict(method, answer, row=given).value == 1.0
        assert verdict(method.replace("+", "-"), answer, row=given).value == 0.0
    for row in ({"fn_name": "add"}, {"entry_point": "add"}):
        for answer in (called, {"inputs": [[2, 3]], "outputs": [5]}):
            assert verdict(ADD, answer, row=row).value == 1.0
            assert verdict(ADD.replace("+", "-"), answer, row=row).value == 0.0
    assert verdict(ADD, {"inputs": ["2\n3"], "outputs": ["5"]}, row={"fn_name": "add"}).value == 1.0
    assert verdict(SCRIPT, [["1 2", "3"]], row={"entry_point": "add"}).value == 1.0


def test_an_entry_point_that_is_a_method():
    answer, row = "def check(candidate):\n    assert candidate(a = 2, b = 3) == 5", {"entry_point": "Solution().add"}
    method = "class Solution:\n    def add(self, a: List[int], b):\n        return {}"
    given = "class Solution:\n    def add(self, a: List[int], b) -> int:\n        "
    for tests in (answer, answer.replace("assert", "five = 5\n    assert").replace("== 5", "== five")):
        assert verdict(method.format("a + b"), tests, row={**row, "starter_code": given}).value == 1.0
        assert verdict(method.format("a + b"), tests, prompt=f"Complete:\n{given}", row=row).value == 1.0
        assert verdict(method.format("a + b"), tests, row=row).value == 0.0  # nobody gives it `List`
        assert verdict(method.format("a - b"), tests, row={**row, "starter_code": given}).value == 0.0
        liar = "class E:\n    def __eq__(s, o): return True\n    __ne__ = __eq__\n"
        for cheat in (liar + method.format("E()"), liar + "class Solution(E):\n    add = E\n", liar + "Solution = E"):
            assert verdict(cheat, tests, row={**row, "starter_code": given}).value == 0.0


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        (TESTS, "def add(a: {}, b: int):\n    return a + b"),
        (["total = add(2, 3)", "assert total == 5"], "def add(a: {}, b: int):\n    return a + b"),
        ([["1 2", "3"]], "def add(a: {}):\n    print(sum(map(int, a.split())))\nadd(input())"),
    ],
    ids=["calls", "tests", "script"],
)
def test_annotations_are_read_as_python_reads_them(answer, program):
    assert verdict(program.format("'Any'"), answer).value == 1.0
    assert verdict(program.format("Any"), answer).value == 0.0  # a name that nothing imports
    assert verdict("from __future__ import annotations\n" + program.format("Any"), answer).value == 1.0


def test_helpers_that_the_prompt_gives_whole():
    helpers = "class Node:\n    def __init__(self, v):\n        self.v = v\n\ndef node(v):\n    return Node(v)"
    tests = ["def check(candidate):\n    assert candidate(node(2), node(3)) == 5", "assert Node(1).v == 1"]
    program = "```python\nclass Solution:\n    def add(self, a, b):\n        return a.v + b.v\n```"
    for prompt in (helpers, f"Given\n\n```python\n{helpers}\n```\n\nwrite add."):
        found = verdict(program, tests, prompt=prompt, row={"entry_point": "Solution().add"})
        assert found.value == 1.0, found
        assert verdict(program.replace("+", "-"), tests, prompt, {"entry_point": "Solution().add"}).value == 0.0


def test_partial_credit():
    half = "def add(a, b):\n    return 5"
    assert verdict(half).value == 0.0
    assert verdict(half, credit="fraction").value == 0.5
    assert verdict(half, "x = 1\n" + "\n".join(TESTS), credit="fraction").value == 0.5
    cases = [["1 2", "3"], ["2 2", "4"], ["3 0", "3"]]
    assert verdict("print(3)", cases, credit="fraction").value == pytest.approx(2 / 3)
    assert verdict("print(3)", cases).value == 0.0


def test_fewer_cases_are_spread_over_all_and_reach_the_last():
    cases = [[str(i), str(i)] for i in range(100)]
    assert verdict("print(input())", cases, max_cases=8, cpu_s=1.0).value == 1.0
    task = Task(cases=tuple(map(tuple, cases)), calls=tuple((c[0], (c[1],)) for c in cases))
    ran = [int(given) for given, _ in with_fewer_cases(task, 8).cases]
    assert ran == [11, 24, 36, 49, 61, 74, 86, 99] == [int(c) for c, _ in with_fewer_cases(task, 8).calls]
    assert [len(with_fewer_cases(task, n).cases) for n in (1, 7, 99, 100, 101, None)] == [1, 7, 99, 100, 100, 100]
    only_others = "i = int(input())\nprint(i if i % 2 == 0 else -1)"
    assert verdict(only_others, [["1", "1"], ["2", "2"]], max_cases=1).value == 1.0
    assert verdict(only_others, [["1", "1"], ["2", "2"]], max_cases=2).value == 0.0


def test_options_that_cannot_work():
    for options, message in [
        ({"max_cases": 0}, "max_cases must be positive"),
        ({"credit": "half"}, "credit"),
        ({"cpu_s": 0}, "cpu_s must be a positive number"),
        ({"memory_mib": 10}, "memory_mib must be at least 64"),
        ({"level": "rlimits", "min_level": "landlock"}, "weaker than min_level"),
        ({"level": "docker"}, "unknown level `docker`"),
        ({"level": "external"}, "`runner` and level `external` go together"),
        ({"tolerance": -1}, "tolerance must be in"),
    ]:
        with pytest.raises(UserError, match=message):
            build_rewards([{"code": options}])


def test_the_level_is_a_metric():
    logged = {}
    function = build_rewards(["code"])[0].function
    values = function(["p"], [ADD], answer=[TESTS], log_metric=lambda key, value: logged.update({key: value}))
    assert values == [1.0] and logged["rewards/code/unscored"] == 0.0
    strongest = next(
        rank for level, rank in (("namespaces", 4.0), ("landlock", 3.0)) if not isinstance(start(level), str)
    )
    assert logged["rewards/code/sandbox_level"] == strongest


def run_outside(source, stdin, cpu_s, memory_mib):
    """A runner of the user's own, as level `external` takes it."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-I", "-c", source], input=stdin, capture_output=True, text=True, timeout=60
    )
    return done.stdout, done.returncode


def fail_outside(source, stdin, cpu_s, memory_mib):
    raise ConnectionError("no route to the sandbox")


def test_an_external_runner():
    options = {"level": "external", "runner": "tests.rewards.test_code:run_outside"}
    assert verdict(ADD, **options).value == 1.0
    assert verdict("print('x')\n" + ADD.replace("+", "-"), **options).value == 0.0
    assert verdict("import os\nos.write(1, b'[1,5]')\n" + ADD.replace("+", "-"), **options).value == 0.0
    assert verdict(SCRIPT, [["1 2", "3"]], **options).value == 1.0
    assert verdict(ADD, ["x = add(2, 3)", "assert x == 5"], **options).value is None
    method = "class Solution:\n    def add(self, a, b):\n        return a + b\n"
    check, row = "def check(candidate):\n    assert candidate(2, 3) == 5", {"entry_point": "Solution().add"}
    assert verdict(method, check, row=row, **options).value == 1.0
    assert verdict(method.replace("+", "-"), check, row=row, **options).value == 0.0
    failed = verdict(ADD, level="external", runner="tests.rewards.test_code:fail_outside")
    assert failed.value is None and failed.failure == "error" and "no route" in failed.reason
