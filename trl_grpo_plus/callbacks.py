"""Callbacks of a run from the command line: its metrics file, its progress display, and an orderly stop.

They read what TRL logs and work with any of its trainers.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback

_PLAIN_LINES = 20  # lines that a run prints where there is no terminal to redraw


class MetricsFile(TrainerCallback):  # type: ignore[misc]
    """Appends what the trainer logs to a JSON-lines file: one object per log, with `step` and `time` (Unix, s).

    A run that goes on from a checkpoint first drops the lines of later steps, so that no step stands there twice.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keeps the lines up to the step that the training starts from."""
        if state.is_world_process_zero and self.path.exists():
            kept = [
                line for line in self.path.read_text().splitlines() if json.loads(line)["step"] <= state.global_step
            ]
            self.path.write_text("".join(f"{line}\n" for line in kept))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Appends one line."""
        if state.is_world_process_zero and logs:
            with self.path.open("a") as file:
                file.write(json.dumps({"step": state.global_step, "time": round(time.time(), 3), **logs}) + "\n")


class ProgressDisplay(TrainerCallback):  # type: ignore[misc]
    """A live line with step, reward, accuracy, completion length and the time left; plain lines without a terminal.

    Args:
        console: Where to print.
        accuracy_key: Logged metric that is shown as accuracy, or `None`.
        title: Text before the bar.
    """

    def __init__(self, console: Console, accuracy_key: str | None = None, title: str = "training") -> None:
        self.console = console
        self.accuracy_key = accuracy_key
        self.title = title
        self._progress: Progress | None = None
        self._last_line = -1.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Shows the bar."""
        self._last_line = -1.0
        if not (state.is_world_process_zero and self.console.is_terminal):
            return
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
        )
        self._progress.start()
        self._task = self._progress.add_task(self.title, total=state.max_steps, completed=state.global_step, shown="")

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Shows the newest values."""
        if not state.is_world_process_zero or not logs or not ({"reward", "loss"} & logs.keys()):
            return
        shown = self.describe(logs)
        if self._progress is not None:
            self._progress.update(self._task, shown=shown)
        elif not self.console.is_terminal:
            done = state.global_step / max(state.max_steps, 1)
            if done - self._last_line >= 1 / _PLAIN_LINES or done >= 1:
                self._last_line = done
                self.console.print(f"{self.title} {state.global_step}/{state.max_steps}  {shown}", highlight=False)

    def describe(self, logs: dict[str, Any]) -> str:
        """Returns the values shown of one log."""
        parts = [
            ("reward", logs.get("reward"), ".3f"),
            ("accuracy", logs.get(self.accuracy_key) if self.accuracy_key else None, ".1%"),
            ("tokens", logs.get("completions/mean_length"), ".1f"),
            ("loss", logs.get("loss") if "reward" not in logs else None, ".3f"),
        ]
        return "  ".join(f"{name} {value:{form}}" for name, value, form in parts if value is not None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Moves the bar."""
        if self._progress is not None:
            self._progress.update(self._task, completed=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leaves the bar as it is."""
        self.close()

    def close(self) -> None:
        """Stops drawing; safe to call twice."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class StopOnSignal(TrainerCallback):  # type: ignore[misc]
    """Ctrl-C and SIGTERM let the step finish, save a checkpoint and end the training; a second one stops at once.

    Args:
        announce: Called with a message when a signal arrives.
        signals: The signals.
    """

    def __init__(
        self, announce: Callable[[str], None], signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)
    ) -> None:
        self.announce = announce
        self.signals = signals
        self.stopped = False
        self._old: dict[signal.Signals, Any] = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.stopped:
            raise KeyboardInterrupt
        self.stopped = True
        self.announce("stopping after this step and saving a checkpoint (once more to stop at once, unsaved)")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Takes the signals over."""
        self._old = {each: signal.signal(each, self._handle) for each in self.signals}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends the training with a checkpoint where a signal has come."""
        if self.stopped:
            control.should_save = True
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Gives the signals back."""
        self.restore()

    def restore(self) -> None:
        """Gives the signals back; safe to call twice."""
        for each, old in self._old.items():
            signal.signal(each, old)
        self._old = {}
