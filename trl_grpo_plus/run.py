"""Runs a recipe, whatever its `algorithm` is: one function for the command line and for the stages of a pipeline."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from .recipe import Recipe


def run_recipe(recipe: Recipe, console: Console, resume: str | None = None, overwrite: bool = False) -> dict[str, Any]:
    """Runs a recipe and returns its summary, which is also written to `output_dir/summary.json`.

    Args:
        recipe: The recipe.
        console: Where to print.
        resume: `"latest"`, or the directory of a checkpoint, to go on from; rejection sampling always goes on.
        overwrite: Start anew where `output_dir` holds an earlier run.

    Raises:
        UserError: Something cannot work as the recipe has it.
    """
    if recipe.algorithm in ("sft", "reward_model"):
        from .supervised import train_supervised

        return train_supervised(recipe, console, resume, overwrite)
    if recipe.algorithm == "rejection_sampling":
        from .pipelines.rejection import sample_and_select

        return sample_and_select(recipe, console)
    from .train import train

    return train(recipe, console, resume, overwrite)
