"""`SamplingConfig`: how rejection sampling draws solutions and which of them it keeps; a recipe's keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from ..errors import UserError


@dataclass
class SamplingConfig:
    """Configuration of `algorithm: rejection_sampling`.

    Args:
        output_dir: Where the samples and the kept rows go.
        rewards: As in `GRPOConfig`. At least one says what is right; a sample is kept where that one, and every other
            that scores it, is content.
        samples: Solutions drawn per problem.
        temperature: Of sampling; positive.
        top_p: Of sampling, in (0, 1].
        max_completion_length: Longest completion, in tokens; one that is cut off is not kept.
        batch_size: Completions generated at once.
        threshold: A reward is content from this value on.
        max_per_prompt: Kept samples of one problem, at most.
        max_share: No difficulty makes up more than this share of the kept ones; see `selection.select`.
        seed: Of sampling, and of which of equals are kept.
        use_cpu: Do not use a GPU.
        trust_remote_code: Allow code of the model's repository.

    Raises:
        UserError: A field's value cannot work.
    """

    output_dir: str | None = field(default=None, metadata={"help": "Where the samples and the kept rows go."})
    rewards: list[Any] | str | None = field(default=None, metadata={"help": "What is right, as YAML: `[math]`."})
    samples: int = field(default=8, metadata={"help": "Solutions drawn per problem."})
    temperature: float = field(default=1.0, metadata={"help": "Of sampling."})
    top_p: float = field(default=1.0, metadata={"help": "Of sampling."})
    max_completion_length: int = field(default=512, metadata={"help": "Longest completion, in tokens."})
    batch_size: int = field(default=64, metadata={"help": "Completions generated at once."})
    threshold: float = field(default=1.0, metadata={"help": "A reward is content from this value on."})
    max_per_prompt: int = field(default=4, metadata={"help": "Kept samples of one problem, at most."})
    max_share: float = field(default=0.5, metadata={"help": "Largest share of one difficulty among those kept."})
    seed: int = field(default=0, metadata={"help": "Of sampling, and of which of equals are kept."})
    use_cpu: bool = field(default=False, metadata={"help": "Do not use a GPU."})
    trust_remote_code: bool = field(default=False, metadata={"help": "Allow code of the model's repository."})

    def __post_init__(self) -> None:
        if isinstance(self.rewards, str):
            self.rewards = yaml.safe_load(self.rewards)
        for name in ("samples", "max_completion_length", "batch_size", "max_per_prompt"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be positive, found {getattr(self, name)}")
        if not self.temperature > 0:
            raise UserError(f"temperature must be positive, found {self.temperature}: equal samples teach nothing")
        for name in ("top_p", "max_share"):
            if not 0 < getattr(self, name) <= 1:
                raise UserError(f"{name} must be in (0, 1], found {getattr(self, name)}")
