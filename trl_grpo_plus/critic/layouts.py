"""The critic of PPO: V(s_t), the return expected from the tokens so far, in three layouts.

    layout      backbone                                              trained besides the head         extra weights
    separate    a copy of the policy's first weights                  the copy, or a LoRA on it        one model
    adapter     the policy's frozen base (without LoRA: the KL        a second LoRA on it              LoRA only
                reference, or a frozen copy where there is none)
    shared      the policy itself                                     nothing (the policy is, by       none
                                                                      both losses)

Every layout is one module: `critic(input_ids, attention_mask, T)` returns values of shape (B, T + 1). Entry t is the
value of the state before completion token t, entry T of the state after the last one; the policy's logit for token t
comes from the same position. `critic.trained` names exactly the parameters that the critic's own learning rate moves,
and is all that is saved under `critic/`. Shapes: B completions, P prompt tokens, T completion tokens, H hidden size.
"""

from __future__ import annotations

import copy
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file, save_file
from torch import nn

from ..errors import UserError
from ..quantized import is_quantized, keep_trainable
from .adapter import inject, inject_switched

LAYOUTS = ("separate", "adapter", "shared")
_WEIGHTS, _ABOUT = "critic.safetensors", "critic.json"


class ValueHead(nn.Module):
    """V = w . h + b, in float32 also under autocast; zero at first, so that the first advantages are the returns."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_BTH: torch.Tensor) -> torch.Tensor:
        """Returns values of shape (B, T)."""
        with torch.autocast(hidden_BTH.device.type, enabled=False):
            values_BT: torch.Tensor = self.linear(hidden_BTH.float()).squeeze(-1)
        return values_BT


class Critic(nn.Module, ABC):
    """What all layouts have in common: the head, the forward pass, saving and loading.

    Args:
        hidden_size: Width of the backbone's hidden states.
    """

    layout: str
    trained: dict[str, nn.Parameter]

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.head = ValueHead(hidden_size)

    @abstractmethod
    def hidden(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Returns the backbone's last hidden states, (B, P + T, H)."""

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, completion_length: int) -> torch.Tensor:
        """Returns values of shape (B, T + 1), T being `completion_length`."""
        hidden = self.hidden(input_ids, attention_mask)
        values: torch.Tensor = self.head(hidden[:, -(completion_length + 1) :])
        return values

    def checkpoint_layers(self, options: dict[str, Any] | None) -> None:
        """Turns gradient checkpointing on in the critic's backbone, where that is not the policy's own business."""

    def listening(self) -> AbstractContextManager[None]:
        """Context of the policy's forward pass whose hidden states the next `forward` reads (`shared` only)."""
        return nullcontext()

    def _train(self, adapter: dict[str, nn.Parameter]) -> None:
        """Fixes what is trained: PEFT switches `requires_grad` when adapters are switched, so it cannot be asked."""
        self.trained = {**adapter, **{f"head.{name}": p for name, p in self.head.named_parameters()}}
        for parameter in self.trained.values():
            parameter.requires_grad_(True)

    def save(self, directory: Path) -> None:
        """Writes the trained parameters, and which layout they belong to."""
        directory.mkdir(parents=True, exist_ok=True)
        tensors = {name: p.detach().cpu().contiguous() for name, p in self.trained.items()}
        save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})
        about = {"layout": self.layout, "trained_parameters": sum(p.numel() for p in self.trained.values())}
        (directory / _ABOUT).write_text(json.dumps(about, indent=2) + "\n")

    def load(self, directory: Path) -> None:
        """Reads what `save` wrote into this critic.

        Raises:
            UserError: There is no critic in the directory, or it is one of another layout or shape.
        """
        if not (directory / _WEIGHTS).exists():
            raise UserError(f"there is no critic in {directory}: it was not saved by PPOTrainer")
        layout = json.loads((directory / _ABOUT).read_text())["layout"]
        tensors = load_file(directory / _WEIGHTS)
        wrong = {n for n, p in self.trained.items() if n not in tensors or tensors[n].shape != p.shape}
        if layout != self.layout or wrong or len(tensors) != len(self.trained):
            raise UserError(
                f"{directory} holds a critic of layout `{layout}` with {len(tensors)} tensors, and this one is "
                f"`{self.layout}` with {len(self.trained)}: resume with the critic's options of the earlier run"
            )
        with torch.no_grad():
            for name, parameter in self.trained.items():
                parameter.copy_(tensors[name])


