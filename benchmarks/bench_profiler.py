"""What the memory profiler costs: the same steps with it and without it, interleaved in one process.

    python benchmarks/bench_profiler.py

Writes benchmarks/results/profiler_overhead.json: median CPU seconds of a step off and on, their ratio, the profiler's
own estimate of what it cost, and the spread of the steps without it, which is the noise of the comparison.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from bench_step import Point, build_model, prompts, reward
from peft import LoraConfig
from transformers import AutoTokenizer, PrinterCallback, TrainerCallback

from trl_grpo_plus import GRPOConfig, GRPOTrainer
from trl_grpo_plus._quiet import quiet
from trl_grpo_plus.memory.profiler import MemoryProfiler
from trl_grpo_plus.report import environment


class Steps(TrainerCallback):
    """CPU seconds of each optimizer step: those that other processes take do not count."""

    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *args, **kwargs):
        self.started = time.process_time()

    def on_step_end(self, *args, **kwargs):
        self.seconds.append(time.process_time() - self.started)


def run(directory: str, point: Point, steps: int, scratch: Path, profiled: bool) -> dict:
    """Returns the seconds of each step, and the profiler's estimate of its own, per step."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    args = GRPOConfig(
        str(scratch / "run"),
        per_device_train_batch_size=point.G * point.prompts,
        num_generations=point.G,
        max_completion_length=point.C,
        generation_kwargs={"min_new_tokens": point.C},
        max_steps=steps + 1,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        logging_steps=1,
    )
    peft = LoraConfig(r=16, target_modules="all-linear") if point.lora else None
    data = prompts(point, tokenizer, 16)
    trainer = GRPOTrainer(directory, reward, args, data, processing_class=tokenizer, peft_config=peft)
    trainer.remove_callback(PrinterCallback)
    clock = Steps()
    trainer.add_callback(clock)
    if not profiled:
        trainer.train()
        return {"seconds": clock.seconds[1:]}  # the first step warms up
    with MemoryProfiler(trainer, None) as profiler:
        trainer.train()
    profile = profiler.profile
    return {"seconds": clock.seconds[1:], "estimate_s": profile.overhead_s / profile.steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--geometries", nargs="+", default=["tiny", "llama-10m"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--out", default="benchmarks/results/profiler_overhead.json")
    options = parser.parse_args()
    quiet()
    torch.set_num_threads(1)
    record = {"environment": environment(), "threads": 1, "results": []}
    with tempfile.TemporaryDirectory() as scratch:
        for geometry in options.geometries:
            directory = build_model(geometry, torch.float32, "cpu", Path(scratch))
            for point in (Point(64, 64, G=4), Point(64, 64, G=4, lora=True)):
                off, on, estimates = [], [], []
                for _ in range(options.repeats):
                    off += run(directory, point, options.steps, Path(scratch), profiled=False)["seconds"]
                    result = run(directory, point, options.steps, Path(scratch), profiled=True)
                    on += result["seconds"]
                    estimates.append(result["estimate_s"])
                found = {
                    "geometry": geometry,
                    "lora": point.lora,
                    "off_s": statistics.median(off),
                    "on_s": statistics.median(on),
                    "overhead": statistics.median(on) / statistics.median(off) - 1,
                    "own_estimate_s": statistics.median(estimates),
                    "spread": (max(off) - min(off)) / statistics.median(off),
                }
                record["results"].append(found)
                print({k: round(v, 3) if isinstance(v, float) else v for k, v in found.items()}, flush=True)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
