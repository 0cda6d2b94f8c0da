"""A verifier as what a trainer calls: many completions at a time, isolated, cached, counted.

Stage: rewards. In: completions and rows. Out: a `Verdict` for each, and in a training step the values with their
metrics. `score` is the whole path of a batch:

    completions, rows -> those that the row's `reward` routes here -> cache -> pool, threads or batch -> verdicts
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, did_you_mean
from .cache import verdict_key
from .pool import CannotSend, Spec, source_digest, spec_of
from .registry import Entry, Row, Runs, Same, Verify, as_verify, same_text
from .routing import routed_here, wanted
from .runtime import Runtime, default_runtime
from .text import completion_text
from .threads import verify_in_threads
from .verdict import Verdict, as_verdict

logger = logging.getLogger(__name__)

_SHOWN_FAILURES = 3


class RewardFailure(UserError):
    """A reward failed on so many completions of a batch that training on the rest would be blind."""


@dataclass(frozen=True)
class Scored:
    """The verdicts of a batch and what it took.

    Args:
        verdicts: One per completion.
        applies: Per completion, whether the row asks for this reward.
        cache_hits: Verdicts that were served from the cache.
        latency_s: Wall time until the last verdict.
    """

    verdicts: list[Verdict]
    applies: list[bool]
    cache_hits: int
    latency_s: float

    def failures(self) -> list[int]:
        """Returns the indices of the completions on which the verifier failed."""
        return [i for i, verdict in enumerate(self.verdicts) if verdict.failure is not None]

    def metrics(self) -> dict[str, float]:
        """Returns shares of the completions that the reward applies to, and the latency in seconds."""
        here = [verdict for verdict, applies in zip(self.verdicts, self.applies, strict=True) if applies]
        if not here:
            return {}
        kinds = [verdict.failure for verdict in here]
        return {
            "unscored": sum(verdict.value is None for verdict in here) / len(here),
            "timeouts": kinds.count("timeout") / len(here),
            "errors": (kinds.count("error") + kinds.count("crash")) / len(here),
            "cache_hits": self.cache_hits / len(here),
            "latency_s": self.latency_s,
        }


class Reward(ABC):
    """What verifiers and their combinations have in common: a name, and verdicts for a batch.

    Args:
        name: Name in metrics and in the completion log.
        columns: Dataset columns that it needs.
        accuracy: Whether the value says how many answers are right, so that its mean is an accuracy.
        same: Whether two extracted answers are equal, for votes.
    """

    def __init__(self, name: str, columns: Sequence[str] = (), accuracy: bool = False, same: Same = same_text) -> None:
        self.__name__ = name  # TRL names its metrics after this
        self.columns = tuple(columns)
        self.accuracy = accuracy
        self.same = same
        self.runtime: Runtime | None = None  # set once, by the trainer or whoever builds it
        self.together: Any = None  # the rewards that are asked for the same batches
        self.run_names: frozenset[str] | None = None  # the names of all rewards of the run, to check rows against

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__name__})"

    @abstractmethod
    def score(self, completions: Sequence[Any], rows: Sequence[Row]) -> Scored:
        """Returns the verdicts on a batch, with what it took; never raises for what a verifier does.

        Args:
            completions: Strings or messages.
            rows: The row of each completion: the dataset's columns and `prompt`; `completion_ids` where known.
        """

    def parts(self) -> Sequence[Reward]:
        """Returns the rewards that this one is made of."""
        return ()

    @property
    def names(self) -> frozenset[str]:
        """The names by which a row's `reward` column asks for it."""
        return frozenset({self.__name__}).union(*(part.names for part in self.parts()))

    @property
    def on_device(self) -> bool:
        """Whether it computes on the trainer's device, in the trainer's thread."""
        return any(part.on_device for part in self.parts())

    @property
    def waits(self) -> bool:
        """Whether it waits for workers or for something outside, and not for this process."""
        return any(part.waits for part in self.parts())

    def verdicts(self, completions: Sequence[Any], rows: Sequence[Row]) -> list[Verdict]:
        """Returns the verdict on each completion, in order; never raises for what a verifier does."""
        return self.score(completions, rows).verdicts

    def verdict(self, completion: Any, row: Row) -> Verdict:
        """Returns the verdict on one completion (a string or messages)."""
        return self.score([completion], [row]).verdicts[0]

    def standing_metrics(self) -> dict[str, float]:
        """Returns what verifiers say of themselves in every step, by their `metrics()` where they have it."""
        return {key: value for part in self.parts() for key, value in part.standing_metrics().items()}

    def to(self, device: Any) -> None:
        """Moves what computes on a device there."""
        for part in self.parts():
            part.to(device)

    def start(self) -> None:
        """Starts what it needs in the background, so that the first batch does not wait for it."""
        for part in self.parts():
            part.start()

    def bind(self, runtime: Runtime) -> None:
        """Makes it use a runtime, unless it has one."""
        if self.runtime is None:
            self.runtime = runtime
        for part in self.parts():
            part.bind(runtime)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Returns one value per completion, `None` where it could not be scored: a reward function in TRL's form.

        Args:
            prompts: The prompt of each completion.
            completions: The completions, B*G of them.
            log_extra: TRL's hook for columns of the completion log.
            log_metric: TRL's hook for metrics.
            **columns: The dataset's columns, each a list with one entry per completion, and what else TRL passes.

        Raises:
            UserError: A row asks for rewards that the run does not have.
            RewardFailure: More completions failed than the settings allow; the message shows the first ones.
        """
        per_row = {k: v for k, v in columns.items() if isinstance(v, list) and len(v) == len(completions)}
        rows = [{"prompt": p, **{k: v[i] for k, v in per_row.items()}} for i, p in enumerate(prompts)]
        self._check_routes(rows)
        if self.together is not None:
            scored = self.together.score(self, completions, rows)
        else:
            scored = self.score(completions, rows)
        if log_extra is not None:
            log_extra(f"{self.__name__}_answer", [v.answer for v in scored.verdicts])
            log_extra(f"{self.__name__}_reason", [v.reason for v in scored.verdicts])
        if log_metric is not None:
            for key, value in {**scored.metrics(), **self.standing_metrics()}.items():
                log_metric(f"rewards/{self.__name__}/{key}", value)
        self.check_failures(scored, completions)
        return [verdict.value for verdict in scored.verdicts]

    def _check_routes(self, rows: Sequence[Row]) -> None:
        for row in rows:
            asked = wanted(row)
            if self.run_names is not None and asked and self.run_names.isdisjoint(asked):
                known = ", ".join(sorted(self.run_names))
                raise UserError(
                    f"a row's column `reward` asks for {', '.join(asked)}, and the run has {known}"
                    f"{did_you_mean(asked[0], self.run_names)}: no reward would apply to it"
                )

    def check_failures(self, scored: Scored, completions: Sequence[Any]) -> None:
        """Raises where a larger share of a batch failed than the settings allow.

        Raises:
            RewardFailure: With the first failures: their reasons and completions.
        """
        failed, asked = scored.failures(), sum(scored.applies)
        most = (self.runtime or default_runtime()).settings.max_failures
        if not asked or len(failed) <= most * asked:
            return
        cases = []
        for index in failed[:_SHOWN_FAILURES]:
            try:
                text = completion_text(completions[index])
            except TypeError:
                text = repr(completions[index])
            cases.append(f"  {scored.verdicts[index].reason}\n    completion: {text[:200]!r}")
        raise RewardFailure(
            f"reward `{self.__name__}` failed on {len(failed)} of {asked} completions, more than reward_max_failures="
            f"{most:g} allows. The first ones:\n" + "\n".join(cases)
        )


class RewardFunction(Reward):
    """A verifier as a reward function: called with lists by a trainer, verifies each completion by itself.

    Made by `build_rewards` from a name, or by hand from a function, which then runs in the caller's process.

    Args:
        name: Name in metrics and in the completion log.
        verify: `(completion, row) -> Verdict`, or an object with `verify_batch(completions, rows)`.
        columns: Dataset columns that `verify` needs.
        accuracy: Whether the value says how many answers are right, so that its mean is an accuracy.
        same: Whether two extracted answers are equal, for votes.
    """

    def __init__(
        self,
        name: str,
        verify: Verify | Any,
        columns: Sequence[str] = (),
        accuracy: bool = False,
        same: Same = same_text,
    ) -> None:
        super().__init__(name, columns, accuracy, same)
        self.runs: Runs = "inline"
        self._made: Any = verify
        self.verify = as_verify(verify)
        self._names = frozenset({name})
        self._reads: tuple[str, ...] | None = None
        self._spec: Spec | None = None
        self._same_spec: Spec | None = None
        self._digest: bytes | None = None

    @classmethod
    def of_entry(cls, entry: Entry, options: Mapping[str, Any], name: str | None = None) -> RewardFunction:
        """Returns the reward function of a verifier with its options set.

        Args:
            entry: The verifier, registered or not.
            options: Its options.
            name: Name in metrics; the entry's by default.

        Raises:
            UserError: An option is unknown, missing or cannot work.
        """
        options = entry.check(options)
        made = entry.make(**options)
        columns = getattr(made, "columns", None)
        if columns is None:
            columns = [options.get("column", column) for column in entry.columns]
        self = cls(name or entry.name, made, columns, entry.accuracy, entry.same)
        self._names = frozenset({self.__name__, entry.name, *entry.aliases})
        self.runs = entry.runs
        optional = (*entry.optional, *getattr(made, "optional", ()))
        if entry.columns or optional:
            self._reads = (*self.columns, *optional)
        if entry.runs == "pool":
            try:
                self._spec = spec_of(entry.name, entry.target, options, entry.imports)
            except CannotSend as problem:
                logger.warning(
                    "reward `%s` runs in the trainer's process, without a time limit: it cannot be sent to a worker "
                    "(%s). Put it into a module of its own, and name it `module:%s`.",
                    self.__name__,
                    problem,
                    getattr(entry.target, "__qualname__", entry.name),
                )
                self.runs = "inline"
        if self._spec is not None and entry.same is not same_text:
            self._same_spec = spec_of(entry.name, _Same, {"same": entry.same}, entry.imports)
            self.same = self._same_in_worker
        if entry.cache and self.runs != "inline":
            self._digest = _digest(entry, options)
        return self

    @property
    def names(self) -> frozenset[str]:
        """The names by which a row's `reward` column asks for it."""
        return self._names

    @property
    def on_device(self) -> bool:
        """Whether it computes on the trainer's device, in the trainer's thread."""
        return self.runs == "batch"

    @property
    def waits(self) -> bool:
        """Whether it waits for workers or for something outside, and not for this process."""
        return self.runs in ("pool", "thread")

    def standing_metrics(self) -> dict[str, float]:
        """Returns what the verifier says of itself."""
        return dict(self._made.metrics()) if hasattr(self._made, "metrics") else {}

    def to(self, device: Any) -> None:
        """Moves the verifier to a device, where it has one."""
        if self.on_device and hasattr(self._made, "to"):
            self._made.to(device)

    def start(self) -> None:
        """Starts the workers in the background, where it runs in them."""
        if self._spec is not None:
            (self.runtime or default_runtime()).pool.start(self._spec)

    def score(self, completions: Sequence[Any], rows: Sequence[Row]) -> Scored:
        """Returns the verdicts on a batch, with what it took; never raises for what the verifier does."""
        began = time.perf_counter()
        runtime = self.runtime or default_runtime()
        verdicts: list[Verdict | None] = [None] * len(completions)
        applies = [routed_here(self.names, row) for row in rows]
        items: dict[int, tuple[str, Row]] = {}
        for i, (completion, row) in enumerate(zip(completions, rows, strict=True)):
            if not applies[i]:
                verdicts[i] = Verdict.unscored(f"the row asks for {row['reward']}")
                continue
            try:
                items[i] = (completion_text(completion), self._shown(row))
            except TypeError as error:
                verdicts[i] = Verdict.failed(f"TypeError: {error}")
        cache = runtime.cache if self._digest is not None else None
        if cache is None or self._digest is None:
            for i, verdict in zip(items, self._verify_all(list(items.values()), runtime), strict=True):
                verdicts[i] = verdict
            hits = 0
        else:
            keys = {i: verdict_key(self._digest, *item) for i, item in items.items()}
            known = cache.get_many([key for key in keys.values() if key is not None])
            fresh: dict[Any, int] = {}  # key, or the index where there is none -> index of one that has it
            for i, key in keys.items():
                if key not in known:
                    fresh.setdefault(i if key is None else key, i)
            asked = list(fresh.values())
            found = dict(zip(asked, self._verify_all([items[i] for i in asked], runtime), strict=True))
            cache.put_many([(key, found[i]) for key, i in fresh.items() if isinstance(key, bytes)])
            for i, key in keys.items():
                verdicts[i] = known[key] if key in known else found[fresh[i if key is None else key]]
            hits = len(items) - len(asked)
        done = [verdict for verdict in verdicts if verdict is not None]
        return Scored(done, applies, hits, time.perf_counter() - began)

    def _shown(self, row: Row) -> Row:
        """Returns the columns that the verifier reads: so it is cached by them, and sent no more than them."""
        return row if self._reads is None else {name: row[name] for name in self._reads if name in row}

    def _verify_all(self, items: list[tuple[str, Row]], runtime: Runtime) -> list[Verdict]:
        if not items:
            return []
        if self._spec is not None and self.runs == "pool":
            return runtime.pool.run(self._spec, items, runtime.settings.timeout_s)
        if self.runs == "batch":
            return self._verify_batch(items)
        if self.runs == "thread":
            return verify_in_threads(self._verify_here, items)
        return [self._verify_here(*item) for item in items]

    def _same_in_worker(self, a: str, b: str) -> bool:
        """Returns whether two answers are equal; where that is not decided in time, they are not."""
        assert self._same_spec is not None
        runtime = self.runtime or default_runtime()
        (verdict,) = runtime.pool.run(self._same_spec, [(a, b)], runtime.settings.timeout_s)
        return verdict.value == 1.0

    def _verify_here(self, completion: str, row: Row) -> Verdict:
        try:
            return as_verdict(self.verify(completion, row))
        except Exception as error:
            return Verdict.failed(f"{type(error).__name__}: {error}"[:500])

    def _verify_batch(self, items: list[tuple[str, Row]]) -> list[Verdict]:
        try:
            returned = self._made.verify_batch([text for text, _ in items], [row for _, row in items])
            verdicts = [as_verdict(one) for one in returned]
            if len(verdicts) != len(items):
                raise ValueError(f"verify_batch returned {len(verdicts)} verdicts for {len(items)} completions")
            return verdicts
        except Exception as error:
            return [Verdict.failed(f"{type(error).__name__}: {error}"[:500])] * len(items)


class _Same:
    """Equality of answers as a verifier, for a worker: what is hard to verify is hard to compare."""

    def __init__(self, same: Same) -> None:
        self.same = same

    def verify(self, completion: str, row: Any) -> float:
        """Returns 1.0 where the two answers, the second in the row's place, are equal."""
        return float(bool(self.same(completion, row)))


def _digest(entry: Entry, options: Mapping[str, Any]) -> bytes | None:
    """Returns what tells a verifier with its options from all others, also from its own earlier versions."""
    versions = {}
    for module in entry.imports:
        package = module.partition(":")[0].partition(".")[0]
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    try:
        text = json.dumps([entry.name, entry.version, dict(options), versions], sort_keys=True)
    except (TypeError, ValueError):
        return None  # an option that has no text: not cached
    return hashlib.sha256(f"{text}\n{source_digest(entry.target)}".encode()).digest()
