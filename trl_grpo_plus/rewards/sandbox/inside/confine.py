"""What a forked process gives up before it runs anything that is not ours; nothing of it can be taken back.

Order matters: descriptors and limits first, then capabilities, then files (Landlock), and the system call filter last,
since it forbids the calls that the others need.
"""

from __future__ import annotations

import fcntl
import math
import os
import resource
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

from . import kernel, landlock, seccomp, threads

# Nothing but these is left open; a program's own files and pipes need a few more.
_OPEN_FILES = 64
_HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # the server's; an exec has reset all others


@dataclass(frozen=True)
class Confinement:
    """How the programs of one server are confined.

    Args:
        level: `namespaces`, `landlock`, `seccomp` or `rlimits`.
        machine: `os.uname().machine`.
        landlock_abi: Version of Landlock to use, 0 for none.
        readable: Files and directories of the Python runtime.
        writable: What may be written: the null device, and the scratch directory where there is one.
        scratch: Working directory of programs.
        counted_apart: Whether the kernel counts the server's threads apart from all others (`threads.count_apart`).
    """

    level: str
    machine: str
    landlock_abi: int
    readable: tuple[str, ...]
    writable: tuple[str, ...]
    scratch: str
    counted_apart: bool
    # Made in the server, so that no program waits for them.
    rules: int = field(init=False)
    filter: seccomp.Filter = field(init=False)

    def __post_init__(self) -> None:
        self.renew()
        object.__setattr__(self, "filter", seccomp.Filter(self.machine, self.files))

    def renew(self) -> None:
        """Makes the rules for files anew, after the scratch directory has become another one."""
        if getattr(self, "rules", -1) >= 0:
            os.close(self.rules)
        rules = landlock.ruleset(self.landlock_abi, self.readable, self.writable) if self.landlock_abi else -1
        object.__setattr__(self, "rules", rules)

    @property
    def files(self) -> seccomp.Files:
        """What holds writing, for the filter."""
        if self.level == "namespaces":
            return "private"
        return "landlock" if self.landlock_abi else "none"


def confine(
    confinement: Confinement, server: int, descriptors: Sequence[int], cpu_s: float, memory: int, file: int
) -> None:
    """Confines the calling process, a fresh fork of the server.

    Args:
        confinement: The server's way of confining.
        server: Process id of the server; without it the process ends.
        descriptors: What is kept open, as 0, 1, 2, ...; all else is closed.
        cpu_s: CPU seconds after which the kernel kills it; the server is to do so before.
        memory: Bytes of address space, the interpreter included.
        file: Bytes that a file may have.

    Raises:
        OSError: Something could not be given up; the process must not run anything then.
    """
    os.setsid()
    kept = [*descriptors, *([confinement.rules] if confinement.rules >= 0 else [])]
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in kept]
    for i, descriptor in enumerate(high):
        os.dup2(descriptor, i)
    os.closerange(len(high), 65536)
    for number in _HANDLED:
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as in every Python: the write raises an OSError
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(confinement.scratch)
    limits = {
        resource.RLIMIT_CPU: math.ceil(cpu_s) + 1,
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_FSIZE: file,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    most = threads.limit(confinement.counted_apart)
    if most is not None:
        limits[resource.RLIMIT_NPROC] = most
    for which, value in limits.items():
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
    kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)
    if confinement.rules >= 0:
        landlock.restrict(len(descriptors))  # which closes them
    if confinement.level != "rlimits":
        seccomp.install(confinement.filter.packed(os.getpid()))
