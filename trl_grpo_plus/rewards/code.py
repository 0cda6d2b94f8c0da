"""`code`: 1.0 where the program in a completion passes the row's tests, run in the sandbox.

Tests are taken in the forms that datasets have: asserts (MBPP), `check(candidate)` (HumanEval), cases of stdin and
expected stdout or of arguments and results (APPS, TACO), or a specification `{mode, tests, entry_point}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..errors import UserError
from .code_task import Task, task_of, typing_imports, with_fewer_cases
from .program import extract, prompt_code, with_code_before
from .registry import Row, register
from .sandbox import (
    Calls,
    FromJson,
    Limits,
    NoLevel,
    SandboxError,
    Score,
    Unusable,
    judge_script,
    judge_tests,
    plan,
    shared,
)
from .sandbox.judge import Runner
from .sandbox.levels import AUTO, EXTERNAL, LEVELS
from .sandbox.plan import names_under_test
from .sandbox.program_names import holder_of
from .text import stated_part
from .verdict import Verdict

_CREDITS = ("all", "fraction")


@register(
    "code",
    description="1.0 where the program passes all its tests, run in the sandbox",
    columns=("answer",),
    optional=("prompt", "entry_point", "fn_name", "starter_code", "preamble", "test_setup_code", "test_imports"),
    accuracy=True,
    version=4,
    runs="thread",
)
class Code:
    """Scores a program by the row's tests.

    Args:
        column: Column of the tests: their source, a list of asserts, a list of `{input, output}`, `{inputs, outputs}`
            with an optional `fn_name`, or `{mode: assert | stdio | check, tests, entry_point}`; texts of these, in
            JSON or Python's literals, are read as well.
        credit: `all`: 1.0 for all tests and 0.0 for fewer; `fraction`: the share of the tests that pass.
        cpu_s: CPU seconds that a program may use (for each case of stdin).
        wall_s: Seconds on the clock, a backstop; `None` takes 2.5 times `cpu_s`.
        memory_mib: Memory of a program, the interpreter's included.
        output_kib: What it may print, or return to all tests together.
        file_kib: Largest file that it may make in its scratch directory.
        tolerance: How far a number that is printed, or returned where results are kept as JSON, may be off, absolute
            or relative, where the expected one has a decimal point; 0 compares texts.
        max_cases: Cases of stdin, or calls, that are run of each row, spread over all of them; `None` runs all. It
            bounds the time of a slow but right program: each case of stdin may take `cpu_s`.
        level: Level of isolation, `auto` for the strongest that passes its self-test here.
        min_level: The weakest level that `auto` may take; `None` is `landlock`.
        packages: Installed packages that programs and tests can import beside the standard library.
        runner: With level `external`: `module:function` that runs programs.

    Raises:
        UserError: An option has a value that cannot work, or no allowed level of isolation works on this machine.
    """

    def __init__(
        self,
        column: str = "answer",
        credit: Literal["all", "fraction"] = "all",
        cpu_s: float = 5.0,
        wall_s: float | None = None,
        memory_mib: int = 1024,
        output_kib: int = 1024,
        file_kib: int = 1024,
        tolerance: float = 1e-6,
        max_cases: int | None = None,
        level: str = AUTO,
        min_level: str | None = None,
        packages: Sequence[str] = ("numpy",),
        runner: str | None = None,
    ) -> None:
        if credit not in _CREDITS:
            raise UserError(f"credit must be one of {', '.join(_CREDITS)}, found {credit!r}")
        if not 0 <= tolerance < 1:
            raise UserError(f"tolerance must be in [0, 1), found {tolerance!r}")
        if (runner is not None) != (level == EXTERNAL):
            raise UserError(f"`runner` and level `{EXTERNAL}` go together, found level {level!r}, runner {runner!r}")
        if max_cases is not None and max_cases < 1:
            raise UserError(f"max_cases must be positive, or none for all cases, found {max_cases}")
        self._max_cases = max_cases
        self._column = column
        self._credit = credit
        self._limits = Limits(cpu_s, wall_s, memory_mib, output_kib, file_kib)
        self._tolerance = tolerance
        self._level = level
        try:
            if runner is not None:
                from .sandbox.external import External

                self._runner: Runner = External(runner)
            else:
                sandbox = shared(level, min_level, packages)
                self._runner, self._level = sandbox, sandbox.level
        except NoLevel as error:
            raise UserError(str(error)) from error

    def metrics(self) -> dict[str, float]:
        """Returns what is logged beside the reward: the rank of the level of isolation, 0 for `external`."""
        return {"sandbox_level": float(LEVELS[self._level].rank if self._level in LEVELS else 0)}

    def verify(self, completion: str, row: Row) -> Verdict:
        """Scores one completion; `None` where the row's tests cannot be used, or the sandbox failed.

        Args:
            completion: The completion's text.
            row: The row: its tests, and where it has them `prompt`, `entry_point` or `fn_name` (a name, or a method as
                `Solution().two_sum`), `starter_code`, `preamble`, which goes before the program, and
                `test_setup_code` or `test_imports`, which go before the tests.
        """
        try:
            task = with_fewer_cases(task_of(row.get(self._column), row), self._max_cases)
        except Unusable as error:
            return Verdict.unscored(f"row `{self._column}`: {error}")
        stated = stated_part(completion, row)
        if stated is None:
            return Verdict(0.0, None, "the reasoning is not closed")
        try:
            return self._scored(stated, task, row)
        except Unusable as error:
            return Verdict.unscored(str(error)[:300])
        except SandboxError as error:
            return Verdict.failed(str(error)[:300])

    def _scored(self, stated: str, task: Task, row: Row) -> Verdict:
        go_on = self._credit == "fraction"
        if task.cases:
            source = extract(stated, script=True)
            if source is None:
                return Verdict(0.0, None, "no program")
            source = with_code_before(source, _preamble(row))
            score = judge_script(self._runner, source, task.cases, self._limits, self._tolerance, go_on)
            return self._verdict(score, source)
        if task.calls:
            return self._called(stated, task, row, go_on)
        before = _preamble(row)
        names = names_under_test(f"{before}\n{task.tests}")
        holder = holder_of(task.entry) if task.entry else None
        signature = (_signature(row, (holder,)) if holder else "") or _signature(row, names)
        tests = plan(task.tests, task.entry or _last_function(signature))
        if before and not isinstance(tests, Calls):  # they may use it as well
            tests = plan(f"{before}\n{task.tests}", task.entry or _last_function(signature))
        wanted = tuple(dict.fromkeys((*names, *((holder,) if holder else ()))))
        source = extract(stated, wanted or (_last_function(signature) or "",), signature)
        if source is None:
            return Verdict(0.0, None, "no program that defines " + ", ".join(wanted))
        source = with_code_before(source, before + _typing(row))
        return self._verdict(judge_tests(self._runner, source, tests, self._limits, go_on), source)

    def _called(self, stated: str, task: Task, row: Row, go_on: bool) -> Verdict:
        found = ((holder, extract(stated, (holder,), _signature(row, (holder,)))) for holder in task.holders)
        holder, source = next((pair for pair in found if pair[1] is not None), ("", None))
        if source is None:
            return Verdict(0.0, None, "no program that defines " + " or ".join(task.holders))
        called = task.entry if holder == task.entry else f"{holder}().{task.entry}"
        source = with_code_before(source, _preamble(row) + _typing(row))
        expressions = tuple(f"{called}({given})" for given, _ in task.calls)
        expected = tuple(FromJson(values, self._tolerance) for _, values in task.calls)
        calls = Calls(expressions, expected, (False,) * len(expected))
        return self._verdict(judge_tests(self._runner, source, calls, self._limits, go_on), source)

    def _verdict(self, score: Score, source: str) -> Verdict:
        value = score.fraction if self._credit == "fraction" else float(score.all)
        return Verdict(value, source, f"{score.passed} of {score.total} checks: {score.reason}")


def _typing(row: Row) -> str:
    return typing_imports(row.get("starter_code"), _text(row.get("prompt")))


def _preamble(row: Row) -> str:
    """Returns the code that the row puts before a program, each line ended."""
    preamble = row.get("preamble") or ""
    lines = preamble if isinstance(preamble, (list, tuple)) else [preamble]
    return "".join(f"{line}\n" for line in lines if line)


def _signature(row: Row, names: Sequence[str]) -> str:
    """Returns the code of the prompt that the completion continues or repeats, if it has any."""
    for text in (row.get("starter_code"), _text(row.get("prompt"))):
        if isinstance(text, str) and text.strip():
            found = prompt_code(text, names) if names else prompt_code(text, _heads(text)[-1:])
            if found:
                return found
    return ""


def _heads(text: str) -> list[str]:
    return [line[4:].partition("(")[0].strip() for line in text.split("\n") if line.startswith("def ")]


def _last_function(signature: str) -> str | None:
    return heads[-1] if (heads := _heads(signature)) else None


def _text(prompt: Any) -> str | None:
    """Returns a prompt's text: its last user message where it is a conversation."""
    if isinstance(prompt, Sequence) and not isinstance(prompt, str):
        spoken = [m.get("content") for m in prompt if isinstance(m, Mapping) and m.get("role") == "user"]
        prompt = spoken[-1] if spoken else None
    return prompt if isinstance(prompt, str) else None
