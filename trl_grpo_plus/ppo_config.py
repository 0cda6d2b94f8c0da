"""`PPOConfig`: the options of `PPOTrainer`. What it shares with GRPO keeps its name."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any, Literal

from .config import GRPOConfig, world_size_before_init
from .errors import UserError

# Options of GRPO's loss and advantages. PPO has its own, so that another value than the default would do nothing.
_GRPO_ONLY = (
    "loss_type",
    "scale_rewards",
    "multi_objective_aggregation",
    "importance_sampling_level",
    "delta",
    "off_policy_mask_threshold",
    "top_entropy_quantile",
    "use_adaptive_entropy",
)


@dataclass
class PPOConfig(GRPOConfig):
    """Configuration of `PPOTrainer`: all of `GRPOConfig` but the options of GRPO's loss, and the fields below.

    One rollout is `per_device_train_batch_size * steps_per_generation` completions per process. It serves
    `num_ppo_epochs * steps_per_generation / gradient_accumulation_steps` optimizer steps: that many epochs of
    `steps_per_generation / gradient_accumulation_steps` minibatches. `max_steps` counts optimizer steps.
    `epsilon` and `epsilon_high` clip the policy, `entropy_coef` is the entropy bonus, `max_grad_norm` holds for the
    policy and for the critic, each by itself.

    Args:
        num_generations: Completions per prompt; PPO needs one only.
        num_ppo_epochs: Passes over a rollout.
        gamma: Discount per token.
        lam: Lambda of generalized advantage estimation: 1 is the return minus the value, 0 the one-step error.
        kl_coef: Weight of the per-token KL penalty to the reference in the reward. At 0 there is no reference.
        cliprange_value: How far the value may move from the rollout's before its loss is clipped; `None`: any.
        vf_coef: Weight of the value loss.
        whiten_advantages: Give the advantages of a rollout mean 0 and variance 1, over all tokens and processes.
        bootstrap_truncated: Add the critic's value of the last state where a completion was cut off at
            `max_completion_length` ("it would have gone on"). Off: it ended there, and its score is all it gets.
        critic: `separate`, `adapter` or `shared`: see `trl_grpo_plus.critic`.
        critic_learning_rate: Of the critic's own parameters, for `shared` the head's. `None`: 10 x `learning_rate`.
        critic_lora_r: Rank of the critic's LoRA for `adapter` on a policy without LoRA, whose configuration it would
            otherwise take.
        critic_lora_alpha: Alpha of the same.
        frozen_critic_copy: Compute the rollout's values with a frozen copy of the critic, brought up to date before
            each rollout, for `separate`: same numbers, and the memory of the layout with a frozen critic.
        reward_model: Id or directory of a sequence classification model with one label, added to the rewards.

    Raises:
        UserError: A field has a value that cannot work, or that PPO does not support.
    """

    num_generations: int = field(default=1, metadata={"help": "Completions per prompt."})
    num_ppo_epochs: int = field(default=4, metadata={"help": "Passes over a rollout."})
    gamma: float = field(default=1.0, metadata={"help": "Discount per token."})
    lam: float = field(default=0.95, metadata={"help": "Lambda of generalized advantage estimation."})
    kl_coef: float = field(default=0.05, metadata={"help": "Weight of the KL penalty to the reference per token."})
    cliprange_value: float | None = field(default=0.2, metadata={"help": "Clip range of the value; none: unclipped."})
    vf_coef: float = field(default=0.1, metadata={"help": "Weight of the value loss."})
    whiten_advantages: bool = field(default=True, metadata={"help": "Whiten the advantages over the rollout."})
    bootstrap_truncated: bool = field(default=False, metadata={"help": "Bootstrap the value of cut-off completions."})
    critic: Literal["separate", "adapter", "shared"] = field(
        default="separate", metadata={"help": "The critic's backbone: a copy, a LoRA on the frozen base, the policy."}
    )
    critic_learning_rate: float | None = field(
        default=None, metadata={"help": "Learning rate of the critic; none: 10 x learning_rate."}
    )
    critic_lora_r: int = field(default=16, metadata={"help": "Rank of the critic's LoRA without LoRA in the policy."})
    critic_lora_alpha: int = field(default=32, metadata={"help": "Alpha of the same."})
    frozen_critic_copy: bool = field(default=False, metadata={"help": "Value rollouts with a frozen copy."})
    reward_model: str | None = field(
        default=None, metadata={"help": "A sequence classification model with one label."}
    )

    def __post_init__(self) -> None:
        self._refuse()
        self._name_as_trl_does("num_iterations", "num_ppo_epochs", 1)
        self._name_as_trl_does("beta", "kl_coef", 0.0)
        if self.critic_learning_rate is None:
            self.critic_learning_rate = 10 * float(self.learning_rate)
        if self.num_generations != 1:
            super().__post_init__()
            return
        # TRL refuses one completion per prompt, which GRPO cannot use. All that it derives from the number is whether
        # it divides the batch, which one does: it sees the whole batch as one group instead.
        steps = self.steps_per_generation or self.gradient_accumulation_steps
        batch = self.per_device_train_batch_size * steps * world_size_before_init()
        if (self.generation_batch_size or batch) < 2:
            raise UserError(
                "a rollout of one completion has nothing to whiten or to compare: raise per_device_train_batch_size "
                "or gradient_accumulation_steps"
            )
        given = {name: self.__dict__[name] for name in ("num_generations", "num_generations_eval")}
        self.__dict__.update(num_generations=self.generation_batch_size or batch)
        self.__dict__.update(num_generations_eval=given["num_generations_eval"] or 1)
        try:
            super().__post_init__()
        finally:
            self.__dict__.update(given)

    def _name_as_trl_does(self, theirs: str, ours: str, default: float) -> None:
        """Sets TRL's option to the value of ours, by which TRL's rollout code goes."""
        if getattr(self, theirs) not in (default, getattr(self, ours)):
            raise UserError(f"{theirs}={getattr(self, theirs)} is GRPO's option: PPO's is `{ours}`")
        setattr(self, theirs, getattr(self, ours))

    def _refuse(self) -> None:
        defaults = {each.name: each.default for each in dataclasses.fields(self)}
        for name in _GRPO_ONLY:
            if getattr(self, name) not in (defaults[name], True if name == "scale_rewards" else defaults[name]):
                raise UserError(
                    f"{name}={getattr(self, name)!r} is an option of GRPO's loss: PPO has its own, drop it"
                )
        if self.use_vllm:
            raise UserError("use_vllm: PPOTrainer does not support vLLM, drop it")
        for name, variable in (("fsdp", "ACCELERATE_USE_FSDP"), ("deepspeed", "ACCELERATE_USE_DEEPSPEED")):
            if getattr(self, name) or os.environ.get(variable, "false").lower() == "true":
                raise UserError(f"{name}: PPOTrainer runs on one device or with DDP, drop it")
        if self.critic not in ("separate", "adapter", "shared"):
            raise UserError(f"critic={self.critic!r}: expected separate, adapter or shared")
        if self.frozen_critic_copy and self.critic != "separate":
            raise UserError(f"frozen_critic_copy needs critic='separate', found {self.critic!r}")
        if self.critic == "adapter" and self.sync_ref_model:
            raise UserError("sync_ref_model: the critic's adapter sits on the reference, which then must not move")
        reentrant = isinstance(self.gradient_checkpointing_kwargs, dict) and self.gradient_checkpointing_kwargs.get(
            "use_reentrant"
        )
        if self.critic == "adapter" and reentrant:
            raise UserError("gradient_checkpointing_kwargs: critic='adapter' needs use_reentrant=False")
        for name, low, high in (("gamma", 0.0, 1.0), ("lam", 0.0, 1.0)):
            if not low <= getattr(self, name) <= high:
                raise UserError(f"{name}={getattr(self, name)} must be between {low:g} and {high:g}")
        for name, least in (("kl_coef", 0), ("vf_coef", 0), ("num_ppo_epochs", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be at least {least}")

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values, without the function that `PPOTrainer` hands to checkpointed layers."""
        fields: dict[str, Any] = super().to_dict()
        for name in ("gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"):
            if isinstance(fields.get(name), dict):
                fields[name] = {k: v for k, v in fields[name].items() if k != "context_fn"}
        return fields
