"""`grpo-plus`: the command line. Commands are thin wrappers; bad input prints one line and exits with 2."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from . import __version__
from .errors import UserError
from .evaluation.cli import SeveralValues, eval_command
from .memory.cli import register as register_memory
from .memory.profile_cli import profile_command
from .pipelines.cli import pipeline_command
from .rewards.cli import app as rewards_app
from .rewards.sandbox.cli import app as sandbox_app

app = typer.Typer(
    name="grpo-plus",
    help="GRPO on one GPU, on top of Hugging Face TRL.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(rewards_app, name="rewards")
app.add_typer(sandbox_app, name="sandbox")

_OVERRIDES = {"allow_extra_args": True, "ignore_unknown_options": True}


@app.command("train", context_settings=_OVERRIDES)
def train_command(
    context: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A recipe (YAML); `--key value` after it overrides its keys.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in output_dir.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in output_dir.")] = False,
) -> None:
    """Train as a recipe says, with GRPO unless it names another `algorithm`: `train RECIPE.yaml [--key value ...]`."""
    from ._quiet import quiet

    quiet()
    from .recipe import load_recipe
    from .run import run_recipe

    run_recipe(load_recipe(recipe, context.args), Console(), "latest" if resume else None, overwrite)


app.command("eval", cls=SeveralValues)(eval_command)


@app.command("quickstart")
def quickstart_command(
    style: Annotated[str, typer.Option(help="Demonstrations: clean (all right) or mixed (60 % guesses).")] = "clean",
    control: Annotated[bool, typer.Option("--control", help="Train on a random reward: must show no gain.")] = False,
    lora: Annotated[bool, typer.Option("--lora", help="Train a LoRA adapter instead of all weights.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of weights, demonstrations and samples.")] = 0,
    output_dir: Annotated[str, typer.Option("--output_dir", "--output-dir", help="Where everything goes.")] = (
        "runs/quickstart"
    ),
) -> None:
    """A whole GRPO run on this machine, without a GPU or a network: a tiny model learns arithmetic better."""
    from ._quiet import quiet

    quiet()
    from .quickstart.run import QuickstartSettings
    from .quickstart.show import show

    if style not in ("clean", "mixed"):
        raise UserError(f"--style must be clean or mixed, found {style!r}")
    chosen: Any = style
    # Where most demonstrations guess, three digits would take the cold start too long to reach what GRPO needs.
    digits = 2 if style == "mixed" else 3
    settings = QuickstartSettings(seed=seed, style=chosen, digits=digits, control=control, lora=lora)
    show(settings, output_dir, Console())


register_memory(app)
app.command("profile", context_settings=_OVERRIDES)(profile_command)
app.command("pipeline", context_settings=_OVERRIDES)(pipeline_command)


@app.command("version")
def version_command() -> None:
    """Print the version."""
    print(__version__)


def main() -> None:
    """Entry point of the console script."""
    try:
        app()
    except UserError as error:
        Console(stderr=True).print(
            f"[bold red]error:[/bold red] {escape(str(error))}", highlight=False, soft_wrap=True
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
