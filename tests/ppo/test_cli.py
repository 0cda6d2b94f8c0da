"""`grpo-plus train` with `algorithm: ppo`: the same recipe format, files and --resume."""

import json

import pytest

from trl_grpo_plus import PPOConfig
from trl_grpo_plus.recipe import load_recipe


@pytest.fixture
def recipe(write_recipe):
    """The same with PPO and an adapter critic."""
    keys = {
        "algorithm": "ppo",
        "critic": "adapter",
        "use_peft": True,
        "lora_target_modules": "all-linear",
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "max_steps": 3,
    }
    return lambda **changes: write_recipe(**{**keys, **changes})


def test_a_recipe_trains_with_ppo_and_resumes(recipe, grpo_plus, tmp_path):
    code, text = grpo_plus("train", recipe())
    assert code == 0, text
    assert "prompts 4 x completions 1 = 4" in text
    assert "critic adapter, trains" in text and "PPO, 4 epochs, kl_coef 0.05" in text
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "policy/loss" in line] == [1, 2, 3]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    about = json.loads((tmp_path / "run/critic/critic.json").read_text())
    assert about["trained_parameters"] == summary["parameters_trained"] + 33  # the same LoRA, and a head of 32 + 1
    assert (tmp_path / "run/critic/critic.safetensors").exists() and (tmp_path / "run/plots/reward.png").exists()
    code, text = grpo_plus("train", f"{tmp_path}/run/recipe.yaml", "--resume", "--max_steps", "5")
    assert code == 0, text
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "policy/loss" in line] == [1, 2, 3, 4, 5]


def test_the_algorithm_can_be_overridden(recipe):
    assert isinstance(load_recipe(recipe()).args, PPOConfig)
    grpo = load_recipe(recipe(algorithm=None, critic=None, num_generations=4), ["--per_device_train_batch_size", "8"])
    assert not isinstance(grpo.args, PPOConfig)
    assert load_recipe(recipe(), ["--kl_coef", "0.1", "--critic", "shared"]).args.critic == "shared"
    assert load_recipe(recipe(cliprange_value=None), ["--cliprange_value", "null"]).args.cliprange_value is None


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"algorithm": "pop"}, [], "`algorithm` must be one of grpo, ppo, sft"),
        ({"critic": "seperate"}, [], "`critic` must be one of separate, adapter, shared, found 'seperate'"),
        ({"algorithm": None, "num_generations": 4}, [], "unknown key `critic` (a key of `algorithm: ppo`)"),
        ({"use_vllm": True}, [], "PPOTrainer does not support vLLM"),
        ({"scale_rewards": "none"}, [], "an option of GRPO's loss"),
        ({"rewards": None}, [], "`rewards` is missing"),
    ],
)
def test_refusals_help(recipe, grpo_plus, changes, options, message):
    code, text = grpo_plus("train", recipe(**changes), *options)
    assert code == 2 and text.startswith("error: ") and message in text, text
