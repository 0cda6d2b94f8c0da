"""`grpo-plus quickstart`: cold start a tiny model, then GRPO with a verifiable reward, and measure what it gained.

The whole pipeline, on a CPU and without a network:

    tiny model (seed) -> SFT on demonstrations, stopped early -> evaluate -> GRPO on fresh problems -> evaluate

In: `QuickstartSettings`. Out: a dict ready for JSON, and under the output directory two ordinary model directories,
`coldstart/` and `trained/` (an adapter with `lora=True`). Problems of training, of the early stop and of the
evaluation are disjoint by content.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from ..config import GRPOConfig
from ..prompts.arithmetic import arithmetic, demonstrations
from ..report import environment
from ..trainer import GRPOTrainer
from . import rewards
from .coldstart import ColdStartSettings, cold_start, silence
from .evaluate import Evaluation, evaluate, interval_over_problems
from .model import save_tiny_model

OnEvent = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class QuickstartSettings:
    """What the quickstart trains and measures.

    Args:
        seed: Weights, demonstrations, order and samples. Not the split, which is by content.
        style: Demonstrations: "clean", all worked and right, or "mixed", 60 % guesses (see `prompts.arithmetic`).
        control: Replaces the correctness reward by a coin flip of the same mean; must show no gain.
        lora: Trains a LoRA adapter (rank 8, all linear layers) instead of all weights.
        operations: Subset of "+", "-", "*".
        digits: Decimal digits of the operands.
        model: Sizes, see `tiny_model`.
        demonstrations: Distinct SFT rows, repeated as often as the cold start needs.
        cold_start: See `ColdStartSettings`.
        steps: GRPO optimizer steps.
        prompts_per_step: Distinct prompts per step.
        num_generations: Completions per prompt, G.
        learning_rate: GRPO's, all weights.
        lora_learning_rate: GRPO's, with `lora`.
        lr_scheduler_type: As in `transformers.TrainingArguments`.
        warmup_steps: Steps of linear warmup.
        max_completion_length: Longest completion, in tokens; a worked three-digit sum has about 30.
        validation_problems: Problems that steer the early stop.
        eval_problems: Problems of the measurement.
        eval_samples: Samples per problem.
        eval_split: "test"; "validation" while tuning.
        eval_seed: Which problems of the split are measured, and the samples.
        threads: Torch threads. One: a second saves a quarter of the time on an idle machine, and where something else
            keeps a core busy two threads wait for each other and are several times slower.
        grpo: Further `GRPOConfig` fields.
    """

    seed: int = 0
    style: Literal["clean", "mixed"] = "clean"
    control: bool = False
    lora: bool = False
    operations: tuple[str, ...] = ("+",)
    digits: int = 3
    model: dict[str, Any] = field(default_factory=dict)
    demonstrations: int = 4096
    cold_start: ColdStartSettings = ColdStartSettings()
    steps: int = 120
    prompts_per_step: int = 16
    num_generations: int = 8
    learning_rate: float = 4e-4
    lora_learning_rate: float = 4e-3
    lr_scheduler_type: str = "linear"
    warmup_steps: int = 5
    max_completion_length: int = 36
    validation_problems: int = 256
    eval_problems: int = 400
    eval_samples: int = 4
    eval_split: Literal["validation", "test"] = "test"
    eval_seed: int = 0
    threads: int = 1
    grpo: dict[str, Any] = field(default_factory=dict)


class _Forward(TrainerCallback):  # type: ignore[misc]
    """Passes every log line of a trainer on as an event."""

    def __init__(self, emit: OnEvent, phase: str, total: int) -> None:
        self.emit, self.phase, self.total = emit, phase, total

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        self.emit("step", {"phase": self.phase, "step": state.global_step, "total": self.total, **(logs or {})})


class _Clock:
    """Wall and CPU seconds per phase, announced as events."""

    def __init__(self, emit: OnEvent) -> None:
        self.emit = emit
        self.phases: dict[str, dict[str, float]] = {}

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self.emit("phase", {"phase": phase, "status": "start"})
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        spent = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        self.phases[phase] = spent
        self.emit("phase", {"phase": phase, "status": "end", **spent})


def run(
    settings: QuickstartSettings,
    output_dir: str | Path,
    on_event: OnEvent | None = None,
    callbacks: Sequence[Any] = (),
) -> dict[str, Any]:
    """Runs the quickstart and returns what it measured.

    Args:
        settings: What to run.
        output_dir: Where the models go; created where missing.
        on_event: Called with a name and a dict: "phase" (`phase`, `status` start or end, seconds), "step" (`phase`,
            `step`, `total`, the trainer's metrics), "validation" (`step`, `accuracy`), "evaluation" (`when`, numbers).
        callbacks: `TrainerCallback`s for the GRPO trainer.

    Returns:
        A JSON-able dict: `before`, `after` (see `Evaluation`), `gain` and its paired `gain_interval`, `completions`,
        `no_signal` (share of groups whose rewards were all equal, first and last tenth of training), `curve` (one row
        per GRPO step), `cold_start`, `timings`, `settings`, `environment`.
    """
    emit = on_event or (lambda name, data: None)
    directory = Path(output_dir)
    clock = _Clock(emit)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        with _quiet():
            return _run(settings, directory, emit, clock, callbacks)
    finally:
        torch.set_num_threads(threads_before)


def _run(
    settings: QuickstartSettings, directory: Path, emit: OnEvent, clock: _Clock, callbacks: Sequence[Any]
) -> dict[str, Any]:
    task: dict[str, Any] = {"operations": settings.operations, "digits": settings.digits}
    length = settings.max_completion_length
    with clock("data"):
        demos = demonstrations(size=settings.demonstrations, seed=settings.seed, style=settings.style, **task)
        # Steering and measuring draw from differently seeded orders of disjoint splits.
        steering = arithmetic(size=settings.validation_problems, seed=1, split="validation", **task)
        measured = arithmetic(
            size=settings.eval_problems, seed=settings.eval_seed + 1000, split=settings.eval_split, **task
        )
        fresh = arithmetic(size=settings.demonstrations, seed=settings.seed + 1, split="train", **task)
        path = save_tiny_model(directory / "coldstart", seed=settings.seed, **settings.model)
        model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)

    with clock("cold start"):
        started = cold_start(
            model,
            tokenizer,
            demos,
            steering,
            directory / "trainer",
            settings=settings.cold_start,
            seed=settings.seed,
            max_new_tokens=length,
            on_check=lambda step, accuracy: emit("validation", {"step": step, "accuracy": accuracy}),
            callbacks=[_Forward(emit, "cold start", settings.cold_start.max_steps)],
            trainer_options=_trainer_options(),
        )
        model.save_pretrained(path)

    def measure(when: str, model: Any) -> tuple[Evaluation, Any]:
        with clock(f"evaluation {when}"):
            found = evaluate(
                model,
                tokenizer,
                measured,
                samples=settings.eval_samples,
                seed=settings.eval_seed,
                max_new_tokens=length,
            )
        emit("evaluation", {"when": when, **found[0].to_dict()})
        return found

    before, texts_before = measure("before", model)
    with clock("grpo"):
        trainer = _grpo_trainer(settings, path, directory, fresh, before.pass1, emit, callbacks)
        trainer.train()
        trainer.save_model(str(directory / "trained"))
    after, texts_after = measure("after", trainer.model)

    curve = [row for row in trainer.state.log_history if "reward" in row]
    tenth = max(1, math.ceil(len(curve) / 10))
    dead = [row["frac_reward_zero_std"] for row in curve]
    gains = [b - a for a, b in zip(before.per_problem, after.per_problem, strict=True)]
    return {
        "before": before.to_dict(),
        "after": after.to_dict(),
        "gain": after.pass1 - before.pass1,
        "gain_interval": list(interval_over_problems(gains)),
        "completions": [
            {
                "prompt": measured[i]["prompt"][-1]["content"],
                "answer": measured[i]["answer"],
                "before": [c.text for c in texts_before[i]],
                "after": [c.text for c in texts_after[i]],
            }
            for i in range(min(8, len(measured)))
        ],
        "no_signal": {
            "first_tenth": sum(dead[:tenth]) / len(dead[:tenth]),
            "last_tenth": sum(dead[-tenth:]) / len(dead[-tenth:]),
        },
        "curve": curve,
        "cold_start": started,
        "timings": clock.phases,
        "settings": asdict(settings),
        "environment": environment(),
    }


def _grpo_trainer(
    settings: QuickstartSettings,
    path: Path,
    directory: Path,
    prompts: Any,
    chance: float,
    emit: OnEvent,
    callbacks: Sequence[Any],
) -> Any:
    peft_config = None
    if settings.lora:
        from peft import LoraConfig

        peft_config = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    config = GRPOConfig(
        output_dir=str(directory / "trainer"),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.prompts_per_step * settings.num_generations,
        num_generations=settings.num_generations,
        learning_rate=settings.lora_learning_rate if settings.lora else settings.learning_rate,
        lr_scheduler_type=settings.lr_scheduler_type,
        warmup_steps=settings.warmup_steps,
        max_completion_length=settings.max_completion_length,
        rewards=[rewards.WELL_FORMED] if settings.control else rewards.REWARDS,
        bf16=False,
        gradient_checkpointing=False,
        seed=settings.seed,
        **{**_trainer_options(), **settings.grpo},
    )
    trainer = GRPOTrainer(
        model=str(path),
        reward_funcs=[rewards.coin_flip(settings.seed, chance)] if settings.control else None,
        args=config,
        train_dataset=prompts,
        peft_config=peft_config,
        callbacks=[_Forward(emit, "grpo", settings.steps), *callbacks],
    )
    silence(trainer)
    return trainer


def _trainer_options() -> dict[str, Any]:
    return {
        "use_cpu": True,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps progress bars and advice of the libraries off the screen; errors still show."""
    import datasets
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), datasets.are_progress_bars_disabled()
    hub_bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if hub_bars:
            logging.enable_progress_bar()
        if not bars:
            datasets.enable_progress_bars()
