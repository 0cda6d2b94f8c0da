"""Running a program against tests: what is handed to its process, and what is made of what comes back.

The trainer, or a tester process that the program cannot reach, decides; the program is only asked for its answers. A
verdict counts the checks that were reported passed, of those that are known to be there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from .client import Ended, SandboxError, memory_files, read_all
from .compare import equals, same_output
from .limits import Limits
from .plan import Calls, OtherTests, Unusable

_REPORT_BYTES = 1 << 20
_LONG, _IDLE = 0.5, 0.1  # of its CPU seconds, of its time on the clock: a program has waited


class Runner(Protocol):
    """What runs jobs: a `Sandbox`."""

    def run(self, kind: str, descriptors: Sequence[int], limits: Limits, mentions: str = "") -> dict[str, Ended]:
        """Returns how each process of a job ended."""


@dataclass(frozen=True)
class Score:
    """Checks that a program passed.

    Args:
        passed: Checks passed.
        total: Checks that there are, at least 1.
        reason: Why not all of them, in words.
        peak_kib: Largest resident size of its process.
        output: What was kept of what it printed last.
    """

    passed: int
    total: int
    reason: str
    peak_kib: int = 0
    output: bytes = b""

    @property
    def all(self) -> bool:
        """Whether every check passed."""
        return self.passed == self.total

    @property
    def fraction(self) -> float:
        """Share of the checks that passed, in [0, 1]."""
        return self.passed / self.total


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def judge_script(
    runner: Runner,
    source: str,
    cases: Sequence[tuple[str, str]],
    limits: Limits,
    tolerance: float = 1e-6,
    go_on: bool = False,
) -> Score:
    """Runs a program once per case, with stdin, and compares what it prints.

    A case passes where the output is right, the program ended by itself with exit status 0, and stayed within its
    limits. A program that has run out of time is not given further cases, and one that waits, instead of working, has
    so much less time to wait in those that follow.

    Args:
        runner: The sandbox.
        source: The program.
        cases: Pairs of stdin and expected stdout, at least one.
        limits: Limits of each run.
        tolerance: See `same_output`.
        go_on: Whether to go on after a case that failed.

    Raises:
        SandboxError: The program could not be run.
    """
    passed, reason, peak_kib, output = 0, "", 0, b""
    wall_s = limits.wall
    for i, (given, expected) in enumerate(cases):
        with memory_files(_utf8(source), _utf8(given), None, None) as files:
            limits = replace(limits, wall_s=wall_s)
            ended = runner.run("script", files, limits, source)["program"]
            output = read_all(files[2], limits.output_bytes)
            complaint = _last_line(read_all(files[3], 4000))
        peak_kib = max(peak_kib, ended.peak_kib)
        if ended.wall_s > _LONG * limits.cpu_s and ended.cpu_s < _IDLE * ended.wall_s:
            wall_s = max(wall_s - ended.wall_s, _LONG * limits.cpu_s)
        against = ended.failed(limits)
        if against is None and len(output) >= limits.output_bytes:
            against = f"printed {limits.output_kib:g} KiB or more"
        if against is None and not same_output(output.decode("utf-8", "replace"), expected, tolerance):
            against = "wrong output"
        if against is None:
            passed += 1
            continue
        if not reason:
            detail = f" ({complaint})" if complaint and against.startswith(("exit", "wrong")) else ""
            reason = f"case {i + 1} of {len(cases)}: {against}{detail}"
        if not go_on or ended.exceeded(limits):
            break
    return Score(passed, len(cases), reason or "all cases passed", peak_kib, output)


def judge_tests(runner: Runner, source: str, tests: Calls | OtherTests, limits: Limits, go_on: bool = False) -> Score:
    """Runs a program against tests.

    Args:
        runner: The sandbox.
        source: The program.
        tests: What `plan` made of the tests.
        limits: Limits of the program, and of the tests by themselves.
        go_on: Whether checks after one that failed are counted.

    Raises:
        SandboxError: The program could not be run.
        Unusable: The tests need what the sandbox does not have.
    """
    if isinstance(tests, Calls):
        return _judge_calls(runner, source, tests, limits)
    return _judge_tested(runner, source, tests, limits, go_on)


def _judge_calls(runner: Runner, source: str, calls: Calls, limits: Limits) -> Score:
    given = {"source": source.encode("utf-8", "replace").decode(), "candidate": calls.candidate}
    task = json.dumps({**given, "expressions": calls.expressions}).encode()
    with memory_files(task, None, None) as files:
        ended = runner.run("calls", files, limits, source)["program"]
        answers = read_all(files[1], limits.output_bytes + 1)
        complaint = _last_line(read_all(files[2], 4000))
    total = len(calls.expressions)
    if (exceeded := ended.exceeded(limits)) is not None:
        return Score(0, total, exceeded, ended.peak_kib)
    *lines, rest = answers.split(b"\n", total)
    passed, reason = 0, ""
    for i, (expected, identical) in enumerate(zip(calls.expected, calls.identical, strict=True)):
        against = _against(lines[i], expected, identical) if i < len(lines) else ended.failed(limits) or "no answer"
        passed += against is None
        if against is not None and not reason:
            detail = f" ({complaint})" if i >= len(lines) and complaint else ""
            reason = f"{calls.expressions[i][:80]}: {against}{detail}"
    if passed == total and (ended.failed(limits) or rest):
        return Score(0, total, ended.failed(limits) or "more answers than calls", ended.peak_kib)
    return Score(passed, total, reason or "all calls returned what they should", ended.peak_kib)


def _against(line: bytes, expected: Any, identical: bool) -> str | None:
    try:
        claim = json.loads(line)
    except (ValueError, RecursionError):
        return "no readable answer"
    if type(claim) is not list or len(claim) != 2 or claim[0] not in (0, 1):
        return "no readable answer"
    if claim[0] != 1:
        return f"raised {str(claim[1])[:120]}"
    return None if equals(claim[1], expected, identical) else "wrong answer"


def _judge_tested(runner: Runner, source: str, tests: OtherTests, limits: Limits, go_on: bool) -> Score:
    printed = any(word in tests.source for word in ("stdout", "capsys"))
    code = source.encode("utf-8", "replace").decode()
    program = {"source": code, "names": tests.names, "printed": printed}
    with memory_files(json.dumps(program).encode(), tests.task(go_on), None, None) as files:
        ended = runner.run("tests", files, limits, source + tests.source)
        report = read_all(files[2], _REPORT_BYTES)
        complaint = _last_line(read_all(files[3], 4000))
    mine, testers = ended["program"], ended["tester"]
    passed: dict[int, bool] = {}
    reason, last = "", {}
    for line in report.splitlines():
        record = json.loads(line)  # the tester's own words
        if isinstance(record, dict):
            last = record
        else:
            number, good, why = record
            passed[number] = passed.get(number, True) and bool(good)
            reason = reason or ("" if good else why)
    if "unsupported" in last:
        raise Unusable(last["unsupported"])
    if "total" not in last:
        exceeded = mine.exceeded(limits) or testers.exceeded(limits)
        if exceeded is None and mine.failed(limits) is None:
            raise SandboxError(f"the tester ended without a verdict: {testers.failed(limits)}")
        return Score(0, 1, exceeded or mine.failed(limits) or "", mine.peak_kib)
    total = int(last["total"])
    if not total:
        raise Unusable("the tests check nothing")
    count = sum(passed.get(number, False) for number in range(total))
    against = (
        mine.exceeded(limits)
        or last["broken"]
        or ("" if last["answers"] else "the tests asked nothing of the program")
    )
    if against and (count == total or not go_on or mine.exceeded(limits)):
        count = 0
    detail = f" ({complaint})" if complaint and "process has ended" in against else ""
    return Score(count, total, (reason or against or "all checks passed") + detail, mine.peak_kib)


def _last_line(stderr: bytes) -> str:
    return stderr.decode("utf-8", "replace").strip().rpartition("\n")[2].strip()[:160]
