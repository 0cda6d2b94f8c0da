"""What a checkpoint must hold besides the Trainer's own files, so that a resumed run goes on as if never stopped.

TRL reuses one rollout for several optimizer steps and does not save it: a run that resumes between two of them samples
another one, and counts its steps from 0. And the sampler shuffles by a generator that starts anew, so that every
resumed epoch is the first epoch's order. Each process writes and reads its own rollout.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


def rollout_file(checkpoint: Path, process_index: int) -> Path:
    """Returns where a process keeps its rollout in a checkpoint."""
    return checkpoint / f"rollout_{process_index}.pt"


@dataclass(frozen=True)
class Plan:
    """How a rollout is used; one that was made for another plan is of no use.

    Args:
        micro_batches: That a rollout is cut into.
        passes: Over all of them.
        processes: That each have a part of the rollout.
    """

    micro_batches: int
    passes: int
    processes: int


def save_rollout(file: Path, step: int, micro_batches: list[dict[str, Any]] | None, plan: Plan) -> None:
    """Writes how many micro-batches have been run, and the rollout if it is not used up.

    Args:
        file: From `rollout_file`.
        step: Micro-batches since the training began (TRL's `_step`).
        micro_batches: The rollout in micro-batches (TRL's `_buffered_inputs`).
        plan: How the rollout is used.
    """
    used_up = step % (plan.micro_batches * plan.passes) == 0
    torch.save({"step": step, "plan": asdict(plan), "micro_batches": None if used_up else micro_batches}, file)


def load_rollout(file: Path, device: torch.device, plan: Plan) -> tuple[int, list[dict[str, Any]] | None]:
    """Returns (step, micro-batches) of `save_rollout`; (0, `None`) where there is none for this plan."""
    if not file.exists():
        return 0, None
    saved = torch.load(file, map_location=device, weights_only=True)
    return (saved["step"], saved["micro_batches"]) if saved["plan"] == asdict(plan) else (0, None)


def last_whole_checkpoint(output: Path) -> Path | None:
    """Returns the latest checkpoint in a run's directory that was written to its end, or `None`.

    The trainer's state is what is written last: without it, or with half of it, the process died while saving.
    """
    found = [each for each in output.glob("checkpoint-*") if each.name.removeprefix("checkpoint-").isdigit()]
    for checkpoint in sorted(found, key=lambda each: -int(each.name.removeprefix("checkpoint-"))):
        try:
            json.loads((checkpoint / "trainer_state.json").read_text())
        except (OSError, ValueError):
            continue
        return checkpoint
    return None


def epochs_done(checkpoint: Path) -> int:
    """Returns how many epochs of the data a checkpoint's run had finished."""
    return int(json.loads((checkpoint / "trainer_state.json").read_text())["epoch"] or 0)
