"""`GRPOConfig`: TRL's configuration and the fields that this package adds, grouped by stage and checked once.

A plain `trl.GRPOConfig` works as well: what it lacks takes the defaults below.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import trl
import yaml

from .errors import UserError
from .rewards import RewardSettings

# Options that save work without changing the mathematics: True, False or "auto".
SWITCHES = ("share_prompt", "trim_padding", "skip_zero_advantage", "prefill_once", "drop_finished")
MEMORY_MODES = ("full", "lora", "qlora", "auto")
# Fields that a memory mode may set.
_SET_BY_MODES = ("gradient_checkpointing", "optim", "per_device_train_batch_size", "gradient_accumulation_steps")
_TRUE, _FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


def parse_switch(name: str, value: Any) -> bool | Literal["auto"]:
    """Returns the value of an option that is true, false or auto.

    Raises:
        UserError: It is none of them.
    """
    text = str(value).lower()
    if text == "auto":
        return "auto"
    if text in (*_TRUE, *_FALSE):
        return text in _TRUE
    raise UserError(f"{name} must be true, false or auto, found {value!r}")


@dataclass
class GRPOConfig(trl.GRPOConfig):  # type: ignore[misc]
    """Configuration of `GRPOTrainer`: all of `trl.GRPOConfig` and the fields below.

    Args:
        rewards: Verifiable rewards by name, as a list of names or of `{name: weight}` or `{name: {weight: 1.0, option:
            value}}`; a YAML or JSON text of the same on a command line. They come after the trainer's `reward_funcs`.
            See `trl_grpo_plus.rewards`.
        eval_rewards: Rewards by name, as in `rewards`, by which `evaluate` judges the samples of held-out prompts:
            `num_generations_eval` of each, at most `max_completion_length` tokens, `per_device_eval_batch_size` drawn
            at once. Its metrics are those of `trl_grpo_plus.evaluation` (`eval_pass@1`, `eval_maj@8`, ...), for
            `metric_for_best_model` too; TRL's evaluation is left out. `None` evaluates as TRL does.
        eval_k: Sizes k of pass@k and maj@k, at most `num_generations_eval`; `None` is 1.
        reward_workers: Worker processes that verify; `"auto"` takes the cores, divided by the processes that train on
            the machine.
        reward_timeout_s: Seconds that a verifier in a worker may take for one completion; then it is unscored.
        reward_max_failures: Share of a batch's completions, in [0, 1], on which one reward may fail (exception,
            timeout, crash) before the run stops; 1 never stops it.
        reward_cache: File of the cache of verdicts, which serves repeats across steps, resumes and runs; `"auto"` is
            `reward_cache.sqlite3` in `output_dir`; `"memory"`; `"off"`.
        share_prompt: Run each distinct prompt of a micro-batch once in the forwards that are trained on or score
            log-probabilities, and keep rows of one prompt in one micro-batch. `"auto"`: where it is exact (judged from
            the model, then verified on the first micro-batch) and runs fewer tokens; true: an error where it is not
            exact; false: never. The same switch values hold below.
        trim_padding: Cut each micro-batch to its own longest prompt and completion (TRL pads to the generation
            batch's).
        skip_zero_advantage: Leave rows whose advantage is exactly zero out of the forward, where they add nothing to
            the gradient. Entropies are then logged over the rows that ran.
        prefill_once: In generation without vLLM, run each distinct prompt once and copy its cache.
        drop_finished: In generation without vLLM, let finished rows leave the batch.
        decode_chunk: Decoding steps between two times that finished rows are dropped; `"auto"` chooses.
        max_tokens_per_forward: Split a micro-batch into forwards of at most this many packed tokens; the activations
            of one are alive at a time (each is run once more in the backward), and the loss and its gradient stay
            those of the whole micro-batch. `None` does not split.
        memory_mode: `full`, `lora`, `qlora` or `auto`: how the model is loaded and trained so that it fits; see
            `trl_grpo_plus.memory.modes`. What you give yourself wins. `None` leaves all as TRL has it.
        memory_mode_kwargs: Options of the mode's LoRA, by PEFT's names: `{r: 32, use_rslora: true}`.
        activation_offloading: Keep activations for the backward in the host's memory, by TRL's own helper. GPUs only.
        profile_memory: Measure the peak memory of every phase: metrics `memory/...` in the log, and JSON and pictures
            under `memory/` in the output directory. See `trl_grpo_plus.memory.profiler`.
        reflection_words: Log how often completions have words like "wait" and "verify": `default`, or the words; see
            `trl_grpo_plus.reflection`.

    Raises:
        UserError: A field has a value that cannot work; the message names the field, what was found, and what to do.
    """

    rewards: list[Any] | str | None = field(
        default=None,
        metadata={"help": "Verifiable rewards by name, as YAML: `[gsm8k, {think_format: {weight: 0.1}}]`."},
    )

    eval_rewards: list[Any] | str | None = field(
        default=None,
        metadata={"help": "Rewards that judge samples of held-out prompts, as YAML: pass@k instead of mean rewards."},
    )
    eval_k: list[int] | None = field(default=None, metadata={"help": "Sizes k of pass@k and maj@k."})

    reward_workers: str = field(
        default="auto", metadata={"help": "Worker processes that verify completions: auto or a number."}
    )
    reward_timeout_s: float = field(
        default=5.0, metadata={"help": "Seconds that a verifier in a worker may take for one completion."}
    )
    reward_max_failures: float = field(
        default=0.5, metadata={"help": "Share of a batch on which a reward may fail before the run stops."}
    )
    reward_cache: str = field(
        default="auto", metadata={"help": "Cache of verdicts: a file, auto (in output_dir), memory or off."}
    )

    # Typed as texts for the parser of command lines; `__post_init__` leaves True, False or "auto".
    share_prompt: str = field(
        default="auto", metadata={"help": "Run each distinct prompt of a micro-batch once: auto, true or false."}
    )
    trim_padding: str = field(
        default="auto", metadata={"help": "Cut each micro-batch to its own longest row: auto, true or false."}
    )
    skip_zero_advantage: str = field(
        default="auto", metadata={"help": "Leave rows of zero advantage out of the forward: auto, true or false."}
    )
    prefill_once: str = field(
        default="auto", metadata={"help": "Generation: run each distinct prompt once: auto, true or false."}
    )
    drop_finished: str = field(
        default="auto", metadata={"help": "Generation: let finished rows leave the batch: auto, true or false."}
    )
    decode_chunk: str = field(
        default="auto", metadata={"help": "Generation: steps between two drops of finished rows: auto or a number."}
    )
    max_tokens_per_forward: int | None = field(
        default=None, metadata={"help": "Split a micro-batch into forwards of at most this many packed tokens."}
    )

    memory_mode: str | None = field(
        default=None, metadata={"help": "Load and train so that it fits: full, lora, qlora or auto."}
    )
    memory_mode_kwargs: dict[str, Any] | str | None = field(
        default=None, metadata={"help": "Options of the memory mode's LoRA, by PEFT's names: `{r: 32}`."}
    )
    activation_offloading: bool = field(
        default=False, metadata={"help": "Keep activations for the backward in the host's memory (GPUs only)."}
    )
    profile_memory: bool = field(
        default=False, metadata={"help": "Measure the peak memory of every phase, and log and draw it."}
    )
    reflection_words: list[str] | None = field(
        default=None, metadata={"help": "Log how often completions have these words; `default`: wait, verify, ..."}
    )

    def __new__(cls, *args: Any, **kwargs: Any) -> GRPOConfig:
        """Notes which fields are given: a memory mode leaves those alone, also where they have the default's value."""
        self: GRPOConfig = super().__new__(cls)
        names = [each.name for each in dataclasses.fields(cls) if each.init]
        given = {*names[: len(args)], *kwargs}
        # All: a parser or `dataclasses.replace`, which do not say what was given
        self.__dict__["_given"] = None if given.issuperset(names) else frozenset(given)
        return self

    def note_given(self, names: Iterable[str]) -> None:
        """Says which fields are given, where a parser made this from a file or a command line."""
        self.__dict__["_given"] = frozenset(names)

    def was_given(self, name: str) -> bool:
        """Returns whether a field was given when this was made, or has been set since."""
        if getattr(self, name) != self.__dict__["_built"].get(name, getattr(self, name)):
            return True
        given = self.__dict__["_given"]
        if given is None:
            return bool(getattr(self, name) != self.__dataclass_fields__[name].default)
        return name in given

    def __post_init__(self) -> None:
        for name in SWITCHES:
            setattr(self, name, parse_switch(name, getattr(self, name)))
        chunk: Any = self.decode_chunk
        if chunk != "auto" and not (str(chunk).isdigit() and int(chunk) > 0):
            raise UserError(f"decode_chunk must be auto or a positive whole number, found {chunk!r}")
        chunk = chunk if chunk == "auto" else int(chunk)
        self.decode_chunk = chunk
        if self.max_tokens_per_forward is not None and self.max_tokens_per_forward < 1:
            raise UserError(f"max_tokens_per_forward must be positive, found {self.max_tokens_per_forward}")
        RewardSettings.of(self)
        if isinstance(self.rewards, str):
            self.rewards = yaml.safe_load(self.rewards)
        if isinstance(self.eval_rewards, str):
            self.eval_rewards = yaml.safe_load(self.eval_rewards)
        if isinstance(self.memory_mode_kwargs, str):
            self.memory_mode_kwargs = yaml.safe_load(self.memory_mode_kwargs)
        if self.memory_mode is not None and self.memory_mode not in MEMORY_MODES:
            raise UserError(f"memory_mode must be one of {', '.join(MEMORY_MODES)}, found {self.memory_mode!r}")
        if self.reflection_words is not None:
            from .reflection import words_of

            self.reflection_words = list(words_of(self.reflection_words))
        self._check_batch()
        super().__post_init__()
        self.__dict__["_built"] = {name: getattr(self, name) for name in _SET_BY_MODES}

    def _check_batch(self) -> None:
        """Says which batch sizes would do, before TRL says only that this one does not."""
        group = self.num_generations
        if self.generation_batch_size is not None or group is None or group < 2:
            return  # TRL's own messages are clear there
        steps = self.steps_per_generation or self.gradient_accumulation_steps
        batch = self.per_device_train_batch_size * steps * world_size_before_init()
        if batch % group:
            below, above = batch // group * group, (batch // group + 1) * group
            wanted = f"{above}" if below == 0 else f"{below} or {above}"
            raise UserError(
                f"num_generations={group} does not divide the generation batch: per_device_train_batch_size "
                f"({self.per_device_train_batch_size}) x steps per generation ({steps}) x processes "
                f"({batch // self.per_device_train_batch_size // steps}) = {batch} completions. Set "
                f"per_device_train_batch_size or gradient_accumulation_steps so that the product is {wanted}, or "
                f"change num_generations."
            )


def world_size_before_init() -> int:
    """Returns the number of processes that a launcher started, 1 without one."""
    return int(os.environ.get("WORLD_SIZE", "1"))