class SeparateCritic(Critic):
    """Its own backbone: a copy of the policy's weights, trained in full, or by LoRA where the policy is."""

    layout = "separate"

    def __init__(self, policy: nn.Module, lora: LoraConfig | None) -> None:
        causal_lm = _causal_lm(policy)
        super().__init__(_hidden_size(causal_lm))
        self._backbone_name = causal_lm.base_model_prefix  # as in the policy, for `target_modules` to match
        setattr(self, self._backbone_name, _copy_backbone(policy))
        if lora is None:
            backbone = {n: p for n, p in self.named_parameters() if p.requires_grad and not n.startswith("head.")}
        else:
            backbone = inject(self, lora, is_quantized(causal_lm))
        self._train(backbone)

    @property
    def backbone(self) -> Any:
        """The transformer without its language model head."""
        return getattr(self, self._backbone_name)

    def checkpoint_layers(self, options: dict[str, Any] | None) -> None:
        _checkpoint_layers(self.backbone, options)

    def hidden(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return _last_hidden(self.backbone, input_ids, attention_mask)


class AdapterCritic(Critic):
    """A second LoRA adapter in the layers of a frozen model, on during the critic's forward pass only.

    The model stays outside of this module, which owns the adapter's parameters: the model's own state dict, PEFT's
    `save_pretrained` and its DDP wrapper do not know of them.
    """

    layout = "adapter"

    def __init__(self, frozen: nn.Module, lora: LoraConfig) -> None:
        causal_lm = _causal_lm(frozen)
        super().__init__(_hidden_size(causal_lm))
        self._frozen = (causal_lm,)  # in a tuple: not a submodule
        adapter, self.switch = inject_switched(causal_lm, lora, is_quantized(causal_lm))
        self.adapter = nn.ParameterList(adapter.values())
        self._train(adapter)

    def checkpoint_layers(self, options: dict[str, Any] | None) -> None:
        _checkpoint_layers(self._frozen[0].base_model, options)

    def hidden(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        with self.switch:
            return _last_hidden(self._frozen[0].base_model, input_ids, attention_mask)


class SharedCritic(Critic):
    """A value head on the policy's hidden states: in training, those of the policy's own forward pass."""

    layout = "shared"

    def __init__(self, policy: nn.Module) -> None:
        causal_lm = _causal_lm(policy)
        super().__init__(_hidden_size(causal_lm))
        self._policy = (causal_lm,)
        self._heard: torch.Tensor | None = None
        self._train({})

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Keeps the hidden states of the policy's forward pass within, for the next `forward`."""

        def keep(module: nn.Module, args: Any, output: Any) -> None:
            self._heard = output.last_hidden_state

        handle = self._policy[0].base_model.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()

    def hidden(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        heard, self._heard = self._heard, None
        if heard is not None and heard.shape[:2] == input_ids.shape:
            return heard
        # Nobody has listened, or to a forward pass over other rows, such as packed ones
        return _last_hidden(self._policy[0].base_model, input_ids, attention_mask)


def build_critic(layout: str, base: nn.Module, lora: LoraConfig | None) -> Critic:
    """Returns a critic, at first 0 everywhere.

    Args:
        layout: `separate`, `adapter` or `shared`.
        base: A causal language model, or a PEFT model of one. `separate` copies it as it is without its adapters,
            `adapter` puts the critic's into it, `shared` reads its hidden states.
        lora: The critic's LoRA; `None` trains a `separate` one in full.

    Raises:
        UserError: The layout is unknown, or the 4-bit weights have been repacked for inference.
    """
    keep_trainable(base)
    if layout == "shared":
        return SharedCritic(base)
    if layout == "separate":
        critic = SeparateCritic(base, lora)
        keep_trainable(critic)
        return critic
    if layout == "adapter" and lora is not None:
        return AdapterCritic(base, lora)
    raise UserError(f"critic={layout!r}: expected one of {', '.join(LAYOUTS)}")


def copy_frozen(model: nn.Module) -> Any:
    """Returns a frozen copy of a causal language model, without its adapters."""
    twin = copy.deepcopy(model)
    twin = twin.unload() if isinstance(twin, PeftModel) else twin
    return twin.requires_grad_(False)


def _causal_lm(model: nn.Module) -> Any:
    return model.get_base_model() if isinstance(model, PeftModel) else model


def _hidden_size(causal_lm: Any) -> int:
    return int(causal_lm.config.get_text_config().hidden_size)


def _last_hidden(backbone: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    outputs = backbone(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
    hidden: torch.Tensor = outputs.last_hidden_state
    return hidden


def _checkpoint_layers(backbone: Any, options: dict[str, Any] | None) -> None:
    """As the Trainer does with the policy's layers."""
    options = dict(options or {"use_reentrant": False})
    layers = {"every_n_layers": options.pop("every_n_layers", 1), "offload": options.pop("offload", False)}
    if hasattr(backbone, "activation_checkpointing_enable"):
        backbone.activation_checkpointing_enable(options, **layers)
    else:  # transformers before the new name
        backbone.gradient_checkpointing_enable(options)


def _copy_backbone(policy: nn.Module) -> Any:
    twin = copy.deepcopy(policy)
    causal_lm = twin.unload() if isinstance(twin, PeftModel) else twin
    return causal_lm.base_model
