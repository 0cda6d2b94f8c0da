"""As many programs at a time as a machine has cores, counted over all of a user's trainer processes on it.

Each running program holds a lock on one of a few files; the kernel lets go of it when its holder dies, however it
dies. Ranks of one run, and runs that know nothing of each other, so take turns instead of timing each other out.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import random
import stat
import tempfile
import time
from collections.abc import Iterator

logger = logging.getLogger(__name__)


def cores() -> int:
    """Returns the number of cores that this process may use, a container's quota included."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):
        pass
    return count


def _directory() -> str | None:
    """Returns the directory of the lock files, this user's own, or `None` where somebody else has taken its name."""
    path = os.path.join(tempfile.gettempdir(), f"grpo-plus-sandbox-{os.getuid()}")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError:
        return None
    own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    return path if own else None


class Slots:
    """Slots of this machine.

    Args:
        count: How many; processes that count differently share the lower ones.
    """

    def __init__(self, count: int) -> None:
        self._files: list[str] = []
        directory = _directory()
        if directory is None:
            logger.warning("sandbox: no lock directory of our own; programs of other processes are not counted")
            return
        self._files = [os.path.join(directory, f"slot-{i}") for i in range(count)]

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Holds a slot, waiting for one where all are taken."""
        if not self._files:
            yield
            return
        descriptor = self._take()
        try:
            yield
        finally:
            os.close(descriptor)

    def _take(self) -> int:
        wait_s = 0.001
        while True:
            for path in random.sample(self._files, len(self._files)):
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return descriptor
                except BlockingIOError:
                    os.close(descriptor)
            time.sleep(wait_s * random.uniform(0.5, 1.5))
            wait_s = min(2 * wait_s, 0.02)
