"""The self-test of a level: a process, confined as programs are, attempts what no program may, and says what happened.

It is an attempt and not a question about features: a kernel may offer Landlock and a policy forbid it, a container may
promise a network namespace and share one. `tried` says what each attempt met; the trainer decides.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import socket
from collections.abc import Callable
from typing import Any, NoReturn

REPORT = 3


def _connect(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=0.5):
        pass


def _abstract(name: str) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(0.5)
        client.connect("\0" + name)


def _read(path: str) -> None:
    with open(path, "rb") as file:
        file.read()


def _write(path: str) -> None:
    with open(path, "w") as file:
        file.write("x")


def _fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _raise_limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _user_namespace() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000) < 0:
        raise OSError(ctypes.get_errno(), "unshare")


def _processes() -> None:
    for name in os.listdir("/proc"):
        if name.isdigit():
            _read(f"/proc/{name}/cmdline")
            return
    raise OSError("no process to be seen")


def _signal(pid: int) -> Callable[[], None]:
    return lambda: os.kill(pid, 0)


def run(task: dict[str, Any]) -> NoReturn:
    """Attempts everything and ends the process; 0 in the report: it worked, else why it did not."""
    canary = str(task["canary"])
    attempts: dict[str, Callable[[], Any]] = {
        "connect to a port on this machine": lambda: _connect(int(task["port"])),
        "connect to an abstract socket": lambda: _abstract(str(task["abstract"])),
        "read a file of the user": lambda: _read(canary),
        "write a file of the user": lambda: _write(canary),
        "make a file beside it": lambda: _write(canary + ".new"),
        "make a file in the runtime": lambda: _write(os.path.join(os.path.dirname(os.__file__), "canary")),
        "change a file's mode": lambda: os.chmod(canary, 0o777),
        "delete a file": lambda: os.unlink(canary),
        "see processes": _processes,
        "signal the trainer": _signal(int(task["trainer"])),
        "signal the server": _signal(os.getppid() or 1),
        "signal everybody": lambda: os.kill(-1, 0),
        "make a process": _fork,
        "run a command": lambda: os.execv("/bin/true", ["true"]),
        "raise its own limits": _raise_limit,
        "make a user namespace": _user_namespace,
    }
    tried: dict[str, str] = {}
    for name, attempt in attempts.items():
        tried[name] = _outcome(attempt)
    works = {
        "import from the standard library": lambda: [importlib.import_module(m) for m in task["imports"]],
        "write to the null device": lambda: _write("/dev/null"),
        "open more than it has": lambda: os.close(os.dup(0)),
        "signal itself": lambda: os.kill(os.getpid(), 0),
    }
    if task["scratch"]:
        works["write in its scratch directory"] = lambda: _write("scratch.txt")
    needed = {name: _outcome(attempt) for name, attempt in works.items()}
    os.write(REPORT, json.dumps({"tried": tried, "needed": needed}).encode())
    os._exit(0)


def _outcome(attempt: Callable[[], Any]) -> str:
    signal.alarm(0)
    try:
        attempt()
        return ""
    except BaseException as error:
        return f"{type(error).__name__}: {error}"[:120] or "refused"
