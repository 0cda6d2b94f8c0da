"""Starting the zygote and talking to it: from the trainer's side."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from typing import Any

_ANSWER_S = 300.0  # a user's module may import torch on a busy machine
_PACKET = 1 << 20

_START = (
    "import json, sys; fd, pid, path = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from trl_grpo_plus.rewards.pool.zygote import main; main(fd, pid)"
)

# One thread per worker: the workers together have the cores. No GPU: a verifier that needs one runs as a batch.
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_VISIBLE_DEVICES": "",
}


class ZygoteGone(Exception):
    """The zygote has ended or does not answer."""


class ZygoteProcess:
    """A running zygote, started by exec: safe beside CUDA and threads, and without the user's `__main__`."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(_ANSWER_S)
        self._loaded = 0
        arguments = json.dumps([theirs.fileno(), os.getpid(), sys.path])
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _START, arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,  # Ctrl-C is the trainer's to handle
            )
        finally:
            theirs.close()

    def fork(self, memory_mib: int) -> socket.socket:
        """Asks for a worker and returns the socket to it, which can be written to at once.

        Raises:
            ZygoteGone: There is no zygote any more.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._send({"fork": memory_mib}, [theirs.fileno()])
        except ZygoteGone:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return ours

    def kill(self, pid: int) -> None:
        """Kills a worker, if it has not ended."""
        self._send({"kill": pid, "wait": False})

    def status(self, pid: int) -> int | None:
        """Returns the wait status of a worker that has ended, `None` where there is none."""
        self._send({"kill": pid, "wait": True})
        while True:
            answer = self._receive()
            if "status" in answer:
                status: int | None = answer["status"]
                return status
            self._loaded += 1

    def signal(self, pid: int | None, number: int) -> None:
        """Sends a signal to a worker, if it has said its process id and has not ended."""
        self._send({"signal": pid, "number": number})

    def preload(self, modules: list[str]) -> None:
        """Asks it to import modules, for the workers to be; `loaded` tells when it has."""
        self._send({"preload": modules, "path": sys.path})

    def loaded(self) -> int:
        """Returns how many requests to import were done since the last call, when the control socket is readable."""
        if select.select([self.control], [], [], 0)[0]:
            self._receive()
            self._loaded += 1
        done, self._loaded = self._loaded, 0
        return done

    def _send(self, request: dict[str, Any], fds: list[int] | None = None) -> None:
        try:
            socket.send_fds(self.control, [json.dumps(request).encode()], fds or [])
        except OSError as error:
            raise ZygoteGone(f"the process that starts the workers is gone ({self._how()}): {error}") from error

    def _receive(self) -> dict[str, Any]:
        try:
            answer = self.control.recv(_PACKET)
        except OSError as error:
            raise ZygoteGone(f"the process that starts the workers does not answer: {error}") from error
        if not answer:
            raise ZygoteGone(f"the process that starts the workers has ended ({self._how()})")
        message: dict[str, Any] = json.loads(answer)
        return message

    def _how(self) -> str:
        try:
            return f"exit status {self.process.wait(timeout=2)}"
        except subprocess.TimeoutExpired:
            return "it hangs"

    def close(self) -> None:
        """Ends the zygote, and with it the workers."""
        self.control.close()
        try:
            self.process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def how_it_died(status: int | None) -> str:
    """Returns a wait status in words."""
    if status is None:
        return "its process is gone"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            name = signal.Signals(number).name
        except ValueError:
            name = f"signal {number}"
        return f"its process was ended by {name}"
    return f"its process ended with status {os.waitstatus_to_exitcode(status)}"
