"""Every recipe loads with its own values, and runs for two steps on a tiny model and a few rows of its own kind."""

import json
import re
import sys
from pathlib import Path

import pytest

from trl_grpo_plus import cli
from trl_grpo_plus.recipe import load_recipe
from trl_grpo_plus.rewards import build_rewards

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
NO_GPU = ["--use_cpu", "true", "--bf16", "false", "--dtype", "float32"]
# What makes any recipe small; what it is about (prompts, template, rewards, loss, adapters) stays its own.
SMALL = {
    "max_steps": 2,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "per_device_eval_batch_size": 8,
    "max_completion_length": 8,
    "save_strategy": "no",
}


@pytest.fixture
def hub(tmp_path):
    """Stands in for the Hub's data sets: rows of the same columns, in a directory per id."""
    gsm8k = tmp_path / "gsm8k"
    gsm8k.mkdir()
    rows = [{"question": f"Tom has {i} apples and buys 2. How many?", "answer": f"#### {i + 2}"} for i in range(16)]
    for split in ("train", "test"):
        (gsm8k / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"openai/gsm8k": str(gsm8k)}


def test_there_are_recipes():
    assert {"quickstart", "gsm8k_qwen2.5-0.5b_lora", "smollm2-135m_arithmetic"} <= {p.stem for p in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_loads_and_says_how_to_run_it(path):
    recipe = load_recipe(path, NO_GPU)
    assert build_rewards(recipe.args.rewards)
    header = path.read_text().split("\n\n")[0]
    assert f"grpo-plus train recipes/{path.name}" in header and "Hardware:" in path.read_text()


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_runs(path, hub, tiny_model, tmp_path, monkeypatch, capsys):
    recipe = load_recipe(path, NO_GPU)
    overrides = ["--model_name_or_path", tiny_model, "--output_dir", str(tmp_path / "run"), *NO_GPU]
    for key, value in SMALL.items():
        overrides += [f"--{key}", str(value)]
    for section in ("prompts", "eval_prompts"):
        spec = getattr(recipe, section)
        if spec is not None:
            overrides += [f"--{section}.source", hub.get(spec.source, spec.source), f"--{section}.size", "8"]
    monkeypatch.setattr(sys, "argv", ["grpo-plus", "train", str(path), *overrides])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    printed = capsys.readouterr()
    assert not stop.value.code, printed.err
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["steps"] == 2
    assert re.search(r"2/2", printed.out)
