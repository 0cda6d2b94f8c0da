"""`plan`: what a run will hold, by phase and category, before it starts: GRPO, PPO, and the stages around them.

    made = plan("qwen2.5-7b", algorithm="grpo", mode="qlora", prompt=512, completion=1024, group=8, gpu="24GB")
    made.peak                       bytes of tensors
    made.limiting_phase             the phase that they belong to
    made.phases[phase][category]    bytes, for every phase; a phase's categories add up to its peak
    made.fits                       with CUDA's allowance, which is kept apart
    made.limits                     largest micro-batch, completion length and group size that would fit

The closed form (`closed_form`) takes milliseconds; `exact=True` simulates the real code (`simulate`), for which torch
and transformers are imported.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from .._quiet import quiet
from ..errors import UserError
from .categories import Category, Phase
from .closed_form import phase_peaks
from .devices import Overhead, parse_device
from .setting import Setting, make_setting
from .sharding import shard

_LONGEST, _LARGEST = 131_072, 4_096  # completion tokens, and rows of a micro-batch or group, that are tried


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The largest value of one option that fits, everything else as planned; `None` where not even the least does.

    Args:
        batch: Completions of a micro-batch.
        completion: Tokens.
        group: Completions per prompt; of GRPO and PPO only.
        capped: Names of those that were only limited by how far was searched.
    """

    batch: int | None
    completion: int | None
    group: int | None
    capped: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run will hold.

    Args:
        setting: What was planned.
        phases: Bytes of tensors by category at the peak of each phase, on one GPU.
        exact: Whether the real code was simulated.
        overhead: What CUDA takes beside the tensors.
        device_bytes: Memory of the GPU; `None` where none was named.
        device_name: The GPU as it was named.
        limits: What would fit on the GPU.
        took_s: Seconds that planning took.
        notes: What is to be known about the figures.
    """

    setting: Setting
    phases: dict[Phase, dict[Category, int]]
    exact: bool = False
    overhead: Overhead = field(default_factory=Overhead)
    device_bytes: int | None = None
    device_name: str | None = None
    limits: Limits | None = None
    took_s: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def totals(self) -> dict[Phase, int]:
        """Bytes of tensors at the peak of each phase."""
        return {phase: sum(alive.values()) for phase, alive in self.phases.items()}

    @property
    def limiting_phase(self) -> Phase:
        """The phase with the highest peak."""
        totals = self.totals
        return max(totals, key=lambda phase: totals[phase])

    @property
    def peak(self) -> int:
        """The most bytes of tensors that are alive at once."""
        return self.totals[self.limiting_phase]

    @property
    def by_category(self) -> dict[Category, int]:
        """Bytes at the peak."""
        return self.phases[self.limiting_phase]

    @property
    def overhead_bytes(self) -> int:
        """Allowance beside the tensors; 0 on a CPU."""
        return self.overhead.of(self.peak) if self.setting.device == "cuda" else 0

    @property
    def needed(self) -> int:
        """Bytes that the device has to have: tensors and allowance."""
        return self.peak + self.overhead_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the device has them; `None` without a device."""
        return None if self.device_bytes is None else self.needed <= self.device_bytes

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as JSON values; sizes are bytes."""
        return {
            "setting": self.setting.to_dict(),
            "parameters": self.setting.geometry.parameters,
            "method": "simulation" if self.exact else "closed form",
            "phases": {str(p): {str(c): size for c, size in alive.items()} for p, alive in self.phases.items()},
            "totals": {str(p): size for p, size in self.totals.items()},
            "peak": self.peak,
            "limiting_phase": str(self.limiting_phase),
            "overhead": self.overhead_bytes,
            "needed": self.needed,
            "device": self.device_name,
            "device_bytes": self.device_bytes,
            "fits": self.fits,
            "limits": None if self.limits is None else vars(self.limits),
            "notes": list(self.notes),
            "took_s": round(self.took_s, 3),
        }

    def to_json(self) -> str:
        """Returns `to_dict` as text."""
        return json.dumps(self.to_dict(), indent=2)

    def table(self) -> Any:
        """Returns a rich table of phases and categories."""
        from .plan_table import plan_table

        return plan_table(self)


def plan(
    model: Any,
    *,
    gpu: str | int | None = None,
    exact: bool = False,
    overhead: Overhead | None = None,
    limits: bool = True,
    **options: Any,
) -> Plan:
    """Plans a run.

    Args:
        model: A built-in name, a directory with a config.json, an id of the Hub, a `Geometry`, or a whole `Setting`.
        gpu: A GPU by name or size (`rtx4090`, `24GB`), or its bytes; says whether it fits and what would.
        exact: Simulate the real code instead of the closed form.
        overhead: What CUDA takes beside the tensors.
        limits: With a GPU, search for the largest values that fit (by the closed form).
        **options: The fields of `Setting`.

    Raises:
        UserError: An option, the model or the GPU is not known, or has a value that cannot work.
    """
    begin = time.perf_counter()
    setting = model.but(**options) if isinstance(model, Setting) else make_setting(model, **options)
    overhead = overhead or Overhead()
    device_bytes = parse_device(gpu) if isinstance(gpu, str) else gpu
    phases = _exact_peaks(setting) if exact else shard(setting, phase_peaks(setting))
    found = None
    if device_bytes is not None and limits and not setting.geometry.weights_only:
        found = find_limits(setting, fits_on(device_bytes, overhead))
    return Plan(
        setting=setting,
        phases=phases,
        exact=exact,
        overhead=overhead,
        device_bytes=device_bytes,
        device_name=None if gpu is None else str(gpu),
        limits=found,
        took_s=time.perf_counter() - begin,
        notes=tuple(_notes(setting)),
    )


def _exact_peaks(setting: Setting) -> dict[Phase, dict[Category, int]]:
    if setting.geometry.weights_only:
        raise UserError(f"--exact: of {setting.geometry.name} only the weights are counted, which needs no simulation")
    if setting.gpus > 1:
        raise UserError("--exact: sharding over several GPUs is planned by the closed form only, leave --exact out")
    from .simulate import simulate

    return simulate(setting)


def _notes(setting: Setting) -> Iterable[str]:
    if setting.geometry.weights_only:
        active = (setting.geometry.active_parameters or 0) / 1e9
        yield (
            f"a mixture of experts ({active:.1f} billion parameters are active per token): weights, gradients and "
            "optimizer state are counted, activations are not"
        )
    if setting.ppo and setting.gpus > 1:
        yield "PPOTrainer runs on one device or with DDP: these figures are arithmetic"
    if setting.trains and setting.optimizer.startswith("paged"):
        yield "a paged optimizer's state may leave the GPU when memory runs short; here it is counted"


def peak_bytes(setting: Setting) -> int:
    """Returns the most bytes of tensors that are alive at once, by the closed form, on one GPU."""
    return max(sum(alive.values()) for alive in shard(setting, phase_peaks(setting)).values())


def fits_on(device_bytes: int, overhead: Overhead) -> Callable[[Setting], bool]:
    """Returns a test of settings: whether they fit on a device."""

    def fits(setting: Setting) -> bool:
        peak = peak_bytes(setting)
        return peak + (overhead.of(peak) if setting.device == "cuda" else 0) <= device_bytes

    return fits


def find_limits(setting: Setting, fits: Callable[[Setting], bool]) -> Limits:
    """Returns the largest micro-batch, completion length and group size that fit, each by itself."""
    G, B = setting.rows_per_prompt, setting.batch
    batch = largest(batches(G), lambda batch: fits(setting.but(batch=batch)))
    completion = largest(range(1, _LONGEST + 1), lambda tokens: fits(setting.but(completion=tokens)))
    found = {"batch": (batch, batches(G)[-1]), "completion": (completion, _LONGEST)}
    group = None
    if setting.rl:
        least = 2 if setting.algorithm == "grpo" else 1
        groups = [g for g in range(least, B) if B % g == 0] + [g for g in range(B, _LARGEST + 1, B) if g >= least]
        group = largest(groups, lambda group: fits(setting.but(group=group)))
        found["group"] = (group, groups[-1])
    capped = tuple(name for name, (value, most) in found.items() if value == most)
    return Limits(batch=batch, completion=completion, group=group, capped=capped)


def batches(group: int) -> list[int]:
    """Returns the micro-batches that make whole groups: divisors of the group, and its multiples."""
    return [b for b in range(1, group) if group % b == 0] + list(range(group, _LARGEST + 1, group))


def largest(values: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Returns the last of increasing values that fits, taking it that all before one that fits do as well."""
    low, high = 0, 1
    while high < len(values) and fits(values[high - 1]):
        low, high = high, high * 2
    high = min(high, len(values))
    while low < high:  # values[:low] fit, values[high:] do not
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(values[middle - 1]) else (low, middle - 1)
    return values[low - 1] if low else None


