"""The cold start: SFT from random weights through TRL's `SFTTrainer`, stopped early on validation accuracy.

Stage: before GRPO. In: a model directory and demonstrations. Out: the model, somewhat able, somewhat unreliable. A
fixed number of steps would leave one seed at 20 % and another at 55 %, since accuracy climbs steeply once the format
is learned; stopping on sampled accuracy on a validation split leaves every seed in the same window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from .evaluate import sampled_accuracy


@dataclass(frozen=True)
class ColdStartSettings:
    """How the tiny model is cold-started.

    Args:
        learning_rate: AdamW's, after a linear warmup, then constant.
        batch_size: Demonstrations per step.
        warmup_steps: Steps of linear warmup.
        max_steps: Ends the cold start wherever the accuracy target was not met.
        target: Sampled validation accuracy at which it stops, in (0, 1].
        first_check: First step at which the accuracy is measured.
        check_every: Steps between two measurements.
    """

    learning_rate: float = 4e-3
    batch_size: int = 64
    warmup_steps: int = 20
    max_steps: int = 600
    target: float = 0.3
    first_check: int = 100
    check_every: int = 20


class StopAtAccuracy(TrainerCallback):  # type: ignore[misc]
    """Stops training as soon as `measure(model)` reaches `target`.

    Args:
        measure: Model -> accuracy in [0, 1]; must leave the global random state alone.
        target: Stops at this accuracy or above.
        first_check: First step at which it is measured.
        check_every: Steps between two measurements.
        on_check: Called with the step and the accuracy after each measurement.

    Attributes:
        history: (step, accuracy) of every measurement.
        reached: Whether the target was met.
    """

    def __init__(
        self,
        measure: Callable[[Any], float],
        *,
        target: float,
        first_check: int = 0,
        check_every: int = 10,
        on_check: Callable[[int, float], None] | None = None,
    ) -> None:
        self.measure = measure
        self.target = target
        self.first_check = first_check
        self.check_every = check_every
        self.on_check = on_check
        self.history: list[tuple[int, float]] = []
        self.reached = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        step = state.global_step
        if step < self.first_check or (step - self.first_check) % self.check_every:
            return control
        accuracy = self.measure(kwargs["model"])
        self.history.append((step, accuracy))
        if self.on_check is not None:
            self.on_check(step, accuracy)
        if accuracy >= self.target:
            self.reached = True
            control.should_training_stop = True
        return control


def cold_start(
    model: Any,
    tokenizer: Any,
    demonstrations: Any,
    validation: Any,
    output_dir: str | Path,
    *,
    settings: ColdStartSettings,
    seed: int = 0,
    max_new_tokens: int = 40,
    on_check: Callable[[int, float], None] | None = None,
    callbacks: Sequence[Any] = (),
    trainer_options: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Trains `model` in place on `demonstrations` until its sampled accuracy on `validation` reaches the target.

    Args:
        model: Usually untrained.
        tokenizer: With a chat template whose prompt is a prefix of the conversation.
        demonstrations: Rows of `{prompt, completion}`, chat messages; repeated as often as needed.
        validation: Rows of `{prompt, answer}` that only steer the stop.
        output_dir: For the trainer; nothing is saved there.
        settings: Learning rate, batch, target.
        seed: Order of the demonstrations, and the validation samples.
        max_new_tokens: Longest completion sampled for validation.
        on_check: Called with step and validation accuracy.
        callbacks: Further `TrainerCallback`s.
        trainer_options: Further `SFTConfig` fields, for example to silence it.

    Returns:
        `steps`, `reached` (whether the target was met), `validation` (list of [step, accuracy]).
    """
    stop = StopAtAccuracy(
        lambda m: sampled_accuracy(m, tokenizer, validation, seed=seed, max_new_tokens=max_new_tokens),
        target=settings.target,
        first_check=settings.first_check,
        check_every=settings.check_every,
        on_check=on_check,
    )
    config = SFTConfig(
        output_dir=str(output_dir),
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=settings.warmup_steps,
        adam_beta2=0.98,
        weight_decay=0.01,
        bf16=False,
        gradient_checkpointing=False,
        seed=seed,
        **(trainer_options or {}),
    )
    trainer = SFTTrainer(
        model=model,
        args=config,
        train_dataset=demonstrations,
        processing_class=tokenizer,
        callbacks=[stop, *callbacks],
    )
    silence(trainer)
    trainer.train()
    return {
        "steps": trainer.state.global_step,
        "reached": stop.reached,
        "validation": [list(each) for each in stop.history],
    }


def silence(trainer: Any) -> None:
    """Takes the callbacks that print to the screen off a trainer; its log history is kept."""
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
