"""What the dispatcher keeps track of: batches, their completions, and the workers that are at them."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque

from ..verdict import Verdict
from .wire import Frames


class Batch:
    """One call of `run`: its verdicts, and the event that the caller waits for."""

    def __init__(self, size: int) -> None:
        self.verdicts: list[Verdict | None] = [None] * size
        self.left = size
        self.done = threading.Event()
        self.cancelled = False

    def finish(self, index: int, verdict: Verdict) -> None:
        """Takes in a verdict, unless there is one already."""
        if self.verdicts[index] is None:
            self.verdicts[index] = verdict
            self.left -= 1
            if self.left == 0:
                self.done.set()


class Task:
    """One completion of a batch."""

    __slots__ = ("batch", "data", "deaths", "id", "index", "spec", "timeout_s")

    def __init__(self, id: int, batch: Batch, index: int, spec: int, data: bytes, timeout_s: float) -> None:
        self.id, self.batch, self.index, self.spec, self.data, self.timeout_s = id, batch, index, spec, data, timeout_s
        self.deaths = 0

    def finish(self, verdict: Verdict) -> None:
        """Gives its verdict to whoever waits for it."""
        self.batch.finish(self.index, verdict)


class Worker:
    """The dispatcher's side of a worker: what it was given, and since when it is at the first of it."""

    def __init__(self, connection: socket.socket) -> None:
        self.pid: int | None = None  # until it says so
        self.connection = connection
        self.frames = Frames()
        self.outgoing: deque[memoryview] = deque()
        self.given: deque[Task] = deque()
        self.specs: set[int] = set()
        self.since = 0.0  # monotonic time at which it began with given[0]
        self.fresh = True  # it has given no verdict yet: its first one may be slow for no fault of the completion
        self.building = True  # it is being born, or builds a verifier: no completion's time
        self.writing = False  # the selector watches for room to write
        self.cpu_s = 0.0  # processor time that it had used when it began with given[0]
        self.aside = False  # it has only given[0], and ends with it
        self.stopped_at: float | None = None  # monotonic time since when it is stopped
        self.stopped_s = 0.0  # how long it was stopped before

    def elapsed_s(self) -> float:
        """Returns the time that counts for the completion that it is at."""
        return time.monotonic() - self.since - self.stood_still_s()

    def used_cpu_s(self) -> float:
        """Returns the processor time that it has used for the completion that it is at."""
        try:
            with open(f"/proc/{self.pid}/schedstat") as file:
                return int(file.read().split()[0]) / 1e9 - self.cpu_s
        except (OSError, ValueError):  # it has ended, or the kernel keeps no such account
            return self.elapsed_s()

    def is_asleep(self) -> bool:
        """Returns whether it waits for something else than a processor."""
        try:
            with open(f"/proc/{self.pid}/stat") as file:
                return file.read().rpartition(")")[2].split()[0] != "R"
        except (OSError, IndexError):
            return True

    def stood_still_s(self) -> float:
        """Returns for how long it was stopped since it was set aside."""
        return self.stopped_s + (0.0 if self.stopped_at is None else time.monotonic() - self.stopped_at)
