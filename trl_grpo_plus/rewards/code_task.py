"""What a row asks of a program, read from its tests in any of the forms that datasets have.

Stage: rewards. MBPP has lists of asserts, HumanEval a `check(candidate)` and an `entry_point`, APPS and TACO a JSON
text of `{inputs, outputs}` with an optional `fn_name`; a specification of one's own is `{mode, tests, entry_point}`.
"""

from __future__ import annotations

import contextlib
import json
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .registry import Row
from .sandbox import Unusable

_CLASS = "Solution"  # of which LeetCode's functions, and others', are methods


@dataclass(frozen=True)
class Task:
    """What a row asks for.

    Args:
        tests: Source of the tests; empty for a script.
        cases: Pairs of stdin and stdout; empty for tests.
        entry: The function under test, where the row names it.
        calls: Pairs of the source of a call's arguments and the results of which any is right, where both were kept as
            JSON.
        holders: With `calls`: what the program may define, in order, the function itself or the class of which it is
            a method.
    """

    tests: str = ""
    cases: tuple[tuple[str, str], ...] = ()
    entry: str | None = None
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    holders: tuple[str, ...] = ()


def with_fewer_cases(task: Task, most: int | None) -> Task:
    """Returns a task with at most so many of its cases, spread over all of them: the largest often come last."""

    def spread(cases: tuple[Any, ...]) -> tuple[Any, ...]:
        if most is None or len(cases) <= most:
            return cases
        return tuple(cases[(i + 1) * len(cases) // most - 1] for i in range(most))

    return replace(task, cases=spread(task.cases), calls=spread(task.calls))


def task_of(answer: Any, row: Row) -> Task:
    """Returns what a row asks for, from its tests in any of the known forms.

    Raises:
        Unusable: There are none, or their form is not known.
    """
    entry = row.get("entry_point")
    if isinstance(answer, str) and answer.lstrip()[:1] in ("{", "["):
        with contextlib.suppress(ValueError):  # Python source may begin so as well
            answer = json.loads(answer)
    if answer is None or (isinstance(answer, (str, list, tuple, dict)) and not answer):
        raise Unusable("no tests")
    if isinstance(answer, Mapping):
        entry = answer.get("entry_point") or answer.get("fn_name") or entry
        if "inputs" in answer and "outputs" in answer:
            return _from_columns(answer["inputs"], answer["outputs"], answer.get("fn_name"), row)
        if "input" in answer and "output" in answer:
            answer = [answer]
        elif "tests" in answer or "test" in answer:
            setup = answer.get("setup") or ""
            inner = answer.get("tests", answer.get("test"))
            if not inner:
                raise Unusable("no tests")
            if str(answer.get("mode", "")) == "stdio" or (isinstance(inner, list) and _is_case(inner[0])):
                return Task(cases=_cases(inner))
            return _from_source(inner, entry, row, setup)
        else:
            raise Unusable(f"tests with the keys {', '.join(map(str, answer))}")
    if isinstance(answer, Sequence) and not isinstance(answer, str) and _is_case(answer[0]):
        return Task(cases=_cases(answer))
    return _from_source(answer, entry, row, "")


def _is_case(item: Any) -> bool:
    return (isinstance(item, Mapping) and "output" in item) or (isinstance(item, (list, tuple)) and len(item) == 2)


def _cases(items: Sequence[Any]) -> tuple[tuple[str, str], ...]:
    cases = []
    for item in items:
        if not _is_case(item):
            raise Unusable(f"a case without an output: {item!r:.80}")
        pair = (item.get("input", ""), item["output"]) if isinstance(item, Mapping) else item
        given, expected = ("\n".join(map(str, v)) if isinstance(v, (list, tuple)) else v for v in pair)
        cases.append(("" if given is None else str(given), str(expected)))
    if not cases:
        raise Unusable("no cases")
    return tuple(cases)


def _from_columns(inputs: Any, outputs: Any, function: Any, row: Row) -> Task:
    """Returns the task of APPS's `input_output`: texts for stdin, or with `fn_name` arguments and results.

    Results are read as those data sets' own graders read them (`testing_util.py` of APPS and TACO). Some sources keep
    every result in a list of one, others as it is: where each is a list of one, both readings are right.
    """
    if not isinstance(inputs, Sequence) or not isinstance(outputs, Sequence) or len(inputs) != len(outputs):
        raise Unusable("as many inputs as outputs are needed")
    if not inputs:
        raise Unusable("no cases")
    if not function:
        return Task(cases=_cases(list(zip(inputs, outputs, strict=True))))
    if not str(function).isidentifier():
        raise Unusable(f"fn_name {function!r:.80} is no name of a function")
    function, starter_code = str(function), str(row.get("starter_code") or "")
    in_class = re.search(rf"^class\s+{_CLASS}\b", starter_code, re.MULTILINE)
    holders = (_CLASS,) if in_class else (function,) if starter_code.strip() else (function, _CLASS)
    wrapped = all(isinstance(result, list) and len(result) == 1 for result in outputs)
    calls = []
    for arguments, result in zip(inputs, outputs, strict=True):
        if not isinstance(arguments, list):
            raise Unusable(f"arguments that are no list: {arguments!r:.80}")
        given = ", ".join(repr(_whole_keys(argument)) for argument in arguments)
        calls.append((given, tuple(map(_whole_keys, (result[0], result) if wrapped else (result,)))))
    return Task(calls=tuple(calls), entry=function, holders=holders)


def _whole_keys(value: Any) -> Any:
    """Returns a dictionary with whole numbers as keys where JSON made texts of them, any other value as it is."""
    if isinstance(value, dict) and value and all(re.fullmatch(r"-?\d{1,18}", str(key)) for key in value):
        return {int(key): item for key, item in value.items()}
    return value


def typing_imports(starter_code: Any) -> str:
    """Returns the import of what starter code takes from `typing` without saying so, an empty text for nothing.

    The judges of those sites import it, so that `nums: List[int]` is given and copied as it is.
    """
    if not isinstance(starter_code, str):
        return ""
    words = set(re.findall(r"[A-Za-z]\w*", starter_code))
    names = sorted(name for name in words.intersection(typing.__all__) if name[0].isupper())
    return f"from typing import {', '.join(names)}\n" if names else ""


def _from_source(tests: Any, entry: Any, row: Row, setup: str) -> Task:
    if isinstance(tests, Sequence) and not isinstance(tests, str):
        if not all(isinstance(line, str) for line in tests):
            raise Unusable("a list of tests that are not all texts")
        tests = "\n".join(tests)
    if not isinstance(tests, str):
        raise Unusable(f"tests of type {type(tests).__name__}")
    before = [setup, row.get("test_setup_code") or "", row.get("test_imports") or ""]
    before = ["\n".join(part) if isinstance(part, (list, tuple)) else str(part) for part in before]
    return Task(tests="\n".join([*(part for part in before if part), tests]), entry=str(entry) if entry else None)
