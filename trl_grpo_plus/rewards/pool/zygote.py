"""The zygote: a small clean process that forks workers within milliseconds.

It is started by exec from the trainer, so that nothing of CUDA, of the trainer's threads or of the user's `__main__`
is in it. It imports the verifiers' modules once, has one thread, and lives as long as its control socket: when the
trainer is gone, killed or not, it kills its workers and ends.

Requests (JSON, one packet each; only the second and the last are answered):

    {"fork": memory_mib} with the worker's socket attached, by which the worker then says its process id
    {"kill": process id, "wait": true}                        -> {"status": its wait status}; nothing without wait
    {"signal": process id, "number": signal}
    {"preload": modules, "path": sys.path}                    -> {"loaded": true}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from .worker import confine, serve

_PACKET = 1 << 20
_REAP_S = 2.0


class Zygote:
    """The loop of the zygote.

    Args:
        control: The socket to the trainer.
        trainer_pid: The parent; should it change, the trainer is gone.
    """

    def __init__(self, control: socket.socket, trainer_pid: int) -> None:
        self.control = control
        self.trainer_pid = trainer_pid
        self.pid = os.getpid()
        self.alive: set[int] = set()
        self.status: dict[int, int] = {}
        self.forgotten: set[int] = set()

    def run(self) -> None:
        """Answers requests until the trainer is gone."""
        while True:
            readable, _, _ = select.select([self.control], [], [], 1.0)
            self._collect()
            if os.getppid() != self.trainer_pid:  # a fork of the trainer may hold its end of the socket open
                break
            if not readable:
                continue
            data, fds, _, _ = socket.recv_fds(self.control, _PACKET, 1)
            if not data:
                break
            answer = self._answer(json.loads(data), fds)
            if answer is not None:
                self.control.send(json.dumps(answer).encode())
        for pid in self.alive:
            _kill(pid)

    def _answer(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any] | None:
        if "fork" in request:
            self._fork(fds[0], request["fork"])
        elif "signal" in request:
            if request["signal"] in self.alive:
                os.kill(request["signal"], request["number"])
        elif "kill" in request:
            status = self._end(request["kill"], request["wait"])
            return {"status": status} if request["wait"] else None
        else:
            sys.path[:] = request["path"]
            for module in request["preload"]:
                _load(module)
            gc.collect()
            gc.freeze()  # keeps the pages of what was imported shared with the workers
            return {"loaded": True}
        return None

    def _fork(self, fd: int, memory_mib: int) -> None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                self.control.close()
                confine(self.pid, memory_mib)
                with socket.socket(fileno=fd) as connection:
                    serve(connection, memory_mib)
                code = 0
            except (BrokenPipeError, ConnectionResetError):
                pass  # the trainer is gone
            finally:
                os._exit(code)
        os.close(fd)
        self.alive.add(pid)

    def _end(self, pid: int, wait: bool) -> int | None:
        """Kills a worker that is still there; returns its wait status, `None` without `wait` or where it lingers."""
        if pid in self.alive:
            _kill(pid)
            if not wait:
                self.forgotten.add(pid)
        if not wait:
            self.status.pop(pid, None)
            return None
        end = time.monotonic() + _REAP_S
        while pid in self.alive and time.monotonic() < end:
            self._collect()
            time.sleep(0.0005)
        return self.status.pop(pid, None)

    def _collect(self) -> None:
        """Waits for the workers that have ended, so that no process id is reused behind our back."""
        for pid in list(self.alive):
            with contextlib.suppress(ChildProcessError):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    self.alive.discard(pid)
                    if pid in self.forgotten:
                        self.forgotten.discard(pid)
                    else:
                        self.status[pid] = status


def _load(module: str) -> None:
    """Imports a module, or calls `module:function`; what fails fails again in the worker, where it has a verdict."""
    name, _, function = module.partition(":")
    with contextlib.suppress(BaseException):
        found = importlib.import_module(name)
        if function:
            getattr(found, function)()


def _kill(pid: int) -> None:
    for kill in (os.killpg, os.kill):  # its own children too; by its id where it has not made its group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def main(fd: int, trainer_pid: int) -> None:
    """Entry point of the process; `fd` is the control socket."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    os.dup2(2, 1)  # what verifiers print belongs to no output of a command
    with socket.socket(fileno=fd) as control:
        Zygote(control, trainer_pid).run()
