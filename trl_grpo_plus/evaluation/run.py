"""`evaluate`: a model on problems, as the papers report it. Draws samples, scores them, and summarises.

Stage: evaluation. In: a model (loaded, or a directory or id), rows of prompts, rewards by name, `Sampling`. Out: an
`EvalResult`; with `output_dir` also samples and verdicts as parquet, and a run that goes on after a kill.
"""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import UserError
from ..prompts import PromptSpec, load_prompts
from ..rewards import build_rewards, check_columns
from .models import default_device, load_model, load_tokenizer, model_fingerprint
from .result import EvalResult, check_k, summarize
from .sampling import Sample, Sampling, draw_samples, encode, model_generator
from .scoring import judges_of, score_samples
from .store import RunDirectory

OnBatch = Callable[[list[Sample], int], None]


def evaluate(
    model: Any,
    rows: Any,
    rewards: Any,
    *,
    tokenizer: Any = None,
    sampling: Sampling | None = None,
    ks: Sequence[int] = (1,),
    correct: str | None = None,
    output_dir: str | Path | None = None,
    overwrite: bool = False,
    dtype: str = "auto",
    use_cpu: bool = False,
    trust_remote_code: bool = False,
    on_batch: OnBatch | None = None,
    details: Mapping[str, Any] | None = None,
) -> EvalResult:
    """Returns pass@k, maj@k, rewards, length and truncation of a model on problems, with intervals over problems.

    Args:
        model: A loaded model, or a directory or an id of one; a LoRA adapter is put on its base.
        rows: The problems: rows with `prompt`, or a `PromptSpec`.
        rewards: As the `rewards` option of a recipe; at least one must say which answers are right.
        tokenizer: The model's; loaded where `model` is a name.
        sampling: How samples are drawn; 1 sample of at most 512 tokens at temperature 1 by default.
        ks: Sizes k of pass@k and maj@k, at most `sampling.n`.
        correct: Name of the reward that says what is right, where several would.
        output_dir: Where samples, verdicts and numbers are kept. A run that was killed goes on there; a finished one
            is only scored anew. Needs a `model` given by its name.
        overwrite: Replace an evaluation with other settings in `output_dir`.
        dtype: Of a model that is loaded: `auto` takes float32 on a CPU, else the checkpoint's.
        use_cpu: Do not use a GPU.
        trust_remote_code: Allow code of the model's repository.
        on_batch: Called after each batch with its samples and the number of all samples to draw.
        details: What to record beside the settings, in the result.

    Raises:
        UserError: The model cannot be loaded, a column or a reward is missing, or `output_dir` holds something else.
    """
    sampling = sampling or Sampling()
    ks = check_k(ks, sampling.n)
    weighted = build_rewards(rewards)
    judges_of(weighted, correct)  # an evaluation that cannot be scored is not drawn
    name = str(model) if isinstance(model, (str, Path)) else None
    if output_dir is not None and name is None:
        raise UserError("output_dir needs a model given by its directory or id, not a loaded one")
    if tokenizer is None:
        if name is None:
            raise UserError("a loaded model needs its tokenizer as well")
        tokenizer = load_tokenizer(name, trust_remote_code)
    if isinstance(rows, PromptSpec):
        rows = load_prompts(rows, tokenizer)
    check_columns(weighted, rows.column_names, "the evaluation's data")

    prompt_ids = encode(list(rows["prompt"]), tokenizer)
    store = None
    if output_dir is not None and name is not None:
        store = RunDirectory(output_dir, _settings(name, dtype, prompt_ids, sampling), overwrite)
    total = len(prompt_ids) * sampling.n
    started = time.perf_counter()
    loaded = functools.cache(
        lambda: (
            model if name is None else load_model(name, dtype, use_cpu=use_cpu, trust_remote_code=trust_remote_code)
        )
    )
    now = 0

    def generate(ids: list[list[int]], seed: int) -> list[tuple[list[int], bool]]:
        nonlocal now
        now += len(ids)
        return model_generator(loaded(), tokenizer, sampling)(ids, seed)  # loaded where something is left to draw

    samples = draw_samples(
        prompt_ids,
        sampling,
        generate,
        decode=lambda ids: list(tokenizer.batch_decode(ids, skip_special_tokens=True)),
        store=store,
        on_batch=None if on_batch is None else lambda batch: on_batch(batch, total),
    )
    drawn = time.perf_counter()
    scored = score_samples(
        samples, rows, weighted, correct=correct, votes=sampling.n > 1, device=default_device(use_cpu)
    )
    record = {
        "model": name,
        "rewards": {w.name: w.weight for w in weighted},
        "sampling": asdict(sampling),
        "tokens": sum(len(s.ids) for s in samples),
        "drawn_now": now,  # the rest was there from a run that was killed; the seconds are without it
        "seconds": {"drawing": round(drawn - started, 1), "scoring": round(time.perf_counter() - drawn, 1)},
        **(details or {}),
    }
    result = summarize(scored, len(prompt_ids), ks, seed=sampling.seed, details=record)
    if store is not None:
        store.finish(scored, (dict(row) for row in rows), result.to_json())
    return result


def _settings(model: str, dtype: str, prompt_ids: Sequence[Sequence[int]], sampling: Sampling) -> dict[str, Any]:
    """Returns what the samples depend on."""
    prompts = hashlib.sha256(json.dumps(prompt_ids).encode()).hexdigest()
    return {
        "model": model,
        "weights": model_fingerprint(model),
        "dtype": dtype,
        "problems": len(prompt_ids),
        "prompts": prompts[:16],
        **asdict(sampling),
    }
