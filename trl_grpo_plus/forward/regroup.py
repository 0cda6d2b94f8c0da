"""Keep the completions of one prompt together when a generation batch is cut into micro-batches.

TRL shuffles single rows over the generation batch and cuts it into `steps_per_generation` micro-batches, which
scatters a group, so that its prompt would have to be run in many of them. The gradient of an optimizer step is a sum
over the rows of its micro-batches: rows can trade places within a step without changing it (losses that average over
the tokens of a micro-batch excepted, see `composition_reason`). So every optimizer step keeps the rows that TRL gave
it, every micro-batch its size, and within a step rows of one prompt move together.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch


def optimizer_steps(
    steps_per_generation: int, gradient_accumulation_steps: int, num_iterations: int = 1, first_step: int = 0
) -> list[int]:
    """The optimizer step that each micro-batch of a generation batch falls into.

    Micro-batches get the same number only if they share an optimizer step in every one of the `num_iterations` passes
    over the batch, so trading rows between them is exact in all.

    Args:
        steps_per_generation: Micro-batches of a generation batch.
        gradient_accumulation_steps: Micro-batches of an optimizer step.
        num_iterations: Passes over the generation batch.
        first_step: Micro-batches run before this generation batch since accumulation began.
    """
    seen: dict[tuple[int, ...], int] = {}
    return [
        seen.setdefault(
            tuple(
                (first_step + iteration * steps_per_generation + micro_batch) // gradient_accumulation_steps
                for iteration in range(num_iterations)
            ),
            len(seen),
        )
        for micro_batch in range(steps_per_generation)
    ]


def composition_reason(
    loss_type: str, *, top_entropy_quantile: float = 1.0, entropy_bonus: bool = False, aux_loss: bool = False
) -> str | None:
    """Why the gradient of an optimizer step depends on which rows share a micro-batch, or `None`."""
    if loss_type == "bnpo":
        return "loss_type='bnpo' averages over the tokens of a micro-batch"
    if top_entropy_quantile < 1.0:
        return "top_entropy_quantile takes its threshold from a micro-batch"
    if entropy_bonus:
        return "the entropy bonus averages over the tokens of a micro-batch"
    if aux_loss:
        return "the load-balancing loss is that of a micro-batch"
    return None


def grouped_permutation(prompts: Sequence[Hashable], steps: Sequence[int]) -> list[int]:
    """Order of the rows in which rows of one prompt share micro-batches as far as they can.

    Args:
        prompts: For each row, in TRL's order, what identifies its prompt.
        steps: For each micro-batch, the optimizer step it belongs to (`optimizer_steps`).

    Returns:
        Indices into the rows. Cut into `len(steps)` equal parts, each optimizer step has the rows it had before.

    Raises:
        ValueError: The rows cannot be cut into `len(steps)` equal parts.
    """
    size, rest = divmod(len(prompts), len(steps))
    if rest or not size:
        raise ValueError(f"{len(prompts)} rows cannot be cut into {len(steps)} equal micro-batches")
    micro_batches: list[list[int]] = [[] for _ in steps]
    members: dict[int, list[int]] = defaultdict(list)
    for micro_batch, step in enumerate(steps):
        members[step].append(micro_batch)
    for step_micro_batches in members.values():
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for micro_batch in step_micro_batches:
            for row in range(micro_batch * size, (micro_batch + 1) * size):
                groups[prompts[row]].append(row)
        _fill(list(groups.values()), [micro_batches[i] for i in step_micro_batches], size)
    return [row for micro_batch in micro_batches for row in micro_batch]


def _fill(groups: list[list[int]], micro_batches: list[list[int]], size: int) -> None:
    """Best fit, largest first. What fits nowhere fills the emptiest micro-batch, and its remainder queues again."""
    while groups:
        groups.sort(key=len)
        rows = groups.pop()
        room = [size - len(micro_batch) for micro_batch in micro_batches]
        fitting = [i for i, free in enumerate(room) if free >= len(rows)]
        best = min(fitting, key=room.__getitem__) if fitting else max(range(len(room)), key=room.__getitem__)
        micro_batches[best].extend(rows[: room[best]])
        if len(rows) > room[best]:
            groups.append(rows[room[best] :])


def regroup(batches: Sequence[Mapping[str, Any]], steps: Sequence[int]) -> list[dict[str, Any]]:
    """Trade rows between micro-batches so that those of one prompt are together.

    Args:
        batches: TRL's micro-batches, in the order they are run. Every tensor with dimensions and every list has one
            entry per row; anything else is the same in all of them.
        steps: The optimizer step of each.
    """
    ids, mask = (torch.cat([batch[key] for batch in batches]).cpu() for key in ("prompt_ids", "prompt_mask"))
    prompts = [row[real].numpy().tobytes() for row, real in zip(ids, mask != 0, strict=True)]
    order = grouped_permutation(prompts, steps)
    size = len(order) // len(batches)
    result: list[dict[str, Any]] = [{} for _ in batches]
    for key, value in batches[0].items():
        values = [batch[key] for batch in batches]
        joined: Any
        if isinstance(value, torch.Tensor) and value.ndim > 0:
            joined = torch.cat(values)[torch.tensor(order, device=value.device)]
        elif isinstance(value, list):
            rows = [item for part in values for item in part]
            joined = [rows[i] for i in order]
        else:
            for batch, original in zip(result, values, strict=True):
                batch[key] = original
            continue
        for i, batch in enumerate(result):
            batch[key] = joined[i * size : (i + 1) * size]
    return result
