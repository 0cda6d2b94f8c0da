"""A worker: reads completions from a socket, verifies them one after the other, writes each verdict at once.

It is a fork of the zygote (never of the trainer), sees no GPU, ignores Ctrl-C, is the first to go when memory runs
out, and dies with the zygote. What a verifier raises, `SystemExit` and running out of memory or stack included, is a
verdict.
"""

from __future__ import annotations

import ctypes
import functools
import os
import resource
import signal
import socket
import sys
import time
from typing import Any

from ..registry import Verify, as_verify
from ..verdict import Verdict, as_verdict
from .spec import Spec
from .wire import BORN, BUILDING, BUILT, BYE, IMPORTED, frame, read_frame, shortened

_PR_SET_PDEATHSIG = 1


def confine(zygote_pid: int, memory_mib: int) -> None:
    """Sets up a fresh fork: its own process group, death with its parent, and a bound on its memory.

    Args:
        zygote_pid: The parent; the process ends where it is gone already.
        memory_mib: Memory that the worker may take beyond what it was born with.
    """
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != zygote_pid:
        os._exit(1)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # no such file in some containers
    limit = data_mib() + memory_mib
    resource.setrlimit(resource.RLIMIT_DATA, (limit << 20, limit << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def data_mib() -> int:
    """Returns the process's private writable memory, MiB: what RLIMIT_DATA counts."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) >> 10
    return 0


def serve(connection: socket.socket, memory_mib: int) -> None:
    """Verifies what comes over the connection until it ends, or until the memory is half used up.

    Args:
        connection: To the dispatcher.
        memory_mib: The bound on the worker's memory: at half of it (a verifier that keeps what it computed) the worker
            says goodbye, and a fresh one takes over.
    """
    connection.sendall(frame((BORN, os.getpid())))
    stream = connection.makefile("rb")
    specs: dict[int, Spec] = {}
    built: dict[int, Verify | str] = {}
    modules = set(sys.modules)
    full_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + memory_mib * 512
    while True:
        try:
            number, task, completion, row = read_frame(stream)
        except EOFError:
            return
        if number == "spec":
            specs[task] = completion
            continue
        if number not in built:
            connection.sendall(frame((BUILDING, time.thread_time())))
            built[number] = _build(specs[number])
            connection.sendall(frame((BUILT, time.thread_time())))
        verdict = _verify(built[number], completion, row)
        texts = (shortened(verdict.answer), shortened(verdict.reason))
        message = (task, verdict.value, *texts, verdict.failure, time.thread_time())
        imported = b""
        if len(sys.modules) > len(modules):
            fresh = [name for name in list(sys.modules) if name not in modules]
            modules.update(fresh)
            imported = frame((IMPORTED, fresh))
        connection.sendall(imported + frame(message))
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > full_kib:
            connection.sendall(frame((BYE,)))
            return


def _build(spec: Spec) -> Verify | str:
    """Returns the verifier, or why there is none."""
    try:
        made: Any = spec.load()
        options = spec.options()
        if isinstance(made, type):
            made = made(**options)
        elif options:
            made = functools.partial(made, **options)
        return as_verify(made)
    except BaseException as error:
        return f"the worker cannot load it: {type(error).__name__}: {error}"


def _verify(verify: Verify | str, completion: str, row: Any) -> Verdict:
    if isinstance(verify, str):
        return Verdict.failed(verify)
    try:
        return as_verdict(verify(completion, row))
    except BaseException as error:  # SystemExit and KeyboardInterrupt are the verifier's doing as well
        return Verdict.failed(f"{type(error).__name__}: {error}"[:500])
