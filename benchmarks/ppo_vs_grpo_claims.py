"""What the literature says of the memory of PPO and GRPO, one by one, against the measurements and the plans.

Each claim comes with rows of (set-up, number, whether the claim holds there), computed from the record only.
"""

import math

from trl_grpo_plus.memory import plan as planner

WEIGHTS = ("weights_trainable", "weights_frozen", "reference", "critic", "reward_model")
GIB = 2**30
_PLAN_MODES = {"full": "full, bfloat16", "full32": "full, float32 + autocast", "lora": "LoRA", "qlora": "QLoRA"}
_PLAN_LAYOUTS = {
    "grpo": "grpo",
    "four": "ppo: four models",
    "ppo": "ppo: policy, reference, critic",
    "adapter": "ppo: adapter critic",
    "shared": "ppo: shared backbone",
}
_LAYOUT_NAMES = {
    "four": "four models",
    "ppo": "policy, reference, critic",
    "adapter": "adapter critic",
    "shared": "shared backbone",
}


def claims(record: dict) -> list[dict]:
    """Returns every claim with its rows."""
    return [four_copies(), critic_doubles(record), dropping_frees(record), nodes()]


def _row(setup: str, number: float, unit: str, holds: bool, source: str) -> dict:
    return {"setup": setup, "number": number, "unit": unit, "holds": holds, "source": source}


def _planned(record: dict, model: str, mode: str, layout: str) -> dict:
    return record["planned"][model][_PLAN_MODES[mode]][_PLAN_LAYOUTS[layout]]


def _measured(record: dict, size: str, mode: str, layout: str) -> dict | None:
    name = {"four": "ppo_four_models", "adapter": "ppo_adapter", "shared": "ppo_shared"}.get(layout, layout)
    rows = record["measured"][size]["rows"]
    return next((r for r in rows if r["layout"] == name and r["mode"] == mode), None)


def four_copies() -> dict:
    """Counts parameters held, in billions, for a 7B policy."""
    from trl_grpo_plus.memory.geometry import load_geometry

    geometry = load_geometry("qwen2.5-7b")
    policy, backbone = geometry.parameters / 1e9, geometry.backbone_parameters / 1e9
    rows = []
    for setup, count in (
        (
            "full fine-tuning, PPO with a reward model: policy, reference, critic, reward model",
            2 * policy + 2 * backbone,
        ),
        ("full fine-tuning, PPO with verifiers: policy, reference, critic", 2 * policy + backbone),
        ("full fine-tuning, GRPO with KL: policy, reference", 2 * policy),
        ("full fine-tuning, GRPO without KL (TRL's default): policy", policy),
        ("LoRA, PPO with a reward model and a critic of its own: the reference is the policy", policy + 2 * backbone),
        ("LoRA, PPO with verifiers and an adapter critic: one set of weights", policy),
        ("LoRA, GRPO with or without KL: one set of weights", policy),
    ):
        rows.append(_row(setup, count, "billion parameters", 27 <= count <= 31, "arithmetic, Qwen2.5-7B"))
    return {
        "claim": "PPO on a 7B model holds 28 billion parameters: four copies",
        "verdict": "True for full fine-tuning with a learned reward model of the policy's size, and for nothing else: "
        "verifiers save one copy, LoRA saves the reference, an adapter or shared critic saves another.",
        "rows": rows,
    }


def critic_doubles(record: dict) -> dict:
    """PPO with verifiers over GRPO, both with a KL reference; doubling is taken as 1.75x to 2.25x."""
    rows = []
    for mode in ("full32", "full", "lora", "qlora"):
        for layout in ("ppo", "adapter", "shared"):
            for model in record["planned"]:
                ratio = _planned(record, model, mode, layout)["peak"] / _planned(record, model, mode, "grpo")["peak"]
                name = f"{_PLAN_MODES[mode]}, {_LAYOUT_NAMES[layout]}, {model}"
                rows.append(_row(name, ratio, "x GRPO's peak", 1.75 <= ratio <= 2.25, "planned"))
    for mode, layouts in planner.compare(
        "qwen2.5-7b", prompt=512, completion=1024, batch=8, share_prompt=False, reference=False
    ).items():
        ratio = layouts[_PLAN_LAYOUTS["ppo"]].peak / layouts["grpo"].peak
        name = f"{mode}, {_LAYOUT_NAMES['ppo']}, qwen2.5-7b, but neither has a reference"
        rows.append(_row(name, ratio, "x GRPO's peak", 1.75 <= ratio <= 2.25, "planned"))
    for size in record["measured"]:
        for mode in ("full", "lora", "qlora"):
            for layout in ("ppo", "adapter", "shared"):
                ours, grpo = (_measured(record, size, mode, each) for each in (layout, "grpo"))
                if ours is None or grpo is None:
                    continue
                ratio = ours["peak_mib"] / grpo["peak_mib"]
                name = f"{mode}, {_LAYOUT_NAMES[layout]}, {size}"
                rows.append(_row(name, ratio, "x GRPO's peak", 1.75 <= ratio <= 2.25, "measured"))
                ratio = ours["resident_of_grpo"]
                rows.append(_row(name, ratio, "x what is resident", 1.75 <= ratio <= 2.25, "measured: resident"))
    return {
        "claim": "The critic roughly doubles the memory",
        "verdict": _span(rows, _LAYOUT_NAMES["ppo"])
        + " A critic that is an adapter, or a head on weights that are there anyway, costs far less. 1.75x to 2.25x "
        "counts as true.",
        "rows": rows,
    }


