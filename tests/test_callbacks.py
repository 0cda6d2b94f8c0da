"""The callbacks by themselves: what is kept of a metrics file, what is shown, and how signals end a training."""

import io
import json
import os
import signal
from types import SimpleNamespace

import pytest
from rich.console import Console

from trl_grpo_plus.callbacks import MetricsFile, ProgressDisplay, StopOnSignal


def state(step, total=40):
    return SimpleNamespace(global_step=step, max_steps=total, is_world_process_zero=True)


def test_metrics_of_later_steps_are_dropped_on_resume(tmp_path):
    file = tmp_path / "metrics.jsonl"
    callback = MetricsFile(file)
    for step in (1, 2, 3):
        callback.on_log(None, state(step), None, logs={"reward": step / 2})
    callback.on_train_begin(None, state(2), None)
    callback.on_log(None, state(3), None, logs={"reward": 9.0})
    assert [(json.loads(x)["step"], json.loads(x)["reward"]) for x in file.read_text().splitlines()] == [
        (1, 0.5),
        (2, 1.0),
        (3, 9.0),
    ]


def test_plain_lines_without_a_terminal():
    console = Console(file=io.StringIO(), width=200)
    display = ProgressDisplay(console, "rewards/gsm8k/mean")
    display.on_train_begin(None, state(0), None)
    for step in range(1, 41):
        logs = {"reward": 0.5, "rewards/gsm8k/mean": 0.25, "completions/mean_length": 12.0}
        display.on_log(None, state(step), None, logs=logs)
    lines = console.file.getvalue().splitlines()
    assert 15 <= len(lines) <= 21
    assert lines[-1] == "training 40/40  reward 0.500  accuracy 25.0%  tokens 12.0"


def test_a_bar_on_a_terminal():
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    display = ProgressDisplay(console)
    display.on_train_begin(None, state(0), None)
    display.on_log(None, state(1), None, logs={"reward": 0.5})
    display.on_step_end(None, state(40), None)
    display.on_train_end(None, state(40), None)
    display.close()
    assert "40/40" in console.file.getvalue() and "reward 0.500" in console.file.getvalue()


def test_the_first_signal_saves_and_the_second_stops():
    said = []
    callback = StopOnSignal(said.append, signals=(signal.SIGUSR1,))
    old = signal.getsignal(signal.SIGUSR1)
    control = SimpleNamespace(should_save=False, should_training_stop=False)
    callback.on_train_begin(None, state(0), control)
    callback.on_step_end(None, state(1), control)
    assert not control.should_save
    os.kill(os.getpid(), signal.SIGUSR1)
    callback.on_step_end(None, state(2), control)
    assert control.should_save and control.should_training_stop and "saving a checkpoint" in said[0]
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.sigtimedwait([], 0.1)
    callback.on_train_end(None, state(2), control)
    assert signal.getsignal(signal.SIGUSR1) == old
