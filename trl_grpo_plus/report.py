"""What a run tells a person: the header before it, the table after it, its summary and its plots."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from . import __version__
from .ppo_config import PPOConfig
from .prompts import Overlap
from .recipe import Recipe
from .rewards import Weighted

_WINDOW = 10  # the first and the last tenth of a training are compared where nothing is held out


def environment() -> dict[str, Any]:
    """Returns the versions and the hardware that a number was measured with."""
    import os

    import torch

    packages = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    return {
        "trl_grpo_plus": __version__,
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "threads": torch.get_num_threads(),
    }


def count_parameters(trainer: Any) -> tuple[int, int]:
    """Returns the policy's (all, trained) parameters; a 4-bit weight counts the numbers that it packs."""
    every = trained = 0
    critic = trainer.critic_module.trained.values() if isinstance(trainer.args, PPOConfig) else ()
    critics = {id(parameter) for parameter in critic}  # an adapter of the critic may sit in the policy's layers
    for parameter in trainer.model.parameters():
        if id(parameter) in critics:
            continue
        shape = getattr(getattr(parameter, "quant_state", None), "shape", None) or parameter.shape
        count = 1
        for side in shape:
            count *= int(side)
        every += count
        trained += count if parameter.requires_grad else 0
    return every, trained


def _millions(count: int) -> str:
    return f"{count / 1e6:,.1f} M" if count >= 1e6 else f"{count / 1e3:,.1f} k"


def print_header(
    console: Console,
    recipe: Recipe,
    trainer: Any,
    rewards: Sequence[Weighted],
    rows: int,
    held_out: int | None,
    overlap: Overlap | None = None,
) -> None:
    """Prints what is about to run: model, parameters trained, batch arithmetic, rewards, data, destination."""
    args = trainer.args
    every, trained = count_parameters(trainer)
    dtype = str(trainer.model.dtype).removeprefix("torch.")
    completions = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    prompts = completions / args.num_generations
    table = Table.grid(padding=(0, 2))

    def row(name: str, text: str) -> None:
        table.add_row(name, escape(text))

    row("model", f"{recipe.model.model_name_or_path} ({_millions(every)} parameters, {dtype}, {args.device})")
    row("trained", f"{_millions(trained)} parameters ({trained / every:.1%})")
    row(
        "step",
        f"prompts {prompts:g} x completions {args.num_generations} = {completions} "
        f"(micro-batch {args.per_device_train_batch_size} x accumulation {args.gradient_accumulation_steps} "
        f"x processes {args.world_size})",
    )
    row("length", f"at most {args.max_completion_length} tokens a completion")
    row("rewards", " + ".join(f"{r.weight:g} x {r.name}" for r in rewards))
    row("prompts", f"{rows:,} from {recipe.prompts.source}")
    if held_out and recipe.eval_prompts:
        row("held out", f"{held_out:,} from {recipe.eval_prompts.source}, split {recipe.eval_prompts.split}")
        if overlap is not None and overlap.problems:
            row("overlap", f"{overlap.describe()}: their score measures memory")
    if isinstance(args, PPOConfig):
        weights = sum(p.numel() for p in trainer.critic_module.trained.values())
        row("critic", f"{args.critic}, trains {_millions(weights)}, learning rate {args.critic_learning_rate:g}")
        row(
            "loss",
            f"PPO, {args.num_ppo_epochs} epochs, kl_coef {args.kl_coef:g}, learning rate {args.learning_rate:g}",
        )
    else:
        row("loss", f"{args.loss_type}, beta {args.beta:g}, learning rate {args.learning_rate:g}")
    savings = trainer.savings()
    row("saves work", ", ".join(name for name, state in savings.items() if state == "on") or "nothing is switched on")
    for name, state in savings.items():
        if state != "on":
            row("", f"{name} {state}")
    row("output", str(args.output_dir))
    console.print(table, highlight=False)


