"""What a pipeline tells at its end: one table and one plot, of every model on the same held-out problems.

A change is the mean over problems of after minus before, with its 95 % interval over problems: the two models answer
the same problems, so their intervals may overlap where the change is clear.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from .evaluations import Evaluation
from .record import write_json
from .spec import Pipeline


@dataclass(frozen=True)
class StageRow:
    """One stage in the summary.

    Args:
        name: Its name.
        algorithm: What it ran.
        skipped: Whether it was done before this command.
        result: What it found.
        before: Evaluation of the model that it started from, if it has one.
        after: Evaluation of the model that it made; the same as before where it made none.
    """

    name: str
    algorithm: str
    skipped: bool
    result: Mapping[str, Any]
    before: Evaluation | None
    after: Evaluation | None

    @property
    def trained(self) -> bool:
        """Whether it made a model."""
        return self.before is not None and self.after is not None and self.algorithm != "rejection_sampling"


def summary_of(pipeline: Pipeline, rows: Sequence[StageRow]) -> dict[str, Any]:
    """Returns the summary as JSON values."""
    from ..report import environment

    names = metric_names(pipeline)
    stages = []
    for row in rows:
        entry: dict[str, Any] = {
            "stage": row.name,
            "algorithm": row.algorithm,
            "seconds": row.result.get("stage_seconds"),
            "steps": row.result.get("steps"),
        }
        if row.before is not None and row.after is not None:
            entry["before"], entry["after"] = row.before.metrics, row.after.metrics
            entry["problems"], entry["samples"] = row.after.problems, row.after.samples
            if row.trained:
                entry["change"] = {name: _change(row.before, row.after, name) for name in names}
        if "counts" in row.result:
            entry["counts"] = row.result["counts"]
        if row.algorithm == "reward_model" and row.result.get("after"):
            entry["held_out_accuracy"] = row.result["after"].get("accuracy")
        stages.append(entry)
    return {"pipeline": str(pipeline.path), "metrics": names, "stages": stages, "environment": environment()}


def metric_names(pipeline: Pipeline) -> list[str]:
    """Returns the metrics that the table shows."""
    evaluation = pipeline.evaluation
    if evaluation is None:
        return []
    return ["pass@1"] + ([f"maj@{evaluation.majority}"] if evaluation.majority > 1 else [])


def _change(before: Evaluation, after: Evaluation, name: str) -> tuple[float, float, float] | None:
    from ..evaluation import paired_difference

    if name not in before.values or name not in after.values:
        return None
    old, new = (np.array([np.nan if v is None else v for v in e.values[name]]) for e in (before, after))
    change = paired_difference(old, new).change
    return (change.value, change.low, change.high) if np.isfinite(change.value) else None


def write_summary(pipeline: Pipeline, rows: Sequence[StageRow], console: Console | None = None) -> None:
    """Writes `summary.json`, `summary.md` and `summary.png` into the pipeline's directory, and prints the table."""
    summary = summary_of(pipeline, rows)
    write_json(pipeline.output_dir / "summary.json", summary)
    heads, lines = table_of(summary)
    text = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(line)} |" for line in lines)]
    (pipeline.output_dir / "summary.md").write_text("\n".join(text) + "\n")
    plot = draw(summary, pipeline.output_dir / "summary.png")
    if console is None:
        return
    console.print(_screen_table(summary), highlight=False)
    files = ", ".join(name for name in ("summary.md", "summary.json", "summary.png" if plot else "") if name)
    console.print(f"{pipeline.output_dir}/: {files}", highlight=False, markup=False, soft_wrap=True)


