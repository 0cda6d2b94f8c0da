"""The pool: many completions in, their verdicts out, from any thread, with a hard limit on the time of each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ..verdict import Verdict
from .dispatcher import Dispatcher
from .spec import Spec
from .wire import frame
from .work import Batch, Task


class Pool:
    """A pool of worker processes with a hard time limit for each completion.

    Args:
        workers: Worker processes that compute at the same time.
        memory_mib: Memory that each may take beyond what its imports take.
    """

    def __init__(self, workers: int, memory_mib: int = 2048) -> None:
        self.dispatcher = Dispatcher(workers, memory_mib)
        self._ids = itertools.count()

    def start(self, spec: Spec) -> None:
        """Starts the pool's process in the background, so that the first batch finds it there.

        Args:
            spec: A verifier that is going to be used: its modules are imported.
        """
        self.dispatcher.number(spec)
        self.dispatcher.submit([])

    def run(self, spec: Spec, items: Sequence[tuple[str, Any]], timeout_s: float) -> list[Verdict]:
        """Returns the verdict on each (completion, row), in order.

        Args:
            spec: The verifier.
            items: Completions as texts, and their rows.
            timeout_s: Seconds that each of them may take.

        Raises:
            RuntimeError: The pool is closed.
        """
        if not items:
            return []
        batch = Batch(len(items))
        number = self.dispatcher.number(spec)
        tasks = []
        for index, (completion, row) in enumerate(items):
            id = next(self._ids)
            try:
                data = frame((number, id, completion, row))
            except Exception as error:  # a column that cannot be pickled
                problem = f"its row cannot be sent to a worker: {type(error).__name__}: {error}"[:500]
                batch.finish(index, Verdict.failed(problem))
                continue
            tasks.append(Task(id, batch, index, number, data, timeout_s))
        self.dispatcher.submit(tasks)
        try:
            batch.done.wait()
        finally:
            batch.cancelled = True  # where the wait was interrupted
        return [verdict for verdict in batch.verdicts if verdict is not None]

    @property
    def closed(self) -> bool:
        """Whether it takes no completions any more."""
        return self.dispatcher.closed

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return self.dispatcher.pids

    @property
    def zygote_pid(self) -> int | None:
        """Process id of what forks the workers, `None` before the first use."""
        return self.dispatcher.zygote_pid

    def close(self) -> None:
        """Ends all workers; completions that are under way get a verdict of failure."""
        self.dispatcher.close()

    def abandon(self) -> None:
        """Lets go of everything without a word to the workers: for a fork of this process, whose pool it is not."""
        self.dispatcher.abandon()
