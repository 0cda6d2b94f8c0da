"""Plans as rich tables: phases by category, GRPO beside PPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from .categories import Category
from .devices import GIB, MIB
from .plan import Plan

_ALGORITHMS = {
    "grpo": "GRPO",
    "ppo": "PPO",
    "sft": "SFT",
    "reward_model": "reward model",
    "rejection_sampling": "rejection sampling",
}
_SHOWN = {
    "weights": (Category.WEIGHTS_TRAINABLE, Category.WEIGHTS_FROZEN),
    "reference": (Category.REFERENCE,),
    "critic": (Category.CRITIC,),
    "reward model": (Category.REWARD_MODEL,),
    "gradients": (Category.GRADIENTS,),
    "optimizer": (Category.OPTIMIZER,),
    "activations": (Category.ACTIVATIONS, Category.OTHER),
    "weight copies": (Category.WEIGHT_CASTS,),
    "LM head": (Category.LM_HEAD,),
    "KV cache": (Category.KV_CACHE,),
}


def size_text(size: float, unit: int) -> str:
    """Returns bytes in GiB or MiB, two digits behind the point where they say something."""
    value = size / unit
    return f"{value:.2f}" if value < 100 else f"{value:.1f}"


def unit_of(size: float) -> tuple[int, str]:
    """Returns the unit that a size reads best in, and its name."""
    return (GIB, "GiB") if size >= GIB else (MIB, "MiB")


def plan_table(plan: Plan) -> Table:
    """Returns a row per phase and a column per category that occurs; the limiting phase is marked."""
    unit, name = unit_of(plan.peak)
    names = [n for n, group in _SHOWN.items() if any(alive.get(c) for alive in plan.phases.values() for c in group)]
    table = Table(title=title_of(plan), title_justify="left", caption=f"{name} at the peak of each phase")
    table.add_column("phase", no_wrap=True)
    for each in names:
        table.add_column(each, justify="right")
    table.add_column("total", justify="right")
    for phase, alive in plan.phases.items():
        cells = [sum(alive.get(c, 0) for c in _SHOWN[each]) for each in names]
        style = "bold" if phase is plan.limiting_phase else ""
        texts = [size_text(size, unit) if size else "" for size in cells]
        table.add_row(str(phase), *texts, size_text(plan.totals[phase], unit), style=style)
    return table


def title_of(plan: Plan) -> str:
    """Returns what was planned, in a line."""
    s = plan.setting
    if s.rl:
        shape = f"prompt {s.prompt}, completion {s.completion}, group {s.group}, micro-batch {s.batch} x {s.steps}"
    elif s.trains:
        shape = f"{'rows' if s.algorithm == 'sft' else 'pairs'} of {s.span} tokens, micro-batch {s.batch} x {s.steps}"
    else:
        shape = f"prompt {s.prompt}, completion {s.completion}, {s.group} per prompt, {s.batch} at once"
    parts = [
        f"{s.geometry.name} ({s.geometry.parameters / 1e9:.2f} billion parameters)",
        _ALGORITHMS[s.algorithm] + (f", critic {s.critic}" if s.ppo else ""),
        s.mode if s.mode != "full" else f"full, {s.dtype}",
        shape,
    ]
    if s.gpus > 1:
        parts.append(f"each of {s.gpus} GPUs")
    return "; ".join(parts)


def verdict(plan: Plan) -> list[str]:
    """Returns what a plan comes to, some lines."""
    unit, name = unit_of(plan.peak)
    method = "simulated" if plan.exact else "closed form"
    lines = [f"Peak {size_text(plan.peak, unit)} {name} of tensors, in {plan.limiting_phase} ({method})."]
    if plan.overhead_bytes:
        lines.append(
            f"With {size_text(plan.overhead_bytes, unit)} {name} set aside for CUDA (an allowance for context and "
            f"fragmentation): {size_text(plan.needed, unit)} {name}."
        )
    if plan.device_bytes is not None:
        there = f"{size_text(plan.device_bytes, unit)} {name} of {plan.device_name}"
        lines.append(f"Fits in the {there}." if plan.fits else f"Does not fit in the {there}.")
    if plan.limits is not None:
        lines.append("Each by itself, the rest as planned: " + ", ".join(_limit_texts(plan)) + ".")
    return [*lines, *(f"Note: {note}." for note in plan.notes)]


def _limit_texts(plan: Plan) -> list[str]:
    limits = plan.limits
    assert limits is not None
    texts = []
    names = {"batch": "micro-batch" if plan.setting.trains else "completions at once", "completion": "completion"}
    names |= {"group": "group"} if plan.setting.rl else {}
    for field, what in names.items():
        value = getattr(limits, field)
        if value is None:
            texts.append(f"no {what} fits")
        else:
            texts.append(f"{what} {'at least' if field in limits.capped else 'up to'} {value}")
    return texts


def comparison_table(plans: Mapping[str, Mapping[str, Plan]]) -> Table:
    """Returns a row per mode and a column per layout: needed GiB, and the ratio to GRPO."""
    layouts = list(next(iter(plans.values())))
    first: Any = next(iter(next(iter(plans.values())).values()))
    s = first.setting
    table = Table(
        title=f"{s.geometry.name}: prompt {s.prompt}, completion {s.completion}, group {s.group}, "
        f"micro-batch {s.batch} x {s.steps}",
        title_justify="left",
        caption="Peak of tensors in GiB (times GRPO's), without CUDA's allowance"
        + (", * does not fit with it" if first.device_bytes else ""),
    )
    table.add_column("mode")
    for layout in layouts:
        table.add_column(layout, justify="right")
    for mode, row in plans.items():
        grpo = row["grpo"].peak
        cells = []
        for layout, plan in row.items():
            ratio = "" if layout == "grpo" else f" ({plan.peak / grpo:.2f}x)"
            cells.append(f"{size_text(plan.peak, GIB)}{ratio}{'*' if plan.fits is False else ''}")
        table.add_row(mode, *cells)
    return table
