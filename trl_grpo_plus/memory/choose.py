"""`memory_mode="auto"`: the first mode that fits at the user's micro-batch, then the largest micro-batch.

    full -> lora -> qlora      more is trained in the first than in the last, and it costs more

The completions of an optimizer step stay as many as they were: a larger micro-batch takes fewer steps of accumulation.
Where no mode fits, the last one is tried with smaller micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UserError
from .devices import GIB, Overhead
from .plan import Plan, fits_on, largest, plan
from .setting import MODES, Setting


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was chosen.

    Args:
        mode: `full`, `lora` or `qlora`.
        batch: Completions of a micro-batch.
        accumulation: Micro-batches of an optimizer step.
        plan: Of the choice.
        reasons: Why, a line each.
    """

    mode: str
    batch: int
    accumulation: int
    plan: Plan
    reasons: tuple[str, ...]


def choose(
    setting: Setting, free_bytes: int, *, overhead: Overhead | None = None, modes: tuple[str, ...] = MODES
) -> Choice:
    """Chooses a mode and a micro-batch.

    Args:
        setting: The run; its mode is what is chosen, its batch and accumulation are the user's.
        free_bytes: Memory that the run may take.
        overhead: What CUDA takes beside the tensors. On a device that is in use already, its context is part of what
            is not free: give one of `context_bytes=0` then.
        modes: Candidates, the first that fits is taken.

    Raises:
        UserError: Nothing fits, not even a single completion at a time; says what is needed.
    """
    overhead = overhead or Overhead()
    fits = fits_on(free_bytes, overhead)
    rows, generated = setting.batch * setting.steps, setting.rows
    reasons = []
    larger = [b for b in range(setting.batch, rows + 1) if rows % b == 0]
    smaller = [b for b in range(1, setting.batch) if rows % b == 0]

    def at(mode: str, batch: int) -> Setting:
        return setting.but(mode=mode, batch=batch, accumulation=rows // batch, steps_per_generation=generated // batch)

    def largest_batch(mode: str, sizes: list[int]) -> int | None:
        return largest(sizes, lambda batch: fits(at(mode, batch)))

    for mode in modes:
        batch = largest_batch(mode, larger)
        if batch is not None:
            break
        needed = plan(at(mode, setting.batch), overhead=overhead, limits=False).needed
        reasons.append(
            f"{mode} needs {needed / GIB:.1f} GiB at a micro-batch of {setting.batch}, and {free_bytes / GIB:.1f} GiB "
            "are free"
        )
    else:
        batch = largest_batch(mode, smaller)
        if batch is None:
            least = plan(at(mode, 1), overhead=overhead, limits=False)
            raise UserError(
                f"memory_mode: not even {mode} with a micro-batch of 1 fits: it needs {least.needed / GIB:.1f} GiB in "
                f"{least.limiting_phase}, and {free_bytes / GIB:.1f} GiB are free. Shorten max_completion_length, "
                "lower num_generations, or take a smaller model"
            )
    chosen = plan(at(mode, batch), gpu=free_bytes, overhead=overhead, limits=False)
    reasons.append(
        f"{mode} with a micro-batch of {batch} x {rows // batch} needs {chosen.needed / GIB:.1f} GiB, most of it in "
        f"{chosen.limiting_phase}"
    )
    return Choice(mode=mode, batch=batch, accumulation=rows // batch, plan=chosen, reasons=tuple(reasons))
