"""A pipeline of four kinds of stages on the tests' tiny model: it learns to say the one answer there is."""

import pytest
import yaml

TRAINER = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none", "save_total_limit": 2}


@pytest.fixture
def small_pipeline(tmp_path, tiny_model):
    """Writes the pipeline and returns its file."""
    sft = {"algorithm": "sft", "model_name_or_path": tiny_model, "prompts": "${data}", "learning_rate": 1e-2}
    recipes = {
        "sft.yaml": {**TRAINER, **sft, "max_steps": 40, "save_steps": 4, "per_device_train_batch_size": 8},
        "grpo.yaml": {
            **TRAINER,
            "model_name_or_path": "${sft}",
            "prompts": "${data}",
            "rewards": ["exact_match"],
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "max_completion_length": 20,
            "max_steps": 8,
            "save_steps": 2,
            "use_peft": True,
            "lora_r": 4,
            "lora_target_modules": "all-linear",
        },
        "rejection.yaml": {
            "algorithm": "rejection_sampling",
            "use_cpu": True,
            "model_name_or_path": "${grpo}",
            "prompts": "${data}",
            "rewards": ["exact_match"],
            "samples": 4,
            "max_completion_length": 20,
            "max_per_prompt": 2,
            "batch_size": 4,
        },
        "again.yaml": {**TRAINER, **sft, "prompts": "${rejection}", "max_steps": 4, "per_device_train_batch_size": 8},
    }
    for name, recipe in recipes.items():
        (tmp_path / name).write_text(yaml.safe_dump(recipe))
    pipeline = {
        "output_dir": str(tmp_path / "run"),
        "evaluation": {
            "prompts": {"source": "${data}", "size": 8},
            "rewards": ["exact_match"],
            "samples": 2,
            "majority": 2,
            "max_completion_length": 20,
        },
        "stages": [
            {"data": {"call": "tests.pipelines.calls:make", "options": {"n": 24}}},
            {"sft": "sft.yaml"},
            {"grpo": "grpo.yaml"},
            {"rejection": "rejection.yaml"},
            {"again": "again.yaml"},
        ],
    }
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(pipeline))
    return tmp_path / "pipeline.yaml"
