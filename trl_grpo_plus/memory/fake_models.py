"""The models of a run, built as the trainers build them, on tensors without memory.

They are made on the meta device and then given fake storages on the CPU, tied weights staying tied: PEFT cannot move
modules under `FakeTensorMode`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import convert_outputs_to_fp32
from peft import LoraConfig, get_peft_model
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
from trl.trainer.utils import add_fused_lm_head

from ..critic.adapter import recompute_with_same_adapter
from ..critic.layouts import Critic, build_critic, copy_frozen
from .categories import Category
from .fake4bit import quantize
from .setting import Setting

_OPTIMIZER_BYTES = 2 + 2 * 4 / 256


def transformers_config(setting: Setting, depth: int) -> Any:
    """Returns a config of the setting's geometry with `depth` layers."""
    g = setting.geometry
    fields: dict[str, Any] = {
        "hidden_size": g.hidden, "num_hidden_layers": depth, "intermediate_size": g.intermediate,
        "num_attention_heads": g.heads, "num_key_value_heads": g.kv_heads, "head_dim": g.head_dim,
        "vocab_size": g.vocab, "tie_word_embeddings": g.tied, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "max_position_embeddings": max(2048, setting.span + 8),
    }  # fmt: skip
    if g.window is not None:
        fields["sliding_window"] = g.window
        full = round(depth * (g.full_attention_layers or 0) / g.layers) if g.layers else 0
        fields["layer_types"] = ["sliding_attention"] * (depth - full) + ["full_attention"] * full
    if g.qkv_bias and g.model_type != "qwen2":
        fields["attention_bias"] = True
    return AutoConfig.for_model(g.model_type, **fields)


