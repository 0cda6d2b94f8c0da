"""`grpo-plus pipeline`: several recipes in a row."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console


def pipeline_command(
    context: typer.Context,
    file: Annotated[str, typer.Argument(help="A pipeline (YAML); `--<stage>.<key> value` overrides a recipe's key.")],
    redo: Annotated[
        list[str] | None, typer.Option("--redo", help="Do this stage again, and all that use it; may be repeated.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Stop after this stage.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Only check the pipeline and its recipes.")] = False,
) -> None:
    """Run a pipeline. The same command again goes on: stages that are done are passed over."""
    from .._quiet import quiet

    quiet()
    from .run import check_recipes, run_pipeline
    from .spec import load_pipeline
    from .stages import Interrupted

    console = Console()
    pipeline = load_pipeline(file, context.args)
    if check:
        check_recipes(pipeline)
        for stage in pipeline.stages:
            uses = f", from {', '.join(sorted(stage.uses))}" if stage.uses else ""
            console.print(f"{stage.name}: {stage.algorithm}{uses}", highlight=False)
        return
    try:
        run_pipeline(pipeline, console, redo or (), until)
    except Interrupted:
        command = " ".join(["grpo-plus", *sys.argv[1:]])
        console.print(f"stopped early. Go on with: {command}", highlight=False, markup=False, soft_wrap=True)
        sys.exit(130)
