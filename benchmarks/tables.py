"""Writes the README's tables from the files in benchmarks/results, between `<!-- name -->` and `<!-- /name -->`.

python benchmarks/tables.py            # rewrites README.md
"""

import json
import re
from pathlib import Path

from tables_rewards import reward_speed, rewards, sandbox, sandbox_levels

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks/results"


def _interval(low: float, high: float) -> str:
    return f"{100 * low:.0f} to {100 * high:.0f}"


def quickstart() -> str:
    """Held-out accuracy before and after, per seed and per arm."""
    record = json.loads((RESULTS / "quickstart.json").read_text())
    lines = [
        "| run | pass@1 before GRPO, % | after, % | gain, points (95 % interval) | seconds |",
        "|---|---|---|---|---|",
    ]
    names = {"control": "`--control`, a random reward", "mixed": "`--style mixed`", "lora": "`--lora`"}
    rows = [(f"seed {seed}", result) for seed, result in record["seeds"].items()]
    rows += [(f"{names[arm]}, seed {result['arguments'][-1]}", result) for arm, result in record["arms"].items()]
    for name, r in rows:
        seconds = "" if "note" in r else f"{r['seconds']:.0f}"
        low, high = (100 * x for x in r["gain_interval"])
        lines.append(
            f"| {name} | {100 * r['before']:.1f} ({_interval(*r['before_interval'])}) "
            f"| {100 * r['after']:.1f} ({_interval(*r['after_interval'])}) "
            f"| {100 * r['gain']:+.1f} ({low:+.0f} to {high:+.0f}) | {seconds} |"
        )
    first = next(iter(record["seeds"].values()))
    device = record["environment"]["device"]
    lines.append("")
    lines.append(
        f"Sampled at temperature 1, {first['samples_per_problem']} samples of each of {first['problems']} held-out "
        f"problems; intervals are bootstrapped over problems. Seconds are those of the whole process on {device}, of "
        f"which it uses one ([results](benchmarks/results/quickstart.json))."
    )
    return "\n".join(lines)


def speed() -> str:
    """Ratios of the named points: stock TRL against ours."""
    record = json.loads((RESULTS / "step.json").read_text())
    lines = [
        "| prompt, completion (tokens) | G x prompts a batch | whole step | forward + backward | generation "
        "| peak memory of the update |",
        "|---|---|---|---|---|---|",
    ]
    for r in record["results"]:
        if not r["bars"]:
            continue
        length = f"{r['C']} at most, a third on average" if r["skewed"] else f"{r['C']}"
        dead = f", {r['dead']:.0%} of the groups without signal" if r["dead"] else ""
        ratios = r["ratios"]
        lines.append(
            f"| {r['P']}, {length}{dead} | {r['G']} x {r['prompts']} | {ratios['step']:.2f}x "
            f"| {ratios['forward+backward']:.2f}x | {ratios['generation']:.2f}x | {ratios['memory']:.2f} of TRL's |"
        )
    lines.append("")
    environment = record["environment"]
    lines.append(
        f"Times: stock TRL {environment['trl']} / ours, medians, interleaved in one process; full fine-tuning of a "
        f"random Llama of about 10 M parameters in {record['dtype']}, {record['threads']} thread of "
        f"{environment['device']} ([results](benchmarks/results/step.json), [plot](benchmarks/results/step.png)). "
        "Nothing here was measured on a GPU."
    )
    return "\n".join(lines)


