"""Rejection sampling from a recipe: draw solutions, keep the right ones as demonstrations, say where each is from.

Stage: pipelines. In: a recipe with `algorithm: rejection_sampling`: a model, prompts, rewards, `SamplingConfig`. Out,
in `output_dir`: `samples/` (every sample and verdict, parquet), `train.jsonl` (the kept rows, which `algorithm: sft`
takes) and `provenance.json`. Killed, it goes on with the next batch of samples.

A row of `train.jsonl` has `prompt` as it was put to the model, `completion`, and `answer` and `reward` where the
source has them; and of its making `model`, `model_fingerprint`, `problem`, `sample`, `seed`, `temperature`, `verdicts`
(reward -> value, as JSON), `pass_rate` (of the problem, over its scored samples) and `difficulty`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from ..errors import UserError
from ..prompts import load_prompts
from ..recipe import Recipe
from ..report import environment
from ..rewards import build_rewards, check_columns
from ..train import load_tokenizer, write_recipe
from .record import write_json
from .selection import Candidate, Selection, difficulty_of, select


def sample_and_select(recipe: Recipe, console: Console) -> dict[str, Any]:
    """Runs a recipe for rejection sampling and returns its summary.

    Args:
        recipe: The recipe.
        console: Where to print.

    Raises:
        UserError: The model, the data or the rewards cannot work as the recipe has them, or nothing was right.
    """
    from ..evaluation import Sampling, evaluate
    from ..evaluation.models import model_fingerprint

    config, name = recipe.args, recipe.model.model_name_or_path
    for key in ("load_in_4bit", "load_in_8bit", "use_peft"):
        if getattr(recipe.model, key):
            raise UserError(f"{recipe.path}: rejection sampling has no `{key}`: its model is loaded as it is; drop it")
    started = time.perf_counter()
    output = Path(config.output_dir)
    rewards = build_rewards(config.rewards)
    tokenizer = load_tokenizer(recipe)
    rows = load_prompts(recipe.prompts, tokenizer)
    check_columns(rewards, rows.column_names, f"prompts.source {recipe.prompts.source}")
    write_recipe(recipe)
    console.print(
        f"rejection sampling from {name}: {config.samples} solutions of each of {len(rows):,} problems",
        highlight=False,
        markup=False,
    )
    result = evaluate(
        name,
        rows,
        config.rewards,
        tokenizer=tokenizer,
        sampling=Sampling(
            n=config.samples,
            max_new_tokens=config.max_completion_length,
            temperature=config.temperature,
            top_p=config.top_p,
            seed=config.seed,
            batch_size=config.batch_size,
        ),
        output_dir=output / "samples",
        dtype=recipe.model.dtype or "auto",
        use_cpu=config.use_cpu,
        trust_remote_code=config.trust_remote_code,
    )
    chosen = select(
        [_candidate(each, config.threshold) for each in result.scored],
        threshold=config.threshold,
        max_per_prompt=config.max_per_prompt,
        max_share=config.max_share,
        seed=config.seed,
    )
    counts = chosen.counts
    if not chosen.kept:
        raise UserError(
            f"rejection sampling kept nothing: of {counts['samples']} samples {counts['wrong']} were wrong and "
            f"{counts['unscored']} could not be scored. Sample from a better model, or easier problems"
        )
    origin = {
        "model": name,
        "model_fingerprint": model_fingerprint(name),
        "seed": config.seed,
        "temperature": config.temperature,
    }
    verdicts = {(s.sample.problem, s.sample.number): s.verdicts for s in result.scored}
    _write_rows(output / "train.jsonl", rows, chosen, verdicts, origin)
    summary = {
        "recipe": str(recipe.path),
        **origin,
        "rewards": {reward.name: reward.weight for reward in rewards},
        "sampling": {
            key: getattr(config, key)
            for key in ("samples", "top_p", "max_completion_length", "threshold", "max_per_prompt", "max_share")
        },
        "counts": dict(counts),
        "mean_pass_rate": sum(chosen.pass_rates.values()) / max(len(chosen.pass_rates), 1),
        "interrupted": False,
        "seconds": round(time.perf_counter() - started, 1),
        "command": " ".join(["grpo-plus", *sys.argv[1:]]),
        "environment": environment(),
    }
    write_json(output / "provenance.json", summary)
    console.print(
        f"kept {counts['kept']:,} of {counts['samples']:,} samples, of {counts['problems_kept']:,} of "
        f"{counts['problems']:,} problems; left out: {counts['wrong']:,} wrong, {counts['unscored']:,} unscored, "
        f"{counts['duplicate']:,} duplicates, {counts['over_cap']:,} beyond {config.max_per_prompt} a problem, "
        f"{counts['unbalanced']:,} for balance; {output}/train.jsonl",
        highlight=False,
        markup=False,
    )
    return summary


def _candidate(scored: Any, threshold: float) -> Candidate:
    """Returns a sample with the least of its rewards' values: all must be content. One that was cut off is worth 0."""
    sample = scored.sample
    values = [verdict.value for verdict in scored.verdicts.values() if verdict.value is not None]
    value = None if scored.right is None or not values else 0.0 if sample.truncated else min(values)
    if value is not None and not scored.right:
        value = min(value, 0.0)  # a wrong answer is not made right by a threshold
    return Candidate(sample.problem, sample.number, sample.text, value)


def _write_rows(
    file: Path,
    rows: Any,
    chosen: Selection,
    verdicts: Mapping[tuple[int, int], Mapping[str, Any]],
    origin: Mapping[str, Any],
) -> None:
    part = file.with_suffix(".tmp")
    with part.open("w") as out:
        for kept in chosen.kept:
            source = rows[kept.problem]
            rate = chosen.pass_rates[kept.problem]
            of_rewards = {name: v.value for name, v in verdicts[kept.problem, kept.sample].items()}
            row = {
                "prompt": source["prompt"],
                "completion": kept.text,
                **{key: source[key] for key in ("answer", "reward") if key in source},
                **origin,
                "problem": kept.problem,
                "sample": kept.sample,
                "verdicts": json.dumps(of_rewards),
                "pass_rate": round(rate, 6),
                "difficulty": difficulty_of(rate),
            }
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
    os.replace(part, file)
