"""`grpo-plus profile`: a few steps of a recipe under the memory profiler, or of GRPO and all layouts of PPO."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..errors import UserError


def profile_command(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A recipe (YAML); `--key value` after it overrides its keys.")],
    steps: Annotated[int, typer.Option(help="Optimizer steps; the second has an optimizer state throughout.")] = 2,
    out: Annotated[str, typer.Option(help="Where the files go; runs/profile/<recipe> by default.")] = "",
    compare: Annotated[bool, typer.Option("--compare", help="Run GRPO and each layout of PPO.")] = False,
    modes: Annotated[str, typer.Option(help="With --compare: memory modes, such as full,lora,qlora.")] = "",
) -> None:
    """Show the memory of every phase of a few steps: `profile RECIPE.yaml [--key value ...]`. Trains nothing."""
    from .._quiet import quiet

    quiet()
    if steps < 1:
        raise UserError(f"--steps must be positive, found {steps}")
    console = Console()
    output = Path(out or f"runs/profile/{Path(recipe).stem}")
    if not compare:
        if modes:
            raise UserError("--modes goes with --compare; for one mode, --memory_mode")
        from .compare import profile_recipe
        from .figures import print_profile

        profile, _ = profile_recipe(recipe, context.args, output, steps)
        print_profile(console, profile)
        console.print(f"profile.json, timeline.png and phases.png are in {output}", highlight=False, soft_wrap=True)
        return
    from ..recipe import load_recipe
    from .compare import compare as run_comparison
    from .comparison_report import print_comparison, save_comparison

    chosen: list[str | None] = [mode.strip() for mode in modes.split(",") if mode.strip()] or [None]
    keys = load_recipe(recipe, context.args).keys
    records = run_comparison(
        keys, output, modes=chosen, steps=steps, say=lambda line: console.print(line, highlight=False)
    )
    print_comparison(console, records)
    files = save_comparison(records, output)
    console.print(f"{' and '.join(file.name for file in files)} are in {output}", highlight=False, soft_wrap=True)
