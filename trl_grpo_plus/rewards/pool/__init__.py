"""Verdicts from worker processes: isolated, with a hard time limit for each completion, next to CUDA and threads.

pool        in the trainer, for any thread: completions and rows -> verdicts                 `Pool.run`
dispatcher  in the trainer, a thread: deals completions out, holds the clocks, replaces what dies
launch      in the trainer: starts the zygote, asks it to fork and to kill
zygote      a clean process that imports the verifiers and forks workers
worker      verifies completions one after the other
spec, wire  what crosses between them
"""

from __future__ import annotations

import atexit
import os
import threading

from .pool import Pool
from .spec import CannotSend, Spec, source_digest, spec_of

__all__ = ["CannotSend", "Pool", "Spec", "cores", "shared_pool", "source_digest", "spec_of"]

_POOLS: dict[int, Pool] = {}
_LOCK = threading.Lock()


def shared_pool(workers: int) -> Pool:
    """Returns the process's pool of so many workers; all rewards of all trainers share it."""
    with _LOCK:
        if workers not in _POOLS or _POOLS[workers].closed:
            _POOLS[workers] = Pool(workers)
        return _POOLS[workers]


def cores() -> int:
    """Returns the cores that this process may count as its own: its share where several train on one machine."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(len(os.sched_getaffinity(0)) // ranks, 1)


def _close() -> None:
    for pool in _POOLS.values():
        pool.close()


def _abandon() -> None:
    """In a fork of this process (a data loader's worker): the pools belong to the parent."""
    global _LOCK
    _LOCK = threading.Lock()
    for pool in _POOLS.values():
        pool.abandon()
    _POOLS.clear()


atexit.register(_close)
os.register_at_fork(after_in_child=_abandon)
