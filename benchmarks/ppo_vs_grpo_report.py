"""The report of `bench_ppo_vs_grpo` in Markdown: measured, planned, and the literature's claims one by one."""

from pathlib import Path

GIB = 2**30
NAMES = {
    "grpo": "GRPO, with a KL reference",
    "grpo_no_kl": "GRPO, without KL",
    "ppo_four_models": "PPO: policy, reference, critic, reward model",
    "ppo": "PPO: policy, reference, critic",
    "ppo_adapter": "PPO: adapter critic",
    "ppo_shared": "PPO: shared backbone",
}


def measured_table(record: dict, figure: str = "peak_mib", times: str = "of_grpo") -> str:
    """A figure of every layout in MiB, and as a multiple of GRPO's."""
    sizes = list(record["measured"])
    columns = [(size, mode) for size in sizes for mode in ("full", "lora", "qlora")]
    lines = [
        "| | " + " | ".join(f"{size} {mode}" for size, mode in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    for layout in record["layouts"]:
        cells = []
        for size, mode in columns:
            rows = record["measured"][size]["rows"]
            row = next((r for r in rows if (r["layout"], r["mode"]) == (layout, mode)), None)
            cells.append("" if row is None else f"{row[figure]:,.1f} ({row[times]:.2f}x)")
        lines.append(f"| {NAMES[layout]} | {' | '.join(cells)} |")
    return "\n".join(lines)


def planned_table(record: dict) -> str:
    """Planned peaks of every layout in GiB, and as a multiple of GRPO's."""
    models = list(record["planned"])
    modes = list(record["planned"][models[0]])
    layouts = list(record["planned"][models[0]][modes[0]])
    lines = ["| model | trained | " + " | ".join(layouts) + " |", "|---|---|" + "---|" * len(layouts)]
    for model in models:
        for mode in modes:
            plans = record["planned"][model][mode]
            cells = [
                f"{plans[each]['peak'] / GIB:,.1f} ({plans[each]['peak'] / plans['grpo']['peak']:.2f}x)"
                for each in layouts
            ]
            lines.append(f"| {model} | {mode} | {' | '.join(cells)} |")
    return "\n".join(lines)


def claim_text(claim: dict) -> str:
    """A claim, what came out, and its rows."""
    lines = [f'### "{claim["claim"]}"', "", claim["verdict"], "", "| set-up | number | holds | |", "|---|---|---|---|"]
    for row in claim["rows"]:
        number = f"{row['number']:.2f}" if row["number"] < 10 else f"{row['number']:.1f}"
        if "grpo_nodes" in row:
            number = f"{row['number']:g} against GRPO's {row['grpo_nodes']:g}"
        lines.append(
            f"| {row['setup']} | {number} {row['unit']} | {'yes' if row['holds'] else 'no'} | {row['source']} |"
        )
    return "\n".join(lines)


def write_report(record: dict, path: Path) -> None:
    """Writes the Markdown file."""
    lengths = ", ".join(
        f"{size} {each['lengths']['prompt']} + {each['lengths']['completion']} x {each['lengths']['group']}"
        for size, each in record["measured"].items()
    )
    environment = next(iter(record["measured"].values()))["environment"] if record["measured"] else {}
    parts = [
        "# PPO against GRPO in memory",
        "One stack, the same weights, prompts, sampled tokens and optimizer (AdamW); only the layout differs. With "
        "LoRA and QLoRA the reference is the policy without its adapter.",
        "## Measured",
        f"Peak of live tensors in MiB over two optimizer steps on the CPU ({environment.get('device', '')}, torch "
        f"{environment.get('torch', '')}), and the multiple of GRPO's. Prompt + completion tokens x completions of a "
        f"prompt: {lengths}. A micro-batch is one prompt's completions, and a step two of them; bfloat16 weights, "
        "gradient checkpointing. 5m and 50m are random models with a vocabulary of 2,048; 135m is "
        "SmolLM2-135M-Instruct. On a CPU, TRL's head works in tiles of 32,768 words whatever the vocabulary: it is in "
        "all rows alike, and is not there on a GPU. The reward model keeps bfloat16 weights. Blank: not measured.",
        measured_table(record) if record["measured"] else "",
        "Of which resident: weights of all models, gradients and optimizer state; no activations, and no head.",
        measured_table(record, "resident_mib", "resident_of_grpo") if record["measured"] else "",
        "![peaks by category](ppo_vs_grpo.png)",
        "## Planned",
        "Peak of tensors in GiB on one CUDA GPU by the closed form: 512 + 1,024 tokens, 8 completions per prompt, "
        "micro-batches of 8, gradient checkpointing, AdamW. Not measured on a GPU.",
        planned_table(record),
        "## The literature's claims",
        *(claim_text(claim) for claim in record["claims"]),
    ]
    path.write_text("\n\n".join(part for part in parts if part) + "\n")
