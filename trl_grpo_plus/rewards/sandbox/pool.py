"""The sandbox as rewards use it: servers on demand, one program each at a time, a retry when a server dies.

Programs run one per free server and core of the machine; callers may be as many threads as they like. A server is
replaced after some thousand jobs, and one that has died takes nothing with it but the job that it had, which is tried
once more elsewhere.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence

from . import levels, runtime, slots
from .client import Ended, LevelFailed, SandboxError, Server
from .limits import Limits

logger = logging.getLogger(__name__)

_JOBS_PER_SERVER = 5000


class NoLevel(SandboxError):
    """No allowed level of isolation works on this machine."""


class Sandbox:
    """Servers of one level of isolation.

    Args:
        level: `namespaces`, `landlock`, `seccomp`, `rlimits`, or `auto`: the strongest that passes its self-test.
        min_level: The weakest that `auto` may take; `None` is `landlock`.
        workers: Programs at a time of this process; `None` takes the cores of the machine, divided by the processes
            that a launcher has started on it.
        packages: Packages that programs can import beside the standard library; a program that mentions one runs on
            a server that has them loaded.

    Raises:
        UserError: A level is unknown, or cannot work on this system; or a package is not installed.
        NoLevel: No allowed level passes its self-test here; the message says why each fails.
    """

    def __init__(
        self,
        level: str = levels.AUTO,
        min_level: str | None = None,
        workers: int | None = None,
        packages: Sequence[str] = ("numpy",),
    ) -> None:
        runtime.packages(packages)  # before a program asks for one
        self._packages = tuple(packages)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: dict[bool, list[Server]] = {False: [], True: []}
        first, self.refused = _strongest(levels.candidates(level, min_level))
        self.level = first.level
        self.landlock_abi = first.landlock_abi
        self._idle[False].append(first)
        cores = slots.cores()
        self.workers = workers or max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        self._free = threading.BoundedSemaphore(self.workers)
        self._slots = slots.Slots(max(cores, workers or 1))
        self.restarts = 0
        _announce(self)
        atexit.register(self.close)

    def run(self, kind: str, descriptors: Sequence[int], limits: Limits, mentions: str = "") -> dict[str, Ended]:
        """Runs a job and returns how its processes ended; a job whose server dies is tried once more.

        Args:
            kind: `script`, `calls` or `tests`.
            descriptors: The job's files in memory.
            limits: Limits of each of its processes.
            mentions: Text in which names of packages are looked for.

        Raises:
            SandboxError: It could not be run twice; nothing is known about the program.
        """
        loaded = any(package in mentions for package in self._packages)
        with self._free, self._slots.one():
            for attempt in (1, 2):
                try:
                    with self._server(loaded) as server:
                        return server.run(kind, descriptors, limits)
                except SandboxError as error:
                    if attempt == 2:
                        raise
                    logger.warning("sandbox: %s; trying once more", error)
                    self.restarts += 1
        raise AssertionError("unreachable")

    @contextlib.contextmanager
    def _server(self, loaded: bool) -> Iterator[Server]:
        with self._lock:
            if os.getpid() != self._pid:  # forked: the servers are the other process's
                self._pid, self._idle = os.getpid(), {False: [], True: []}
            server = None
            while self._idle[loaded] and server is None:
                server = self._idle[loaded].pop()
                if not server.alive():  # died while it had nothing to do
                    server.close()
                    server = None
        if server is None:
            server = Server(self.level, self._packages if loaded else ())
        try:
            yield server
        except BaseException:
            server.close()
            raise
        if server.jobs >= _JOBS_PER_SERVER:
            server.close()
            return
        with self._lock:
            self._idle[loaded].append(server)

    def server_pids(self) -> set[int]:
        """Returns the process ids of the servers that run no job now."""
        with self._lock:
            return {server.pid for each in self._idle.values() for server in each}

    def close(self) -> None:
        """Ends all servers that are idle; those that run a job end with this process."""
        with self._lock:
            servers = [server for each in self._idle.values() for server in each]
            self._idle = {False: [], True: []}
        if os.getpid() == self._pid:
            for server in servers:
                server.close()


def _strongest(names: Sequence[str]) -> tuple[Server, dict[str, str]]:
    """Returns a server of the first level that passes its self-test, and why the ones before it did not."""
    refused: dict[str, str] = {}
    for name in names:
        try:
            return Server(name), refused
        except LevelFailed as error:
            refused[name] = str(error).partition(": ")[2]
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
    raise NoLevel(
        f"no allowed level of isolation works on this machine ({reasons}). `grpo-plus sandbox info` shows them all; "
        "`min_level` allows weaker ones, and level `external` a runner of your own"
    )


_announced: set[str] = set()


def _announce(sandbox: Sandbox) -> None:
    """Says once in the log which level runs."""
    if sandbox.level in _announced and sandbox.level != "rlimits":
        return
    _announced.add(sandbox.level)
    level = levels.LEVELS[sandbox.level]
    why = "".join(f"; not {name}: {reason}" for name, reason in sandbox.refused.items())
    if sandbox.level == "rlimits":
        logger.warning("sandbox level rlimits: this is NO sandbox. Programs can do %s", level.leaves)
    else:
        logger.warning("sandbox level %s stops: %s%s", level.name, level.stops, why)


_shared: dict[tuple[object, ...], Sandbox] = {}
_shared_lock = threading.Lock()


def shared(level: str = levels.AUTO, min_level: str | None = None, packages: Sequence[str] = ("numpy",)) -> Sandbox:
    """Returns this process's sandbox of a level; rewards with other limits share its servers."""
    key = (os.getpid(), level, min_level, tuple(packages))
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Sandbox(level, min_level, packages=packages)
        return _shared[key]
