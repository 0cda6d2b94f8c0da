"""`memory_mode="auto"`: describes the run to the planner, and asks it for the first mode that fits this device.

What the user has fixed narrows the modes: an adapter leaves out `full`, a quantised model leaves only `qlora`, a model
that is loaded already cannot become one. The prompts' length is that of the longest among the first rows.
"""

from __future__ import annotations

from typing import Any

import torch

_SAMPLE = 256  # rows whose prompts are looked at
_UNKNOWN_PROMPT = 512  # tokens, where no row can be looked at
_OPTIMIZERS = {
    "adamw_8bit": "adamw_8bit",
    "adamw_bnb_8bit": "adamw_8bit",
    "paged_adamw_8bit": "paged_adamw_8bit",
    "sgd": "sgd",
}


def choose_mode(model: Any, args: Any, given: dict[str, Any]) -> tuple[str, dict[str, int], list[str]]:
    """Returns the mode, the fields of the batch that it changes, and why, a line for each mode that was looked at.

    Args:
        model: A name, a directory or a loaded model.
        args: The configuration.
        given: Further arguments of the trainer, by name.

    Raises:
        UserError: Nothing fits, or the model's shape is not known.
    """
    from .choose import choose
    from .devices import Overhead

    setting, notes = describe(model, args, given)
    free = free_bytes(args)
    modes = _candidates(model, args, given)
    # The driver's context is part of what is not free by now
    choice = choose(setting, free, overhead=Overhead(context_bytes=0), modes=modes)
    reasons = [f"auto: {line}" for line in (*notes, *choice.reasons)]
    batch, steps = args.per_device_train_batch_size, args.steps_per_generation
    if choice.batch == batch:
        return choice.mode, {}, reasons
    if batch * steps % choice.batch:
        reasons.append(f"auto: the micro-batch stays at {batch}: {choice.batch} does not divide a generation batch")
        return choice.mode, {}, reasons
    split = {
        "per_device_train_batch_size": choice.batch,
        "gradient_accumulation_steps": choice.accumulation,
        "steps_per_generation": batch * steps // choice.batch,
    }
    return choice.mode, split, reasons


def describe(model: Any, args: Any, given: dict[str, Any]) -> tuple[Any, list[str]]:
    """Returns the planner's setting for a run, and what had to be assumed."""
    from .geometry import load_geometry, read_config
    from .setting import DTYPES, make_setting

    if isinstance(model, str):
        geometry = load_geometry(model)
    else:
        geometry = read_config(model.config.to_dict(), type(model).__name__)
    kwargs = args.model_init_kwargs or {}
    dtype = str(kwargs.get("dtype") or getattr(model, "dtype", None) or "bfloat16").removeprefix("torch.")
    prompt, notes = _longest_prompt(model, given)
    lora = given.get("peft_config")
    rank = getattr(lora, "r", None) or (args.memory_mode_kwargs or {}).get("r", 16)
    ppo = hasattr(args, "kl_coef")
    rewards = given.get("reward_funcs") or []
    has_reward_model = bool(getattr(args, "reward_model", None)) or any(
        isinstance(each, torch.nn.Module) for each in (rewards if isinstance(rewards, list) else [rewards])
    )
    setting = make_setting(
        geometry,
        algorithm="ppo" if ppo else "grpo",
        dtype=dtype if dtype in DTYPES else "bfloat16",
        autocast=bool(args.bf16 or args.fp16),
        gradient_checkpointing=args.gradient_checkpointing if args.was_given("gradient_checkpointing") else True,
        prompt=prompt,
        completion=args.max_completion_length,
        group=args.num_generations,
        batch=args.per_device_train_batch_size,
        accumulation=args.gradient_accumulation_steps,
        share_prompt=args.share_prompt is not False,
        max_tokens_per_forward=args.max_tokens_per_forward,
        reference=args.beta != 0.0,
        iterations=args.num_iterations,
        critic=getattr(args, "critic", "separate"),
        frozen_critic_copy=getattr(args, "frozen_critic_copy", False),
        reward_model=has_reward_model,
        lora_rank=rank,
        optimizer=_OPTIMIZERS.get(str(getattr(args.optim, "value", args.optim)), "adamw"),
        device="cuda" if args.device.type == "cuda" else "cpu",
    )
    return setting, notes


def free_bytes(args: Any) -> int:
    """Returns the memory that the run may take: of its GPU, without vLLM's share, or of the machine on a CPU."""
    if args.device.type == "cuda":
        free, total = torch.cuda.mem_get_info(args.device)
        if args.use_vllm and args.vllm_mode == "colocate":
            free -= int(args.vllm_gpu_memory_utilization * total)
        return max(free, 0)
    import psutil  # type: ignore[import-untyped]  # comes with accelerate

    return int(psutil.virtual_memory().available)


def _candidates(model: Any, args: Any, given: dict[str, Any]) -> tuple[str, ...]:
    quantisation = given.get("quantization_config") or (args.model_init_kwargs or {}).get("quantization_config")
    loaded = not isinstance(model, str)
    if quantisation is not None or (loaded and getattr(model, "is_loaded_in_4bit", False)):
        return ("qlora",)
    modes = ["full", "lora", "qlora"]
    if given.get("peft_config") is not None or args.memory_mode_kwargs or hasattr(model, "peft_config"):
        modes.remove("full")
    if loaded or args.use_vllm:
        modes.remove("qlora")
    return tuple(modes)


def _longest_prompt(model: Any, given: dict[str, Any]) -> tuple[int, list[str]]:
    """Returns the tokens of the longest prompt among the first rows."""
    dataset, tokenizer = given.get("train_dataset"), given.get("processing_class")
    try:
        if tokenizer is None:
            from transformers import AutoTokenizer

            tokenizer = AutoTokenizer.from_pretrained(model if isinstance(model, str) else model.config._name_or_path)
        lengths = []
        for _, row in zip(range(_SAMPLE), dataset or [], strict=False):
            prompt = row["prompt"]
            if isinstance(prompt, str):
                lengths.append(len(tokenizer(prompt)["input_ids"]))
            else:
                text = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=False)
                lengths.append(len(tokenizer(text)["input_ids"]))
    except (OSError, ValueError, KeyError, TypeError):
        lengths = []
    if lengths:
        return max(lengths), [f"prompts have up to {max(lengths)} tokens (of the first {len(lengths)} rows)"]
    return _UNKNOWN_PROMPT, [f"the prompts' length is not known, taken to be {_UNKNOWN_PROMPT} tokens"]
