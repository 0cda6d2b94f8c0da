"""An evaluation on a screen: progress while it draws, then the table of metrics, or that of a comparison."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from .comparison import Comparison
from .intervals import LEVEL, Estimate
from .result import EvalResult
from .sampling import Sample

_PLAIN_LINES = 20  # lines that a run prints where there is no terminal to redraw


class DrawingProgress:
    """Shows how many samples are there: a bar, or lines where there is no terminal. A context manager.

    Args:
        console: Where to print.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bar = Progress(
            TextColumn("drawing samples"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: int | None = None
        self._done = self._tokens = self._cut = 0
        self._line = -1
        self._started = time.perf_counter()

    def __enter__(self) -> DrawingProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, batch: list[Sample], total: int) -> None:
        """Takes the samples of a batch."""
        self._done += len(batch)
        self._tokens += sum(len(s.ids) for s in batch)
        self._cut += sum(s.truncated for s in batch)
        shown = f"{self._tokens / self._done:.0f} tokens each, {self._cut / self._done:.0%} cut off"
        if self.console.is_terminal:
            if self._task is None:
                self._task = self._bar.add_task("", total=total, shown="")
            self._bar.update(self._bar.task_ids[0], completed=self._done, shown=shown)
            return
        line = self._done * _PLAIN_LINES // total
        if line != self._line:
            self._line = line
            took = time.perf_counter() - self._started
            self.console.print(f"drawing samples {self._done}/{total}  {shown}  {took:.0f} s", highlight=False)


def _form(name: str, value: float) -> str:
    if name.startswith(("pass@", "maj@")) or name in ("format_rate", "answered", "unscored") or "ratio" in name:
        return f"{100 * value:.1f} %"
    return f"{value:.1f}" if "length" in name else f"{value:.3f}"


def print_result(console: Console, result: EvalResult) -> None:
    """Prints the metrics of an evaluation with their intervals."""
    table = Table()
    table.add_column("metric")
    for heading in ("value", f"{LEVEL:.0%} interval", "problems"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, e in result.metrics.items():
        if e.problems == 0:
            table.add_row(name, "-", "-", "0")
            continue
        interval = "-" if e.low == e.high else f"{_form(name, e.low)} to {_form(name, e.high)}"
        table.add_row(name, _form(name, e.value), interval, f"{e.problems}")
    console.print(table, highlight=False)
    console.print(_notes(result.metrics, result), highlight=False, soft_wrap=True)


def _notes(metrics: Mapping[str, Estimate], result: EvalResult) -> str:
    n = result.samples_per_problem
    text = (
        f"{result.problems} problems, {n} sample{'s' if n > 1 else ''} each; intervals are bootstrapped over problems"
    )
    cut = metrics["completions/clipped_ratio"].value
    if cut > 0.1:
        text += f". {cut:.0%} of the samples were cut off: a larger max_new_tokens may raise the accuracy"
    unscored = metrics["unscored"].value
    if unscored > 0:
        text += f". {unscored:.1%} of the samples could not be scored and are left out of pass@k and maj@k"
    return text


def print_comparison(console: Console, found: Comparison, run_a: str, run_b: str) -> None:
    """Prints run B against run A."""
    table = Table()
    table.add_column("metric")
    for heading in ("A", "B", "B - A", f"{LEVEL:.0%} interval", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, d in found.differences.items():
        if d.change.problems == 0:
            continue
        share = _form(name, 0.0).endswith("%")
        change, low, high = (
            f"{100 * v:+.1f}" if share else f"{v:+.3f}" for v in (d.change.value, d.change.low, d.change.high)
        )
        table.add_row(name, _form(name, d.a), _form(name, d.b), change, f"{low} to {high}", f"{d.p_value:.4f}")
    console.print(f"A: {run_a}\nB: {run_b}", highlight=False, soft_wrap=True)
    console.print(table, highlight=False)
    left_out = f", {found.only_a} only in A and {found.only_b} only in B" if found.only_a or found.only_b else ""
    console.print(
        f"{found.paired} problems in both{left_out}. Paired: intervals are bootstrapped over problems, p is that of a "
        f"two-sided permutation test over problems, each metric by itself",
        highlight=False,
        soft_wrap=True,
    )
