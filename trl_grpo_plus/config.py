"""`GRPOConfig`: TRL's configuration and the fields that this package adds, grouped by stage and checked once.

A plain `trl.GRPOConfig` works as well: what it lacks takes the defaults below.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import trl
import yaml

from .errors import UserError


@dataclass
class GRPOConfig(trl.GRPOConfig):  # type: ignore[misc]
    """Configuration of `GRPOTrainer`: all of `trl.GRPOConfig` and the fields below.

    Args:
        rewards: Verifiable rewards by name, as a list of names or of `{name: weight}` or `{name: {weight: 1.0, option:
            value}}`; a YAML or JSON text of the same on a command line. They come after the trainer's `reward_funcs`.
            See `trl_grpo_plus.rewards`.

    Raises:
        UserError: A field has a value that cannot work; the message names the field, what was found, and what to do.
    """

    rewards: list[Any] | str | None = field(
        default=None,
        metadata={"help": "Verifiable rewards by name, as YAML: `[gsm8k, {think_format: {weight: 0.1}}]`."},
    )

    def __post_init__(self) -> None:
        if isinstance(self.rewards, str):
            self.rewards = yaml.safe_load(self.rewards)
        self._check_batch()
        super().__post_init__()

    def _check_batch(self) -> None:
        """Says which batch sizes would do, before TRL says only that this one does not."""
        group = self.num_generations
        if self.generation_batch_size is not None or group is None or group < 2:
            return  # TRL's own messages are clear there
        steps = self.steps_per_generation or self.gradient_accumulation_steps
        batch = self.per_device_train_batch_size * steps * self.world_size_before_init()
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

    @staticmethod
    def world_size_before_init() -> int:
        """Returns the number of processes that a launcher started, 1 without one."""
        import os

        return int(os.environ.get("WORLD_SIZE", "1"))
