"""`MemoryProfile`: what a profiled run held, phase by phase, as a record that goes to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .categories import Category, Phase
from .recorders import Sample
from .tracker import Peak

MIB = 2**20


@dataclass(frozen=True)
class PhaseRecord:
    """One phase of a run.

    Args:
        peak: The most that was alive during it, by category.
        calls: How often it began.
        seconds: Time spent in it, without phases inside of it; on CUDA the host's, which runs ahead of the device.
    """

    peak: Peak
    calls: int
    seconds: float


@dataclass(frozen=True)
class MemoryProfile:
    """A profile of a run.

    Args:
        device: Such as `cpu`, or the name of the GPU.
        backend: What measured: `allocator statistics` or `storage tracker`.
        phases: The phases that ran.
        steps: Optimizer steps.
        seconds: From start to end.
        overhead_s: What the profiling itself cost at least, within `seconds`.
        peak_reserved_bytes: The most that CUDA's allocator held of the device; 0 elsewhere.
        timeline: What was alive when.
        about: The trainer, and what else tells runs apart.
    """

    device: str
    backend: str
    phases: Mapping[Phase, PhaseRecord]
    steps: int
    seconds: float
    overhead_s: float
    peak_reserved_bytes: int = 0
    timeline: list[Sample] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def peak_phase(self) -> Phase:
        """The phase that holds most."""
        return max(self.phases, key=lambda phase: self.phases[phase].peak.total_bytes, default=Phase.OTHER)

    @property
    def peak(self) -> Peak:
        """The most that was alive, by category."""
        return self.phases[self.peak_phase].peak if self.phases else Peak(0, {})

    @property
    def peak_mib(self) -> float:
        """The most that was alive, in MiB."""
        return self.peak.total_bytes / MIB

    def to_json(self) -> dict[str, Any]:
        """Returns plain values; sizes in MiB."""
        return {
            "device": self.device,
            "backend": self.backend,
            "peak_mib": self.peak_mib,
            "peak_phase": self.peak_phase,
            "peak_reserved_mib": self.peak_reserved_bytes / MIB,
            "steps": self.steps,
            "seconds": self.seconds,
            "overhead_s": self.overhead_s,
            "about": dict(self.about),
            "phases": {
                phase: {
                    "peak_mib": record.peak.total_bytes / MIB,
                    "by_category_mib": _mib(record.peak.by_category),
                    "calls": record.calls,
                    "seconds": record.seconds,
                }
                for phase, record in self.phases.items()
            },
            "timeline": [
                [round(s.time_s, 4), s.phase, s.total_bytes / MIB, _mib(s.by_category)] for s in self.timeline
            ],
        }

    def save(self, path: Path) -> None:
        """Writes the JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> MemoryProfile:
        """Returns the profile of `to_json`."""
        phases = {
            Phase(name): PhaseRecord(
                Peak(round(each["peak_mib"] * MIB), _bytes(each["by_category_mib"])), each["calls"], each["seconds"]
            )
            for name, each in record["phases"].items()
        }
        timeline = [Sample(t, Phase(phase), round(mib * MIB), _bytes(by)) for t, phase, mib, by in record["timeline"]]
        return cls(
            record["device"],
            record["backend"],
            phases,
            record["steps"],
            record["seconds"],
            record["overhead_s"],
            round(record["peak_reserved_mib"] * MIB),
            timeline,
            record["about"],
        )

    @classmethod
    def load(cls, path: Path) -> MemoryProfile:
        """Returns the profile in a file."""
        return cls.from_json(json.loads(path.read_text()))


def _mib(by_category: Mapping[Category, int]) -> dict[str, float]:
    return {str(category): size / MIB for category, size in by_category.items()}


def _bytes(by_category: Mapping[str, float]) -> dict[Category, int]:
    return {Category(name): round(mib * MIB) for name, mib in by_category.items()}
