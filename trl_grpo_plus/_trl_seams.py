"""What we rely on in TRL's private surface, in one place; `tests/seams` compares it with the installed TRL.

TRL changes its GRPO trainer many times a month. A method that is named here is one that we override and call `super()`
from, or call; its parameters are the ones we were built against. When a test says that one changed, read TRL's diff,
adapt the override, and change the line here.
"""

from __future__ import annotations

TRL_VERSIONS = ">=1.16,<1.17"

# trl.GRPOTrainer: method -> parameter names, in order.
OVERRIDDEN: dict[str, tuple[str, ...]] = {
    "__init__": (
        "self",
        "model",
        "reward_funcs",
        "args",
        "train_dataset",
        "eval_dataset",
        "processing_class",
        "reward_processing_classes",
        "callbacks",
        "optimizers",
        "quantization_config",
        "peft_config",
        "tools",
        "rollout_func",
        "environment_factory",
    ),
    "create_model_card": ("self", "model_name", "dataset_name", "tags"),
}

# Class attributes that we extend or read.
CLASS_ATTRIBUTES = ("_tag_names", "_name", "_paper")

# Attributes of a built trainer that we read.
INSTANCE_ATTRIBUTES = ("reward_funcs", "reward_weights", "reward_func_names", "num_generations", "_metrics", "_logs")

# Keyword arguments that TRL gives every reward function, besides the dataset's columns.
REWARD_KWARGS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")

# Functions that are imported from TRL's modules.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "trl.trainer.utils:get_config_model_id": ("config",),
    "trl.trainer.utils:get_callable_name": ("func",),
}

# The logger that TRL's warnings come from.
LOGGER = "trl.trainer.grpo_trainer"

# `loss_is_scaled_for_ga` must stay true: TRL's loss divides by the accumulation steps itself.
LOSS_IS_SCALED = True