def _train_windows(trainer: Any) -> tuple[dict[str, float], dict[str, float]]:
    """Returns the mean logs of the first and of the last tenth of the training steps."""
    logs = [log for log in trainer.state.log_history if "reward" in log and "eval_reward" not in log]
    width = max(1, len(logs) // _WINDOW)

    def mean(window: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        keys = {k for log in window for k, v in log.items() if isinstance(v, (int, float))}
        values = {k: [log[k] for log in window if log.get(k) is not None] for k in keys}
        return {k: sum(v) / len(v) for k, v in values.items() if v}

    return mean(logs[:width]), mean(logs[-width:])


def summarize(
    recipe: Recipe,
    trainer: Any,
    rewards: Sequence[Weighted],
    before: Mapping[str, float] | None,
    after: Mapping[str, float] | None,
    seconds: float,
    interrupted: bool,
) -> dict[str, Any]:
    """Returns the summary of a run as JSON values.

    `before` and `after` hold the metrics `reward`, `rewards/<name>/mean`, `completions/mean_length` (tokens),
    `completions/clipped_ratio` and `frac_reward_zero_std`: of held-out prompts where the recipe has them
    (`measured_on: held_out`), else the means over the first and the last tenth of the training steps (`training`).
    With `eval_rewards` they hold all metrics of that evaluation, and the ends of their intervals.
    """
    held_out = before is not None and after is not None
    first, last = (before, after) if held_out else _train_windows(trainer)
    keys = ["reward", *(f"rewards/{r.name}/mean" for r in rewards)]
    keys += ["completions/mean_length", "completions/clipped_ratio"]
    if not held_out and trainer.num_generations > 1:  # a held-out prompt may have one completion only
        keys.append("frac_reward_zero_std")
    if held_out and trainer.evaluation is not None:
        keys = [key for key in first or () if key not in ("runtime", "epoch")]
    every, trained = count_parameters(trainer)
    return {
        "recipe": str(recipe.path),
        "model": recipe.model.model_name_or_path,
        "parameters": every,
        "parameters_trained": trained,
        "steps": trainer.state.global_step,
        "interrupted": interrupted,
        "seconds": round(seconds, 1),
        "measured_on": "held_out" if held_out else "training",
        "before": {k: first[k] for k in keys if first and k in first},
        "after": {k: last[k] for k in keys if last and k in last},
        "command": " ".join(["grpo-plus", *sys.argv[1:]]),
        "environment": environment(),
    }


def print_summary(console: Console, recipe: Recipe, summary: Mapping[str, Any], plots: Sequence[Path]) -> None:
    """Prints the table before/after, the files, and the next command."""
    output = recipe.args.output_dir
    where = (
        "held-out prompts" if summary["measured_on"] == "held_out" else "first and last tenth of the training steps"
    )
    table = Table()
    for heading in ("metric", "before", "after", "change"):
        table.add_column(heading, justify="left" if heading == "metric" else "right")

    def shown(values: Mapping[str, float], key: str) -> str:
        ends = [values[f"{key}/{end}"] for end in ("low", "high") if f"{key}/{end}" in values]
        return f"{values[key]:.3f}" + (f" ({ends[0]:.3f} to {ends[1]:.3f})" if len(ends) == 2 else "")

    before, after = summary["before"], summary["after"]
    for key in before:
        if key in after and not key.endswith(("/low", "/high")):
            table.add_row(key, shown(before, key), shown(after, key), f"{after[key] - before[key]:+.3f}")

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)  # commands must stay on one line

    if table.row_count:
        say(f"\nbefore and after ({where}):")
        console.print(table, highlight=False)
    say(f"{summary['steps']} steps in {summary['seconds']:.0f} s; everything is in {output}/")
    if plots:
        say("plots: " + ", ".join(str(p) for p in plots))
    if summary["interrupted"]:
        say(f"stopped early. Go on with: grpo-plus train {output}/recipe.yaml --resume")
    else:
        say(f"train longer: grpo-plus train {output}/recipe.yaml --resume --max_steps {2 * int(summary['steps'])}")


def plot_metrics(metrics: Path, directory: Path, accuracy_key: str | None) -> list[Path]:
    """Draws reward, accuracy and completion length over the steps, one PNG each, and returns the files.

    Args:
        metrics: The `metrics.jsonl` of a run.
        directory: Where the files go.
        accuracy_key: Metric that is an accuracy, or `None` to leave that plot out.

    Returns:
        The files; none where matplotlib is not installed (extra `plots`) or nothing was logged.
    """
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    logs = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    wanted = [("reward", "reward", "mean reward"), ("length", "completions/mean_length", "tokens per completion")]
    if accuracy_key:
        wanted.insert(1, ("accuracy", accuracy_key, "share of right answers"))
    files = []
    for name, key, label in wanted:
        points = [(log["step"], log[key]) for log in logs if log.get(key) is not None]
        if not points:
            continue
        directory.mkdir(parents=True, exist_ok=True)
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(*points, strict=True), label="training batches", linewidth=1)
        held_out = [(log["step"], log[f"eval_{key}"]) for log in logs if log.get(f"eval_{key}") is not None]
        if held_out:
            axes.plot(*zip(*held_out, strict=True), "o-", label="held out")
            axes.legend()
        axes.set_xlabel("optimizer step")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
        files.append(directory / f"{name}.png")
        figure.savefig(files[-1], dpi=120)
    return files
