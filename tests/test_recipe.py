"""Recipes: files and overrides become checked configurations; mistakes are named with the closest right word."""

import pytest
import yaml

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.recipe import dump_recipe, load_recipe

BASE = """
model_name_or_path: some/model
prompts: {source: data.jsonl, size: 10, options: {}}
rewards: [gsm8k, {think_format: 0.1}]
use_cpu: true
bf16: false
learning_rate: 1e-5
eval_strategy: no
lora_target_modules: all-linear
env: {A_VARIABLE_OF_THE_TEST: 3}
"""


@pytest.fixture
def write(tmp_path):
    def write(text=BASE):
        file = tmp_path / "recipe.yaml"
        file.write_text(text)
        return file

    return write


def test_a_file_and_overrides(write, monkeypatch):
    monkeypatch.delenv("A_VARIABLE_OF_THE_TEST", raising=False)
    overrides = ["--learning_rate", "2e-6", "--prompts.size", "7", "--prompts.columns.prompt=question", "--use-peft"]
    overrides += ["--lora_target_modules", "q_proj", "v_proj", "--beta=0.04", "--report_to", "none"]
    recipe = load_recipe(write(), overrides)
    assert recipe.args.learning_rate == 2e-6 and recipe.args.beta == 0.04 and recipe.args.eval_strategy == "no"
    assert recipe.prompts.size == 7 and recipe.prompts.columns == {"prompt": "question"}
    assert recipe.model.use_peft and recipe.model.lora_target_modules == ["q_proj", "v_proj"]
    assert recipe.args.rewards == ["gsm8k", {"think_format": 0.1}]
    assert recipe.args.output_dir == "runs/recipe" and recipe.args.logging_steps == 1
    import os

    assert os.environ["A_VARIABLE_OF_THE_TEST"] == "3"


def test_yaml_floats_and_single_values_of_lists(write):
    recipe = load_recipe(write())
    assert recipe.args.learning_rate == 1e-5 and recipe.model.lora_target_modules == "all-linear"


def test_a_dumped_recipe_loads_as_the_same(write, tmp_path):
    recipe = load_recipe(write(), ["--prompts.size", "7", "--max_steps", "3"])
    file = tmp_path / "again.yaml"
    file.write_text(dump_recipe(recipe))
    again = load_recipe(file)
    assert (again.prompts, again.model, again.args.max_steps) == (recipe.prompts, recipe.model, 3)
    assert again.args.output_dir == recipe.args.output_dir


def test_a_file_of_trl_runs(write):
    keys = {
        "model_name_or_path": "some/model",
        "dataset_name": "trl-lib/DeepMath-103K",
        "dataset_train_split": "train[:10]",
        "reward_funcs": ["accuracy_reward", "my_module.my_reward"],
        "reward_weights": [1.0, 0.5],
        "use_cpu": True,
        "bf16": False,
    }
    recipe = load_recipe(write(yaml.safe_dump(keys)))
    assert recipe.prompts.source == "trl-lib/DeepMath-103K" and recipe.prompts.split == "train[:10]"
    assert recipe.args.rewards == ["accuracy_reward", "my_module:my_reward"]


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (None, ["--learnin_rate", "1"], r"unknown key `learnin_rate` \(did you mean `learning_rate`\?\)"),
        (None, ["--learning", "1"], "unknown key `learning`"),
        (None, ["--prompts.sise", "1"], "unknown key `prompts.sise`.*mean `size`"),
        (None, ["--rewards.x", "1"], "dots reach into"),
        (None, ["max_steps", "1"], "expected `--key value`, found `max_steps`"),
        (None, ["--max_steps", "many"], "`max_steps` cannot be 'many'"),
        (None, ["--use_cpu", "perhaps"], "`use_cpu` cannot be 'perhaps'"),
        (None, ["--dtype", "float8"], "`dtype` must be one of"),
        (None, ["--per_device_train_batch_size", "6"], "num_generations=8 does not divide.*= 6 completions"),
        (None, ["--num_generations", "1"], "at least"),
        ("- a list", [], "must hold `key: value` lines"),
        ("a: [", [], "not valid YAML"),
        ("rewards: [gsm8k]\nprompts: x\nuse_cpu: true\nbf16: false", [], "`model_name_or_path` is missing"),
        ("model_name_or_path: m\nprompts: x\nuse_cpu: true\nbf16: false", [], "`rewards` is missing"),
        ("model_name_or_path: m\nrewards: [gsm8k]\nuse_cpu: true\nbf16: false", [], "`prompts` is missing"),
    ],
)
def test_mistakes(write, text, overrides, message):
    file = write(text) if text else write()
    with pytest.raises(UserError, match=message):
        load_recipe(file, overrides)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match="no such recipe: .*none.yaml"):
        load_recipe(tmp_path / "none.yaml")
