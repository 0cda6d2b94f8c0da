"""A recipe's plan is that of the same run spelled out on the command line, whatever way the recipe says it."""

import pytest
import yaml

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.memory.plan import plan
from trl_grpo_plus.recipe_plan import load_for_planning, plan_recipe, setting_of

GRPO = {
    "model_name_or_path": "qwen2.5-1.5b",
    "prompts": "arithmetic",
    "rewards": ["exact_match"],
    "num_generations": 8,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
    "max_completion_length": 256,
}
SAME = {"prompt": 100, "completion": 256, "group": 8, "batch": 16, "accumulation": 4}


@pytest.fixture
def recipe(tmp_path):
    def write(**keys):
        file = tmp_path / "recipe.yaml"
        file.write_text(yaml.safe_dump(keys))
        return load_for_planning(file)

    return write


@pytest.mark.parametrize(
    ("keys", "options"),
    [
        ({}, {"dtype": "float32"}),
        ({"beta": 0.04, "dtype": "bfloat16", "bf16": False}, {"reference": True, "autocast": False}),
        ({"memory_mode": "full"}, {}),
        ({"memory_mode": "full", "dtype": "float32", "gradient_checkpointing": False},
         {"dtype": "float32", "gradient_checkpointing": False}),
        ({"memory_mode": "lora", "memory_mode_kwargs": {"r": 4}}, {"mode": "lora", "lora_rank": 4}),
        ({"memory_mode": "lora", "lora_r": 8, "optim": "sgd"}, {"mode": "lora", "lora_rank": 8, "optimizer": "sgd"}),
        ({"memory_mode": "qlora"}, {"mode": "qlora", "optimizer": "paged_adamw_8bit"}),
        ({"memory_mode": "qlora", "use_cpu": True, "bf16": True},
         {"mode": "qlora", "device": "cpu", "optimizer": "adamw"}),
        ({"memory_mode": "lora", "load_in_4bit": True, "use_peft": True, "dtype": "bfloat16"}, {"mode": "qlora"}),
        ({"use_peft": True, "lora_target_modules": "all-linear"}, {"mode": "lora", "dtype": "float32"}),
        ({"use_peft": True, "lora_r": 4}, {"mode": "lora", "dtype": "float32", "lora_rank": 4,
                                          "lora_targets": ("q_proj", "v_proj")}),  # PEFT's own choice
        ({"use_peft": True, "lora_target_modules": ["q_proj", "o_proj"]},
         {"mode": "lora", "dtype": "float32", "lora_targets": ("q_proj", "o_proj")}),
        ({"share_prompt": False, "max_tokens_per_forward": 4096, "num_iterations": 2},
         {"dtype": "float32", "share_prompt": False, "max_tokens_per_forward": 4096, "iterations": 2}),
    ],
)  # fmt: skip
def test_a_plan_is_that_of_the_same_options(keys, options, recipe):
    planned = plan_recipe(recipe(**GRPO, **keys), 100)
    assert planned.phases == plan("qwen2.5-1.5b", **SAME, **options).phases


def test_what_peft_chooses_is_what_the_planner_takes(recipe, tiny_model):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(r=4))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    setting = setting_of(recipe(**{**GRPO, "model_name_or_path": tiny_model}, use_peft=True, lora_r=4), 100)
    linears = [linear for linear in setting.geometry.linears if linear.name in setting.lora_targets]
    assert trained == setting.geometry.layers * sum(4 * (linear.inputs + linear.outputs) for linear in linears)


def test_auto_takes_the_mode_that_the_gpu_allows(recipe):
    auto = recipe(**GRPO, memory_mode="auto")
    with pytest.raises(UserError, match="memory_mode: auto chooses by the GPU's memory: name one with --gpu"):
        plan_recipe(auto, 100)
    modes = [plan_recipe(auto, 100, gpu=gpu).setting.mode for gpu in ("80GB", "12GB", "4GB")]
    assert modes == ["full", "lora", "qlora"]
    small = plan_recipe(auto, 100, gpu="4GB")
    assert small.fits and small.setting.optimizer == "paged_adamw_8bit"
    assert "full needs" in small.notes[0]
    assert plan_recipe(auto, 100, changes={"mode": "lora"}).setting.mode == "lora"


def test_stages_without_rewards(recipe):
    sft = {"algorithm": "sft", "model_name_or_path": "qwen2.5-1.5b", "prompts": "rows.jsonl", "max_length": 600}
    planned = plan_recipe(recipe(**sft, per_device_train_batch_size=4, gradient_accumulation_steps=2), 100)
    same = plan("qwen2.5-1.5b", algorithm="sft", dtype="float32", prompt=1, completion=599, batch=4, accumulation=2)
    assert planned.phases == same.phases
    with pytest.raises(UserError, match="needs `max_length`"):
        plan_recipe(recipe(**{**sft, "max_length": None}), 100)
    with pytest.raises(UserError, match="without `packing`"):
        plan_recipe(recipe(**sft, packing=True), 100)
    drawn = recipe(
        algorithm="rejection_sampling", model_name_or_path="${sft}", prompts="arithmetic", rewards=["exact_match"]
    )
    with pytest.raises(UserError, match="made by an earlier stage: name a model of its shape with --model"):
        plan_recipe(drawn, 100)
    same = plan("qwen2.5-1.5b", algorithm="rejection_sampling", dtype="float32", prompt=100, completion=512, batch=64)
    assert plan_recipe(drawn, 100, "qwen2.5-1.5b").phases == same.phases


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"load_in_8bit": True, "use_peft": True}, "8-bit weights"),
        ({"optim": "adafactor"}, "does not know the optimizer `adafactor`"),
    ],
)
def test_what_the_planner_does_not_know_is_said(keys, message, recipe):
    with pytest.raises(UserError, match=message):
        plan_recipe(recipe(**GRPO, **keys), 100)


def test_the_command(recipe, grpo_plus):
    file = str(recipe(**GRPO, memory_mode="lora").path)
    code, text = grpo_plus("plan", file, "--prompt", "100", "--gpu", "24GB")
    assert code == 0 and "lora; prompt 100, completion 256, group 8, micro-batch 16 x 4" in text, text
    assert "Fits in the 24.00 GiB" in text
    code, text = grpo_plus("plan", file, "--mode", "full", "--batch", "8", "--group", "4", "--model", "qwen2.5-0.5b")
    assert code == 0 and "qwen2.5-0.5b" in text and "full, bfloat16" in text
    assert "group 4, micro-batch 8 x 4" in text, "the accumulation is the recipe's"
    code, text = grpo_plus("plan", file, "--batch", "8", "--accumulation", "2")
    assert code == 0 and "micro-batch 8 x 2" in text
    bounded = str(recipe(**{**GRPO, "prompts": {"source": "arithmetic", "max_tokens": 77}}).path)
    for arguments, tokens in (([], 77), (["--prompt", "100"], 100)):
        code, text = grpo_plus("plan", bounded, *arguments)
        assert code == 0 and f"prompt {tokens}, completion" in text, text
    code, text = grpo_plus("plan", file, "--compare")
    assert code == 2 and "--compare plans a model in every mode" in text
    code, text = grpo_plus("plan", "nowhere.yaml")
    assert code == 2 and "no such recipe: nowhere.yaml" in text
