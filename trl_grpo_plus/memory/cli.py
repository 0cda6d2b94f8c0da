"""`grpo-plus plan`: what a run will hold, before it starts. Of a model's plan, nothing heavy is imported."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer
from rich.console import Console

from ..errors import UserError


def plan_command(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A recipe (YAML), whose run is planned; options given win.")] = "",
    model: Annotated[str, typer.Option(help="Built-in name, directory with a config.json, or id of the Hub.")] = "",
    algorithm: Annotated[str, typer.Option(help="grpo, ppo, sft, reward_model or rejection_sampling.")] = "grpo",
    mode: Annotated[str, typer.Option(help="full, lora or qlora.")] = "lora",
    prompt: Annotated[int, typer.Option(help="Longest prompt, in tokens.")] = 512,
    completion: Annotated[int, typer.Option(help="Longest completion, in tokens.")] = 1024,
    group: Annotated[int, typer.Option(help="Completions per prompt; 0: 8, and 1 for PPO.")] = 0,
    batch: Annotated[int, typer.Option(help="Completions of a micro-batch, per_device_train_batch_size.")] = 8,
    accumulation: Annotated[int, typer.Option(help="Micro-batches of a step; 0: as few as make whole groups.")] = 0,
    gpu: Annotated[str, typer.Option(help="A GPU by name (rtx4090) or memory (24GB): fits, and what would.")] = "",
    gpus: Annotated[int, typer.Option(help="GPUs that share the model (FSDP, full shard), 1 to 64.")] = 1,
    exact: Annotated[bool, typer.Option("--exact", help="Simulate the real code: seconds, no weights.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="GRPO beside all layouts of PPO, in all modes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; sizes are bytes.")] = False,
    dtype: Annotated[str, typer.Option(help="Of the loaded weights: bfloat16, float16 or float32.")] = "bfloat16",
    autocast: Annotated[bool, typer.Option(help="Products in bfloat16 (bf16=True).")] = True,
    gradient_checkpointing: Annotated[bool, typer.Option(help="Run layers again in the backward.")] = True,
    share_prompt: Annotated[bool, typer.Option(help="Run each prompt of a micro-batch once.")] = True,
    max_tokens_per_forward: Annotated[int, typer.Option(help="Token budget of a forward; 0: none.")] = 0,
    reference: Annotated[bool | None, typer.Option(help="A KL term to a reference.")] = None,
    critic: Annotated[str, typer.Option(help="PPO: separate, adapter or shared.")] = "separate",
    frozen_critic_copy: Annotated[bool, typer.Option(help="PPO: a frozen copy values the rollouts.")] = False,
    reward_model: Annotated[bool, typer.Option(help="A reward model of the policy's shape.")] = False,
    iterations: Annotated[int, typer.Option(help="Passes over a rollout; 0: 1 for GRPO, 4 for PPO.")] = 0,
    lora_rank: Annotated[int, typer.Option(help="Rank of the adapters.")] = 16,
    optimizer: Annotated[str, typer.Option(help="adamw, adamw_8bit, paged_adamw_8bit or sgd.")] = "adamw",
    device: Annotated[str, typer.Option(help="cuda, or cpu, where the head works differently.")] = "cuda",
) -> None:
    """Plan the memory of a run: by phase and category, what limits, whether it fits, and what would."""
    from .plan import plan
    from .plan_table import verdict

    if not 1 <= gpus <= 64:
        raise UserError(f"--gpus {gpus}: expected 1 to 64")
    options: dict[str, Any] = {
        "algorithm": algorithm, "mode": mode, "prompt": prompt, "completion": completion, "group": group or None,
        "batch": batch, "accumulation": accumulation or None, "gpus": gpus, "dtype": dtype, "autocast": autocast,
        "gradient_checkpointing": gradient_checkpointing, "share_prompt": share_prompt, "critic": critic,
        "max_tokens_per_forward": max_tokens_per_forward or None, "reference": reference, "reward_model": reward_model,
        "frozen_critic_copy": frozen_critic_copy, "iterations": iterations or None, "lora_rank": lora_rank,
        "optimizer": optimizer, "device": device,
    }  # fmt: skip
    console = Console()
    if not recipe and not model:
        raise UserError("plan what? Name a recipe (grpo-plus plan RECIPE.yaml) or a model (--model)")
    if compare:
        if recipe:
            raise UserError("--compare plans a model in every mode: leave the recipe out, and name --model")
        _compare(console, model, options, gpu or None, exact, as_json)
        return
    if exact or recipe:
        from .._quiet import quiet

        quiet()
    if recipe:
        from ..recipe_plan import load_for_planning, longest_prompt, plan_recipe

        loaded = load_for_planning(recipe)
        if not _was_given(context, "prompt"):
            prompt = longest_prompt(loaded) or prompt
        given = {name: value for name, value in options.items() if _was_given(context, name) and name != "prompt"}
        made = plan_recipe(loaded, prompt, model or None, gpu=gpu or None, exact=exact, changes=given)
    else:
        made = plan(model, gpu=gpu or None, exact=exact, **options)
    if as_json:
        print(made.to_json())
        return
    console.print(made.table())
    for line in verdict(made):
        console.print(line, highlight=False, soft_wrap=True)


def _was_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _compare(
    console: Console, model: str, options: dict[str, Any], gpu: str | None, exact: bool, as_json: bool
) -> None:
    from .plan import compare
    from .plan_table import comparison_table

    if exact:
        from .._quiet import quiet

        quiet()
    given = {name: value for name, value in options.items() if value is not None}
    processes = len(os.sched_getaffinity(0)) if exact else 1
    plans = compare(model, gpu=gpu, exact=exact, processes=processes, **given)
    if as_json:
        tree = {mode: {layout: made.to_dict() for layout, made in row.items()} for mode, row in plans.items()}
        print(json.dumps(tree, indent=2))
        return
    console.print(comparison_table(plans))


def register(app: typer.Typer) -> None:
    """Adds the commands of this stage."""
    app.command("plan")(plan_command)
