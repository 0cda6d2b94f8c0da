"""What measures a phase: CUDA's allocator, or the storage tracker where there is none.

Both answer the same questions: the peak of each phase since last asked, what it was made of, and a timeline. Regions
nest, and a peak belongs to the innermost one.

    recorder            peaks                              categories
    AllocatorRecorder   the allocator's own, exact         weights, gradients and optimizer state by their sizes; what
                                                           else was alive counts as activations, or as other
    TrackerRecorder     live storages, at every operation  of each storage
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .categories import Category, Phase
from .tracker import Peak, StorageTracker

_MAX_SAMPLES = 2000
_WITH_ACTIVATIONS = frozenset(
    {
        Phase.PREFILL,
        Phase.DECODE,
        Phase.REFERENCE,
        Phase.OLD_LOGPROBS,
        Phase.CRITIC_VALUES,
        Phase.FORWARD,
        Phase.CRITIC,
        Phase.BACKWARD,
    }
)


@dataclass(frozen=True)
class Sample:
    """A point of the timeline: what was alive at `time_s` seconds after the start, in which phase."""

    time_s: float
    phase: Phase
    total_bytes: int
    by_category: Mapping[Category, int]


class AllocatorStats(Protocol):
    """The four numbers of a caching allocator that a profile needs, in bytes."""

    def allocated(self) -> int:
        """Returns what tensors hold now."""

    def peak_allocated(self) -> int:
        """Returns the most that they held since the last reset."""

    def peak_reserved(self) -> int:
        """Returns the most that the allocator held of the device since the last reset."""

    def reset(self) -> None:
        """Sets both peaks to what is held now."""


class CudaStats:
    """PyTorch's allocator on one CUDA device. A profile resets its peaks: other readers of them see a phase's only."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def allocated(self) -> int:
        """Returns what tensors hold now."""
        return torch.cuda.memory_allocated(self.device)

    def peak_allocated(self) -> int:
        """Returns the most that they held since the last reset."""
        return torch.cuda.max_memory_allocated(self.device)

    def peak_reserved(self) -> int:
        """Returns the most that the allocator held of the device since the last reset."""
        return torch.cuda.max_memory_reserved(self.device)

    def reset(self) -> None:
        """Sets both peaks to what is held now."""
        torch.cuda.reset_peak_memory_stats(self.device)


class Recorder(ABC):
    """What both recorders have in common: the clock of the phases, and the timeline."""

    backend = ""
    peak_reserved_bytes = 0

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {}
        self.calls: dict[Phase, int] = {}
        self.samples: list[Sample] = []
        self._open: list[Phase] = [Phase.OTHER]
        self._started = self._mark = time.perf_counter()
        self._step_bytes = 0  # two samples of a phase differ by at least this
        self._highest = 0

    @property
    def phase(self) -> Phase:
        """The innermost open phase."""
        return self._open[-1]

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within, memory is watched; may be nested."""
        yield

    @abstractmethod
    def region(self, phase: Phase | None = None, category: Category | None = None) -> AbstractContextManager[None]:
        """Within, peaks and time belong to `phase`, and new storages to `category`."""

    @abstractmethod
    def take(self) -> dict[Phase, Peak]:
        """Returns the peak of every phase since the last call."""

    @abstractmethod
    def overhead_s(self) -> float:
        """Returns an estimate of the time that recording has cost, in seconds."""

    def _switch(self, phase: Phase | None) -> None:
        """Enters a phase, or leaves the innermost one where `phase` is `None`; its time is that without inner ones."""
        now = time.perf_counter()
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + now - self._mark
        self._mark = now
        if phase is None:
            self._open.pop()
        else:
            self._open.append(phase)
            self.calls[phase] = self.calls.get(phase, 0) + 1

    def _sample(self, phase: Phase, total: int, by_category: Mapping[Category, int]) -> None:
        """Adds a point to the timeline where it tells something; all are thinned when there are too many."""
        self._highest = max(self._highest, total)
        last = self.samples[-1] if self.samples else None
        if (
            last
            and last.phase is phase
            and abs(total - last.total_bytes) <= max(self._step_bytes, self._highest // 100)
        ):
            return
        alive = {category: size for category, size in by_category.items() if size}
        self.samples.append(Sample(time.perf_counter() - self._started, phase, total, alive))
        if len(self.samples) >= _MAX_SAMPLES:
            self._step_bytes = min(max(2 * self._step_bytes, self._highest // 50), self._highest // 10)
            self.samples = [max(pair, key=lambda sample: sample.total_bytes) for pair in _pairs(self.samples)]


class TrackerRecorder(Recorder):
    """Records with a `StorageTracker`, on any kind of device; its mode is on within `active()` only."""

    backend = "storage tracker"

    def __init__(self, device_type: str = "cpu") -> None:
        super().__init__()
        rounding = 1 if device_type == "cpu" else 512
        self.tracker = StorageTracker(round_to_bytes=rounding, device_type=device_type, on_change=self._changed)
        self._depth = 0
        self._cost_s = _cost_of_an_operation()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within, every operation is seen."""
        if self._depth:
            yield
            return
        self._depth += 1
        try:
            with self.tracker:
                yield
        finally:
            self._depth -= 1

    @contextmanager
    def region(self, phase: Phase | None = None, category: Category | None = None) -> Iterator[None]:
        """Within, peaks and time belong to `phase`, and new storages to `category`."""
        if phase is not None:
            self._switch(phase)
        try:
            with self.tracker.region(phase, category):
                yield
        finally:
            if phase is not None:
                self._switch(None)

    def take(self) -> dict[Phase, Peak]:
        """Returns the peak of every phase since the last call."""
        peaks = self.tracker.phase_peaks
        self.tracker.reset_peaks()
        return peaks

    def overhead_s(self) -> float:
        """Returns the number of operations times the cost of seeing one, measured at the start.

        That is a lower bound: in a real step it takes up to twice as long as in a loop that fits the caches.
        """
        return self.tracker.operations * self._cost_s

    def _changed(self, tracker: StorageTracker) -> None:
        self._sample(tracker.phase, tracker.live_bytes, tracker.by_category)


