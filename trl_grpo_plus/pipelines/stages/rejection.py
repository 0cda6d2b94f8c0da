"""A stage that samples: rejection sampling, gone on with after the last batch that a killed process drew.

Its output is a directory of rows, `train.jsonl`, with `provenance.json`: `prompts.source: ${name}` reads it.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

from rich.console import Console

from ...recipe import recipe_of
from ...run import run_recipe
from ..spec import StageSpec, resolve
from . import Place


def run(stage: StageSpec, place: Place, console: Console) -> dict[str, Any]:
    """Samples, selects and publishes the kept rows."""
    keys = {**resolve(dict(stage.keys), place.outputs), "output_dir": str(place.work)}
    summary = run_recipe(recipe_of(keys, stage.file), console)
    part = place.output.with_name("output.tmp")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for name in ("train.jsonl", "provenance.json"):
        shutil.copy2(place.work / name, part / name)
    os.replace(part, place.output)
    return summary
