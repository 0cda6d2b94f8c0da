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
import gc
import linecache
import os
import sys
import types
import weakref
from collections.abc import Callable
from typing import NoReturn

from . import codec, frames, served, streams
from .boot import PACKAGE

MODULE = "solution"  # the program's `__name__` unless it is a script: main guards do not run
CHANNEL = 3
CANDIDATE = "__candidate__"  # what calls name, where it is more than a name of the program
_FILE = "<program>"


def _module(name: str) -> types.ModuleType:
    """Returns a fresh module, in a process that looks like a plain Python."""
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    module.__dict__["__file__"] = f"{name}.py"
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
    return module


def _trace() -> None:
    """Writes the last lines of a traceback for the reason of a verdict; a program may have broken anything."""
    try:
        import traceback

        traceback.print_exc(limit=-3)
    except BaseException:
        pass


def script(source: str) -> NoReturn:
    """Runs a program as the main module and ends the process as Python would."""
    streams.make()
    streams.name_as_files(source)
    module = _module("__main__")
    status = 0
    try:
        linecache.cache[_FILE] = (len(source), None, source.splitlines(True), _FILE)  # for `inspect.getsource`
        exec(compile(source, _FILE, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as end:
        status = _exit_status(end)
    except BaseException:
        status = 1
        _trace()
    main = weakref.ref(module)
    del module
    _try(_end_threads)
    _try(_run_exit_functions)
    if not _try(_flush):
        status = status or 120
    _try(lambda: _end_module(main))
    _try(_flush)
    os._exit(status)


# The steps of the interpreter's own end (CPython, `Py_FinalizeEx`), for the program's module alone: to end all the
# others would touch, and so copy, every page that the process shares with the server.


def _try(step: Callable[[], None]) -> bool:
    """Returns whether a step went through; what a program raises in one does not keep it from the next."""
    try:
        step()
        return True
    except BaseException:
        return False


def _end_threads() -> None:
    import threading

    threading._shutdown()  # type: ignore[attr-defined]


def _run_exit_functions() -> None:
    import atexit

    atexit._run_exitfuncs()


def _flush() -> None:
    stream = sys.stdout
    if stream is not None and not getattr(stream, "closed", False):
        stream.flush()


def _end_module(main: weakref.ref[types.ModuleType]) -> None:
    """Gives up the program's objects: files are flushed, destructors and the `finally` of generators run."""
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    sys.modules.pop("__main__", None)
    gc.collect()
    module = main()
    if module is None:
        return
    names = module.__dict__
    for private in (True, False):
        for name in [n for n in names if n != "__builtins__"]:
            if not private or (name.startswith("_") and not name.startswith("__")):
                names[name] = None
    gc.collect()


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


def calls(source: str, candidate: str, expressions: list[str]) -> NoReturn:
    """Defines a program and writes one claim per expression: `[1, value]`, or `[0, why it raised]`.

    Args:
        source: The program.
        candidate: Source of what the expressions call as `CANDIDATE`, empty for nothing.
        expressions: Source of the calls.
    """
    write, encode, dumps, describe = os.write, codec.encode, codec.dumps, _describe
    streams.make()
    names = _module(MODULE).__dict__

    def claim(line: bytes) -> None:
        view = memoryview(line + b"\n")
        while view:
            view = view[write(CHANNEL, view) :]

    try:
        exec(compile(source, _FILE, "exec", dont_inherit=True), names)
        if candidate:
            names[CANDIDATE] = eval(compile(candidate, "<call>", "eval", dont_inherit=True), names)
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


def serve(source: str, wanted: list[str], printed: bool) -> NoReturn:
    """Defines a program, sends the objects that tests name, and answers a tester's requests until it hangs up.

    Args:
        source: The program.
        wanted: Names that the tests take from it.
        printed: Whether the tests look at what it prints.
    """
    streams.make()
    if printed:
        sys.stdout = streams.Kept()
    session = served.Session(CHANNEL)
    names = _module(MODULE).__dict__
    try:
        exec(compile(source, _FILE, "exec", dont_inherit=True), names)
    except BaseException as error:
        _trace()
        frames.send(CHANNEL, {"failed": _describe(error)})
        os._exit(1)
    try:
        frames.send(CHANNEL, session.hello({name: names[name] for name in wanted if name in names}))
        if isinstance(sys.stdout, streams.Kept):
            sys.stdout.take()  # printed before the tests began
        session.answer_requests()
    except frames.HungUp:
        os._exit(0)
    except BaseException:
        _trace()
    os._exit(1)
