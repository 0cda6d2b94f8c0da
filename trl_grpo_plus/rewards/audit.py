"""Auditing a reward function: any function, in TRL's form or a verifier, against the probes of `audit_cases`.

It runs in worker processes with a time limit, one completion at a time, so that what hangs or crashes it is found out
and costs nothing else.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, did_you_mean
from .audit_cases import KINDS, Probe, probes
from .build import load_attribute
from .cases import VERIFIERS
from .function import RewardFunction
from .registry import Entry, Row, from_target, get, known
from .runtime import RewardSettings, Runtime
from .verdict import Verdict

_PAYS = 0.5  # of what a right answer is worth at least: a reward of this much is paid


@dataclass(frozen=True)
class Finding:
    """A probe and what the reward function made of it.

    Args:
        probe: The probe.
        verdict: The verdict; `failure` tells that it raised, ran out of time or crashed.
    """

    probe: Probe
    verdict: Verdict


@dataclass(frozen=True)
class Audit:
    """What a reward function pays for.

    Args:
        kind: The kind of task.
        findings: One per probe.
        full: The least that it pays for a right answer, the mark that others are measured by; 0.0 where it pays for
            none of them.
        messages: Whether completions were given as chat messages.
    """

    kind: str
    findings: list[Finding]
    full: float
    messages: bool

    def _pays(self, finding: Finding) -> bool:
        value = finding.verdict.value
        return value is not None and value > 0.0 and value >= _PAYS * self.full

    @property
    def paid_wrongly(self) -> list[Finding]:
        """Probes that it pays for and should not."""
        return [f for f in self.findings if not f.probe.deserves and self._pays(f)]

    @property
    def refused(self) -> list[Finding]:
        """Right answers that it does not pay for."""
        return [f for f in self.findings if f.probe.deserves and not self._pays(f)]

    @property
    def failed(self) -> list[Finding]:
        """Probes on which it raised, ran out of time or crashed."""
        return [f for f in self.findings if f.verdict.failure is not None]


class TrlForm:
    """A reward function in TRL's form as a verifier: called with lists of one.

    Args:
        target: `module:function`.
        messages: Give completions as chat messages.
    """

    def __init__(self, target: str, messages: bool) -> None:
        self.function = load_attribute(target)
        self.messages = messages

    def verify(self, completion: str, row: Row) -> Verdict | float | None:
        """Returns what the function returns for one completion."""
        given: Any = [{"role": "assistant", "content": completion}] if self.messages else completion
        prompt: Any = [{"role": "user", "content": row["prompt"]}] if self.messages else row["prompt"]
        columns = {name: [value] for name, value in row.items() if name != "prompt"}
        returned = self.function(prompts=[prompt], completions=[given], completion_ids=[[0]], **columns)
        if inspect.isawaitable(returned):
            returned = asyncio.run(_await(returned))
        values = list(returned)
        return None if values[0] is None else float(values[0])


async def _await(awaitable: Any) -> Any:
    return await awaitable


def kind_of(name: str, kind: str | None) -> str:
    """Returns the kind of task to audit a reward on: the one asked for, or the one that the reward is for.

    Raises:
        UserError: There is no such kind.
    """
    if kind is None:
        grades = {verifier: kind for kind, verifier in VERIFIERS.items()} | {"exact_match": "text"}
        kind = grades.get(get(name).name if ":" not in name and known(name) else name, "math")
        return kind if kind in KINDS else "math"
    if kind not in KINDS:
        raise UserError(f"--kind must be one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}, found {kind!r}")
    return kind


def audit(name: str, kind: str, options: dict[str, Any], settings: RewardSettings) -> Audit:
    """Returns what a reward pays for.

    Args:
        name: A registered reward, a function of TRL's, or `module:attribute`.
        kind: One of `audit_cases.KINDS`.
        options: The reward's options.
        settings: Workers and the time limit.

    Raises:
        UserError: There is no such reward, or it refuses its options.
    """
    runtime = Runtime(settings)
    asked = probes(kind)
    entry = _entry(name)
    if entry is not None:
        function = RewardFunction.of_entry(entry, options)
        return _audit(function, asked, kind, runtime, messages=False)
    target = name if ":" in name else f"trl.rewards:{name}"
    if options:
        raise UserError(f"`{name}` is a function in TRL's form; bind its options in a function of your own")
    # Graders for chats index into messages, others cannot: the form in which more right answers are paid is theirs.
    right = [probe for probe in asked if probe.deserves]
    audits = []
    for messages in (False, True):
        form = Entry(name, TrlForm, "", runs="pool", cache=False, options=_parameters())
        function = RewardFunction.of_entry(form, {"target": target, "messages": messages})
        audits.append((_audit(function, right, kind, runtime, messages), function))
    best = max(audits, key=lambda pair: (len(right) - len(pair[0].refused), -len(pair[0].failed)))
    return _audit(best[1], asked, kind, runtime, best[0].messages)


def _parameters() -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(TrlForm).parameters)


def _entry(name: str) -> Entry | None:
    if ":" in name:
        return from_target(load_attribute(name))
    if known(name):
        return get(name)
    import trl.rewards

    if name not in trl.rewards.__all__:
        get(name)  # raises, with the closest names
    return None


def _audit(function: RewardFunction, asked: Sequence[Probe], kind: str, runtime: Runtime, messages: bool) -> Audit:
    function.runtime = runtime
    verdicts = function.verdicts([p.completion for p in asked], [p.row for p in asked])
    findings = [Finding(probe, verdict) for probe, verdict in zip(asked, verdicts, strict=True)]
    paid = [
        f.verdict.value for f in findings if f.probe.deserves and f.verdict.value is not None and f.verdict.value > 0
    ]
    return Audit(kind, findings, min(paid, default=0.0), messages)
