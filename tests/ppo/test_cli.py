"""`grpo-plus train` with `algorithm: ppo`: the same recipe format, files and --resume."""

import json
import re
import sys

import pytest
import yaml

from trl_grpo_plus import PPOConfig, cli
from trl_grpo_plus.recipe import load_recipe

ROWS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(3)]


@pytest.fixture
def recipe(tmp_path, tiny_model):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    keys = {
        "algorithm": "ppo",
        "model_name_or_path": tiny_model,
        "prompts": {"source": str(tmp_path / "rows.jsonl"), "template": "think_answer"},
        "eval_prompts": {"source": str(tmp_path / "rows.jsonl"), "size": 4},
        "rewards": ["gsm8k", {"think_format": 0.1}],
        "output_dir": str(tmp_path / "run"),
        "use_cpu": True,
        "bf16": False,
        "critic": "adapter",
        "use_peft": True,
        "lora_target_modules": "all-linear",
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "max_completion_length": 8,
        "max_steps": 3,
        "report_to": "none",
    }

    def write(**changes):
        merged = {k: v for k, v in {**keys, **changes}.items() if v is not None}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(merged))
        return str(tmp_path / "recipe.yaml")

    return write


def run(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["grpo-plus", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return stop.value.code or 0, re.sub(r"\s+", " ", out + err)


def test_a_recipe_trains_with_ppo_and_resumes(recipe, capsys, monkeypatch, tmp_path):
    code, text = run(capsys, monkeypatch, "train", recipe())
    assert code == 0, text
    assert "prompts 4 x completions 1 = 4" in text
    assert "critic adapter, trains" in text and "PPO, 4 epochs, kl_coef 0.05" in text
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "policy/loss" in line] == [1, 2, 3]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    about = json.loads((tmp_path / "run/critic/critic.json").read_text())
    assert about["trained_parameters"] == summary["parameters_trained"] + 33  # the same LoRA, and a head of 32 + 1
    assert (tmp_path / "run/critic/critic.safetensors").exists() and (tmp_path / "run/plots/reward.png").exists()
    code, text = run(capsys, monkeypatch, "train", f"{tmp_path}/run/recipe.yaml", "--resume", "--max_steps", "5")
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
        ({"algorithm": "pop"}, [], "`algorithm` must be one of grpo, ppo, found 'pop'"),
        ({"critic": "seperate"}, [], "`critic` must be one of separate, adapter, shared, found 'seperate'"),
        ({"algorithm": None, "num_generations": 4}, [], "unknown key `critic` (a key of `algorithm: ppo`)"),
        ({"use_vllm": True}, [], "PPOTrainer does not support vLLM"),
        ({"scale_rewards": "none"}, [], "an option of GRPO's loss"),
        ({"rewards": None}, [], "`rewards` is missing"),
    ],
)
def test_refusals_help(recipe, capsys, monkeypatch, changes, options, message):
    code, text = run(capsys, monkeypatch, "train", recipe(**changes), *options)
    assert code == 2 and text.startswith("error: ") and message in text, text
