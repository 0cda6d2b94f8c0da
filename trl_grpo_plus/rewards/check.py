"""Grading a file of cases whose right values are known: how often the verifiers agree, and where they do not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import UserError
from .build import build_rewards
from .cases import VERIFIERS, Case
from .function import RewardFunction
from .runtime import RewardSettings, Runtime

_SHARE_OF_TIME = 0.8  # of `must_return_within_s`, left to the verifier


@dataclass(frozen=True)
class Outcome:
    """What a verifier said of a case.

    Args:
        id: The case's name.
        kind: Its kind.
        right: Whether that is right.
        ambiguous: Whether reasonable graders differ on it.
        wanted: What is right, in words.
        value: The verdict's value.
        answer: The answer that the verifier found.
        reason: The verdict's reason.
        why: What the case is about.
        seconds: Time of the call, which several cases may share.
    """

    id: str
    kind: str
    right: bool
    ambiguous: bool
    wanted: str
    value: float | None
    answer: str | None
    reason: str
    why: str
    seconds: float


@dataclass(frozen=True)
class Report:
    """The outcomes of a file of cases.

    Args:
        outcomes: One per case.
        seconds: Wall time of all.
        workers: Worker processes.
    """

    outcomes: list[Outcome]
    seconds: float
    workers: int

    @property
    def disagreements(self) -> list[Outcome]:
        """The unambiguous cases that the verifiers get wrong."""
        return [o for o in self.outcomes if not o.right and not o.ambiguous]

    def table(self) -> list[dict[str, Any]]:
        """Returns, per kind, right and total of the unambiguous and of the ambiguous cases, and the seconds."""
        rows = []
        for kind in dict.fromkeys(o.kind for o in self.outcomes):
            mine = [o for o in self.outcomes if o.kind == kind]
            clear = [o for o in mine if not o.ambiguous]
            open_ = [o for o in mine if o.ambiguous]
            rows.append(
                {
                    "kind": kind,
                    "right": sum(o.right for o in clear),
                    "total": len(clear),
                    "ambiguous_agreed": sum(o.right for o in open_),
                    "ambiguous": len(open_),
                    "seconds": round(sum(o.seconds for o in mine), 3),
                }
            )
        return rows

    def as_json(self) -> dict[str, Any]:
        """Returns all of it for a file."""
        return {
            "kinds": self.table(),
            "disagreements": [asdict(o) for o in self.outcomes if not o.right],
            "seconds": round(self.seconds, 3),
            "workers": self.workers,
        }


def check(cases: Sequence[Case], workers: int | str = "auto") -> Report:
    """Returns what the verifiers say of all cases.

    Args:
        cases: The cases.
        workers: Worker processes.
    """
    began = time.perf_counter()
    runtime = Runtime(RewardSettings(workers=workers, max_failures=1.0, cache="off"))
    outcomes: dict[int, Outcome] = {}
    for group in _groups(cases):
        outcomes.update(_check_group([(i, cases[i]) for i in group], runtime))
    return Report([outcomes[i] for i in range(len(cases))], time.perf_counter() - began, runtime.settings.n_workers)


def _groups(cases: Sequence[Case]) -> Iterable[list[int]]:
    """Yields the indices of cases that one call can grade: the same verifier and options, no clock of their own."""
    together: dict[str, list[int]] = {}
    for i, case in enumerate(cases):
        alone = case.within_s is not None or case.in_thread
        key = f"alone {i}" if alone else json.dumps([case.kind, case.options], sort_keys=True)
        together.setdefault(key, []).append(i)
    return together.values()


def _check_group(group: list[tuple[int, Case]], runtime: Runtime) -> dict[int, Outcome]:
    first = group[0][1]
    settings = runtime.settings
    if first.within_s is not None:
        timeout_s = min(settings.timeout_s, _SHARE_OF_TIME * first.within_s)
        runtime = Runtime(RewardSettings(settings.workers, timeout_s, 1.0, "off"))
    try:
        (reward,) = build_rewards([{VERIFIERS[first.kind]: dict(first.options)}], runtime)
    except UserError as error:
        return {i: _outcome(case, case.refused, None, None, str(error), 0.0) for i, case in group}
    function = reward.function
    assert isinstance(function, RewardFunction)
    if first.danger and function.runs not in ("pool", "thread"):
        return {i: _outcome(c, False, None, None, f"not run without limits: {c.danger}", 0.0) for i, c in group}
    completions, rows = [case.completion for _, case in group], [case.row for _, case in group]
    began = time.perf_counter()
    verdicts = function.verdicts(completions, rows)
    seconds = time.perf_counter() - began
    outcomes = {}
    for (i, case), verdict in zip(group, verdicts, strict=True):
        right = not case.refused and case.agrees(verdict.value)
        reason = verdict.reason
        if case.within_s is not None and seconds > case.within_s:
            right, reason = False, f"took {seconds:.1f} s: {reason}"
        if case.in_thread and right:
            elsewhere = _off_the_main_thread(function, case)
            if elsewhere != verdict.value:
                right, reason = False, f"off the main thread it is {elsewhere}: {reason}"
        outcomes[i] = _outcome(case, right, verdict.value, verdict.answer, reason, seconds / len(group))
    return outcomes


def _off_the_main_thread(function: RewardFunction, case: Case) -> float | None:
    found: list[float | None] = []
    thread = threading.Thread(target=lambda: found.append(function.verdict(case.completion, case.row).value))
    thread.start()
    thread.join()
    return found[0]


def _outcome(case: Case, right: bool, value: float | None, answer: str | None, reason: str, seconds: float) -> Outcome:
    return Outcome(
        case.id, case.kind, right, case.ambiguous, case.wanted, value, answer, reason, case.why, round(seconds, 4)
    )
