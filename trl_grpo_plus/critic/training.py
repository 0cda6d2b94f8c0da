"""`CriticTrainer`: a `GRPOTrainer` that trains a critic beside the policy, in the same optimizer step.

It has no mathematics: it builds the critic, wraps it for DDP, gives it a learning rate and a gradient norm of its own,
and saves and restores it. A checkpoint also holds the rollout in use, so that a resumed run goes on as if it had never
stopped.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import TrainerCallback
from trl.trainer.utils import disable_dropout_in_model

from ..errors import UserError
from ..resume import Plan, epochs_done, load_rollout, rollout_file, save_rollout
from ..trainer import GRPOTrainer
from .adapter import lora_of, recompute_with_same_adapter
from .layouts import Critic, build_critic, copy_frozen


class CriticTrainer(GRPOTrainer):
    """Builds and trains `critic` as a `PPOConfig` says; see the fields of that class.

    Raises:
        UserError: The model, or the way that it is distributed, is not supported.
    """

    critic: Any = None  # as the loss calls it: wrapped by DDP where there are several processes
    critic_module: Critic = None  # type: ignore[assignment]  # the same, unwrapped
    frozen_critic: Critic | None = None
    _epochs_done = 0  # of the run that is resumed
    _step: int  # TRL's: micro-batches run
    _buffered_inputs: Any  # TRL's: the rollout in micro-batches

    def __init__(self, model: Any, reward_funcs: Any, args: Any, *trl_args: Any, **kwargs: Any) -> None:
        args = copy.copy(args)  # the caller's object may configure another trainer
        args, trl_args, kwargs = self._take_memory_mode(model, args, trl_args, kwargs)
        if args.critic == "adapter" and args.gradient_checkpointing:
            options = {"use_reentrant": False, **(args.gradient_checkpointing_kwargs or {})}
            options["context_fn"] = recompute_with_same_adapter
            args.gradient_checkpointing_kwargs = args.activation_checkpointing_kwargs = options
        if args.critic == "shared" and args.share_prompt == "auto":
            args.share_prompt = False  # the hidden states of a packed forward are of no use to the value head
        super().__init__(model, reward_funcs, args, *trl_args, **kwargs)
        name = type(self).__name__
        if self._is_vlm:
            raise UserError(f"{name} trains text models only: the processing class is one of a vision model")
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise UserError(f"{name} does not support FSDP and DeepSpeed: run it on one device, or with DDP")
        if self.aux_loss_enabled:
            raise UserError(f"{name} has no load-balancing loss of mixtures of experts: set router_aux_loss_coef=0")
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # the rollouts are then those of GRPO with the same seed, in every layout
            torch.manual_seed(args.seed)
            self._add_critic()

    def _add_critic(self) -> None:
        args, lora = self.args, lora_of(self.model)
        on_policy = lora is not None or args.critic != "adapter"
        if args.critic == "adapter" and lora is None:
            lora = LoraConfig(r=args.critic_lora_r, lora_alpha=args.critic_lora_alpha, target_modules="all-linear")
        base = self.model if on_policy else self._frozen_base()
        critic = self.critic_module = build_critic(args.critic, base, lora).to(args.device)
        if args.gradient_checkpointing:
            critic.checkpoint_layers(args.gradient_checkpointing_kwargs)
        if args.frozen_critic_copy:
            frozen = copy.deepcopy(critic).requires_grad_(False)
            self.frozen_critic = self.accelerator.prepare_model(frozen, evaluation_mode=True)
        # The critic has its own DDP wrapper; the policy's must not wait for an adapter that sits in its layers.
        names = [name for name, p in self.model.named_parameters() if id(p) in self._critic_ids()]
        if names:
            self.model._ddp_params_and_buffers_to_ignore = names
        self.critic = self.accelerator.prepare_model(critic)
        self.add_callback(_ZeroCriticGrad(critic))

    def _frozen_base(self) -> Any:
        """Returns the frozen model that an adapter critic of a fully trained policy sits on: the KL reference."""
        has_reference = self.ref_model is not None
        base = self.accelerator.unwrap_model(self.ref_model) if has_reference else copy_frozen(self.model)
        disable_dropout_in_model(base)
        return base.to(self.args.device).train()  # layers are checkpointed in training mode only

    def _critic_ids(self) -> set[int]:
        return {id(parameter) for parameter in self.critic_module.trained.values()}

    def _old_critic(self) -> Critic:
        """Returns the critic that values a rollout: the critic itself, or its frozen copy, brought up to date."""
        if self.frozen_critic is None:
            return self.critic_module  # unwrapped: there is nothing to synchronise without gradients
        for name, parameter in self.critic_module.trained.items():
            self.frozen_critic.trained[name].copy_(parameter)
        return self.frozen_critic

    def _critic_sync(self) -> AbstractContextManager[Any]:
        """Context of the critic's forward pass: DDP sums its gradients in a step's last micro-batch only."""
        if self.accelerator.sync_gradients:
            return nullcontext()
        context: AbstractContextManager[Any] = self.accelerator.no_sync(self.critic)
        return context

    # One optimizer step for both

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Returns TRL's optimizer, with the critic's parameters in groups of their own."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if any(group.get("role") == "critic" for group in optimizer.param_groups):
            return optimizer
        mine, trained = self._critic_ids(), self.critic_module.trained
        for group in optimizer.param_groups:  # an adapter in the policy's layers was taken for the policy's
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in mine]
        decayed = set(self.get_decay_parameter_names(self.critic_module))
        for weight_decay, names in (
            (self.args.weight_decay, [name for name in trained if name in decayed]),
            (0.0, [name for name in trained if name not in decayed]),
        ):
            group = {"lr": self.args.critic_learning_rate, "weight_decay": weight_decay, "role": "critic"}
            if names:
                optimizer.add_param_group({"params": [trained[name] for name in names], **group})
        return optimizer

    def _clip_grad_norm(self, model: Any) -> Any:
        mine = self._critic_ids()
        norm = super()._clip_grad_norm(torch.nn.ParameterList(p for p in model.parameters() if id(p) not in mine))
        trained = list(self.critic_module.trained.values())
        critic_norm = torch.nn.utils.clip_grad_norm_(trained, self.args.max_grad_norm)
        self._metrics["train"]["value/grad_norm"].append(float(critic_norm))
        return norm

    # Checkpoints

    def _plan(self) -> Plan:
        return Plan(self.args.steps_per_generation, self.num_iterations, self.accelerator.num_processes)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self.args.should_save:
            self.critic_module.save(Path(output_dir or self.args.output_dir) / "critic")

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(*args, **kwargs)
        checkpoint = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        if not self.args.save_only_model and checkpoint.is_dir():
            file = rollout_file(checkpoint, self.accelerator.process_index)
            save_rollout(file, self._step, self._buffered_inputs, self._plan())

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)
        checkpoint = Path(resume_from_checkpoint)
        self.critic_module.load(checkpoint / "critic")
        file = rollout_file(checkpoint, self.accelerator.process_index)
        self._step, self._buffered_inputs = load_rollout(file, self.accelerator.device, self._plan())
        self._epochs_done = epochs_done(checkpoint)

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self.critic_module.load(Path(self.state.best_model_checkpoint) / "critic")

    def _get_train_sampler(self, *args: Any, **kwargs: Any) -> Any:
        sampler = super()._get_train_sampler(*args, **kwargs)
        for _ in range(self._epochs_done):  # each epoch draws one order
            next(iter(sampler), None)
        return sampler


class _ZeroCriticGrad(TrainerCallback):  # type: ignore[misc]
    """The Trainer sets the policy's gradients to zero after a step; this does the critic's."""

    def __init__(self, critic: Critic) -> None:
        self.critic = critic

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for parameter in self.critic.trained.values():
            parameter.grad = None
