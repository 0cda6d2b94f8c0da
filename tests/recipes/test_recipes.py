"""Every recipe loads with its own values, and runs for two steps on a tiny model and a few rows of its own kind."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from trl_grpo_plus import cli
from trl_grpo_plus.pipelines.run import check_recipes
from trl_grpo_plus.pipelines.spec import load_pipeline
from trl_grpo_plus.recipe import load_recipe
from trl_grpo_plus.recipe_plan import plan_recipe
from trl_grpo_plus.rewards import build_rewards

ROOT = Path(__file__).parents[2]
PIPELINES = sorted((ROOT / "recipes").rglob("pipeline.yaml"))
STAGES = {path for pipeline in PIPELINES for path in pipeline.parent.glob("*.yaml")}
RECIPES = [path for path in sorted((ROOT / "recipes").rglob("*.yaml")) if path not in STAGES]
# One of each kind is run; the others differ from it in the model and in numbers.
ALIKE = re.compile(r"gsm8k_(?!qwen2.5-0.5b_(ppo_)?lora)|math_(?!qwen2.5-0.5b_full)")
RUN = [path for path in RECIPES if not ALIKE.match(path.stem)]
MODES = {
    "qwen2.5-0.5b": ("full", "lora"),
    "qwen2.5-1.5b": ("full", "lora"),
    "qwen2.5-7b": ("lora", "qlora"),
    "llama-3.1-8b": ("lora", "qlora"),
}
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
    maths = tmp_path / "math"
    maths.mkdir()
    rows = [{"problem": f"Compute ${i}+2$.", "solution": "Add.", "answer": f"{i + 2}"} for i in range(16)]
    for split in ("train", "test"):
        (maths / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ids = dict.fromkeys(("nlile/hendrycks-MATH-benchmark", "HuggingFaceH4/MATH-500"), str(maths))
    return {"openai/gsm8k": str(gsm8k), **ids}


def test_there_are_recipes():
    assert {"quickstart", "gsm8k_qwen2.5-0.5b_lora", "smollm2-135m_arithmetic"} <= {p.stem for p in RUN}
    for data in ("gsm8k", "math"):  # every model that is promised, in the modes that fit one card
        for model, modes in MODES.items():
            assert {f"{data}_{model}_{mode}" for mode in modes} <= {p.stem for p in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_loads_is_planned_and_says_how_to_run_it(path, tiny_model):
    recipe = load_recipe(path, NO_GPU)
    assert build_rewards(recipe.args.rewards)
    text = path.read_text()
    header = text.split("\n\n")[0]
    assert f"grpo-plus train {path.relative_to(ROOT)}" in header and "Hardware:" in text
    local = str(recipe.model.model_name_or_path).startswith(("runs/", ".cache/"))
    assert plan_recipe(recipe, 512, tiny_model if local else None).needed > 0
    if not local:
        assert "# Memory planned:" in header
        assert "measured" in header, "no expected number without its source"


def test_the_plans_in_the_headers_are_the_planners(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import plan_recipes

    paths = plan_recipes.planned()
    assert len(paths) >= 20
    for path in paths:
        assert plan_recipes.render(path) == path.read_text(), "run: python benchmarks/plan_recipes.py"
        assert "fits a card of" in plan_recipes.note(path)


@pytest.mark.parametrize("path", PIPELINES, ids=lambda p: p.parent.name)
def test_a_pipeline_loads_and_is_planned(path, tiny_model):
    pipeline = load_pipeline(path)
    used = {stage.file for stage in pipeline.stages} | {path}
    assert used == set(path.parent.glob("*.yaml")), "a stage of no pipeline"
    no_gpu = [word for stage in pipeline.stages if not stage.call and stage.algorithm != "rejection_sampling"
              for key in ("use_cpu=true", "bf16=false") for word in (f"--{stage.name}.{key}",)]  # fmt: skip
    recipes = check_recipes(load_pipeline(path, no_gpu))
    for recipe in recipes:
        assert plan_recipe(recipe, 512, tiny_model).needed > 0
        for reward in getattr(recipe.args, "rewards", None) or []:
            if "reward_model" not in reward:  # loads a model
                assert build_rewards([reward])


def test_sft_of_a_base_qwen_ends_answers_as_its_chat_template_does():
    every = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "recipes").rglob("*.yaml"))]
    base = re.compile(r"Qwen/Qwen2\.5-[\d.]+B")
    sft = [k for k in every if k.get("algorithm") == "sft" and base.fullmatch(str(k["model_name_or_path"]))]
    assert sft and all(keys.get("eos_token") == "<|im_end|>" for keys in sft), "else answers do not stop"


@pytest.mark.parametrize("path", RUN, ids=lambda p: p.stem)
def test_a_recipe_runs(path, hub, tiny_model, tmp_path, monkeypatch, capsys):
    recipe = load_recipe(path, NO_GPU)
    overrides = ["--model_name_or_path", tiny_model, "--output_dir", str(tmp_path / "run"), *NO_GPU]
    small = {**SMALL, "per_device_train_batch_size": max(8, recipe.args.num_generations)}
    for key, value in small.items():
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
