"""Runs a pipeline: each stage once, gone on with where it was killed, and every model evaluated before and after.

    output_dir/
      <stage>/stage.json   what it ran with, and whether it ended
      <stage>/run/         checkpoints, logs, samples
      <stage>/output/      what other stages take from it
      evaluations/         of every model, by content
      summary.json, summary.md, summary.png

Running the same command again is always right: stages that are done are passed over, one that was cut off goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib.util
import json
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from ..errors import UserError
from ..recipe import Recipe, recipe_of
from .evaluations import Evaluation, Evaluator
from .fingerprint import of_path, texts_in
from .record import WITHOUT_EFFECT, Dependencies, Record, check_unchanged, read_record, write_json, write_record
from .spec import Pipeline, StageSpec, resolve
from .stages import Place, kind
from .stages.call import find_function, source_of
from .summary import StageRow, write_summary

_CODE = re.compile(r"[\w.]+:\w+")


def run_pipeline(
    pipeline: Pipeline, console: Console, redo: Sequence[str] = (), until: str | None = None
) -> list[StageRow]:
    """Runs what is left to do of a pipeline, and returns a row per stage.

    Args:
        pipeline: The pipeline.
        console: Where to print.
        redo: Stages to do again, with all that use them: what they left is deleted first.
        until: Last stage to run; `None` runs all.

    Raises:
        UserError: A recipe cannot work, a stage that was begun has changed since, or another process runs here.
        Interrupted: The user stopped a stage.
    """
    names = [stage.name for stage in pipeline.stages]
    if until is not None:
        pipeline.after([until])  # says which stages there are where this is none
    check_recipes(pipeline)
    again = pipeline.after(redo)
    pipeline.output_dir.mkdir(parents=True, exist_ok=True)
    with _alone(pipeline.output_dir):
        for name in again:
            shutil.rmtree(pipeline.output_dir / name, ignore_errors=True)
        known_file = pipeline.output_dir / "fingerprints.json"
        known: dict[str, str] = json.loads(known_file.read_text()) if known_file.exists() else {}
        rows: list[StageRow] = []
        outputs: dict[str, str] = {}
        evaluator: Evaluator | None = None
        for number, stage in enumerate(pipeline.stages, 1):
            place = Place(pipeline.output_dir / stage.name, dict(outputs))
            outputs[stage.name] = str(place.output)
            if evaluator is None and pipeline.evaluation is not None and not stage.call:
                evaluator = Evaluator(
                    pipeline.evaluation, place.outputs, pipeline.output_dir / "evaluations", known, console
                )
            console.rule(f"{number}/{len(names)} {stage.name}: {stage.algorithm}")
            rows.append(_run_stage(stage, place, evaluator, known, console))
            write_json(known_file, known)
            write_summary(pipeline, rows, console if stage.name in (until, names[-1]) else None)
            if stage.name == until:
                break
    return rows


def check_recipes(pipeline: Pipeline) -> list[Recipe]:
    """Returns the recipes of a pipeline's stages, so that a mistake in the last shows before the first has run.

    Raises:
        UserError: A recipe cannot work.
    """
    outputs = {stage.name: str(pipeline.output_dir / stage.name / "output") for stage in pipeline.stages}
    recipes = []
    for stage in pipeline.stages:
        if stage.call:
            find_function(stage.call, stage.options)
        else:
            keys = {**resolve(dict(stage.keys), outputs), "output_dir": str(pipeline.output_dir / stage.name / "run")}
            recipes.append(recipe_of(keys, stage.file))
    return recipes


def dependencies(stage: StageSpec, outputs: Mapping[str, str], known: dict[str, str]) -> Dependencies:
    """Returns what a stage's result depends on: its configuration, and the content of the files that it names.

    Args:
        stage: The stage.
        outputs: Output directories of the stages before it.
        known: Hashes of files; see `fingerprint.of_path`.
    """
    config = {key: value for key, value in stage.config.items() if key not in WITHOUT_EFFECT}
    inputs: dict[str, str] = {}
    for text in texts_in(config):
        path = resolve(text, outputs)
        if "/" in path and "\n" not in path and len(path) < 4096 and Path(path).exists():
            inputs[text] = of_path(Path(path), known)
    if stage.call:
        inputs[f"the code of {stage.call}"] = of_path(Path(source_of(stage.call)), known)
    for text in texts_in(config.get("rewards")):
        if _CODE.fullmatch(text) and (source := _source(text)):
            inputs[f"the code of {text}"] = of_path(Path(source), known)
    return Dependencies(config, inputs)


def _source(text: str) -> str | None:
    with contextlib.suppress(ImportError, ValueError):
        found = importlib.util.find_spec(text.partition(":")[0])
        return found.origin if found and found.origin and Path(found.origin).is_file() else None
    return None


def _run_stage(
    stage: StageSpec, place: Place, evaluator: Evaluator | None, known: dict[str, str], console: Console
) -> StageRow:
    now = dependencies(stage, place.outputs, known)
    record = read_record(place.directory)
    if record is not None:
        check_unchanged(stage.name, record, now)
    before = None
    if evaluator is not None and not stage.call and stage.algorithm != "reward_model":
        before = evaluator(str(resolve(stage.keys["model_name_or_path"], place.outputs)))
    skipped = record is not None and record.state == "done" and place.output.exists()
    if skipped and record is not None:
        console.print("done before: passed over")
        result = dict(record.result)
    else:
        write_record(place.directory, Record("started", now))
        shutil.rmtree(place.output, ignore_errors=True)
        started = time.perf_counter()
        result = kind(stage.algorithm)(stage, place, console)
        result["stage_seconds"] = round(time.perf_counter() - started, 1)
        write_record(place.directory, Record("done", now, json.loads(json.dumps(result))))
        _free_memory()
    after: Evaluation | None = before
    if evaluator is not None and stage.algorithm in ("sft", "grpo", "ppo"):
        after = evaluator(str(place.output))
    return StageRow(stage.name, stage.algorithm, skipped, result, before, after)


def _free_memory() -> None:
    import torch

    gc.collect()  # a trainer and its model refer to each other
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Holds the directory's lock, which the system takes back when the process ends, however it ends."""
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"another process runs a pipeline in {directory}: wait for it, end it, or choose another --output_dir"
            ) from error
        yield
