"""`grpo-plus train` as a user runs it: files it leaves, refusals that help, Ctrl-C and --resume."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml


@pytest.fixture
def recipe(write_recipe):
    """A recipe that trains the tiny model with GRPO for two steps; returns a function that writes it with changes."""
    keys = {
        "gradient_checkpointing": False,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "max_steps": 2,
    }
    return lambda **changes: write_recipe(**{**keys, **changes})


def test_a_run_leaves_what_tells_what_happened(recipe, grpo_plus, tmp_path):
    code, text = grpo_plus("train", recipe(), "--max_steps", "3")
    assert code == 0, text
    assert "prompts 2 x completions 4 = 8 (micro-batch 8 x accumulation 1 x processes 1)" in text
    assert "1 x gsm8k + 0.1 x think_format" in text and "3/3" in text
    assert f"train longer: grpo-plus train {tmp_path}/run/recipe.yaml --resume --max_steps 6" in text
    output = tmp_path / "run"
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "reward" in line] == [1, 2, 3]
    assert [line["step"] for line in lines if "eval_reward" in line] == [0, 3]
    summary = json.loads((output / "summary.json").read_text())
    assert summary["measured_on"] == "held_out" and summary["steps"] == 3 and not summary["interrupted"]
    assert summary["before"]["rewards/gsm8k/mean"] == lines[0]["eval_rewards/gsm8k/mean"]
    assert summary["parameters"] == summary["parameters_trained"] > 0
    assert yaml.safe_load((output / "recipe.yaml").read_text())["max_steps"] == 3
    for name in ("reward", "accuracy", "length"):
        assert (output / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "model.safetensors").exists()

    code, text = grpo_plus("train", recipe())
    assert code == 2 and "holds an earlier run" in text and "--resume" in text
    code, text = grpo_plus("train", f"{output}/recipe.yaml", "--resume", "--max_steps", "4")
    assert code == 0, text
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "reward" in line] == [1, 2, 3, 4]
    code, text = grpo_plus("train", recipe(eval_prompts=None), "--overwrite")
    assert code == 0 and "first and last tenth of the training steps" in text
    assert json.loads((output / "summary.json").read_text())["measured_on"] == "training"


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, ["--prompts.source", "no/where.jsonl"], "prompts.source: no such file: no/where.jsonl"),
        ({"rewards": ["gsm8"]}, [], "unknown reward `gsm8` (did you mean `gsm8k`?)"),
        ({"max_step": 3}, [], "unknown key `max_step` (did you mean `max_steps`?)"),
        ({}, ["--max_stepz", "3"], "unknown key `max_stepz` (did you mean `max_steps`?)"),
        ({"rewards": [{"gsm8k": {"column": "gold"}}]}, [], "reads the column `gold`, which prompts.source"),
        ({"per_device_train_batch_size": 6}, [], "num_generations=4 does not divide the generation batch"),
        ({"per_device_eval_batch_size": 6}, [], "per_device_eval_batch_size (6) must be a multiple of the 4"),
        ({}, ["--model_name_or_path", "./nowhere"], "no such directory: ./nowhere"),
        ({}, ["--resume"], "there is no checkpoint in"),
        ({}, ["--model_name_or_path", "no-such-user/no-such-model"], "no tokenizer for no-such-user/no-such-model"),
    ],
)
def test_refusals_help(recipe, grpo_plus, changes, options, message):
    code, text = grpo_plus("train", recipe(**changes), *options)
    assert code == 2 and text.startswith("error: ") and message in text, text


def test_a_missing_recipe_and_a_model_without_tokenizer(recipe, grpo_plus, tmp_path, tiny_model):
    code, text = grpo_plus("train", "nothing.yaml")
    assert code == 2 and "no such recipe: nothing.yaml" in text
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((Path(tiny_model) / name).read_bytes())
    code, text = grpo_plus("train", recipe(), "--model_name_or_path", str(bare))
    assert code == 2 and f"{bare} has no tokenizer files" in text


def test_ctrl_c_saves_a_checkpoint_that_the_run_goes_on_from(recipe, tmp_path):
    file = recipe(max_steps=400, eval_prompts=None)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "COLUMNS": "200"}
    command = [sys.executable, "-m", "trl_grpo_plus.cli", "train", file]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    metrics = tmp_path / "run/metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    stopped = summary["steps"]
    assert summary["interrupted"] and 2 < stopped < 400
    assert (tmp_path / f"run/checkpoint-{stopped}").is_dir()
    go_on = re.search(r"Go on with: grpo-plus (.*--resume)", output)
    assert go_on, output
    command = [sys.executable, "-m", "trl_grpo_plus.cli", *go_on[1].split(), "--max_steps", str(stopped + 2)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines() if '"reward"' in line]
    assert steps == list(range(1, stopped + 3))
