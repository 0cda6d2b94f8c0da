"""Supervised stages from a recipe, through TRL's own trainers: `algorithm: sft` and `algorithm: reward_model`.

In `output_dir`, as after GRPO: the model, `recipe.yaml`, `metrics.jsonl`, `summary.json` and the checkpoints. Prompts
are put to the model by the same section as in GRPO, so that what SFT teaches is what GRPO asks.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from .callbacks import MetricsFile, ProgressDisplay, StopOnSignal
from .errors import UserError
from .prompts import load_demonstrations, load_preferences
from .quantized import keep_trainable
from .recipe import Recipe
from .report import count_parameters, environment
from .train import evaluate, find_checkpoint, load_tokenizer, measure_before, prepare_output, write_recipe

_TITLES = {"sft": "SFT", "reward_model": "reward model"}


def train_supervised(
    recipe: Recipe, console: Console, resume: str | None = None, overwrite: bool = False
) -> dict[str, Any]:
    """Runs a recipe for SFT or a reward model, and returns its summary, also written to `output_dir/summary.json`.

    Args:
        recipe: The recipe; its `prompts` are demonstrations (`load_demonstrations`) or preferences.
        console: Where to print.
        resume: `"latest"`, or the directory of a checkpoint, to go on from.
        overwrite: Start anew where `output_dir` holds an earlier run.

    Raises:
        UserError: The model, the data or the output directory cannot work as the recipe has them.
    """
    output = Path(recipe.args.output_dir)
    checkpoint = find_checkpoint(recipe, resume)
    prepare_output(recipe, checkpoint, overwrite)
    tokenizer = load_tokenizer(recipe)
    load = load_demonstrations if recipe.algorithm == "sft" else load_preferences
    rows = load(recipe.prompts, tokenizer)
    held_out = load(recipe.eval_prompts, tokenizer) if recipe.eval_prompts is not None else None
    if recipe.algorithm == "sft" and recipe.args.eos_token is None and not isinstance(rows[0]["completion"], str):
        check_end_of_answer(tokenizer, _stops(recipe))
    trainer = _trainer(recipe, rows, held_out, tokenizer)
    write_recipe(recipe)
    display = ProgressDisplay(console, title=_TITLES[recipe.algorithm])
    stop = StopOnSignal(lambda message: console.print(f"[yellow]{message}[/yellow]"))
    for callback in (MetricsFile(output / "metrics.jsonl"), display, stop):
        trainer.add_callback(callback)
    every, trained = count_parameters(trainer)
    console.print(
        f"{_TITLES[recipe.algorithm]} of {recipe.model.model_name_or_path}: {len(rows):,} rows from "
        f"{recipe.prompts.source}, {trained:,} of {every:,} parameters trained",
        highlight=False,
        markup=False,
    )
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
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    tenth = max(1, len(losses) // 10)
    summary = {
        "recipe": str(recipe.path),
        "model": recipe.model.model_name_or_path,
        "parameters": every,
        "parameters_trained": trained,
        "rows": len(rows),
        "steps": trainer.state.global_step,
        "interrupted": stop.stopped,
        "seconds": round(seconds, 1),
        "loss_first_tenth": sum(losses[:tenth]) / tenth if losses else None,
        "loss_last_tenth": sum(losses[-tenth:]) / tenth if losses else None,
        "before": before,
        "after": evaluate(trainer) if held_out is not None and not stop.stopped else None,
        "command": " ".join(["grpo-plus", *sys.argv[1:]]),
        "environment": environment(),
    }
    (output / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    _print_summary(console, summary, output)
    return summary


def check_end_of_answer(tokenizer: Any, stops: frozenset[int] = frozenset()) -> None:
    """Refuses a tokenizer whose chat template ends an answer with another token than where generation stops.

    Base models have the chat template of their family and stop at the end of a text (Qwen2.5: `<|im_end|>` and
    `<|endoftext|>`). Trained so, every answer would run on until it is cut off.

    Args:
        tokenizer: The tokenizer, which has a chat template.
        stops: Tokens at which the model's own generation settings stop beside the tokenizer's (Gemma's end of turn).

    Raises:
        UserError: It is so; the message names the token to set.
    """
    answer = "the answer"
    talk = [{"role": "user", "content": "the question"}, {"role": "assistant", "content": answer}]
    after = str(tokenizer.apply_chat_template(talk, tokenize=False)).rpartition(answer)[2]
    if tokenizer.eos_token and tokenizer.eos_token in after:
        return
    special = {str(token) for token in tokenizer.added_tokens_decoder.values()} | set(tokenizer.all_special_tokens)
    ends = sorted((token for token in special if token and token in after), key=after.index)
    if ends and not stops & {tokenizer.convert_tokens_to_ids(token) for token in ends}:
        raise UserError(
            f"eos_token: the chat template ends an answer with {ends[0]!r}, but the tokenizer's end is "
            f"{tokenizer.eos_token!r}: answers would not stop. Set `eos_token: {ends[0]!r}` in the recipe"
        )


def _stops(recipe: Recipe) -> frozenset[int]:
    """Returns the tokens at which the model's generation settings stop; none where it ships no settings."""
    from transformers import GenerationConfig

    try:
        shipped = GenerationConfig.from_pretrained(
            recipe.model.model_name_or_path, revision=recipe.model.model_revision
        ).eos_token_id
    except OSError:
        return frozenset()
    return frozenset([shipped] if isinstance(shipped, int) else shipped or ())


def _trainer(recipe: Recipe, rows: Any, held_out: Any, tokenizer: Any) -> Any:
    from transformers import PrinterCallback, ProgressCallback
    from trl import RewardTrainer, SFTTrainer, get_peft_config, get_quantization_config

    args, model = recipe.args, recipe.model
    args.model_init_kwargs = {
        "revision": model.model_revision,
        "attn_implementation": model.attn_implementation,
        "dtype": model.dtype,
        **(args.model_init_kwargs or {}),
    }
    peft_config = get_peft_config(model)
    if peft_config is not None and recipe.algorithm == "reward_model":
        peft_config.task_type = "SEQ_CLS"  # its new head is then trained and saved beside the adapter
    trainer_class = SFTTrainer if recipe.algorithm == "sft" else RewardTrainer
    try:
        trainer = trainer_class(
            model.model_name_or_path,
            args=args,
            train_dataset=rows,
            eval_dataset=held_out,
            processing_class=tokenizer,
            quantization_config=get_quantization_config(model),
            peft_config=peft_config,
        )
    except OSError as error:
        raise UserError(f"model_name_or_path: {model.model_name_or_path} cannot be loaded: {error}") from error
    keep_trainable(trainer.model)  # it is evaluated before it trains
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def _print_summary(console: Console, summary: dict[str, Any], output: Path) -> None:
    def say(text: str) -> None:
        console.print(text, highlight=False, markup=False, soft_wrap=True)

    if summary["loss_first_tenth"] is not None:
        say(f"loss {summary['loss_first_tenth']:.3f} -> {summary['loss_last_tenth']:.3f}")
    for key in ("loss", "accuracy"):
        before, after = summary["before"] or {}, summary["after"] or {}
        if key in before and key in after:
            say(f"held-out {key} {before[key]:.3f} -> {after[key]:.3f}")
    say(f"{summary['steps']} steps in {summary['seconds']:.0f} s; everything is in {output}/")
    if summary["interrupted"]:
        say(f"stopped early. Go on with: grpo-plus train {output}/recipe.yaml --resume")