def speed_grid() -> str:
    """Smallest and largest ratio of the grid's points by prompt length, and a real model's points."""
    heads = ["model", "prompt, completion (tokens)", "points", "whole step", "forward + backward", "generation"]
    heads.append("memory of the update")
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    grid, smollm2 = (json.loads((RESULTS / f"step_{name}.json").read_text()) for name in ("grid", "smollm2"))
    kinds = ("step", "forward+backward", "generation")
    for P in sorted({r["P"] for r in grid["results"]}):
        rows = [r["ratios"] for r in grid["results"] if r["P"] == P]
        spans = [(min(r[kind] for r in rows), max(r[kind] for r in rows)) for kind in kinds]
        cells = [f"{low:.2f} to {high:.2f}x" for low, high in spans]
        memory = [r["memory"] for r in rows]
        cells.append(f"{min(memory):.2f} to {max(memory):.2f} of TRL's")
        lines.append(f"| Llama, 10 M | {P}, 64 or 256 | {len(rows)} | {' | '.join(cells)} |")
    for r in smollm2["results"]:
        cells = [f"{r['ratios'][kind]:.2f}x" for kind in kinds] + [f"{r['ratios']['memory']:.2f} of TRL's"]
        lines.append(f"| SmolLM2-135M-Instruct | {r['P']}, {r['C']} | 1 | {' | '.join(cells)} |")
    lines.append("")
    lines.append(
        "The grid varies by itself, around each prompt length: groups of 4 and 16, completions of skewed lengths up "
        "to 256, half of the groups without signal, LoRA, beta 0.04, and the last two together; smallest and largest "
        "ratio of its points, two or three turns of each trainer a point "
        "([results](benchmarks/results/step_grid.json), [plot](benchmarks/results/step_grid.png)). The real model: "
        "one group of 8 a step, one turn of two steps ([results](benchmarks/results/step_smollm2.json))."
    )
    return "\n".join(lines)


