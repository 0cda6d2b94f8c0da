"""The trainer's end of one server: starts it, tests it, gives it one job at a time, and notices when it is gone."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import levels, runtime
from .limits import Limits

_BOOT = Path(__file__).parent / "inside" / "boot.py"
_START_S = 60.0  # a machine may be very busy
_SPARE_S = 30.0  # how much longer than its job a server may be silent
_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_IMPORTS = ("decimal", "sqlite3", "hashlib", "zlib", "ctypes", "xml.etree.ElementTree", "asyncio", "csv")


class SandboxError(RuntimeError):
    """The sandbox could not run a program; nothing is known about the program."""


class ServerGone(SandboxError):
    """A server died or fell silent."""


class LevelFailed(SandboxError):
    """A level does not work on this machine."""


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Args:
        exit: Exit status, `None` where a signal ended it.
        signal: The signal that ended it.
        killed: `cpu` or `wall` where the server ended it for a limit, `idle` where the tests had no more need of it.
        cpu_s: CPU seconds of all its threads.
        wall_s: Seconds from fork to end.
        peak_kib: Its largest resident size.
    """

    exit: int | None
    signal: int | None
    killed: str
    cpu_s: float
    wall_s: float
    peak_kib: int

    def exceeded(self, limits: Limits) -> str | None:
        """Returns which limit of time it exceeded, in words."""
        if self.killed == "wall":
            return f"ran longer than {limits.wall:g} s"
        if self.killed == "cpu" or self.cpu_s > limits.cpu_s:
            return f"used more than {limits.cpu_s:g} CPU seconds"
        return None

    def failed(self, limits: Limits) -> str | None:
        """Returns what speaks against it, in words: a limit, a signal, or an exit status other than 0."""
        if (exceeded := self.exceeded(limits)) is not None:
            return exceeded
        if self.signal is not None:
            return f"ended by signal {self.signal}"
        return f"exit status {self.exit}" if self.exit else None


@contextmanager
def memory_files(*contents: bytes | None) -> Iterator[list[int]]:
    """Yields descriptors of files in memory: with contents, sealed against change; with `None`, empty, to write to."""
    descriptors: list[int] = []
    try:
        for content in contents:
            flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
            descriptor = os.memfd_create("grpo-plus", flags)
            descriptors.append(descriptor)
            if content is not None:
                view = memoryview(content)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.lseek(descriptor, 0, os.SEEK_SET)
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        yield descriptors
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def read_all(descriptor: int, at_most: int) -> bytes:
    """Returns the first bytes of a file in memory."""
    data = b""
    while len(data) < at_most:
        block = os.pread(descriptor, at_most - len(data), len(data))
        if not block:
            break
        data += block
    return data


class Server:
    """A running server that has passed its level's self-test.

    Args:
        level: The level of isolation.
        packages: Third-party packages that its programs can import; imported before any program is forked.

    Raises:
        LevelFailed: The level does not work on this machine; the message says why.
    """

    def __init__(self, level: str, packages: Sequence[str] = ()) -> None:
        runtime.check_platform(level)
        self.level = level
        self.jobs = 0
        homes, paths = runtime.packages(packages)
        configuration = {
            "level": level,
            "packages": homes,
            "preload": list(packages),
            "readable": [*runtime.readable(), *paths],
            "devices": [device for device in runtime.DEVICES if os.path.exists(device)],
        }
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with memory_files(None) as (errors,):
                self._process = self._exec(theirs, configuration, errors)
                theirs.close()
                self._hear_ready(errors)
            if level != "rlimits":  # which claims nothing
                self._self_test()
        except BaseException:
            theirs.close()
            self.close()
            raise

    def _exec(self, theirs: socket.socket, configuration: dict[str, Any], errors: int) -> subprocess.Popen[bytes]:
        # Nothing of the trainer's environment: programs can read what the server was started with.
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent", "MALLOC_ARENA_MAX": "2"}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        if "LD_LIBRARY_PATH" in os.environ:  # the interpreter itself may need it
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        command = [sys.executable, "-I", "-S", str(_BOOT), str(theirs.fileno()), json.dumps(configuration)]
        return subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )

    def _hear_ready(self, errors: int) -> None:
        self._socket.settimeout(_START_S)
        try:
            hello = json.loads(self._socket.recv(65536) or b"{}")
        except TimeoutError:
            hello = {"failed": f"the server did not start within {_START_S:g} s"}
        if "ready" not in hello:
            said = read_all(errors, 2000).decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise LevelFailed(f"{self.level}: {hello.get('failed') or said or 'the server did not start'}")
        self.landlock_abi = int(hello["ready"]["landlock_abi"])

    def _self_test(self) -> None:
        """Lets a confined process attempt what no program may.

        Raises:
            LevelFailed: Something worked that must not, or the other way round.
        """
        with (
            tempfile.TemporaryDirectory() as directory,
            socket.socket() as listener,
            socket.socket(socket.AF_UNIX) as abstract,
        ):
            canary = Path(directory) / "canary"
            canary.write_text("canary")
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            abstract.bind("")  # the kernel chooses an abstract name
            abstract.listen()
            name = abstract.getsockname()
            task = {
                "canary": str(canary),
                "port": listener.getsockname()[1],
                "abstract": (name if isinstance(name, bytes) else name.encode())[1:].decode(),
                "trainer": os.getpid(),
                "imports": _IMPORTS,
                "scratch": self.level == "namespaces",
            }
            with memory_files(json.dumps(task).encode(), None) as files:
                ended = self.run("probe", files, Limits(cpu_s=20.0))["probe"]
                report = read_all(files[1], 65536)
            untouched = canary.exists() and canary.read_text() == "canary" and len(os.listdir(directory)) == 1
        try:
            found = json.loads(report)
        except ValueError:
            raise LevelFailed(f"{self.level}: the self-test did not end well: {ended}") from None
        against = [] if untouched else ["a program can change files of the user"]
        against += levels.judge_self_test(self.level, found["tried"], found["needed"])
        if against:
            raise LevelFailed(f"{self.level}: {'; '.join(against)}")

    def run(self, kind: str, descriptors: Sequence[int], limits: Limits) -> dict[str, Ended]:
        """Runs a job and returns how the process of each role ended.

        Raises:
            ServerGone: The server died or fell silent; it is of no further use.
            SandboxError: The server could not start the job's processes.
        """
        self.jobs += 1
        request = json.dumps({"kind": kind, **limits.request()}).encode()
        try:
            self._socket.settimeout(limits.wall + _SPARE_S)
            socket.send_fds(self._socket, [request], list(descriptors))
            reply = json.loads(self._socket.recv(65536) or b"null")
        except (OSError, ValueError) as error:
            raise ServerGone(f"the sandbox's server is gone: {error or type(error).__name__}") from error
        if reply is None:
            raise ServerGone("the sandbox's server is gone")
        if "failed" in reply:
            raise SandboxError(reply["failed"])
        return {role: Ended(**how) for role, how in reply["ended"].items()}

    @property
    def pid(self) -> int:
        """Process id of the server (of its keeper, at level `namespaces`)."""
        return self._process.pid

    def alive(self) -> bool:
        """Returns whether the server still runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """Ends the server and everything that it runs."""
        self._socket.close()
        process = getattr(self, "_process", None)
        if process is None:
            return
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
