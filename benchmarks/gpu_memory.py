"""The memory part of the GPU check: the profiler's peaks against the plan's, phase by phase.

On CUDA the measured peak is `torch.cuda.max_memory_allocated`, which the profiler reads; on a CPU it is the tracker's.
"""

from pathlib import Path

from bench_step import Point, prompts, reward
from transformers import AutoTokenizer, PrinterCallback

from trl_grpo_plus import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from trl_grpo_plus.memory.plan import plan
from trl_grpo_plus.memory.profiler import MemoryProfiler

MIB = 2**20
# name, trainer, memory mode, options that trainer and plan share under the same name
CASES = (
    ("GRPO full", "grpo", "full", {}),
    ("GRPO LoRA", "grpo", "lora", {}),
    ("GRPO LoRA, no checkpointing", "grpo", "lora", {"gradient_checkpointing": False}),
    ("GRPO QLoRA", "grpo", "qlora", {}),
    ("PPO LoRA, adapter critic", "ppo", "lora", {"critic": "adapter"}),
)


def memory_check(directory: str, device: str, P: int, C: int, G: int, scratch: Path, exact: bool = True) -> list[dict]:
    """Returns, for each case, measured and planned peaks in MiB, and the errors of the plan."""
    found = []
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    data = prompts(Point(P, C, G=G, prompts=1), tokenizer, 16)
    for name, algorithm, mode, options in CASES:
        base, config = (PPOTrainer, PPOConfig) if algorithm == "ppo" else (GRPOTrainer, GRPOConfig)
        kl = {"kl_coef": 0.04, "num_ppo_epochs": 1} if algorithm == "ppo" else {"beta": 0.04}
        args = config(
            output_dir=str(scratch / "memory"),
            memory_mode=mode,
            optim="adamw_torch_fused",
            per_device_train_batch_size=G,
            gradient_accumulation_steps=2,
            num_generations=G,
            max_completion_length=C,
            generation_kwargs={"min_new_tokens": C},
            max_steps=2,
            learning_rate=1e-6,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=device == "cpu",
            bf16=device == "cuda",
            share_prompt=False,
            **kl,
            **options,
        )
        trainer = base(directory, reward, args, data, processing_class=tokenizer)
        trainer.remove_callback(PrinterCallback)
        with MemoryProfiler(trainer, None) as profiler:
            trainer.train()
        del trainer
        profile = profiler.profile
        asked = {
            "algorithm": algorithm, "mode": mode, "device": device, "prompt": P, "completion": C, "group": G,
            "batch": G, "accumulation": 2, "reference": True, "iterations": 1, "autocast": device == "cuda",
            "share_prompt": False, "padding": False, **options,
        }  # fmt: skip
        plans = {"closed form": plan(directory, **asked)}
        if exact:
            plans["exact"] = plan(directory, exact=True, **asked)
        measured = {str(phase): record.peak.total_bytes / MIB for phase, record in profile.phases.items()}
        case = {
            "case": name,
            "backend": profile.backend,
            "measured_mib": profile.peak_mib,
            "measured_phase": str(profile.peak_phase),
            "reserved_mib": profile.peak_reserved_bytes / MIB,
            "phases_mib": measured,
            "planned": {
                how: {
                    "mib": made.peak / MIB,
                    "error": made.peak / MIB / profile.peak_mib - 1,
                    "phase": str(made.limiting_phase),
                    "phases_mib": {str(phase): size / MIB for phase, size in made.totals.items()},
                }
                for how, made in plans.items()
            },
        }
        found.append(case)
        errors = "  ".join(f"{how} {each['error']:+.1%}" for how, each in case["planned"].items())
        print(f"{name}: {case['measured_mib']:,.1f} MiB in {case['measured_phase']}; plan: {errors}", flush=True)
    return found
