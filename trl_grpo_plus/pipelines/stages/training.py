"""A stage that trains: a recipe for SFT, GRPO, PPO or a reward model, gone on with where a killed process left it.

Its output is a whole model that the next stage can start from: an adapter is merged into its base.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from rich.console import Console

from ...recipe import Recipe, recipe_of
from ...resume import last_whole_checkpoint
from ...run import run_recipe
from ..spec import StageSpec, resolve
from . import Interrupted, Place

# Of a trainer's directory: what makes up a model. (Not its checkpoints, logs and summaries.)
_MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges*",
    "*.model",
    "chat_template*",
)


def run(stage: StageSpec, place: Place, console: Console) -> dict[str, Any]:
    """Trains from the start or from the last whole checkpoint, and returns the run's summary.

    Raises:
        Interrupted: The user stopped it.
    """
    keys = {**resolve(dict(stage.keys), place.outputs), "output_dir": str(place.work)}
    recipe = recipe_of(keys, stage.file)
    checkpoint = last_whole_checkpoint(place.work)
    if checkpoint is not None:
        console.print(f"going on from {checkpoint}", highlight=False)
    summary = run_recipe(recipe, console, str(checkpoint) if checkpoint else None, overwrite=True)
    if summary["interrupted"]:
        raise Interrupted
    publish(recipe, place)
    return summary


def publish(recipe: Recipe, place: Place) -> None:
    """Puts the trained model into the stage's output, at once."""
    part = place.output.with_name("output.tmp")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    if (place.work / "adapter_config.json").exists():
        _merge(recipe, place.work, part)
    for pattern in _MODEL_FILES:
        for file in place.work.glob(pattern):
            if file.is_file() and not file.name.startswith("adapter_") and not (part / file.name).exists():
                _link(file, part / file.name)
    os.replace(part, place.output)


def _merge(recipe: Recipe, adapter: Path, output: Path) -> None:
    """Writes the base with the adapter in it, in the base's own precision: a 4-bit base is read anew, unquantised."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    reward_model = recipe.algorithm == "reward_model"
    kind = AutoModelForSequenceClassification if reward_model else AutoModelForCausalLM
    options = {"num_labels": 1} if reward_model else {}
    base = kind.from_pretrained(
        recipe.model.model_name_or_path, revision=recipe.model.model_revision, dtype="auto", **options
    )
    PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(output)


def _link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)  # weights are there once
    except OSError:
        shutil.copy2(file, target)
