"""What a checkpoint must hold besides the Trainer's own files, so that a resumed run goes on as if never stopped.

TRL reuses one rollout for several optimizer steps and does not save it: a run that resumes between two of them samples
another one, and counts its steps from 0. And the sampler shuffles by a generator that starts anew, so that every
resumed epoch is the first epoch's order. Each process writes and reads its own rollout.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


def rollout_file(checkpoint: Path, process_index: int) -> Path:
    """Returns where a process keeps its rollout in a checkpoint."""
    return checkpoint / f"rollout_{process_index}.pt"


def save_rollout(file: Path, step: int, micro_batches: list[dict[str, Any]] | None, cycle: int) -> None:
    """Writes how many micro-batches have been run, and the rollout if it is not used up.

    Args:
        file: From `rollout_file`.
        step: Micro-batches since the training began (TRL's `_step`).
        micro_batches: The rollout in micro-batches (TRL's `_buffered_inputs`).
        cycle: Micro-batches that one rollout serves.
    """
    torch.save({"step": step, "cycle": cycle, "micro_batches": micro_batches if step % cycle else None}, file)


def load_rollout(file: Path, device: torch.device, cycle: int) -> tuple[int, list[dict[str, Any]] | None]:
    """Returns (step, micro-batches) of `save_rollout`; (0, `None`) where there is none that fits this run."""
    if not file.exists():
        return 0, None
    saved = torch.load(file, map_location=device, weights_only=True)
    return (saved["step"], saved["micro_batches"]) if saved["cycle"] == cycle else (0, None)


def epochs_done(checkpoint: Path) -> int:
    """Returns how many epochs of the data a checkpoint's run had finished."""
    return int(json.loads((checkpoint / "trainer_state.json").read_text())["epoch"] or 0)
