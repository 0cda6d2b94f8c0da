"""Many at once for verifiers that wait: a sandbox that runs a program, a judge behind HTTP.

Such verifiers have timeouts of their own. Should one hang all the same, it is given up after a long time and its
thread left behind, since threads cannot be killed: neither the batch nor the end of the process waits for it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from .verdict import Verdict

AT_ONCE = 32
GIVEN_UP_S = 900.0


def verify_in_threads(
    verify: Callable[[str, Any], Verdict],
    items: Sequence[tuple[str, Any]],
    at_once: int = AT_ONCE,
    given_up_s: float = GIVEN_UP_S,
) -> list[Verdict]:
    """Returns the verdict on each (completion, row), in order.

    Args:
        verify: Returns a verdict and never raises.
        items: Completions and rows.
        at_once: Threads at work at the same time.
        given_up_s: Seconds after which a verifier is no longer waited for.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Verdict]] = queue.SimpleQueue()
    for index in range(len(items)):
        todo.put(index)
    began: dict[int, float] = {}

    def work() -> None:
        while True:
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            began[index] = time.monotonic()
            done.put((index, verify(*items[index])))

    def start() -> None:
        threading.Thread(target=work, name="reward", daemon=True).start()

    for _ in range(min(at_once, len(items))):
        start()
    verdicts: dict[int, Verdict] = {}
    while len(verdicts) < len(items):
        under_way = [at for index, at in list(began.items()) if index not in verdicts]
        wait = min(under_way, default=time.monotonic()) + given_up_s - time.monotonic()
        try:
            index, verdict = done.get(timeout=max(wait, 0.01))
            verdicts.setdefault(index, verdict)
        except queue.Empty:
            for index, at in list(began.items()):
                if index not in verdicts and time.monotonic() - at >= given_up_s:
                    verdicts[index] = Verdict.failed(f"no verdict after {given_up_s:g} s", "timeout")
                    start()  # in the place of the thread that hangs
    return [verdicts[index] for index in range(len(items))]
