"""The memory plan of a recipe: what `grpo-plus plan` needs to know, read from the recipe instead of a command line.

Lengths are the longest that occur: completions have theirs in the recipe; how long prompts are only their data says,
so that is asked for, unless `prompts.max_tokens` bounds them. Rows of demonstrations and preferences are `max_length`
long, and a prompt's share of them is taken to be none: every token is learned from.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from .errors import UserError
from .memory.choose import choose
from .memory.devices import Overhead, parse_device
from .memory.geometry import Geometry, load_geometry
from .memory.plan import Plan, plan
from .memory.setting import MODES, Setting
from .recipe import Recipe, load_recipe, read_yaml

_OPTIMIZERS = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw", "sgd": "sgd"}
_OPTIMIZERS |= dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit"), "adamw_8bit") | {"paged_adamw_8bit": "paged_adamw_8bit"}


def load_for_planning(path: str | Path) -> Recipe:
    """Returns a recipe as it is on the machine that it is written for, loaded on any.

    Where there is no GPU, transformers' configurations refuse what needs one.

    Raises:
        UserError: As `load_recipe`.
    """
    keys = read_yaml(Path(path), f"no such recipe: {path}")
    trains = keys.get("algorithm", "grpo") != "rejection_sampling"
    recipe = load_recipe(path, ["--use_cpu", "true", *(["--bf16", "false"] if trains else [])])
    recipe.args.use_cpu = bool(keys.get("use_cpu", False))
    if trains:
        recipe.args.bf16 = bool(keys.get("bf16", not keys.get("fp16", False)))
    return recipe


def longest_prompt(recipe: Recipe) -> int | None:
    """Returns the tokens of the longest prompt that a recipe lets in, `None` where it sets no bound."""
    parts = recipe.prompts.parts or (recipe.prompts,)
    bounds = [part.max_tokens for part in parts if part.max_tokens is not None]
    return max(bounds) if len(bounds) == len(parts) else None


def setting_of(recipe: Recipe, prompt_tokens: int, model: Any = None) -> Setting:
    """Returns what the planner plans for a recipe; of `memory_mode: auto`, the first mode.

    DoRA is planned as LoRA, and a reward model is not counted where `rewards` names it.

    Args:
        recipe: The recipe.
        prompt_tokens: Longest prompt, in tokens.
        model: A directory, name or shape to plan for; `None` takes the recipe's model.

    Raises:
        UserError: The recipe has something that the planner does not know, or its model's shape is not known.
    """
    name = str(recipe.model.model_name_or_path)
    if model is None and name.startswith("${"):
        raise UserError(f"{recipe.path}: {name} is made by an earlier stage: name a model of its shape with --model")
    geometry = load_geometry(model if model is not None else name)
    fields: dict[str, Any] = {"geometry": geometry, "algorithm": recipe.algorithm, **_loading(recipe, geometry)}
    if recipe.algorithm in ("sft", "reward_model"):
        fields |= _rows(recipe)
    elif recipe.algorithm == "rejection_sampling":
        args = recipe.args
        fields |= {"prompt": prompt_tokens, "completion": args.max_completion_length, "batch": args.batch_size}
        fields |= {"group": args.samples}
    else:
        fields |= _rollouts(recipe, prompt_tokens)
    return Setting(**fields)


def _loading(recipe: Recipe, geometry: Geometry) -> dict[str, Any]:
    """How the model is loaded and trained: as the recipe says, the rest as its memory mode sets it."""
    args, model, keys = recipe.args, recipe.model, recipe.keys
    cuda = not args.use_cpu
    memory_mode = getattr(args, "memory_mode", None)
    if model.load_in_8bit:
        raise UserError(f"{recipe.path}: the planner does not know 8-bit weights (`load_in_8bit`)")
    mode = "qlora" if model.load_in_4bit else "lora" if model.use_peft else memory_mode or "full"
    if mode == "auto":
        mode = MODES[0]
    dtype = None if model.dtype == "auto" else model.dtype
    common = {"mode": mode, "dtype": dtype or "bfloat16", "device": "cuda" if cuda else "cpu"}
    if recipe.algorithm == "rejection_sampling":
        return {**common, "mode": "full", "dtype": dtype or ("bfloat16" if cuda else "float32")}
    optimizer = str(getattr(args.optim, "value", args.optim))
    if memory_mode is None:
        common["dtype"] = dtype or "float32"
    else:
        common["dtype"] = dtype if dtype and "dtype" in keys else "bfloat16"
        chosen = mode if memory_mode == "auto" else memory_mode
        if chosen == "qlora" and cuda and "optim" not in keys:
            optimizer = "paged_adamw_8bit"
    if optimizer not in _OPTIMIZERS:
        raise UserError(f"{recipe.path}: the planner does not know the optimizer `{optimizer}`")
    lora = {**(getattr(args, "memory_mode_kwargs", None) or {})} if memory_mode is not None else {}
    return {
        **common,
        "autocast": bool(args.bf16 or args.fp16),
        "gradient_checkpointing": bool(args.gradient_checkpointing),
        "optimizer": _OPTIMIZERS[optimizer],
        "lora_rank": lora.get("r") or model.lora_r or 16,
        "lora_targets": _targets(lora.get("target_modules") or model.lora_target_modules, geometry, memory_mode),
    }


def _targets(named: Any, geometry: Geometry, memory_mode: str | None) -> tuple[str, ...] | None:
    """The linear layers with an adapter, `None` for all: those named, the mode's (all), or PEFT's own choice."""
    if isinstance(named, str):
        named = [named]
    if named:
        return None if list(named) == ["all-linear"] else tuple(named)
    if memory_mode is not None or geometry.weights_only:
        return None
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as CHOSEN

    return tuple(CHOSEN[geometry.model_type]) if geometry.model_type in CHOSEN else None


def _rows(recipe: Recipe) -> dict[str, Any]:
    args = recipe.args
    if args.max_length is None:
        raise UserError(f"{recipe.path}: the planner needs `max_length`: rows are as long as the data has them")
    if getattr(args, "packing", False) or getattr(args, "padding_free", False):
        raise UserError(f"{recipe.path}: the planner knows padded rows only, without `packing` and `padding_free`")
    return {
        "prompt": 1,
        "completion": args.max_length - 1,
        "batch": args.per_device_train_batch_size,
        "accumulation": args.gradient_accumulation_steps,
    }


def _rollouts(recipe: Recipe, prompt_tokens: int) -> dict[str, Any]:
    args, ppo = recipe.args, recipe.algorithm == "ppo"
    return {
        "prompt": prompt_tokens,
        "completion": args.max_completion_length,
        "group": args.num_generations,
        "batch": args.per_device_train_batch_size,
        "accumulation": args.steps_per_generation or args.gradient_accumulation_steps,
        "share_prompt": args.share_prompt is not False,
        "max_tokens_per_forward": args.max_tokens_per_forward,
        "reference": args.kl_coef > 0 if ppo else args.beta > 0,
        "iterations": args.num_ppo_epochs if ppo else args.num_iterations,
        "critic": args.critic if ppo else "separate",
        "frozen_critic_copy": args.frozen_critic_copy if ppo else False,
    }


def plan_recipe(
    recipe: Recipe,
    prompt_tokens: int,
    model: Any = None,
    *,
    gpu: str | None = None,
    exact: bool = False,
    changes: dict[str, Any] | None = None,
) -> Plan:
    """Returns the plan of a recipe.

    Args:
        recipe: The recipe.
        prompt_tokens: Longest prompt, in tokens.
        model: As in `setting_of`.
        gpu: A GPU by name or size: says whether it fits and what would; `memory_mode: auto` chooses by it.
        exact: Simulate the real code.
        changes: Fields of the setting that are to differ from the recipe.

    Raises:
        UserError: As `setting_of`; or `memory_mode: auto` has no GPU to choose by.
    """
    setting = setting_of(recipe, prompt_tokens, model)
    auto = getattr(recipe.args, "memory_mode", None) == "auto" and "mode" not in (changes or {})
    if changes:  # another micro-batch leaves the recipe's accumulation as it is
        kept = {name: getattr(setting, name) for name in ("accumulation", "steps_per_generation")}
        setting = setting.but(**{**kept, **changes})
    reasons: tuple[str, ...] = ()
    if auto and not recipe.model.load_in_4bit:
        if gpu is None:
            raise UserError(f"{recipe.path}: memory_mode: auto chooses by the GPU's memory: name one with --gpu")
        modes = MODES[1:] if recipe.model.use_peft else MODES
        choice = choose(setting, parse_device(gpu), overhead=Overhead(), modes=modes)
        setting, reasons = choice.plan.setting, choice.reasons
        if choice.mode == "qlora" and setting.device == "cuda" and "optim" not in recipe.keys:
            setting = setting.but(optimizer="paged_adamw_8bit")
    made = plan(setting, gpu=gpu, exact=exact)
    return replace(made, notes=(*(f"memory_mode auto: {reason}" for reason in reasons), *made.notes))
