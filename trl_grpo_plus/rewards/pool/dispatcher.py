"""The dispatcher: a thread of the trainer that deals completions out to workers and holds their clocks.

All completions of all rewards, from whatever thread, go through one queue to one set of workers:

- A worker is given a few completions in advance, so that it does not wait for the pipe; it writes each verdict as soon
  as it has it, so that the clock of each completion is its own.
- A completion that takes long while others wait behind it is set aside: its worker is stopped, clock and all, what
  it had been given in advance goes back to the queue, and a fresh worker (a fork of milliseconds) takes its place.
  When no completion waits for its first run any more, or after a little while (a verifier's own alarms go on
  ringing), those set aside go on, all at the same time: so many hanging completions cost one timeout together, not
  one each. What one cost the others until it was set aside is taken off its time.
- At its timeout a completion's worker is killed.
- What a verifier imports when it first runs is imported for the workers to come as well, before any clock runs.
- A worker that dies costs nothing that it had finished or not begun. What it was at is tried once more, by a fresh
  worker, since the death may not be its fault (someone killed it, memory ran out); the second death is a verdict.

Standard process pools have other trades: they kill a chunk of tasks for one that hangs, or cross the pipe for every
task; a hanging task holds its slot; and their `spawn` and `forkserver` run the user's `__main__` again.
"""

from __future__ import annotations

import contextlib
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence

from ..verdict import Verdict
from .clocks import STARTUP_S, Clocks
from .launch import ZygoteGone, ZygoteProcess, how_it_died
from .spec import Spec
from .wire import BORN, BUILDING, BUILT, BYE, IMPORTED, frame
from .work import Task, Worker

_STOPPED_S = 2.0  # that a completion set aside stands still, at most
_ASIDE = 32  # completions set aside at a time, at most
_IN_ADVANCE = 16  # completions given to a worker in one go, at most
_TRIES = 2  # deaths of a worker before the completion is to blame
_ZYGOTES = 3  # failures to start in a row before giving up
_READ = 1 << 16