def table_of(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the headings and the rows of the table of a summary, as texts."""
    names = summary["metrics"]
    tasks = list(dict.fromkeys(t for s in summary["stages"] for t in s.get("after", {}) if t != "all"))
    heads = ["stage", "what"]
    for name in names:
        heads += [f"{name} before, %", "after, %", "change, points"]
    heads += [f"{task}: {names[0]}, %" for task in tasks if names]
    heads += ["tokens", "seconds"] if names else ["seconds"]
    lines = []
    for stage in summary["stages"]:
        line = [stage["stage"], what(stage)]
        for name in names:
            line += [_percent(stage.get(side, {}).get("all", {}).get(name)) for side in ("before", "after")]
            change = (stage.get("change") or {}).get(name)
            line.append("" if change is None else _points(change))
        for task in tasks:
            values = [stage.get(side, {}).get(task, {}).get(names[0]) for side in ("before", "after")]
            shown = ["-" if value is None else f"{100 * value[0]:.1f}" for value in values]
            line.append("" if "after" not in stage else shown[1] if "change" not in stage else " -> ".join(shown))
        if names:
            length = stage.get("after", {}).get("all", {}).get("completions/mean_length")
            line.append("" if length is None else f"{length[0]:.1f}")
        line.append("" if stage["seconds"] is None else f"{stage['seconds']:.0f}")
        lines.append(line)
    return heads, lines


def _screen_table(summary: Mapping[str, Any]) -> Table:
    """Returns the table for a screen of 80 columns: a block of lines per stage, a line per metric."""
    names = summary["metrics"]
    table = Table(show_lines=True)
    for head in ("stage", "held out", "before, %", "after, %", "change, points"):
        table.add_column(head, justify="left" if head in ("stage", "held out") else "right", no_wrap=head != "stage")
    for stage in summary["stages"]:
        seconds = "" if stage["seconds"] is None else f"{stage['seconds']:.0f} s"
        shown: list[list[str]] = [[], [], [], []]
        tasks = [task for task in stage.get("after", {}) if task != "all"]
        for task, name in [*(("all", name) for name in names), *((task, names[0]) for task in tasks if names)]:
            if "after" not in stage or name not in stage["after"].get(task, {}):
                continue
            change = (stage.get("change") or {}).get(name) if task == "all" else None
            shown[0].append(name if task == "all" else f"{task}: {name}")
            shown[1].append(_percent(stage["before"].get(task, {}).get(name)))
            shown[2].append(_percent(stage["after"][task][name]) if "change" in stage else "same model")
            shown[3].append("" if change is None else _points(change))
        table.add_row(f"{stage['stage']}\n{what(stage)}\n{seconds}", *("\n".join(lines) for lines in shown))
    return table


def what(stage: Mapping[str, Any]) -> str:
    """Returns what a stage did, in a few words."""
    if stage.get("counts"):
        return f"keeps {stage['counts']['kept']:,} of {stage['counts']['samples']:,} samples"
    if stage["algorithm"] == "reward_model" and stage.get("held_out_accuracy") is not None:
        return f"reward model, right on {100 * stage['held_out_accuracy']:.0f} % of held-out pairs"
    steps = f", {stage['steps']:,} steps" if stage.get("steps") else ""
    title = {"sft": "SFT", "grpo": "GRPO", "ppo": "PPO", "reward_model": "reward model", "call": "data"}
    return title.get(stage["algorithm"], str(stage["algorithm"])) + steps


def _percent(value: Sequence[float] | None) -> str:
    return "" if value is None else f"{100 * value[0]:.1f} ({100 * value[1]:.0f} to {100 * value[2]:.0f})"


def _points(value: Sequence[float]) -> str:
    return f"{100 * value[0]:+.1f} ({100 * value[1]:+.0f} to {100 * value[2]:+.0f})"


def draw(summary: Mapping[str, Any], file: Path) -> Path | None:
    """Draws the metrics of every model in order, with their intervals, and returns the file.

    Returns:
        The file; `None` where matplotlib is not installed (extra `plots`) or no model was evaluated.
    """
    points = [("base", stage["before"]) for stage in summary["stages"] if "before" in stage][:1]
    points += [(stage["stage"], stage["after"]) for stage in summary["stages"] if "change" in stage]
    try:
        import matplotlib
    except ImportError:
        return None
    if not points or not summary["metrics"]:
        return None
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(points))
    tasks = [task for task in points[-1][1] if task != "all"]
    for shift, name in zip((-0.06, 0.06), summary["metrics"], strict=False):
        found = np.array([metrics["all"].get(name, (np.nan,) * 3) for _, metrics in points])
        spread = np.abs(found[:, 1:].T - found[:, 0])
        axes.errorbar(places + shift, found[:, 0], yerr=spread, fmt="o-", capsize=3, label=f"{name}, all problems")
    for task in tasks:
        values = [metrics.get(task, {}).get("pass@1", (np.nan,))[0] for _, metrics in points]
        axes.plot(places, values, "--", linewidth=1, label=f"pass@1, {task}")
    axes.set_xticks(places, [name for name, _ in points])
    axes.set_ylabel("share of held-out problems, 95 % intervals")
    axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(file, dpi=120)
    return file


def read_summary(output_dir: Path) -> dict[str, Any]:
    """Returns the summary of a pipeline's directory."""
    found: dict[str, Any] = json.loads((output_dir / "summary.json").read_text())
    return found
