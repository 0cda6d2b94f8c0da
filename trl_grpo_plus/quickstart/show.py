"""The quickstart on a screen: progress while it runs, then the table, completions before and after, and the limits.

In: `QuickstartSettings`. Out: what `run` measured, also written to `summary.json`, `metrics.jsonl` and `plots/`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..errors import UserError
from ..report import plot_metrics
from .run import QuickstartSettings, run

_PHASES = {"cold start": "1/2 cold start: SFT from scratch", "grpo": "2/2 GRPO: rewards that a program verifies"}
_PLAIN_LINES = 10  # lines per phase where there is no terminal to redraw
_SHOWN = 3  # problems whose completions are printed


class _Screen:
    """Turns the events of a run into a progress bar, or into lines where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.accuracy: float | None = None

    def __call__(self, event: str, data: dict[str, Any]) -> None:
        if event == "validation":
            self.accuracy = data["accuracy"]
        elif event == "step" and ("loss" in data or "reward" in data):
            self._step(data)
        elif event == "evaluation":
            low, high = data["interval"]
            self.progress.console.print(
                f"   held-out pass@1 {data['when']} GRPO: {data['pass1']:.1%} (95 % interval {low:.1%} to {high:.1%})",
                highlight=False,
            )

    def _step(self, data: dict[str, Any]) -> None:
        phase, step, total = data["phase"], data["step"], data["total"]
        if "reward" in data:
            shown = f"reward {data['reward']:.3f}  tokens {data['completions/mean_length']:.1f}"
        else:
            checked = "" if self.accuracy is None else f"  accuracy {self.accuracy:.0%}"
            shown = f"loss {data['loss']:.3f}{checked}"
        if self.console.is_terminal:
            if phase not in self.tasks:
                self.tasks[phase] = self.progress.add_task(_PHASES[phase], total=total, shown="")
            self.progress.update(self.tasks[phase], completed=step, shown=shown)
            return
        line = step * _PLAIN_LINES // total
        if self.lines.get(phase) != line:
            self.lines[phase] = line
            self.console.print(f"{_PHASES[phase]}  {step}/{total}  {shown}", highlight=False)


def show(settings: QuickstartSettings, output_dir: str | Path, console: Console) -> dict[str, Any]:
    """Runs the quickstart, prints what it does and found, and returns its result.

    Args:
        settings: What to run.
        output_dir: Where everything goes; an earlier quickstart there is replaced.
        console: Where to print.

    Raises:
        UserError: `output_dir` exists and holds something else than an earlier quickstart.
    """
    output = Path(output_dir)
    if output.exists() and any(output.iterdir()):
        if not (output / ".quickstart").exists():
            raise UserError(f"--output_dir: {output} holds something else; choose a directory that does not exist")
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)
    (output / ".quickstart").touch()
    told = ["no GPU, no network", f"seed {settings.seed}", f"{settings.style} demonstrations"]
    told += ["LoRA"] if settings.lora else ["all weights trained"]
    told += ["CONTROL: a random reward"] if settings.control else []
    console.print(f"grpo-plus quickstart: {', '.join(told)}", highlight=False)
    screen = _Screen(console)
    with screen.progress:
        result = run(settings, output, on_event=screen)
    (output / "summary.json").write_text(json.dumps(result, indent=2) + "\n")
    (output / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in result["curve"]))
    plots = plot_metrics(output / "metrics.jsonl", output / "plots", "rewards/exact_match/mean")
    _print_result(console, settings, result, output, plots)
    return result


def _print_result(
    console: Console, settings: QuickstartSettings, result: dict[str, Any], output: Path, plots: list[Path]
) -> None:
    before, after = result["before"], result["after"]
    table = Table()
    for heading in ("held-out problems", "before GRPO", "after GRPO"):
        table.add_column(heading, justify="right" if table.columns else "left", no_wrap=True)

    def percent(values: dict[str, Any], key: str) -> str:
        return "-" if values.get(key) is None else f"{values[key]:.1%}"

    def interval(values: dict[str, Any]) -> str:
        return "{:.1%} to {:.1%}".format(*values["interval"])

    table.add_row("pass@1, sampled at temperature 1", percent(before, "pass1"), percent(after, "pass1"))
    table.add_row("  95 % interval over problems", interval(before), interval(after))
    table.add_row("pass@1, greedy", percent(before, "greedy"), percent(after, "greedy"))
    table.add_row("worked step by step", percent(before, "worked_share"), percent(after, "worked_share"))
    table.add_row("right where worked", percent(before, "given_worked"), percent(after, "given_worked"))
    table.add_row("tokens per completion", f"{before['mean_length']:.1f}", f"{after['mean_length']:.1f}")
    console.print()
    if not result["cold_start"]["reached"]:
        console.print("the cold start ended before it reached its target: GRPO started from a weaker model than usual")
    console.print(table, highlight=False)
    low, high = result["gain_interval"]
    console.print(f"gain: {100 * result['gain']:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})", highlight=False)
    signal = result["no_signal"]
    console.print(
        f"groups without signal (all completions scored alike): {signal['first_tenth']:.0%} in the first tenth of the "
        f"training, {signal['last_tenth']:.0%} in the last",
        highlight=False,
    )
    samples = Table(show_lines=True)
    for heading in ("problem", "before", "after"):
        samples.add_column(heading, overflow="fold")
    for row in result["completions"][:_SHOWN]:
        cells = (f"{row['prompt']} (gold {row['answer']})", row["before"][0], row["after"][0])
        samples.add_row(*(escape(cell) for cell in cells))
    console.print(samples, highlight=False)
    console.print(f"What these numbers do not show: {limits(settings)}", highlight=False)
    wall = sum(phase["wall_s"] for phase in result["timings"].values())

    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    say(f"\n{wall:.0f} s; models, metrics and plots are in {output}/" + (" (plots/*.png)" if plots else ""))
    if not settings.control:
        say(f"honesty check, a random reward instead: grpo-plus quickstart --control --seed {settings.seed}")
    say("a real language model next: make smollm2, then grpo-plus train recipes/smollm2-135m_arithmetic.yaml")


def limits(settings: QuickstartSettings) -> str:
    """Returns what a run with these settings is no evidence for."""
    if settings.control:
        return "anything but that a gain, where the reward is real, does not come from training as such."
    general = (
        "they are one task and one tiny model. More supervised training on correct demonstrations would raise the "
        "accuracy as well: this is no evidence that RL beats SFT."
    )
    if settings.style == "mixed":
        return (
            "most of the gain is the policy dropping the guessing habit that the demonstrations put there on purpose; "
            "'right where worked' is the part that is better arithmetic. Completions get longer because worked "
            f"answers are longer, not because reasoning grew. And {general}"
        )
    return f"the whole gain is better arithmetic in an unchanged form: no new reasoning appears. And {general}"
