"""Does PPO learn the quickstart's task, next to GRPO, from the same number of sampled completions?

The quickstart's task, cold start and settings (`trl_grpo_plus/quickstart`), three seeds, held-out pass@1 over the
training. Every arm samples 120 times 128 completions and starts from the same weights:

    grpo      the quickstart: 16 prompts x 8 completions, one optimizer step per rollout
    grpo_4    the same with num_iterations=4, as many optimizer steps as PPO
    ppo       128 prompts x 1 completion, a separate critic, 4 passes, all else at PPOConfig's defaults

PPO's learning rate is the quickstart's; nothing of PPO was tuned on the problems measured here (test split). Seconds
are CPU seconds of one thread in training, without the evaluations. Results are added to the file, one arm and seed at
a time; what is there already is not run again.

    python benchmarks/bench_ppo_vs_grpo_quickstart.py [--out benchmarks/results/ppo_vs_grpo_quickstart.json]
        [--seeds 0 1 2] [--arms grpo grpo_4 ppo] [--split test] [--scratch DIRECTORY]
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, TrainerCallback

from trl_grpo_plus import PPOConfig, PPOTrainer
from trl_grpo_plus.prompts.arithmetic import arithmetic
from trl_grpo_plus.quickstart import rewards, run
from trl_grpo_plus.quickstart.coldstart import silence
from trl_grpo_plus.quickstart.evaluate import evaluate, interval_over_problems
from trl_grpo_plus.report import environment

ARMS = ("grpo", "grpo_4", "ppo")
PASSES = {"grpo": 1, "grpo_4": 4, "ppo": 4}
EVERY = 20  # rollouts between two measurements
COLORS = {"grpo": "tab:blue", "grpo_4": "tab:cyan", "ppo": "tab:orange"}
LOGGED = ("value/explained_variance", "value/loss", "kl", "policy/approx_kl", "policy/clip_fraction", "reward")


class Watch(TrainerCallback):
    """Held-out pass@1 before the first step and after every `EVERY` rollouts, and the CPU seconds in between."""

    def __init__(self, settings, passes, split):
        task = {"operations": settings.operations, "digits": settings.digits}
        self.rows = arithmetic(size=settings.eval_problems, seed=settings.eval_seed + 1000, split=split, **task)
        self.settings, self.passes = settings, passes
        self.curve, self.per_problem, self.cpu_s = [], [], 0.0

    def measure(self, model, tokenizer, step):
        found, _ = evaluate(
            model,
            tokenizer,
            self.rows,
            samples=self.settings.eval_samples,
            seed=self.settings.eval_seed,
            max_new_tokens=self.settings.max_completion_length,
        )
        completions = step // self.passes * self.settings.prompts_per_step * self.settings.num_generations
        self.curve.append(
            {"completions": completions, "optimizer_steps": step, "pass1": found.pass1, "interval": found.interval}
        )
        self.per_problem.append(found.per_problem)

    def on_train_begin(self, args, state, control, model=None, processing_class=None, **kwargs):
        self.measure(model, processing_class, 0)
        self.started = time.process_time()

    def on_step_end(self, args, state, control, model=None, processing_class=None, **kwargs):
        if state.global_step % (EVERY * self.passes) == 0:
            self.cpu_s += time.process_time() - self.started
            self.measure(model, processing_class, state.global_step)
            self.started = time.process_time()


def settings_of(seed, arm):
    base = run.QuickstartSettings(seed=seed)
    passes = PASSES[arm]
    return dataclasses.replace(
        base,
        steps=base.steps * passes,
        warmup_steps=base.warmup_steps * passes,
        grpo={"num_iterations": passes} if passes > 1 else {},
    )


def train_ppo(settings, coldstart, scratch, watch):
    """The quickstart's options, as `quickstart.run` gives them to GRPO; PPO's own stay at their defaults."""
    task = {"operations": settings.operations, "digits": settings.digits}
    args = PPOConfig(
        output_dir=str(scratch),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.prompts_per_step * settings.num_generations,
        num_ppo_epochs=PASSES["ppo"],
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.lr_scheduler_type,
        warmup_steps=settings.warmup_steps,
        max_completion_length=settings.max_completion_length,
        rewards=rewards.REWARDS,
        bf16=False,
        gradient_checkpointing=False,
        seed=settings.seed,
        **run._trainer_options(),
    )
    trainer = PPOTrainer(
        model=str(coldstart),
        args=args,
        train_dataset=arithmetic(size=settings.demonstrations, seed=settings.seed + 1, split="train", **task),
        processing_class=AutoTokenizer.from_pretrained(coldstart),
        callbacks=[watch],
    )
    silence(trainer)
    trainer.train()
    return trainer.state.log_history


def cold_start(settings, directory):
    """The quickstart's cold-started model; its run ends after one step of GRPO, which is not used."""
    if not (directory / "coldstart").exists():
        run.run(dataclasses.replace(settings, steps=1, warmup_steps=0, grpo={}, eval_problems=8), directory)
    return directory / "coldstart"