# The models that PPO holds, from the layout of the literature to the leanest.
LAYOUTS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": "grpo"},
    "ppo: four models": {"algorithm": "ppo", "critic": "separate", "reward_model": True, "reference": True},
    "ppo: policy, reference, critic": {"algorithm": "ppo", "critic": "separate", "reference": True},
    "ppo: adapter critic": {"algorithm": "ppo", "critic": "adapter", "reference": True},
    "ppo: shared backbone": {"algorithm": "ppo", "critic": "shared", "reference": True},
}
# What is trained, and how the weights are kept.
MODES: dict[str, dict[str, Any]] = {
    "full, float32 + autocast": {"mode": "full", "dtype": "float32"},
    "full, bfloat16": {"mode": "full", "dtype": "bfloat16"},
    "LoRA": {"mode": "lora", "dtype": "bfloat16"},
    "QLoRA": {"mode": "qlora", "dtype": "bfloat16"},
}


def compare(model: Any, *, processes: int = 1, **options: Any) -> dict[str, dict[str, Plan]]:
    """Plans GRPO and every layout of PPO in every mode: {mode: {layout: plan}}.

    Like for like: all sample `group` completions per prompt, make one pass over a rollout, and GRPO has a KL reference
    as PPO has, unless the options say otherwise.

    Args:
        model: As in `plan`.
        processes: Processes to plan in, for `exact=True`; more than one start the program's main module anew.
        **options: Those of `plan`.
    """
    options = {"group": 8, "iterations": 1, "reference": True, **options}
    for name in ("mode", "dtype", "algorithm", "critic", "reward_model"):
        options.pop(name, None)
    jobs = {
        (mode, layout): {**options, **fields, **chosen, "reference": options["reference"], "limits": False}
        for mode, chosen in MODES.items()
        for layout, fields in LAYOUTS.items()
    }
    if processes > 1:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, mp_context=context, initializer=quiet) as pool:
            plans = list(pool.map(_planned, itertools.repeat(model), jobs.values()))
    else:
        plans = [_planned(model, job) for job in jobs.values()]
    made = dict(zip(jobs, plans, strict=True))
    return {mode: {layout: made[mode, layout] for layout in LAYOUTS} for mode in MODES}


def _planned(model: Any, options: dict[str, Any]) -> Plan:
    return plan(model, **options)
