"""What the rewards of a run share: the pool of workers, the cache, the limits."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ..errors import UserError
from .cache import VerdictCache
from .pool import Pool, cores, shared_pool

CACHE_FILE = "reward_cache.sqlite3"


@dataclass(frozen=True)
class RewardSettings:
    """How rewards run.

    Args:
        workers: Worker processes; `"auto"` takes the cores, divided by the processes that train on the machine.
        timeout_s: Seconds that a verifier in a worker may take for one completion.
        max_failures: Share of a batch's completions that may fail (exception, timeout, crash) for one reward before
            the run stops, in [0, 1]; 1 never stops it.
        cache: File of the cache of verdicts; `"memory"`; `"off"`; or `"auto"`, a file in the output directory where
            there is one, else memory.

    Raises:
        UserError: A value cannot work.
    """

    workers: int | str = "auto"
    timeout_s: float = 5.0
    max_failures: float = 0.5
    cache: str = "auto"

    @classmethod
    def of(cls, args: Any) -> RewardSettings:
        """Returns the settings of a trainer's configuration: its `reward_...` fields, defaults where it has none.

        Raises:
            UserError: A value cannot work.
        """
        given = {f.name: getattr(args, f"reward_{f.name}") for f in fields(cls) if hasattr(args, f"reward_{f.name}")}
        return cls(**given)

    def __post_init__(self) -> None:
        workers: Any = self.workers
        if workers != "auto":
            if isinstance(workers, bool) or not str(workers).isdigit() or int(workers) < 1:
                raise UserError(f"reward_workers must be auto or a positive whole number, found {workers!r}")
            object.__setattr__(self, "workers", int(workers))
        for name, least, most in (("timeout_s", 0.0, math.inf), ("max_failures", 0.0, 1.0)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not least <= value <= most or (name == "timeout_s" and value == 0):
                wanted = "a positive number of seconds" if name == "timeout_s" else "a share in [0, 1]"
                raise UserError(f"reward_{name} must be {wanted}, found {value!r}")
        if str(self.cache).lower() in ("off", "false", "no"):  # YAML reads `off` as false
            object.__setattr__(self, "cache", "off")
        elif not isinstance(self.cache, str) or not self.cache:
            raise UserError(f"reward_cache must be auto, memory, off or a file, found {self.cache!r}")

    @property
    def n_workers(self) -> int:
        """Worker processes, as a number."""
        return cores() if self.workers == "auto" else int(self.workers)


class Runtime:
    """What the rewards of a run share; made of the settings, and started when it is first needed.

    Args:
        settings: How rewards run.
        output_dir: Where `cache="auto"` keeps its file; `None` keeps it in memory.
    """

    def __init__(self, settings: RewardSettings | None = None, output_dir: str | Path | None = None) -> None:
        self.settings = settings or RewardSettings()
        self.output_dir = output_dir

    @property
    def pool(self) -> Pool:
        """The pool of workers, one for all that ask for as many."""
        return shared_pool(self.settings.n_workers)

    @functools.cached_property
    def cache(self) -> VerdictCache | None:
        """The cache of verdicts, or `None` where it is off."""
        where = self.settings.cache
        if where == "off":
            return None
        if where == "auto":
            return VerdictCache(None if self.output_dir is None else Path(self.output_dir) / CACHE_FILE)
        return VerdictCache(None if where == "memory" else where)


@functools.cache
def default_runtime() -> Runtime:
    """Returns the runtime of rewards that belong to no trainer."""
    return Runtime()
