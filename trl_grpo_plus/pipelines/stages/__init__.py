"""The kinds of stages, one file each, with one interface: `run(stage, place, console) -> result`.

A stage works in `place.work`, where it may find what a killed process left, and puts what others take from it into
`place.output`, at once and at the end: an output that is there is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ..spec import StageSpec

Run = Callable[[StageSpec, "Place", Console], dict[str, Any]]


class Interrupted(Exception):
    """The user stopped a stage; it has saved a checkpoint."""


@dataclass(frozen=True)
class Place:
    """Where a stage runs.

    Args:
        directory: The stage's own.
        outputs: Output directory of every stage before it, by name.
    """

    directory: Path
    outputs: Mapping[str, str]

    @property
    def work(self) -> Path:
        """Where it works: checkpoints, logs, samples."""
        return self.directory / "run"

    @property
    def output(self) -> Path:
        """What it leaves for others."""
        return self.directory / "output"


def kind(algorithm: str) -> Run:
    """Returns what runs a stage of this algorithm."""
    if algorithm == "call":
        from .call import run
    elif algorithm == "rejection_sampling":
        from .rejection import run
    else:
        from .training import run
    return run
