"""What a row asks of a program, read from its tests in any of the forms that datasets have.

Stage: rewards. MBPP has lists of asserts, HumanEval a `check(candidate)` and an `entry_point`, APPS, TACO and PRIME a
JSON text of `{inputs, outputs}` with an optional `fn_name`, LiveCodeBench, DeepCoder and SYNTHETIC-1 lists of cases
that say of themselves whether they are calls; a specification of one's own is `{mode, tests, entry_point}`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .registry import Row
from .sandbox import Unusable

_INPUTS, _OUTPUTS = ("input", "stdin"), ("output", "expected_output", "stdout")
_UNNAMED = "and nothing that says of which function: `fn_name` beside them, or a column `entry_point`"
_CALLS = ("function_call", "functional")  # `type` or `testtype` of a case
_PYTHON = ("python", "python3", "py")
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
    entry = row.get("entry_point") or row.get("fn_name")
    if isinstance(answer, str) and answer.lstrip()[:1] in ("{", "["):
        answer = _read(answer)
    if isinstance(answer, Mapping):  # tables give every row the keys of all others
        answer = {key: value for key, value in answer.items() if value is not None}
    if answer is None or (isinstance(answer, (str, list, tuple, dict)) and not answer):
        raise Unusable("no tests")
    if isinstance(answer, Mapping):
        entry = answer.get("entry_point") or answer.get("fn_name") or entry
        if str(answer.get("language") or "python").lower() not in _PYTHON:
            raise Unusable(f"tests for programs in {answer['language']}")
        if "inputs" in answer and "outputs" in answer:
            return _from_columns(answer["inputs"], answer["outputs"], answer.get("fn_name"), row)
        if "input" in answer and "output" in answer:
            if _are_columns(answer["input"], answer["output"]):
                return _from_columns(answer["input"], answer["output"], answer.get("fn_name"), row)
            answer = [answer]
        elif (key := next((key for key in ("tests", "test", "test_cases") if key in answer), None)) is not None:
            inner = answer[key]
            if not inner:
                raise Unusable("no tests")
            if isinstance(inner, Mapping):
                return task_of({"fn_name": answer.get("fn_name"), **inner}, {**row, "entry_point": entry})
            if str(answer.get("mode", "")) == "stdio" or (isinstance(inner, list) and _is_case(inner[0])):
                return _from_cases(inner, entry, row)
            return _from_source(inner, entry, row, answer.get("setup") or "")
        else:
            raise Unusable(f"tests with the keys {', '.join(map(str, answer))}")
    if isinstance(answer, Sequence) and not isinstance(answer, str) and _is_case(answer[0]):
        return _from_cases(answer, entry, row)
    return _from_source(answer, entry, row, "")


def _read(text: str) -> Any:
    """Returns the tests in a text of JSON, or of Python's literals, as CSV files have them; otherwise the text."""
    with contextlib.suppress(ValueError):  # Python source may begin so as well
        return json.loads(text)
    with contextlib.suppress(ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return ast.literal_eval(text.strip())
    return text


def _is_case(item: Any) -> bool:
    if isinstance(item, Mapping):
        return any(key in item for key in _OUTPUTS)
    return isinstance(item, (list, tuple)) and len(item) == 2


def _pair(item: Any) -> tuple[Any, Any]:
    """Returns what goes in and what must come out of a case.

    Raises:
        Unusable: It does not say.
    """
    if not _is_case(item):
        raise Unusable(f"a case without an output: {item!r:.80}")
    if isinstance(item, Mapping):
        item = (next((item[k] for k in _INPUTS if k in item), ""), next(item[k] for k in _OUTPUTS if k in item))
    if item[1] is None:
        raise Unusable(f"a case whose output is null, with the input {item[0]!r:.80}")
    return item[0], item[1]


def _are_columns(given: Any, expected: Any) -> bool:
    """Whether both are lists with a text for each case, as CodeContests has them; otherwise they hold lines."""
    if not (isinstance(given, list) and isinstance(expected, list) and len(given) == len(expected)):
        return False
    texts = [*given, *expected]
    return all(isinstance(text, str) for text in texts) and any("\n" in text for text in texts)


def _from_cases(items: Sequence[Any], entry: Any, row: Row) -> Task:
    """Returns the task of a list of cases, of stdin or, where they say so, of calls."""
    pairs = list(map(_pair, items))
    if not pairs:
        raise Unusable("no cases")
    described = [item for item in items if isinstance(item, Mapping)]
    function = next((name for item in described if (name := _function_of(item))), None)
    if function is None and not any(str(item.get(k)) in _CALLS for item in described for k in ("type", "testtype")):
        return Task(cases=tuple((_as_text(given), _as_text(expected)) for given, expected in pairs))
    function = function or entry or _function_given(row)
    if not function:
        raise Unusable(f"cases that are calls, {_UNNAMED}")
    return _from_columns([given for given, _ in pairs], [expected for _, expected in pairs], function, row)


def _function_of(case: Mapping[str, Any]) -> str | None:
    details = case.get("metadata")
    return case.get("fn_name") or (details.get("func_name") if isinstance(details, Mapping) else None) or None


def _in_class(row: Row) -> bool:
    """Whether the code that the row gives to start from is a class with the function as a method."""
    return re.search(rf"^class\s+{_CLASS}\b", str(row.get("starter_code") or ""), re.MULTILINE) is not None


def _function_given(row: Row) -> str | None:
    """Returns the function that the row's code to start from ends in."""
    heads = re.findall(r"^[ \t]*def\s+(\w+)", str(row.get("starter_code") or ""), re.MULTILINE)
    return heads[-1] if heads else None


def _parts(given: Any) -> Sequence[Any]:
    return given if isinstance(given, (list, tuple)) else ()


def _as_text(part: Any) -> str:
    return "" if part is None else "\n".join(map(str, part)) if isinstance(part, (list, tuple)) else str(part)


def _from_columns(inputs: Any, outputs: Any, function: Any, row: Row) -> Task:
    """Returns the task of APPS's `input_output`: texts for stdin, or with `fn_name` arguments and results.

    Results are read as those data sets' own graders read them (`testing_util.py` of APPS and TACO). Some sources keep
    every result in a list of one, others as it is: where each is a list of one, both readings are right.
    """
    if not isinstance(inputs, Sequence) or not isinstance(outputs, Sequence) or len(inputs) != len(outputs):
        raise Unusable("as many inputs as outputs are needed")
    if not inputs:
        raise Unusable("no cases")
    function = function or row.get("fn_name")
    are_arguments = any(not isinstance(part, str) for given in inputs for part in _parts(given))
    if not function and (are_arguments or _in_class(row)):
        function = row.get("entry_point") or _function_given(row)
        if not function:
            raise Unusable(f"inputs that are arguments, {_UNNAMED}")
    if not function:
        pairs = map(_pair, zip(inputs, outputs, strict=True))
        return Task(cases=tuple((_as_text(given), _as_text(expected)) for given, expected in pairs))
    if not str(function).isidentifier():
        raise Unusable(f"fn_name {function!r:.80} is no name of a function")
    function, starter_code = str(function), str(row.get("starter_code") or "")
    holders = (_CLASS,) if _in_class(row) else (function,) if starter_code.strip() else (function, _CLASS)
    if all(isinstance(arguments, str) for arguments in inputs):  # a line of JSON for each
        inputs, outputs = [_from_json(given.split("\n")) for given in inputs], _from_json(outputs)
    wrapped = all(isinstance(result, list) and len(result) == 1 for result in outputs)
    calls = []
    for arguments, result in zip(inputs, outputs, strict=True):
        if not isinstance(arguments, list):
            raise Unusable(f"arguments that are no list: {arguments!r:.80}")
        given = ", ".join(repr(_whole_keys(argument)) for argument in arguments)
        calls.append((given, tuple(map(_whole_keys, (result[0], result) if wrapped else (result,)))))
    return Task(calls=tuple(calls), entry=function, holders=holders)


def _from_json(texts: Sequence[Any]) -> list[Any]:
    """Returns the values of texts of JSON, empty ones left out; what is no text stays.

    Raises:
        Unusable: One is no JSON.
    """
    try:
        return [json.loads(t) if isinstance(t, str) else t for t in texts if not isinstance(t, str) or t.strip()]
    except ValueError:
        raise Unusable(f"arguments or results that are no JSON: {texts!r:.80}") from None


def _whole_keys(value: Any) -> Any:
    """Returns a dictionary with whole numbers as keys where JSON made texts of them, any other value as it is."""
    if isinstance(value, dict) and value and all(re.fullmatch(r"-?\d{1,18}", str(key)) for key in value):
        return {int(key): item for key, item in value.items()}
    return value


def typing_imports(starter_code: Any, prompt: str | None = None) -> str:
    """Returns the import of what the code given takes from `typing` without saying so, an empty text for nothing.

    The judges of those sites import it, so that `nums: List[int]` is given and copied as it is.

    Args:
        starter_code: The code that is given beside the prompt, if any.
        prompt: The prompt, of which the heads of functions count.
    """
    heads = re.findall(r"^[ \t>]*(?:async )?def .*$", prompt or "", re.MULTILINE)
    words = set(re.findall(r"[A-Za-z]\w*", "\n".join([*heads, starter_code if isinstance(starter_code, str) else ""])))
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
    return Task(
        tests="\n".join([*(part for part in before if part), tests]), entry=str(entry).strip() if entry else None
    )