class Dispatcher:
    """The thread between those who ask for verdicts and the workers.

    Args:
        size: Workers that compute at the same time.
        memory_mib: Memory that each may take beyond what its imports take.
    """

    def __init__(self, size: int, memory_mib: int) -> None:
        self.size = size
        self.memory_mib = memory_mib
        self.closed = False
        self._lock = threading.Lock()  # over what other threads touch: the next five
        self._incoming: deque[Task] = deque()
        self._specs: list[Spec] = []
        self._numbers: dict[int, int] = {}  # id(spec) -> its number
        self._unloaded: list[Spec] = []  # whose modules the zygote has not imported yet
        self._thread: threading.Thread | None = None
        self._queue: deque[Task] = deque()
        self._workers: list[Worker] = []
        self._zygote: ZygoteProcess | None = None
        self._failed_zygotes = 0
        self._loading: deque[list[str]] = deque()  # modules that the zygote was asked to import
        self._lazy: dict[str, None] = {}  # modules that verifiers import when they run
        self._never: set[str] = set()  # modules that ended a zygote: workers import them, and fail by themselves
        self._clocks = Clocks()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    # For other threads.

    def number(self, spec: Spec) -> int:
        """Returns the number by which workers know a verifier."""
        with self._lock:
            if id(spec) not in self._numbers:
                self._numbers[id(spec)] = len(self._specs)
                self._specs.append(spec)
                self._unloaded.append(spec)
            return self._numbers[id(spec)]

    def submit(self, tasks: Sequence[Task]) -> None:
        """Takes completions in, and starts the thread with the first ones; each is finished sooner or later.

        Raises:
            RuntimeError: It is closed.
        """
        with self._lock:
            if self.closed:
                raise RuntimeError("the pool of workers is closed")
            self._incoming.extend(tasks)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="reward-workers", daemon=True)
                self._thread.start()
        self._wake()

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.pid for worker in list(self._workers) if worker.pid is not None]

    @property
    def zygote_pid(self) -> int | None:
        """Process id of the zygote, if there is one."""
        zygote = self._zygote
        return None if zygote is None else zygote.process.pid

    def close(self) -> None:
        """Ends the thread and all workers; what is under way is finished as a failure."""
        with self._lock:
            self.closed = True
            thread = self._thread
        self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=10)

    def abandon(self) -> None:
        """Lets go of everything without a word to the workers: for a fork of this process."""
        self.closed = True
        for end in (self._wake_read, self._wake_write, *(w.connection for w in self._workers)):
            end.close()
        if self._zygote is not None:
            self._zygote.control.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # closed, or so full that it wakes anyway
            self._wake_write.send(b"x")

    # Its own thread.

    def _loop(self) -> None:
        try:
            while not self.closed:
                self._preload()
                self._take_incoming()
                self._deal()
                self._stop_and_go()
                for key, events in self._selector.select(self._until_next_clock()):
                    if key.data is None:
                        with contextlib.suppress(BlockingIOError):
                            self._wake_read.recv(_READ)
                        continue
                    if isinstance(key.data, ZygoteProcess):
                        self._hear(key.data)
                        continue
                    if events & selectors.EVENT_WRITE:
                        self._write(key.data)
                    if events & selectors.EVENT_READ:
                        self._read(key.data)
                self._check_clocks()
        except BaseException as error:
            self._fail_all(f"the pool of workers broke: {type(error).__name__}: {error}")
            raise
        finally:
            self.closed = True
            self._fail_all("the pool of workers was closed")
            for worker in list(self._workers):
                self._forget(worker)
            if self._zygote is not None:
                self._zygote.close()
            self._selector.close()
            self._wake_read.close()
            self._wake_write.close()

    def _preload(self) -> None:
        """Imports the verifiers' modules in the zygote, which it starts."""
        if self._zygote is not None and not self._unloaded:
            return
        with self._lock:
            specs, self._unloaded = self._unloaded, []
        modules = dict.fromkeys(module for spec in specs for module in (spec.module, *spec.imports) if module)
        self._load([*modules, *self._lazy])

    def _load(self, modules: Sequence[str]) -> None:
        """Has modules imported for the workers to come."""
        modules = [module for module in modules if module not in self._never]
        try:
            self._get_zygote().preload(modules)
            self._loading.append(modules)
        except ZygoteGone as error:
            self._lose_zygote(str(error))

    def _hear(self, zygote: ZygoteProcess) -> None:
        """Takes in that modules are imported, or that the zygote has ended over them."""
        if zygote is not self._zygote:
            return
        try:
            for _ in range(zygote.loaded()):
                self._loading.popleft()
        except ZygoteGone as error:
            self._never.update(*self._loading)
            self._lose_zygote(str(error))

    def _get_zygote(self) -> ZygoteProcess:
        if self._zygote is None:
            self._zygote = ZygoteProcess()
            self._selector.register(self._zygote.control, selectors.EVENT_READ, self._zygote)
        return self._zygote

    def _take_incoming(self) -> None:
        with self._lock:
            self._queue.extend(self._incoming)
            self._incoming.clear()

    def _deal(self) -> None:
        """Gives completions to workers that run out of them, and forks workers where too few are at work."""
        at_work = [worker for worker in self._workers if not worker.aside]
        idle = sum(not worker.given for worker in at_work)
        while len(at_work) < self.size and idle < len(self._queue):
            worker = self._fork()
            if worker is None:
                return
            at_work.append(worker)
            idle += 1
        for worker in sorted(at_work, key=lambda w: len(w.given)):
            if len(worker.given) > 1 or not self._queue:
                continue
            share = min(max(len(self._queue) // (2 * self.size), 1), _IN_ADVANCE)
            if not worker.given:
                worker.since = time.monotonic()
            while share and self._queue:
                task = self._queue.popleft()
                if not task.batch.cancelled:
                    self._give(worker, task)
                    share -= 1
            self._write(worker)

    def _give(self, worker: Worker, task: Task) -> None:
        if task.spec not in worker.specs:
            worker.specs.add(task.spec)
            worker.outgoing.append(memoryview(frame(("spec", task.spec, self._specs[task.spec], None))))
        worker.given.append(task)
        worker.outgoing.append(memoryview(task.data))

    def _fork(self) -> Worker | None:
        try:
            connection = self._get_zygote().fork(self.memory_mib)
        except ZygoteGone as error:
            self._lose_zygote(str(error))
            return None
        worker = Worker(connection)
        self._workers.append(worker)
        self._selector.register(connection, selectors.EVENT_READ, worker)
        return worker

    def _lose_zygote(self, problem: str) -> None:
        """Starts anew without the zygote, whose workers have died with it; gives up where it keeps dying."""
        self._failed_zygotes += 1
        for worker in list(self._workers):
            self._queue.extendleft(reversed(worker.given))
            self._forget(worker)
        if self._zygote is not None:
            self._selector.unregister(self._zygote.control)
            self._zygote.close()
            self._zygote = None
        self._loading.clear()
        with self._lock:
            self._unloaded = list(self._specs)
        if self._failed_zygotes >= _ZYGOTES:
            self._failed_zygotes = 0
            self._fail_all(problem)

    def _fail_all(self, reason: str) -> None:
        self._take_incoming()
        for task in [*self._queue, *(task for worker in self._workers for task in worker.given)]:
            task.finish(Verdict.failed(reason, "crash"))
        self._queue.clear()

    def _write(self, worker: Worker) -> None:
        try:
            while worker.outgoing:
                sent = worker.connection.send(worker.outgoing[0])
                if sent == len(worker.outgoing[0]):
                    worker.outgoing.popleft()
                else:
                    worker.outgoing[0] = worker.outgoing[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            worker.outgoing.clear()  # it is dead: reading will tell
        if worker.writing != bool(worker.outgoing) and worker in self._workers:
            worker.writing = bool(worker.outgoing)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.writing else 0)
            self._selector.modify(worker.connection, events, worker)

    def _read(self, worker: Worker) -> None:
        """Takes in what a worker says: verdicts, marks, or its end."""
        if worker not in self._workers:
            return  # dismissed by an event before this one
        ended = False
        try:
            data = worker.connection.recv(_READ)
            ended = not data
        except BlockingIOError:
            return
        except OSError:
            data, ended = b"", True
        for message in worker.frames.feed(data):
            worker.since = time.monotonic()
            if message[0] == BORN:
                worker.pid, worker.building = message[1], False
                self._failed_zygotes = 0  # it works
            elif message[0] in (BUILDING, BUILT):
                worker.building = message[0] == BUILDING
                worker.cpu_s = message[1]
            elif message[0] == IMPORTED:
                fresh = [module for module in message[1] if module not in self._lazy]
                self._lazy.update(dict.fromkeys(fresh))
                if fresh:
                    self._load(fresh)
            elif message[0] == BYE:
                self._dismiss(worker)
                return
            elif worker.given and message[0] == worker.given[0].id:
                task = worker.given.popleft()
                *verdict, cpu_s = message[1:]
                task.finish(Verdict(*verdict))
                worker.fresh = False
                self._clocks.verdict(task.spec, cpu_s - worker.cpu_s)
                worker.cpu_s = cpu_s
                if worker.aside:
                    self._dismiss(worker)  # it cannot get its priority back
                    return
        if ended and worker in self._workers:
            self._bury(worker)

    def _bury(self, worker: Worker) -> None:
        """A worker has died: its first completion is tried once more, the others have not begun."""
        suspect = None
        if worker.given and worker.pid is not None:
            suspect = worker.given.popleft()
            suspect.deaths += 1
            if suspect.deaths >= _TRIES:
                suspect.finish(Verdict.failed(f"no verdict: {how_it_died(self._status(worker.pid))}", "crash"))
                suspect = None
        self._queue.extendleft(reversed(worker.given))
        self._forget(worker)
        if suspect is not None:
            self._retry(suspect, worker.aside)

    def _status(self, pid: int) -> int | None:
        with contextlib.suppress(ZygoteGone):
            return self._get_zygote().status(pid)
        return None

    def _retry(self, task: Task, aside: bool) -> None:
        """Gives a completion to a worker born for it: what killed the last one may have killed others by now."""
        worker = self._fork()
        if worker is None:
            self._queue.appendleft(task)  # all workers are gone, and those to come are fresh
            return
        worker.aside = aside
        worker.since = time.monotonic()
        self._give(worker, task)
        self._write(worker)

    def _dismiss(self, worker: Worker) -> None:
        """Ends a worker; what it was given goes back to the queue."""
        self._queue.extendleft(reversed(worker.given))
        with contextlib.suppress(ZygoteGone):
            if worker.pid is not None:  # else it ends as soon as it finds its socket closed
                self._get_zygote().kill(worker.pid)
        self._forget(worker)

    def _forget(self, worker: Worker) -> None:
        if worker not in self._workers:
            return
        self._workers.remove(worker)
        worker.given.clear()
        self._selector.unregister(worker.connection)
        worker.connection.close()

    # Clocks.

    def _aside(self) -> int:
        return sum(worker.aside for worker in self._workers)

    def _until_next_clock(self) -> float | None:
        """Returns the seconds until the dispatcher must look at a clock, or `None` where no one is at work."""
        busy = [worker for worker in self._workers if worker.given]
        if not busy:
            self._clocks.rest()
            return 0.05 if self._queue else None  # a queue without workers: the zygote is started anew
        going = [worker for worker in busy if worker.stopped_at is None]
        waits = [self._clocks.limit_s(worker) - worker.elapsed_s() for worker in going]
        waits += [_STOPPED_S - worker.stood_still_s() for worker in busy if worker.stopped_at is not None]
        waits += [self._clocks.next_look_s(worker) for worker in going if self._holds_up(worker)]
        return max(min(waits, default=1.0), 0.0) + 0.001

    def _holds_up(self, worker: Worker) -> bool:
        """Returns whether others wait behind the completion that a worker is at, and it can be set aside."""
        waiting = len(worker.given) > 1 or bool(self._queue)
        return waiting and not worker.aside and not worker.building and self._aside() < _ASIDE

    def _check_clocks(self) -> None:
        for worker in list(self._workers):
            if not worker.given:
                continue
            if self._holds_up(worker) and self._clocks.is_slow(worker):
                first = worker.given[0]
                self._read(worker)  # a verdict may have come while this thread waited for its turn
                if worker in self._workers and worker.given and worker.given[0] is first:
                    self._set_aside(worker)
            if worker in self._workers and worker.given and worker.elapsed_s() > self._clocks.limit_s(worker):
                self._time_out(worker)

    def _set_aside(self, worker: Worker) -> None:
        """Leaves a worker alone with what it is at; it ends with it, since it may go on with what was taken back."""
        first = worker.given.popleft()
        self._queue.extendleft(reversed(worker.given))
        worker.given = deque([first])
        worker.aside = True
        self._clocks.set_aside(worker.elapsed_s() / self.size)

    def _stop_and_go(self) -> None:
        """Stops those set aside while others wait for their first run, and lets them go on when none does.

        They go on too when no more can be set aside, and when they have stood still for long enough.
        """
        waiting = bool(self._queue) and self._aside() < _ASIDE
        for worker in [worker for worker in self._workers if worker.aside]:
            stop = waiting and worker.stood_still_s() < _STOPPED_S
            with contextlib.suppress(ZygoteGone):
                if stop and worker.stopped_at is None:
                    self._get_zygote().signal(worker.pid, signal.SIGSTOP)
                    worker.stopped_at = time.monotonic()
                elif not stop and worker.stopped_at is not None:
                    self._get_zygote().signal(worker.pid, signal.SIGCONT)
                    worker.stopped_s += time.monotonic() - worker.stopped_at
                    worker.stopped_at = None

    def _time_out(self, worker: Worker) -> None:
        first, building = worker.given[0], worker.building
        self._read(worker)
        still = worker in self._workers and worker.given and worker.given[0] is first
        if not still or worker.building != building:
            return
        what = f"the verifier could not be loaded within {STARTUP_S:g} s"
        if not building:
            what = f"no verdict after {worker.elapsed_s():.1f} s (the timeout is {first.timeout_s:g} s)"
        first.finish(Verdict.failed(what, "timeout"))
        worker.given.popleft()
        self._dismiss(worker)
