"""Level `external`: a runner of the user's own (a container, a remote sandbox) runs the programs.

What it isolates is its own affair; the rule about verdicts stays: it is given stdin, or calls to evaluate, and what
comes back is compared in the trainer. Tests that need a tester process are not supported there.

    def run(source: str, stdin: str, cpu_s: float, memory_mib: int) -> tuple[str, int | None]: ...

returns (stdout, exit status), `None` for a program that was killed for its limits, and raises where it could not run.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from ...errors import UserError
from .client import Ended, SandboxError, read_all
from .inside.program import CANDIDATE
from .limits import Limits
from .plan import Unusable

_MAX_INPUT = 64 << 20
_CODEC = (Path(__file__).parent / "inside" / "codec.py").read_text(encoding="utf-8")
_CALLS = """
import json, os, sys, types
task = json.loads({task!r})
codec = types.ModuleType("codec")
exec({codec!r}, codec.__dict__)
channel, null = os.dup(1), os.open(os.devnull, os.O_RDWR)
for number in (0, 1):
    os.dup2(null, number)
names = {{"__name__": "solution", "__builtins__": __builtins__}}
encode, dumps, write = codec.encode, codec.dumps, os.write
exec(compile(task["source"], "<program>", "exec"), names)
if task["candidate"]:
    names[{candidate!r}] = eval(task["candidate"], names)
for expression in task["expressions"]:
    try:
        line = dumps([1, encode(eval(expression, names), lambda _: None)])
    except BaseException as error:
        line = dumps([0, type(error).__name__])
    line += b"\\n"
    while line:
        line = line[write(channel, line):]
os._exit(0)
"""


class External:
    """Runs jobs by a function of the user's.

    Args:
        name: `module:function`, see the top of the file.

    Raises:
        UserError: It cannot be loaded.
    """

    def __init__(self, name: str) -> None:
        module, _, attribute = name.partition(":")
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            self._function = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(f"sandbox runner `{name}` cannot be loaded: {error}") from error

    def run(self, kind: str, descriptors: Sequence[int], limits: Limits, mentions: str = "") -> dict[str, Ended]:
        """Runs a job through the function and returns how its program ended.

        Raises:
            SandboxError: The function raised, or returned something else.
            Unusable: The job needs a tester process.
        """
        first = read_all(descriptors[0], _MAX_INPUT).decode("utf-8", "replace")
        if kind == "script":
            source, stdin = first, read_all(descriptors[1], _MAX_INPUT).decode("utf-8", "replace")
            output = descriptors[2]
        elif kind == "calls":
            source = _CALLS.format(task=json.dumps(json.loads(first)), codec=_CODEC, candidate=CANDIDATE)
            stdin, output = "", descriptors[1]
        else:
            raise Unusable("level `external` runs stdin cases and `assert f(<literals>) == <literal>` only")
        started = time.monotonic()
        try:
            stdout, status = self._function(source, stdin, limits.cpu_s, limits.memory_mib)
            data = stdout if isinstance(stdout, bytes) else str(stdout).encode("utf-8", "replace")
        except Exception as error:
            raise SandboxError(f"the external runner failed: {type(error).__name__}: {error}") from error
        view = memoryview(data[: limits.output_bytes + 1])
        while view:
            view = view[os.write(output, view) :]
        wall_s = time.monotonic() - started
        killed = "cpu" if status is None else ""
        return {"program": Ended(None if killed else int(status), 9 if killed else None, killed, 0.0, wall_s, 0)}
