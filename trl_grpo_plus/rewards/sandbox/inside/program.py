"""The model's program, in its own confined process, in one of three ways.

    script   as `__main__`, with stdin, stdout and stderr
    calls    defined, then expressions evaluated in its namespace; what they return is written as claims
    serve    defined, then operations on its objects, as a tester asks for them

From the first line of the program on, everything in this process may lie: what is written here are claims, and the
trainer or the tester decides about them. Nothing that would help a lie (expected values, tests) is ever in here.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
import types
from typing import Any, NoReturn

from . import codec, frames, served
from .boot import PACKAGE

MODULE = "solution"  # the program's `__name__` unless it is a script: main guards do not run
CHANNEL = 3


def _namespace(name: str) -> dict[str, Any]:
    """Returns the globals of a fresh module, in a process that looks like a plain Python."""
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    for loaded in [m for m in sys.modules if m == PACKAGE or m.startswith(PACKAGE + ".")]:
        del sys.modules[loaded]  # a courtesy, not a boundary
    sys.modules[name] = module
    sys.argv = [f"{name}.py"]
    for quitter in ("exit", "quit"):
        setattr(builtins, quitter, sys.exit)  # `site` would have made them
    import random

    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    return module.__dict__


def _standard_streams() -> None:
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        errors = "backslashreplace" if name == "stderr" else "surrogateescape"
        stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _trace() -> None:
    """Writes the last lines of a traceback for the reason of a verdict; a program may have broken anything."""
    try:
        import traceback

        traceback.print_exc(limit=-3)
    except BaseException:
        pass


def script(source: str) -> NoReturn:
    """Runs a program as the main module and ends the process as Python would."""
    _standard_streams()
    names = _namespace("__main__")
    status = 0
    try:
        exec(compile(source, "<program>", "exec", dont_inherit=True), names)
    except SystemExit as end:
        status = _exit_status(end)
    except BaseException:
        status = 1
        _trace()
    try:
        import threading

        threading._shutdown()  # type: ignore[attr-defined]
        import atexit

        atexit._run_exitfuncs()
    except BaseException:
        pass
    try:
        sys.stdout.flush()
    except BaseException:
        status = status or 120
    os._exit(status)


def _exit_status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return int(end.code) & 255
    with contextlib.suppress(BaseException):
        print(end.code, file=sys.stderr)
    return 1


def _describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:300].encode("utf-8", "replace").decode()
    except BaseException:
        return "an exception that cannot be shown"


def calls(source: str, expressions: list[str]) -> NoReturn:
    """Defines a program and writes one claim per expression: `[1, value]`, or `[0, why it raised]`."""
    write, encode, dumps, describe = os.write, codec.encode, codec.dumps, _describe
    _standard_streams()
    names = _namespace(MODULE)

    def claim(line: bytes) -> None:
        view = memoryview(line + b"\n")
        while view:
            view = view[write(CHANNEL, view) :]

    try:
        exec(compile(source, "<program>", "exec", dont_inherit=True), names)
    except BaseException:
        _trace()
        os._exit(1)
    for expression in expressions:
        try:
            line = dumps(
                [1, encode(eval(compile(expression, "<call>", "eval", dont_inherit=True), names), lambda _: None)]
            )
        except BaseException as error:
            line = dumps([0, describe(error)])
        try:
            claim(line)
        except OSError:  # longer than an answer may be
            os._exit(1)
    os._exit(0)


def serve(source: str, wanted: list[str]) -> NoReturn:
    """Defines a program, sends the objects that tests name, and answers a tester's requests until it hangs up."""
    _standard_streams()
    session = served.Session(CHANNEL)
    names = _namespace(MODULE)
    try:
        exec(compile(source, "<program>", "exec", dont_inherit=True), names)
    except BaseException as error:
        _trace()
        frames.send(CHANNEL, {"failed": _describe(error)})
        os._exit(1)
    try:
        frames.send(CHANNEL, session.hello({name: names[name] for name in wanted if name in names}))
        session.answer_requests()
    except frames.HungUp:
        os._exit(0)
    except BaseException:
        _trace()
    os._exit(1)
