"""The memory plan of a recipe: what `grpo-plus plan` needs to know, read from the recipe instead of a command line.

Lengths are the longest that occur: completions have theirs in the recipe; how long prompts are only their data says,
so that is asked for.
"""

from __future__ import annotations

from typing import Any

from .errors import UserError
from .memory.geometry import load_geometry
from .memory.plan import Plan, plan
from .memory.setting import Setting
from .recipe import Recipe

_OPTIMIZERS = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "sgd": "sgd"}
_OPTIMIZERS |= dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit"), "adamw_8bit") | {"paged_adamw_8bit": "paged_adamw_8bit"}


def setting_of(recipe: Recipe, prompt_tokens: int, model: Any = None) -> Setting:
    """Returns what the planner plans for a recipe of GRPO or PPO.

    Args:
        recipe: The recipe.
        prompt_tokens: Longest prompt, in tokens.
        model: A directory, name or shape to plan for; `None` takes the recipe's model.

    Raises:
        UserError: The recipe runs something that the planner does not know, or its model's shape is not known.
    """
    if recipe.algorithm not in ("grpo", "ppo"):
        raise UserError(f"{recipe.path}: the planner knows GRPO and PPO, not `algorithm: {recipe.algorithm}`")
    args, ppo = recipe.args, recipe.algorithm == "ppo"
    optimizer = str(getattr(args.optim, "value", args.optim))
    if optimizer not in _OPTIMIZERS:
        raise UserError(f"{recipe.path}: the planner does not know the optimizer `{optimizer}`")
    mode = "full" if not recipe.model.use_peft else "qlora" if recipe.model.load_in_4bit else "lora"
    return Setting(
        geometry=load_geometry(model if model is not None else str(recipe.model.model_name_or_path)),
        algorithm=recipe.algorithm,
        mode=mode,
        dtype=recipe.model.dtype if recipe.model.dtype not in (None, "auto") else "float32",
        autocast=bool(args.bf16),
        gradient_checkpointing=bool(args.gradient_checkpointing),
        prompt=prompt_tokens,
        completion=args.max_completion_length,
        group=args.num_generations,
        batch=args.per_device_train_batch_size,
        accumulation=args.steps_per_generation or args.gradient_accumulation_steps,
        share_prompt=args.share_prompt is not False,
        max_tokens_per_forward=args.max_tokens_per_forward,
        reference=args.kl_coef > 0 if ppo else args.beta > 0,
        iterations=args.num_ppo_epochs if ppo else args.num_iterations,
        critic=args.critic if ppo else "separate",
        frozen_critic_copy=args.frozen_critic_copy if ppo else False,
        lora_rank=recipe.model.lora_r or 16,
        optimizer=_OPTIMIZERS[optimizer],
        device="cpu" if args.use_cpu else "cuda",
    )


def plan_recipe(recipe: Recipe, prompt_tokens: int, model: Any = None) -> Plan:
    """Returns the plan of a recipe; see `setting_of`."""
    return plan(setting_of(recipe, prompt_tokens, model))
