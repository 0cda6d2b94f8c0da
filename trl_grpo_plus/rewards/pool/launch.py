"""Starting the zygote and talking to it: from the trainer's side."""

from __future__ import annotations

import contextlib
import json
import os
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

    def fork(self, memory_mib: int) -> tuple[int, socket.socket]:
        """Returns (process id, socket) of a new worker.

        Raises:
            ZygoteGone: There is no zygote any more.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            pid = self._ask({"fork": memory_mib}, [theirs.fileno()])
        except ZygoteGone:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return int(pid), ours

    def kill(self, pid: int, wait: bool = False) -> int | None:
        """Kills a worker that has not ended; waits for its end and returns its wait status where that is asked for."""
        status: int | None = self._ask({"kill": pid, "wait": wait})
        return status

    def signal(self, pid: int, number: int) -> None:
        """Sends a signal to a worker, if it has not ended."""
        self._ask({"signal": pid, "number": number})

    def preload(self, modules: list[str]) -> None:
        """Imports modules, for the workers to be; what fails shows again, with its reason, in the worker."""
        self._ask({"preload": modules, "path": sys.path})

    def _ask(self, request: dict[str, Any], fds: list[int] | None = None) -> Any:
        try:
            socket.send_fds(self.control, [json.dumps(request).encode()], fds or [])
            answer = self.control.recv(_PACKET)
        except OSError as error:
            raise ZygoteGone(f"the process that starts the workers does not answer: {error}") from error
        if not answer:
            raise ZygoteGone(f"the process that starts the workers has ended ({self._how()})")
        return json.loads(answer)

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