def ppo() -> str:
    """Held-out accuracy of PPO and GRPO from the same number of sampled completions."""
    record = json.loads((RESULTS / "ppo_vs_grpo_quickstart.json").read_text())
    names = {
        "grpo": "GRPO, the quickstart's: 8 completions per prompt, 1 pass",
        "grpo_4": "GRPO, 4 passes over each rollout",
        "ppo": "PPO, `critic: separate`: 1 completion per prompt, 4 passes",
    }
    seeds = list(record["arms"]["ppo"])
    heads = ["trained by", *(f"seed {seed}, %" for seed in seeds), "mean gain, points", "optimizer steps", "CPU-s"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for arm, name in ((arm, name) for arm, name in names.items() if arm in record["arms"]):
        runs = [record["arms"][arm][seed] for seed in seeds]
        changes = " | ".join(f"{100 * r['before']:.1f} -> {100 * r['after']:.1f}" for r in runs)
        gain = 100 * sum(r["gain"] for r in runs) / len(runs)
        cpu_s = sum(r["cpu_seconds"] for r in runs) / len(runs)
        lines.append(f"| {name} | {changes} | {gain:+.1f} | {runs[0]['curve'][-1]['optimizer_steps']} | {cpu_s:.0f} |")
    lines.append("")
    lines.append(
        f"Held-out pass@1 on the quickstart's task after {runs[0]['curve'][-1]['completions']:,} sampled completions, "
        f"from the same weights. CPU-s: seconds of one thread of {record['environment']['device']} in training, mean "
        "of the seeds ([results](benchmarks/results/ppo_vs_grpo_quickstart.json), "
        "[curves](benchmarks/results/ppo_vs_grpo_quickstart.png))."
    )
    return "\n".join(lines)


def profiler() -> str:
    """What the memory profiler costs on a CPU."""
    record = json.loads((RESULTS / "profiler_overhead.json").read_text())
    lines = [
        "| model | trained | a step, off | on | overhead | in seconds | its own lower bound | spread of steps, off |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in record["results"]:
        lines.append(
            f"| {r['geometry']} | {'LoRA' if r['lora'] else 'all'} | {r['off_s']:.2f} s | {r['on_s']:.2f} s "
            f"| {r['overhead']:+.0%} | {r['on_s'] - r['off_s']:.2f} s | {r['own_estimate_s']:.2f} s "
            f"| {r['spread']:.0%} |"
        )
    lines.append("")
    device = record["environment"]["device"]
    lines.append(
        f"Medians of CPU seconds, {record['threads']} thread of {device}, and every profile states a "
        "lower bound of its own ([results](benchmarks/results/profiler_overhead.json)). Off, nothing of it runs."
    )
    return "\n".join(lines)


def ppo_memory() -> str:
    """Peaks of the layouts of PPO and of GRPO, measured at one size and planned at another."""
    record = json.loads((RESULTS / "ppo_vs_grpo.json").read_text())
    names = {
        "grpo": ("GRPO", "grpo"),
        "ppo_four_models": ("PPO: policy, reference, critic, reward model", "ppo: four models"),
        "ppo": ("PPO: policy, reference, critic", "ppo: policy, reference, critic"),
        "ppo_adapter": ("PPO: adapter critic", "ppo: adapter critic"),
        "ppo_shared": ("PPO: shared backbone", "ppo: shared backbone"),
    }
    wanted = {(layout, mode) for layout in names for mode in ("full", "lora", "qlora")}
    complete = [s for s, m in record["measured"].items() if wanted <= {(r["layout"], r["mode"]) for r in m["rows"]}]
    size = complete[-1]
    about = {"5m": "a random Llama of 5 M parameters", "50m": "a random Qwen2 of 50 M parameters"}
    model = "qwen2.5-7b"
    planned = record["planned"][model]
    modes = {"full": "full, bfloat16", "lora": "LoRA", "qlora": "QLoRA"}
    heads = ["", *(f"{size}, {mode}" for mode in modes), *(f"7B, {mode}" for mode in modes)]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for layout, (name, plan) in names.items():
        cells = []
        for mode in modes:
            rows = record["measured"][size]["rows"]
            row = next(r for r in rows if (r["layout"], r["mode"]) == (layout, mode))
            resident = f"resident {row['resident_of_grpo']:.2f}x"
            cells.append(f"{row['peak_mib']:,.0f} MiB ({row['of_grpo']:.2f}x; {resident})")
        for title in modes.values():
            peak, base = planned[title][plan]["peak"], planned[title]["grpo"]["peak"]
            cells.append(f"{peak / 2**30:,.1f} GiB ({peak / base:.2f}x)")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append("")
    device = record["measured"][size]["environment"]["device"]
    lines.append(
        f"Peak of tensors. {size}: {about.get(size, 'SmolLM2-135M-Instruct')}, measured on {device}; 7B: Qwen2.5-7B "
        "on one CUDA GPU, planned, not measured. Same weights, prompts, sampled tokens and optimizer; all with a KL "
        "reference. Resident: weights, gradients and optimizer state; on a CPU the head takes as much as a small "
        "model, on a GPU it does not. A measured reward model has bfloat16 weights, also under QLoRA. "
        "More sizes, and what the literature says claim by claim: "
        "[report](benchmarks/results/ppo_vs_grpo.md), [data](benchmarks/results/ppo_vs_grpo.json), "
        "[plot](benchmarks/results/ppo_vs_grpo.png)."
    )
    return "\n".join(lines)


def memory_choices() -> str:
    """What `choose` takes on devices of several sizes: computed, not measured."""
    from trl_grpo_plus.errors import UserError
    from trl_grpo_plus.memory.choose import choose
    from trl_grpo_plus.memory.devices import GIB, parse_device
    from trl_grpo_plus.memory.setting import make_setting

    sizes = (8, 16, 24, 48, 80)
    lines = [f"| model | {' | '.join(f'{size} GB' for size in sizes)} |", f"|{'---|' * (len(sizes) + 1)}"]
    for model in ("Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-7B"):
        setting = make_setting(model, prompt=512, completion=1024, group=8, batch=8, accumulation=4)
        cells = []
        for size in sizes:
            try:
                chosen = choose(setting, parse_device(f"{size}GB"))
            except UserError:
                cells.append("nothing fits")
            else:
                needed = chosen.plan.needed / GIB
                cells.append(f"{chosen.mode}, {chosen.batch} x {chosen.accumulation} ({needed:.1f} GiB)")
        lines.append(f"| {model} | {' | '.join(cells)} |")
    lines.append("")
    lines.append(
        "GRPO without a KL term, bfloat16, prompt 512, completion 1,024, 8 completions per prompt, AdamW; asked for "
        "was a micro-batch of 8 x 4. In a cell: the first mode that fits at that micro-batch, the largest micro-batch "
        "of the same 32 completions, and what it is planned to need with CUDA's allowance. Planned, not measured."
    )
    return "\n".join(lines)


def planner() -> str:
    """Errors of the plans against measurement."""
    record = json.loads((RESULTS / "planner.json").read_text())
    summary = record["summary"]
    lines = ["| plan | settings | median error, % | largest, % |", "|---|---|---|---|"]
    for found, of in ((summary, "GRPO and PPO"), (summary["stages"], "SFT, reward models, rejection sampling")):
        for name, what in (("closed", "closed form"), ("exact", "`--exact`, the simulation")):
            s = found[name]
            errors = f"{100 * s['median_error']:.2f} | {100 * s['largest_error']:.2f}"
            lines.append(f"| {of}: {what} | {s['settings']} | {errors} |")
    lines.append("")
    lines.append(
        "Of the step's peak, over settings drawn at random (six small geometries; full, LoRA and QLoRA; PPO "
        "in its layouts; with and without checkpointing, shared prompts, padding), against "
        f"our trainers, and TRL's for SFT and reward models, really training on {record['environment']['device']}, "
        "by torch.profiler's memory events ([results](benchmarks/results/planner.json))."
    )
    return "\n".join(lines)


def evaluation() -> str:
    """SmolLM2-135M-Instruct on GSM8K, and before and after GRPO with LoRA on short arithmetic."""
    record = json.loads((RESULTS / "evaluation.json").read_text())
    runs, comparisons = record["runs"], record["comparisons"]

    def cell(run: str, metric: str) -> str:
        found = runs[run]["metrics"].get(metric)
        if found is None:
            return ""
        return f"{100 * found['value']:.1f} ({_interval(found['low'], found['high'])})"

    def change(name: str) -> str:
        found = comparisons[name]["metrics"]["pass@1"]
        low, high = 100 * found["low"], 100 * found["high"]
        return f"{100 * found['change']:+.1f} ({low:+.0f} to {high:+.0f}), p = {found['p_value']:.4f}"

    names = {
        "gsm8k_greedy": ("GSM8K, greedy", ""),
        "gsm8k_sampled": ("GSM8K, n = 4", ""),
        "chain_sum_before": ("a + b and a - b, before GRPO, n = 4", ""),
        "chain_sum_after": ("after GRPO, n = 4", "chain_sum"),
        "chain_sum_before_greedy": ("before GRPO, greedy", ""),
        "chain_sum_after_greedy": ("after GRPO, greedy", "chain_sum_greedy"),
    }
    lines = [
        "| SmolLM2-135M-Instruct on | pass@1, % | pass@4, % | maj@4, % | tokens | cut off, % | change, points |",
        "|---|---|---|---|---|---|---|",
    ]
    for run, (name, compared) in names.items():
        metrics = runs[run]["metrics"]
        length, cut = (metrics[f"completions/{key}"]["value"] for key in ("mean_length", "clipped_ratio"))
        lines.append(
            f"| {name} | {cell(run, 'pass@1')} | {cell(run, 'pass@4')} | {cell(run, 'maj@4')} "
            f"| {length:.1f} | {100 * cut:.0f} | {change(compared) if compared else ''} |"
        )
    tokens, short = (runs[name]["sampling"]["max_new_tokens"] for name in ("gsm8k_greedy", "chain_sum_after"))
    lines.append("")
    lines.append(
        f"{runs['gsm8k_greedy']['problems']} problems of GSM8K's test split with at most {tokens} tokens; "
        f"{runs['chain_sum_after']['problems']} held-out problems of chain_sum with at most {short}. In brackets 95 % "
        "intervals over problems; the change is paired, p of a permutation test over problems. "
        f"GRPO: LoRA, {record['training']['steps']} steps, one thread of "
        f"{record['environment']['device']} ([results](benchmarks/results/evaluation.json))."
    )
    return "\n".join(lines)


def pipeline() -> str:
    """Held-out pass@1 and maj@8 of every stage of the tiny pipeline."""
    record = json.loads((RESULTS / "pipeline_tiny.json").read_text())
    names, tasks = record["metrics"], ["exact_match", "code"]
    titles = {"exact_match": "sums", "code": "programs"}
    heads = ["stage"]
    for name in names:
        heads += [f"{name}, %", "change, points"]
    heads += [f"{names[0]}, {titles[task]}, %" for task in tasks] + ["tokens", "seconds"]
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    doing = {
        "cold_start": "1 cold start: SFT of an untrained model",
        "reasoning_rl": "2 GRPO, maths and code",
        "rejection_sampling": "3 rejection sampling",
        "sft": "4 SFT of the untrained model on what was kept, and general data",
        "final_rl": "5 GRPO, verified and preferred",
    }
    for stage in record["stages"]:
        if stage["stage"] not in doing:
            continue
        line = [doing[stage["stage"]]]
        if "counts" in stage:
            counts = stage["counts"]
            line[0] += f": keeps {counts['kept']:,} of {counts['samples']:,}"
        for name in names:
            before, after = (stage[side]["all"][name] for side in ("before", "after"))
            if "change" not in stage:
                line += ["", ""]
                continue
            change, low, high = (100 * x for x in stage["change"][name])
            line.append(f"{100 * before[0]:.1f} -> {100 * after[0]:.1f} ({_interval(*after[1:])})")
            line.append(f"{change:+.1f} ({low:+.0f} to {high:+.0f})")
        for task in tasks:
            before, after = (100 * stage[side][task][names[0]][0] for side in ("before", "after"))
            line.append(f"{before:.1f} -> {after:.1f}" if "change" in stage else "")
        length = stage["after"]["all"]["completions/mean_length"][0]
        line += [f"{length:.1f}" if "change" in stage else "", f"{stage['seconds']:.0f}"]
        lines.append(f"| {' | '.join(line)} |")
    problems = next(stage["problems"] for stage in record["stages"] if "problems" in stage)
    samples = next(stage["samples"] for stage in record["stages"] if "samples" in stage)
    preference = next(stage for stage in record["stages"] if stage["algorithm"] == "reward_model")
    lines.append("")
    lines.append(
        f"{problems} held-out problems, {samples} samples of each at temperature 1; 95 % intervals over problems. The "
        f"preference model of stage 5 is right on {100 * preference['held_out_accuracy']:.0f} % of held-out pairs. "
        f"The whole took {record['seconds']:.0f} s on one thread of {record['environment']['device']} "
        "([results](benchmarks/results/pipeline_tiny.json), [plot](benchmarks/results/pipeline_tiny.png))."
    )
    return "\n".join(lines)


TABLES = {
    "pipeline": pipeline,
    "quickstart": quickstart,
    "speed": speed,
    "speed_grid": speed_grid,
    "ppo": ppo,
    "sandbox_levels": sandbox_levels,
    "sandbox": sandbox,
    "rewards": rewards,
    "reward_speed": reward_speed,
    "memory_choices": memory_choices,
    "planner": planner,
    "evaluation": evaluation,
    "profiler": profiler,
    "ppo_memory": ppo_memory,
}


def render(text: str) -> str:
    """Returns the README with every table written anew."""
    for name, table in TABLES.items():
        pattern = rf"<!-- {name} -->.*?<!-- /{name} -->"
        text = re.sub(pattern, lambda _, n=name, t=table: f"<!-- {n} -->\n\n{t()}\n\n<!-- /{n} -->", text, flags=re.S)
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(render(readme.read_text()))
