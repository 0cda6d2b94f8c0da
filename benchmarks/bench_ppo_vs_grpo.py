"""PPO against GRPO in memory: the same model, prompts, sampled tokens and optimizer, measured and planned.

    python benchmarks/bench_ppo_vs_grpo.py                 # the report, from the measurements in the results file
    python benchmarks/bench_ppo_vs_grpo.py --measure 5m 50m 135m    # measures sizes again; --modes: some modes only

Measured on the CPU with the profiler (two optimizer steps of every layout and mode), planned by the closed form for
one CUDA GPU at 7B, 8B and 70B. Writes benchmarks/results/ppo_vs_grpo.json, .md and .png.
"""

import argparse
import json
import tempfile
from pathlib import Path

import bench_step
import torch
from transformers import AutoTokenizer

from trl_grpo_plus._quiet import quiet
from trl_grpo_plus.memory.compare import LAYOUTS, compare
from trl_grpo_plus.memory.comparison_report import draw_comparison, rows
from trl_grpo_plus.report import environment

RESULTS = Path("benchmarks/results")
MODES = ("full", "lora", "qlora")
# Prompt and completion tokens, and completions of each prompt: short, so that two steps of every layout take minutes.
LENGTHS = {"5m": (64, 32, 4), "50m": (32, 16, 2), "135m": (32, 16, 2)}
# The vocabulary of the small ones is small: on a CPU the head's workspace would hide everything else.
SIZES = {
    "5m": {
        "architecture": "LlamaConfig", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
        "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 2048, "tie_word_embeddings": True,
    },
    "50m": {
        "architecture": "Qwen2Config", "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 10,
        "num_attention_heads": 10, "num_key_value_heads": 2, "vocab_size": 2048, "tie_word_embeddings": True,
    },
    "135m": ".cache/smollm2-135m-instruct",
}  # fmt: skip
PLANNED = ("qwen2.5-7b", "llama-3-8b", "llama-3-70b")


def first_token(completion_ids, **kwargs):
    """A reward that differs within a group."""
    return [float(ids[0] % 7) for ids in completion_ids]


def measure(size: str, modes: tuple[str, ...] = MODES) -> dict:
    """Returns the records of every layout at one size, in some modes."""
    torch.set_num_threads(1)
    prompt, completion, group = LENGTHS[size]
    with tempfile.TemporaryDirectory() as scratch:
        geometry = SIZES[size]
        if isinstance(geometry, dict):
            bench_step.GEOMETRIES[size] = geometry
            directory = bench_step.build_model(size, torch.bfloat16, "cpu", Path(scratch))
        else:
            directory = str(Path(geometry).resolve())
        data = Path(scratch) / "prompts.jsonl"
        tokenizer = AutoTokenizer.from_pretrained(directory)
        words = " ".join(f"t{i % 97 + 5}" for i in range(prompt))
        text = tokenizer.decode(tokenizer(words)["input_ids"][:prompt])
        data.write_text("".join(json.dumps({"prompt": text, "answer": str(i)}) + "\n" for i in range(16)))
        keys = {
            "model_name_or_path": directory,
            "use_cpu": True,
            "bf16": False,
            "prompts": {"source": str(data)},
            "rewards": ["bench_ppo_vs_grpo:first_token"],
            "num_generations": group,
            "per_device_train_batch_size": group,
            "gradient_accumulation_steps": 2,
            "max_completion_length": completion,
            "generation_kwargs": {"min_new_tokens": completion},
            "beta": 0.04,
            "seed": 0,
            "disable_tqdm": True,
        }
        records = []
        for mode in modes:
            # With an adapter the reference costs nothing: GRPO without KL is GRPO
            layouts = [layout for layout in LAYOUTS if mode == "full" or layout != "grpo_no_kl"]
            arms = {"modes": [mode], "layouts": layouts, "say": lambda line: print(size, line, flush=True)}
            records += compare(keys, Path(scratch) / "arms", **arms)
    for record in records:
        record["profile"].pop("timeline")
        record["profile"]["timeline"] = []
        record["profile"]["about"]["model"] = size  # not where this machine had it
    lengths = {"prompt": prompt, "completion": completion, "group": group}
    return {"records": records, "lengths": lengths}


def planned() -> dict:
    """Returns the plans of every layout and mode: bytes by category at the peak."""
    from trl_grpo_plus.memory import plan as planner

    found: dict = {}
    for model in PLANNED:
        table = planner.compare(model, prompt=512, completion=1024, batch=8, share_prompt=False)
        found[model] = {
            mode: {
                layout: {
                    "peak": made.peak,
                    "phase": str(made.limiting_phase),
                    "by_category": {str(c): size for c, size in made.by_category.items()},
                }
                for layout, made in layouts.items()
            }
            for mode, layouts in table.items()
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="*", default=[], choices=list(SIZES))
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--out", default=str(RESULTS / "ppo_vs_grpo.json"))
    options = parser.parse_args()
    quiet()
    file = Path(options.out)
    record = json.loads(file.read_text()) if file.exists() else {"measured": {}}
    for size in options.measure:
        before = record["measured"].get(size, {"records": []})["records"]
        found = measure(size, tuple(options.modes))
        kept = [r for r in before if r["mode"] not in options.modes]  # other modes stay as they are
        found["records"] = sorted([*kept, *found["records"]], key=lambda r: MODES.index(r["mode"]))
        record["measured"][size] = {**found, "rows": rows(found["records"]), "environment": environment()}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record, indent=1) + "\n")
    from ppo_vs_grpo_claims import claims
    from ppo_vs_grpo_report import write_report

    record["measured"] = {size: record["measured"][size] for size in SIZES if size in record["measured"]}
    record["layouts"] = list(LAYOUTS)
    record["planned"] = planned()
    record["claims"] = claims(record)
    file.write_text(json.dumps(record, indent=1) + "\n")
    write_report(record, file.with_suffix(".md"))
    groups = [(size, each["records"]) for size, each in record["measured"].items()]
    draw_comparison(groups, file.with_suffix(".png"))
    print(f"{file}, .md and .png")


if __name__ == "__main__":
    main()