def dropping_frees(record: dict) -> dict:
    """The share of PPO's total that goes when the critic goes, everything else staying."""
    rows = []
    for model in record["planned"]:
        for mode in ("full32", "full", "lora", "qlora"):
            four = _planned(record, model, mode, "four")
            weights = sum(four["by_category"].get(name, 0) for name in WEIGHTS)
            share = four["by_category"].get("critic", 0) / weights
            name = f"weights alone, {_PLAN_MODES[mode]}, four models, {model}"
            rows.append(_row(name, 100 * share, "% of all weights", 24 <= round(100 * share) <= 30, "planned"))
        for mode in ("full32", "full", "lora", "qlora"):
            for layout in ("four", "ppo"):
                total = _planned(record, model, mode, layout)["peak"]
                grpo = _planned(record, model, mode, "grpo")
                # without the critic, the reward model stays
                kept = grpo["peak"] + (_reward_model(record, model, mode) if layout == "four" else 0)
                freed = 100 * (1 - kept / total)
                name = f"all memory, {_PLAN_MODES[mode]}, {_LAYOUT_NAMES[layout]}, {model}"
                rows.append(_row(name, freed, "% of PPO's peak", 24 <= round(freed) <= 30, "planned"))
    for size in record["measured"]:
        for mode in ("full", "lora", "qlora"):
            ppo, grpo = (_measured(record, size, mode, each) for each in ("ppo", "grpo"))
            if ppo is None or grpo is None:
                continue
            freed = 100 * (1 - grpo["peak_mib"] / ppo["peak_mib"])
            name = f"all memory, {mode}, {_LAYOUT_NAMES['ppo']}, {size}"
            rows.append(_row(name, freed, "% of PPO's peak", 24 <= round(freed) <= 30, "measured"))
    return {
        "claim": "Dropping the critic frees 25 to 30 % of the total",
        "verdict": "True of the weights alone, where the critic is one of four equal copies (25 %). Of all memory in "
        "training the share is larger with full fine-tuning, since the critic has gradients and an optimizer state of "
        "its own; the rows say how large in each set-up. 24 to 30 % counts as true: a critic has no output head.",
        "rows": rows,
    }


def _reward_model(record: dict, model: str, mode: str) -> int:
    return _planned(record, model, mode, "four")["by_category"].get("reward_model", 0)


def nodes() -> dict:
    """Nodes of eight 80 GB GPUs that a 70B model needs, by the closed form under full sharding."""
    rows, needed = [], {}
    for mode, options in (
        ("full, bfloat16", {"mode": "full"}),
        ("full, float32 + autocast", {"mode": "full", "dtype": "float32"}),
        ("LoRA", {"mode": "lora"}),
        ("QLoRA", {"mode": "qlora"}),
    ):
        for layout in ("grpo", "ppo: policy, reference, critic", "ppo: four models"):
            least = _least_nodes({**options, **planner.LAYOUTS[layout]})
            needed[mode, layout] = least
    for mode in ("full, bfloat16", "full, float32 + autocast", "LoRA", "QLoRA"):
        grpo = needed[mode, "grpo"]
        for layout in ("ppo: policy, reference, critic", "ppo: four models"):
            ppo = needed[mode, layout]
            row = _row(f"{mode}, {layout}", ppo, "nodes", grpo == 2 and ppo == 4, "planned")
            rows.append({**row, "grpo_nodes": grpo})
    return {
        "claim": "GRPO trains 70B on two nodes where PPO needs four",
        "verdict": "Nodes of eight 80 GB GPUs under full sharding, one completion of 1,536 tokens per GPU at a time; "
        "the rows give PPO's nodes and GRPO's. True as it stands for full fine-tuning in bfloat16 with all four "
        "models; with LoRA both fit one node. Arithmetic, not a run.",
        "rows": rows,
    }


def _least_nodes(options: dict, most: int = 16) -> float:
    for count in range(1, most + 1):
        made = planner.plan(
            "llama-3-70b", gpu="A100-80GB", gpus=8 * count, prompt=512, completion=1024, batch=1, group=8,
            accumulation=8, iterations=1, limits=False, share_prompt=False, **{"reference": True, **options},
        )  # fmt: skip
        if made.fits:
            return count
    return math.inf


def _span(rows: list[dict], layout: str) -> str:
    def span(source: str) -> str:
        values = [r["number"] for r in rows if f", {layout}," in r["setup"] and r["source"] == source]
        return f"{min(values):.2f}x to {max(values):.2f}x {source}" if values else ""

    found = ", ".join(filter(None, map(span, ("planned", "measured", "measured: resident"))))
    return f"A critic with a backbone of its own takes what GRPO does {found}."