@dataclass
class Models:
    """What a trainer holds."""

    setting: Setting
    policy: Any
    reference: Any = None
    critic: Any = None
    frozen_critic: Any = None
    critic_base: Any = None  # a frozen copy that only the critic's adapter sits on
    reward_model: Any = None
    trained: list[nn.Parameter] = field(default_factory=list)

    @property
    def causal_lm(self) -> Any:
        return self.policy.get_base_model() if hasattr(self.policy, "peft_config") else self.policy

    @property
    def old_critic(self) -> Any:
        return self.frozen_critic if self.frozen_critic is not None else self.critic

    def others(self) -> Iterator[tuple[nn.Module, Category]]:
        """Yields the models besides the policy, with their category; those that share weights come first."""
        for model, category in (
            (self.reference, Category.REFERENCE),
            (self.critic_base, Category.CRITIC),
            (self.critic, Category.CRITIC),
            (self.frozen_critic, Category.CRITIC),
            (self.reward_model, Category.REWARD_MODEL),
        ):
            if model is not None:
                yield model, category

    def checkpoint(self) -> None:
        """Turns gradient checkpointing on, as the trainers do."""
        options: dict[str, Any] = {"use_reentrant": False}
        if self.setting.ppo and self.setting.critic == "adapter":
            options["context_fn"] = recompute_with_same_adapter
        self.causal_lm.gradient_checkpointing_enable(dict(options))
        if self.setting.mode != "full":
            self.policy.enable_input_require_grads()
        if self.critic is not None:
            self.critic.checkpoint_layers(dict(options))

    def optimizer(self) -> Any:
        """Returns an optimizer whose state is that of a later step."""
        optimizer = torch.optim.AdamW(self.trained or [torch.zeros(0)], lr=1e-5, fused=True)
        for p in self.trained:
            if self.setting.optimizer == "adamw":
                moments = {name: torch.zeros_like(p) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[p] = {"step": torch.zeros(()), **moments}
            elif self.setting.optimizer != "sgd":
                size = int(p.numel() * _OPTIMIZER_BYTES)
                optimizer.state[p] = {"state": torch.zeros(size, dtype=torch.uint8)}
        return optimizer


def build_models(setting: Setting, depth: int, fake: FakeTensorMode) -> Models:
    """Returns the models of a run at `depth` layers, on fake tensors."""
    with torch.device("meta"):
        models = _on_meta(setting, depth)
    memo: dict[int, Any] = {}
    modules = [models.policy, *(model for model, _ in models.others())]
    with fake:
        for module in modules:
            _materialise(module, memo)
    for critic in (models.critic, models.frozen_critic):
        if critic is not None:
            critic.trained = {name: memo[id(p)][0] for name, p in critic.trained.items()}
    if models.critic is not None and hasattr(models.critic, "switch"):
        models.critic.switch._parameters = [memo[id(p)][0] for p in models.critic.switch._parameters]
    critic_ids = {id(p) for p in models.critic.trained.values()} if models.critic is not None else set()
    own = [p for p in models.policy.parameters() if p.requires_grad and id(p) not in critic_ids]
    models.trained = [*own, *(models.critic.trained.values() if models.critic is not None else ())]
    for model in modules:
        model.train(setting.trains)
    if not setting.trains:
        models.trained = []
        models.policy.requires_grad_(False)
    on_reference = setting.ppo and setting.critic == "adapter" and setting.mode == "full"
    for model in (None if on_reference else models.reference, models.reward_model):
        if model is not None:  # layers are checkpointed in training mode only
            model.eval()
    if setting.gradient_checkpointing and setting.trains:
        models.checkpoint()
    if setting.autocast:
        for model in (models.policy, models.reference, models.critic, models.reward_model):
            if model is not None:
                _autocast_forward(model)
    return models


def _on_meta(setting: Setting, depth: int) -> Models:
    config = transformers_config(setting, depth)
    dtype = getattr(torch, setting.dtype)

    def load(kind: Any = AutoModelForCausalLM) -> Any:
        model = kind.from_config(copy.deepcopy(config), dtype=dtype, attn_implementation="sdpa")
        if setting.mode == "qlora":
            quantize(model)
            for parameter in model.parameters():
                parameter.requires_grad_(False)
        return model

    scores = setting.algorithm == "reward_model"
    if scores or setting.reward_model:
        config.num_labels = 1
    policy = load(AutoModelForSequenceClassification if scores else AutoModelForCausalLM)
    lora = None
    if setting.mode != "full":
        lora = LoraConfig(
            r=setting.lora_rank,
            target_modules=list(setting.lora_targets) if setting.lora_targets else "all-linear",
            task_type="SEQ_CLS" if scores else "CAUSAL_LM",
        )
        policy = get_peft_model(policy, lora)
        if setting.mode == "qlora":
            for parameter in policy.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.to(torch.bfloat16)
    if not scores:
        add_fused_lm_head(policy.get_base_model() if lora else policy, outputs=("log_probs", "entropy"))
    models = Models(setting, policy)
    if setting.has_reference_model:
        models.reference = load()
        add_fused_lm_head(models.reference)
    if setting.ppo:
        models.critic = _critic(setting, models, lora)
        if setting.frozen_critic_copy:
            models.frozen_critic = copy.deepcopy(models.critic).requires_grad_(False)
    if setting.reward_model:
        models.reward_model = load(AutoModelForSequenceClassification)
    return models


def _critic(setting: Setting, models: Models, lora: LoraConfig | None) -> Critic:
    base = models.policy
    if setting.critic == "adapter" and lora is None:
        if models.reference is None:
            models.critic_base = copy_frozen(models.policy)
        base = models.reference if models.reference is not None else models.critic_base
        lora = LoraConfig(r=setting.lora_rank, target_modules="all-linear")
    return build_critic(setting.critic, base, lora)


def _materialise(module: nn.Module, memo: dict[int, Any]) -> None:
    """Gives meta parameters and buffers fake storages, each once."""
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is None or isinstance(tensor, torch._subclasses.FakeTensor):
                    continue
                if id(tensor) not in memo:
                    new = torch.empty(tensor.shape, dtype=tensor.dtype)
                    if isinstance(tensor, nn.Parameter):
                        new = nn.Parameter(new, requires_grad=tensor.requires_grad)
                    memo[id(tensor)] = (new, tensor)
                tensors[name] = memo[id(tensor)][0]


def _autocast_forward(model: Any) -> None:
    """What accelerate's `prepare_model` does for `bf16=True`."""
    model.forward = convert_outputs_to_fp32(torch.autocast("cpu", dtype=torch.bfloat16)(model.forward))