def measure(seed, arm, split, scratch):
    settings = settings_of(seed, arm)
    watch = Watch(settings, PASSES[arm], split)
    directory = scratch / f"seed-{seed}"
    if arm == "ppo":  # in the place of the quickstart's GRPO
        coldstart = cold_start(settings, directory)
        torch.set_num_threads(settings.threads)
        with run._quiet():
            history = train_ppo(settings, coldstart, directory / "ppo", watch)
    else:
        history = run.run(settings, directory, callbacks=[watch])["curve"]
    gains = [after - before for before, after in zip(watch.per_problem[0], watch.per_problem[-1], strict=True)]
    found = {
        "before": watch.curve[0]["pass1"],
        "after": watch.curve[-1]["pass1"],
        "gain": sum(gains) / len(gains),
        "gain_interval": list(interval_over_problems(gains)),
        "cpu_seconds": round(watch.cpu_s, 1),
        "curve": watch.curve,
    }
    for name in LOGGED:
        values = [round(log[name], 4) for log in history if log.get(name) is not None]
        if values:
            found[name] = values[:: max(1, len(values) // 24)]
    return found


def plot(record, file):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for arm, seeds in record["arms"].items():
        curves = [[point["pass1"] for point in found["curve"]] for found in seeds.values()]
        completions = [point["completions"] for point in next(iter(seeds.values()))["curve"]]
        for curve in curves:
            axes.plot(completions, curve, color=COLORS[arm], alpha=0.35, linewidth=1)
        mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
        axes.plot(completions, mean, color=COLORS[arm], linewidth=2.5, label=f"{arm}, mean of {len(curves)} seeds")
    axes.set_xlabel("sampled completions")
    axes.set_ylabel("held-out pass@1 (temperature 1)")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(file, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/ppo_vs_grpo_quickstart.json"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--scratch", type=Path, help="Keeps cold starts here, for further runs.")
    parser.add_argument("--split", default="test", choices=["validation", "test"])
    options = parser.parse_args()
    record = {"command": "python benchmarks/bench_ppo_vs_grpo_quickstart.py", "split": options.split, "arms": {}}
    if options.out.exists():
        record = json.loads(options.out.read_text())
    for seed in options.seeds:
        for arm in options.arms:
            seeds = record["arms"].setdefault(arm, {})
            if str(seed) in seeds:
                continue
            with tempfile.TemporaryDirectory() as temporary:
                found = seeds[str(seed)] = measure(seed, arm, options.split, options.scratch or Path(temporary))
            record["environment"] = environment()
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(record, indent=1) + "\n")
            print(
                f"{arm} seed {seed}: {found['before']:.3f} -> {found['after']:.3f} in {found['cpu_seconds']} CPU-s",
                flush=True,
            )
    plot(record, options.out.with_suffix(".png"))


if __name__ == "__main__":
    sys.exit(main())
