"""What is planned: one run, as far as its memory depends on it. Checked once, and light: no torch."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, did_you_mean
from .geometry import Geometry, load_geometry

ALGORITHMS = ("grpo", "ppo", "sft", "reward_model", "rejection_sampling")
_IN_GROUPS = ("grpo", "rejection_sampling")
MODES = ("full", "lora", "qlora")
CRITICS = ("separate", "adapter", "shared")
DTYPES = {"bfloat16": 2, "float16": 2, "float32": 4}
# Bytes of state per trained parameter that the optimizer keeps on the device, by the width of the parameter: AdamW's
# two moments have the parameter's dtype; bitsandbytes' are one byte each and a float32 scale per 256.
OPTIMIZERS = {
    "adamw": {2: 4.0, 4: 8.0},
    "adamw_8bit": {2: 2 + 2 * 4 / 256, 4: 2 + 2 * 4 / 256},
    "paged_adamw_8bit": {2: 2 + 2 * 4 / 256, 4: 2 + 2 * 4 / 256},
    "sgd": {2: 0.0, 4: 0.0},
}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A run of GRPO or PPO, or of a stage around them.

    Lengths are the longest that occur, in tokens: every completion is taken to reach `completion`.

    Args:
        geometry: The policy's shape; critic, reference and reward model have it too.
        algorithm: `grpo` or `ppo`; `sft` and `reward_model`, trained by TRL's trainers on rows of a prompt and a
            completion; `rejection_sampling`, which generates only.
        mode: What is trained: `full` all weights, `lora` an adapter, `qlora` an adapter on 4-bit weights.
        dtype: Of the weights that are loaded. (TRL's own default is float32.)
        autocast: Matrices are multiplied in bfloat16 (`bf16=True`, TRL's default).
        gradient_checkpointing: Layers are run again in the backward instead of keeping what they saved.
        prompt: P, prompt tokens.
        completion: C, completion tokens.
        group: G, completions per prompt.
        batch: Completions of a micro-batch, `per_device_train_batch_size`; of a reward model's training, pairs; of
            rejection sampling, completions that are drawn at once.
        accumulation: Micro-batches of an optimizer step; `None`: as few as make whole groups.
        steps_per_generation: Micro-batches of a generation batch; `None`: those of an optimizer step, as in TRL.
        share_prompt: Each distinct prompt of a micro-batch runs once, without padding (GRPO's forwards).
        padding: Rows differ in length, so that the plain forward has a mask.
        max_tokens_per_forward: Token budget of one forward.
        reference: There is a KL term, and so a reference; `None`: as each trainer's default (GRPO none, PPO one).
        iterations: Passes over a rollout; more than one needs the old log-probabilities.
        critic: PPO's layout: `separate`, `adapter` or `shared`.
        frozen_critic_copy: PPO values its rollouts with a frozen copy of the critic.
        reward_model: Rewards come from a model of the policy's shape, not from verifiers only.
        lora_rank: Of the adapter.
        lora_targets: Linear layers with an adapter; `None`: all of a decoder layer.
        optimizer: See `OPTIMIZERS`.
        device: `cuda`, or `cpu` where the language model head works differently.
        gpus: Processes that share weights, gradients and optimizer state (FSDP, full shard).

    Raises:
        UserError: A field has a value that cannot work; the message names it.
    """

    geometry: Geometry
    algorithm: str = "grpo"
    mode: str = "full"
    dtype: str = "bfloat16"
    autocast: bool = True
    gradient_checkpointing: bool = True
    prompt: int = 512
    completion: int = 1024
    group: int | None = None
    batch: int = 8
    accumulation: int | None = None
    steps_per_generation: int | None = None
    share_prompt: bool = True
    padding: bool = True
    max_tokens_per_forward: int | None = None
    reference: bool | None = None
    iterations: int | None = None
    critic: str = "separate"
    frozen_critic_copy: bool = False
    reward_model: bool = False
    lora_rank: int = 16
    lora_targets: tuple[str, ...] | None = None
    optimizer: str = "adamw"
    device: str = "cuda"
    gpus: int = 1

    def __post_init__(self) -> None:
        known: dict[str, Any] = {
            "algorithm": ALGORITHMS, "mode": MODES, "dtype": DTYPES, "critic": CRITICS, "optimizer": OPTIMIZERS,
            "device": ("cuda", "cpu"),
        }  # fmt: skip
        for name, choices in known.items():
            value = getattr(self, name)
            if value not in choices:
                raise UserError(
                    f"--{name} {value!r}: expected {', '.join(choices)}{did_you_mean(str(value), choices)}"
                )
        self._check_algorithm()
        object.__setattr__(self, "group", self.group or (8 if self.algorithm in _IN_GROUPS else 1))
        object.__setattr__(self, "iterations", self.iterations or (4 if self.ppo else 1))
        if self.reference is None:
            object.__setattr__(self, "reference", self.algorithm == "ppo")
        for name in ("prompt", "completion", "group", "batch", "accumulation", "lora_rank", "gpus", "iterations",
                     "max_tokens_per_forward", "steps_per_generation"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UserError(f"--{name.replace('_', '-')} {value!r}: expected a whole number from 1 upwards")
        if self.algorithm == "grpo" and self.group == 1:
            raise UserError("--group 1: GRPO compares completions of one prompt, and needs at least 2")
        if self.accumulation is None and not self.trains:
            object.__setattr__(self, "accumulation", 1)
        if self.accumulation is None:
            object.__setattr__(self, "accumulation", math.lcm(self.batch, self.rows_per_prompt) // self.batch)
        if self.frozen_critic_copy and self.critic != "separate":
            raise UserError(f"frozen_critic_copy needs the critic `separate`, found `{self.critic}`")
        if self.lora_targets is not None:
            names = [linear.name for linear in self.geometry.linears]
            wrong = [target for target in self.lora_targets if target not in names]
            if wrong or not self.lora_targets:
                raise UserError(f"lora_targets {list(self.lora_targets)}: expected some of {', '.join(names)}")

    def _check_algorithm(self) -> None:
        """Refuses what an algorithm does not have."""
        if self.rl:
            return
        if self.reference or self.reward_model or (self.iterations or 1) > 1:
            raise UserError(f"--reference, --reward-model and --iterations are for grpo and ppo, not {self.algorithm}")
        if self.algorithm != "rejection_sampling":
            if (self.group or 1) > 1:
                raise UserError(f"--group {self.group}: rows of {self.algorithm} are not in groups")
            return
        if self.gpus > 1:
            raise UserError(f"--gpus {self.gpus}: rejection_sampling runs on one GPU")
        if self.mode == "qlora":
            raise UserError("--mode qlora: rejection_sampling loads its model without quantisation; use full or lora")
        object.__setattr__(self, "autocast", False)  # it generates in the dtype of the weights

    # What follows from the fields

    @property
    def ppo(self) -> bool:
        return self.algorithm == "ppo"

    @property
    def rl(self) -> bool:
        """Whether it samples, scores and trains."""
        return self.algorithm in ("grpo", "ppo")

    @property
    def generates(self) -> bool:
        return self.rl or not self.trains

    @property
    def trains(self) -> bool:
        return self.algorithm != "rejection_sampling"

    @property
    def forward_rows(self) -> int:
        """Rows of a micro-batch: a reward model's are a chosen and a rejected one per pair."""
        return self.batch * (2 if self.algorithm == "reward_model" else 1)

    @property
    def rows_per_prompt(self) -> int:
        assert self.group is not None
        return self.group

    @property
    def steps(self) -> int:
        """Micro-batches of an optimizer step."""
        assert self.accumulation is not None
        return self.accumulation

    @property
    def span(self) -> int:
        """Tokens of a row: P + C."""
        return self.prompt + self.completion

    @property
    def rows(self) -> int:
        """Rows on the device at once: those of a generation batch, or of an optimizer step."""
        return self.forward_rows * (self.steps_per_generation or self.steps)

    @property
    def base_width(self) -> int:
        """Bytes of a weight that is not quantised, and of an element of the residual stream."""
        return DTYPES[self.dtype]

    @property
    def compute_width(self) -> int:
        """Bytes of an element in matrix products."""
        return 2 if self.autocast else self.base_width

    @property
    def adapter_width(self) -> int:
        """PEFT keeps adapters in float32; TRL makes those on 4-bit weights bfloat16."""
        return 2 if self.mode == "qlora" else 4

    @property
    def has_reference_model(self) -> bool:
        """Whether the reference is a model of its own, and not the policy without its adapter."""
        return bool(self.reference) and self.mode == "full"

    @property
    def needs_old_logprobs(self) -> bool:
        assert self.iterations is not None
        passes = (self.steps_per_generation or self.steps) * self.iterations
        return self.steps % passes != 0 or (self.ppo and bool(self.reference))

    def but(self, **changes: Any) -> Setting:
        """Returns the setting with other values; accumulation is derived anew where it depends on them."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        if {"batch", "group"} & set(changes):
            changes = {"accumulation": None, "steps_per_generation": None, **changes}
        return Setting(**{**fields, **changes})

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values, the geometry by name."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "geometry": self.geometry.name}


def make_setting(model: Any, **options: Any) -> Setting:
    """Returns a setting for a model given as `load_geometry` takes it.

    Raises:
        UserError: The model or an option is not known, or has a value that cannot work.
    """
    known = {field.name for field in dataclasses.fields(Setting)} - {"geometry"}
    for name in options:
        if name not in known:
            raise UserError(f"plan has no option `{name}`{did_you_mean(name, known)}")
    return Setting(geometry=load_geometry(model), **options)