class AllocatorRecorder(Recorder):
    """Records what the allocator says. Its peak is reset wherever a phase begins or ends.

    Args:
        stats: The allocator's statistics.
        resident: Returns the bytes of what is known to be alive (weights, gradients, optimizer state) by category.
    """

    backend = "allocator statistics"

    def __init__(self, stats: AllocatorStats, resident: Callable[[], dict[Category, int]]) -> None:
        super().__init__()
        self._stats = stats
        self._resident = resident
        self._peaks: dict[Phase, Peak] = {}
        self._own_s = 0.0
        stats.reset()

    @contextmanager
    def region(self, phase: Phase | None = None, category: Category | None = None) -> Iterator[None]:
        """Within, peaks and time belong to `phase`; the category is not used."""
        if phase is None:
            yield
            return
        self._fold()
        self._switch(phase)
        try:
            yield
        finally:
            self._fold()
            self._switch(None)

    def take(self) -> dict[Phase, Peak]:
        """Returns the peak of every phase since the last call."""
        self._fold()
        peaks, self._peaks = self._peaks, {}
        return peaks

    def overhead_s(self) -> float:
        """Returns the time spent on reading the statistics."""
        return self._own_s

    def _fold(self) -> None:
        """Gives the peak since the last reset to the innermost open phase, and starts the next stretch."""
        started = time.perf_counter()
        total = self._stats.peak_allocated()
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self._stats.peak_reserved())
        self._stats.reset()
        known = self._peaks.get(self.phase)
        by_category = self._split(total)
        if known is None or total > known.total_bytes:
            self._peaks[self.phase] = Peak(total, by_category)
        self._sample(self.phase, total, by_category)
        self._own_s += time.perf_counter() - started

    def _split(self, total: int) -> dict[Category, int]:
        """Returns a peak by category; what is resident is that at the end of the stretch, which a phase adds to."""
        rest = total
        found: dict[Category, int] = {}
        for category, size in self._resident().items():
            found[category] = min(size, rest)
            rest -= found[category]
        name = Category.ACTIVATIONS if self.phase in _WITH_ACTIVATIONS else Category.OTHER
        found[name] = found.get(name, 0) + rest
        return {category: size for category, size in found.items() if size}


def _pairs(samples: list[Sample]) -> list[list[Sample]]:
    return [samples[i : i + 2] for i in range(0, len(samples), 2)]


def _cost_of_an_operation(operations: int = 500) -> float:
    """Returns what the tracker adds to one operation, in seconds."""

    def run() -> float:
        x: Any = torch.zeros(1)
        started = time.thread_time()  # a busy machine must not count
        for _ in range(operations):
            x = x + 1
        return time.thread_time() - started

    run()
    plain = min(run() for _ in range(3))
    with StorageTracker(round_to_bytes=1, on_change=lambda tracker: None):
        tracked = min(run() for _ in range(3))
    return max(tracked - plain, 0.0) / operations
