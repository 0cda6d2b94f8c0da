"""A training run from a recipe: builds the stages, runs them, and leaves everything that tells what happened.

In `output_dir`: the trained model, `recipe.yaml` (resolved; runs the same again), `metrics.jsonl` (every log),
`summary.json` (before and after, steps, times, versions), `plots/*.png`, and the trainer's checkpoints.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from . import report
from .callbacks import MetricsFile, ProgressDisplay, StopOnSignal
from .errors import UserError
from .ppo_config import PPOConfig
from .prompts import find_overlap, load_problems, load_prompts
from .recipe import Recipe, dump_recipe
from .resume import last_whole_checkpoint
from .rewards import build_rewards, check_columns

_BEFORE = "before.json"


def train(recipe: Recipe, console: Console, resume: str | None = None, overwrite: bool = False) -> dict[str, Any]:
    """Runs a recipe and returns its summary, which is also written to `output_dir/summary.json`.

    Args:
        recipe: The recipe.
        console: Where to print.
        resume: `"latest"`, or the directory of a checkpoint, to go on from.
        overwrite: Start anew where `output_dir` holds an earlier run, whose metrics are then lost.

    Raises:
        UserError: The model, the data, the rewards or the output directory cannot work as the recipe has them.
    """
    output = Path(recipe.args.output_dir)
    checkpoint = find_checkpoint(recipe, resume)
    prepare_output(recipe, checkpoint, overwrite)
    rewards = build_rewards(recipe.args.rewards)
    tokenizer = load_tokenizer(recipe)
    prompts = load_prompts(recipe.prompts, tokenizer)
    check_columns(rewards, prompts.column_names, f"prompts.source {recipe.prompts.source}")
    held_out = overlap = None
    if recipe.eval_prompts is not None:
        held_out = load_prompts(recipe.eval_prompts, tokenizer)
        overlap = find_overlap(load_problems(recipe.prompts), load_problems(recipe.eval_prompts))
        check_columns(rewards, held_out.column_names, f"eval_prompts.source {recipe.eval_prompts.source}")
        _check_eval_batch(recipe)
    trainer = build_trainer(recipe, prompts, held_out, tokenizer)
    write_recipe(recipe)

    accuracy = next((f"rewards/{r.name}/mean" for r in rewards if r.accuracy), None)
    display = ProgressDisplay(console, accuracy)
    stop = StopOnSignal(lambda message: console.print(f"[yellow]{message}[/yellow]"))
    for callback in (MetricsFile(output / "metrics.jsonl"), display, stop):
        trainer.add_callback(callback)
    report.print_header(console, recipe, trainer, rewards, len(prompts), held_out and len(held_out), overlap)
    started = time.perf_counter()
    before = measure_before(trainer, output, checkpoint) if held_out is not None else None
    try:
        trainer.train(resume_from_checkpoint=checkpoint)
    finally:
        display.close()
        stop.restore()
    seconds = time.perf_counter() - started
    if not stop.stopped:
        trainer.save_model(recipe.args.output_dir)
    after = evaluate(trainer) if held_out is not None and not stop.stopped else None
    summary = report.summarize(recipe, trainer, rewards, before, after, seconds, interrupted=stop.stopped)
    (output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    plots = report.plot_metrics(output / "metrics.jsonl", output / "plots", accuracy)
    report.print_summary(console, recipe, summary, plots)
    return summary


def build_trainer(recipe: Recipe, prompts: Any, held_out: Any, tokenizer: Any) -> Any:
    """Returns the `GRPOTrainer` or `PPOTrainer` of a recipe.

    Args:
        recipe: The recipe.
        prompts: Training rows.
        held_out: Held-out rows, or `None`.
        tokenizer: The model's tokenizer.

    Raises:
        UserError: The model cannot be loaded.
    """
    from transformers import PrinterCallback, ProgressCallback
    from trl import get_peft_config, get_quantization_config

    from .ppo import PPOTrainer
    from .trainer import GRPOTrainer

    args, model = recipe.args, recipe.model
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(args.model_init_kwargs or {}),
    }
    if args.memory_mode is not None:
        from .memory.modes import take_recipe

        take_recipe(args, recipe.keys)
    try:
        trainer_class = PPOTrainer if isinstance(args, PPOConfig) else GRPOTrainer
        trainer = trainer_class(
            model.model_name_or_path,
            args=args,
            train_dataset=prompts,
            eval_dataset=held_out,
            processing_class=tokenizer,
            quantization_config=get_quantization_config(model),
            peft_config=get_peft_config(model),
        )
    except OSError as error:
        raise UserError(f"model_name_or_path: {model.model_name_or_path} cannot be loaded: {error}") from error
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def load_tokenizer(recipe: Recipe) -> Any:
    """Returns the tokenizer of a recipe's model, padding and truncating on the left.

    Raises:
        UserError: There is none, or `model_name_or_path` is no model.
    """
    from transformers import AutoTokenizer

    name = recipe.model.model_name_or_path
    path = Path(name)
    if path.is_dir():
        if not (path / "config.json").exists() and not (path / "adapter_config.json").exists():
            raise UserError(f"model_name_or_path: {name} is no model directory: it has no config.json")
        if not any(path.glob("tokenizer*")) and not (path / "vocab.json").exists():
            raise UserError(
                f"model_name_or_path: {name} has no tokenizer files; save one beside the model with "
                f"tokenizer.save_pretrained({name!r})"
            )
    elif name.startswith((".", "/", "~")) or path.suffix:
        if not path.exists():
            raise UserError(f"model_name_or_path: no such directory: {name}")
        raise UserError(f"model_name_or_path: {name} is a file; name the directory that holds the model")
    try:
        return AutoTokenizer.from_pretrained(
            name,
            revision=recipe.model.model_revision,
            padding_side="left",
            truncation_side="left",
            trust_remote_code=recipe.args.trust_remote_code,
        )
    except Exception as error:  # the Hub's client and the tokenizers raise errors of many kinds
        raise UserError(
            f"model_name_or_path: no tokenizer for {name}: {type(error).__name__}: {str(error).strip()}"
        ) from error


def find_checkpoint(recipe: Recipe, resume: str | None) -> str | None:
    """Returns the checkpoint to go on from, or `None` to start anew.

    Args:
        recipe: The recipe.
        resume: `"latest"`: the last one in its output directory; or a directory; else the recipe's own wish holds.

    Raises:
        UserError: There is no such checkpoint.
    """
    wanted = resume or recipe.args.resume_from_checkpoint
    if not wanted:
        return None
    output = Path(recipe.args.output_dir)
    if str(wanted) in ("latest", "True", "true"):
        found = last_whole_checkpoint(output)
        if found is None:
            raise UserError(f"--resume: there is no checkpoint in {output}")
        return str(found)
    if not (Path(wanted) / "trainer_state.json").exists():
        raise UserError(f"--resume: {wanted} is no checkpoint directory")
    return str(wanted)


def prepare_output(recipe: Recipe, checkpoint: str | None, overwrite: bool) -> None:
    """Makes the output directory ready: an earlier run's records leave it where a run starts anew with `overwrite`.

    Raises:
        UserError: It holds an earlier run, and neither is that to go on nor may it be replaced.
    """
    output = Path(recipe.args.output_dir)
    if not (output / "metrics.jsonl").exists() or checkpoint is not None:
        return
    if not overwrite:
        raise UserError(
            f"output_dir: {output} holds an earlier run. Go on from its last checkpoint with --resume, choose "
            f"another --output_dir, or replace it with --overwrite"
        )
    for name in ("metrics.jsonl", _BEFORE, "summary.json"):
        (output / name).unlink(missing_ok=True)


def write_recipe(recipe: Recipe) -> None:
    """Writes the resolved recipe into its output directory, which is made."""
    output = Path(recipe.args.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    (output / "recipe.yaml").write_text(dump_recipe(recipe))


def _check_eval_batch(recipe: Recipe) -> None:
    if recipe.args.eval_rewards is not None:
        return  # drawn in batches of any size
    group = recipe.args.num_generations_eval or recipe.args.num_generations
    batch = recipe.args.per_device_eval_batch_size
    if batch % group:
        raise UserError(
            f"per_device_eval_batch_size ({batch}) must be a multiple of the {group} completions per held-out prompt "
            f"(num_generations_eval, or else num_generations): set it to {max(batch // group, 1) * group}"
        )


def evaluate(trainer: Any) -> dict[str, float]:
    """Returns the metrics of the held-out rows, without the prefix `eval_`."""
    metrics: Mapping[str, Any] = trainer.evaluate()
    return {k.removeprefix("eval_"): float(v) for k, v in metrics.items() if isinstance(v, (int, float))}


def measure_before(trainer: Any, output: Path, checkpoint: str | None) -> dict[str, float]:
    """Returns the evaluation of the untrained model, which a resumed run reads back instead of repeating it."""
    file = output / _BEFORE
    if checkpoint is not None and file.exists():
        stored: dict[str, float] = json.loads(file.read_text())
        return stored
    before = evaluate(trainer)
    file.write_text(json.dumps(before, indent=2) + "\n")
    return before
