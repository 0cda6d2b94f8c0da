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
    "_generate_single_turn": (
        "self",
        "prompt_ids",
        "images",
        "multimodal_fields",
        "num_generations",
        "has_tool_images",
    ),
    "evaluate": ("self", "eval_dataset", "ignore_keys", "metric_key_prefix"),
    "_prepare_inputs": ("self", "generation_batch"),
    "_compute_loss": ("self", "model", "inputs"),
    "training_step": ("self", "model", "inputs", "num_items_in_batch"),
    "_get_per_token_logps_and_entropies": (
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
        "compute_aux_loss",
        "pixel_values",
        "image_grid_thw",
        "num_images",
        "pixel_attention_mask",
        "spatial_shapes",
        "num_tiles",
        "image_sizes",
        "token_type_ids",
        "mm_token_type_ids",
        "image_position_ids",
    ),
    "create_model_card": ("self", "model_name", "dataset_name", "tags"),
}

# Class attributes that we extend or read.
CLASS_ATTRIBUTES = ("_tag_names", "_name", "_paper")

# Attributes of a built trainer that we read.
INSTANCE_ATTRIBUTES = (
    "reward_funcs",
    "reward_weights",
    "reward_func_names",
    "num_generations",
    "num_iterations",
    "loss_type",
    "beta",
    "top_entropy_quantile",
    "aux_loss_enabled",
    "eos_token_ids",
    "tools",
    "chat_template_kwargs",
    "generation_config",
    "generation_kwargs",
    "pad_to_multiple_of",
    "use_vllm",
    "use_transformers_continuous_batching",
    "_tokenizer",
    "_is_vlm",
    "_step",
    "_buffered_inputs",
    "_entropy_bonus_enabled",
    "_metrics",
    "_logs",
)

# Keys of a micro-batch that we read; any other value in it has one entry per row, or none.
BATCH_KEYS = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "advantages",
    "num_items_in_batch",
    "old_per_token_logps",
)

# Keyword arguments that TRL gives every reward function, besides the dataset's columns.
REWARD_KWARGS = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")

# Functions that are imported from TRL's modules.
FUNCTIONS: dict[str, tuple[str, ...]] = {
    "trl.trainer.utils:get_config_model_id": ("config",),
    "trl.trainer.utils:get_callable_name": ("func",),
    "trl.trainer.utils:disable_dropout_in_model": ("model",),
    "trl.extras.profiling:profiling_context": ("trainer", "name"),
    "trl.models:unwrap_model_for_generation": (
        "model",
        "accelerator",
        "gather_deepspeed3_params",
        "generation_kwargs",
        "gradient_checkpointing_kwargs",
    ),
}

# The logger that TRL's warnings come from.
LOGGER = "trl.trainer.grpo_trainer"

# `loss_is_scaled_for_ga` must stay true: TRL's loss divides by the accumulation steps itself.
LOSS_IS_SCALED = True

# PPO

# Overridden in `CriticTrainer` and `PPOTrainer`, with `super()` called in all but `_compute_loss`, which is PPO's own.
# From `create_optimizer` on they are those of transformers' Trainer.
PPO_OVERRIDDEN: dict[str, tuple[str, ...]] = {
    "_get_train_sampler": ("self", "dataset"),
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_generate_and_score_completions": ("self", "inputs"),
    "_compute_loss": ("self", "model", "inputs"),
    "_save_checkpoint": ("self", "model", "trial"),
    "create_optimizer": ("self", "model"),
    "_clip_grad_norm": ("self", "model"),
    "_save": ("self", "output_dir", "state_dict"),
    "_load_from_checkpoint": ("self", "resume_from_checkpoint", "model"),
    "_load_best_model": ("self",),
}

# Called with these first parameters; TRL has more.
PPO_CALLED: dict[str, tuple[str, ...]] = {
    "_get_per_token_logps_and_entropies": (
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
        "compute_entropy",
    ),
    "get_decay_parameter_names": ("self", "model"),
}

# Attributes of a built trainer that PPO reads, besides those above; it also sets `_step` and `_buffered_inputs`.
PPO_ATTRIBUTES = (
    "ref_model",
    "eos_token_ids",
    "_tokenizer",
    "_is_vlm",
    "aux_loss_enabled",
    "entropy_coef",
    "epsilon_low",
    "epsilon_high",
    "num_iterations",
    "current_gradient_accumulation_steps",
    "_step",
    "_buffered_inputs",
)

# Entries of a rollout that PPO reads; it replaces `advantages` and `num_items_in_batch` and adds its own.
PPO_BATCH_KEYS = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "ref_per_token_logps",
    "num_items_in_batch",
)

# What PPO relies on in other libraries' private surface: the class, and a name in its source.
PPO_ELSEWHERE = {
    "peft.tuners.tuners_utils:BaseTunerLayer": "_active_adapter",
    "torch.nn.parallel:DistributedDataParallel": "_ddp_params_and_buffers_to_ignore",
    "bitsandbytes.nn:Linear4bit": "support_avx512bf16_for_cpu",
    "trl.trainer.utils:RepeatSampler": "torch.randperm(self.num_samples, generator=self.generator)",
}
