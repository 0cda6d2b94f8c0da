"""The critic's LoRA adapter inside the layers of a model that has, or has not, adapters of its own.

PEFT's own way to change adapters (`set_adapter`) also decides which parameters are trained, and gradients of the
others are dropped in the backward pass; a loss that uses two adapters at once needs both. So the switch here changes
which adapter is active, and nothing else.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from peft import LoraConfig, PeftModel, inject_adapter_in_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from ..errors import UserError

NAME = "critic"  # of the adapter in the layers


class AdapterSwitch:
    """Context in which the critic's adapter is the active one; can be entered again and again.

    Args:
        layers: All layers with adapters of the model.
        parameters: The adapter's parameters.
    """

    on: AdapterSwitch | None = None  # the one that is on at the moment, in any model

    def __init__(self, layers: list[BaseTunerLayer], parameters: list[nn.Parameter]) -> None:
        self._layers = layers
        self._parameters = parameters
        self._before: list[tuple[AdapterSwitch | None, list[Any]]] = []

    def __enter__(self) -> None:
        self._before.append((AdapterSwitch.on, [layer._active_adapter for layer in self._layers]))
        AdapterSwitch.on = self
        for layer in self._layers:
            layer._active_adapter = [NAME]
        for parameter in self._parameters:
            parameter.requires_grad_(True)  # PEFT turned it off when it disabled the adapters for the reference

    def __exit__(self, *error: Any) -> None:
        AdapterSwitch.on, active = self._before.pop()
        for layer, adapter in zip(self._layers, active, strict=True):
            layer._active_adapter = adapter


def recompute_with_same_adapter() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """The `context_fn` of gradient checkpointing: a layer is recomputed with the adapter that it first ran with."""
    return nullcontext(), AdapterSwitch.on if AdapterSwitch.on is not None else nullcontext()


def lora_of(policy: nn.Module) -> LoraConfig | None:
    """Returns the LoRA configuration of a policy, `None` for one that is trained in full.

    Raises:
        UserError: The policy has an adapter of another kind.
    """
    if not isinstance(policy, PeftModel):
        return None
    config = policy.peft_config[policy.active_adapters[0]]
    if not isinstance(config, LoraConfig):
        raise UserError(f"peft_config: PPO's critic knows LoRA adapters only, found {config.peft_type}")
    return config


def inject(root: nn.Module, lora: LoraConfig, quantized: bool) -> dict[str, nn.Parameter]:
    """Puts the critic's adapter into the layers of a model, as the active one, and returns its parameters.

    What the model trained before it trains after, except that a model without adapters is frozen.

    Args:
        root: The model.
        lora: Configuration, of which this takes all but what would change the model's other weights.
        quantized: The model's weights are quantised; the adapter is then bfloat16, as TRL has the policy's, or else
            float32.
    """
    config = copy.deepcopy(lora)
    config.inference_mode = False
    config.task_type = None
    config.bias = "none"
    config.modules_to_save = None
    config.init_lora_weights = True
    has_adapters = bool(_layers(root))
    trained = [p for p in root.parameters() if p.requires_grad and has_adapters]
    others = root.__dict__.pop("peft_config", None)  # PEFT would add the critic to the policy's adapters
    inject_adapter_in_model(config, root, NAME)
    root.__dict__.pop("peft_config", None)
    if others is not None:
        root.__dict__["peft_config"] = others
    adapter = {name: p for name, p in root.named_parameters() if f".{NAME}." in f"{name}."}
    for parameter in adapter.values():
        parameter.data = parameter.data.to(torch.bfloat16 if quantized else torch.float32)
    root.requires_grad_(False)
    for parameter in [*trained, *adapter.values()]:
        parameter.requires_grad_(True)
    return adapter


def inject_switched(
    root: nn.Module, lora: LoraConfig, quantized: bool
) -> tuple[dict[str, nn.Parameter], AdapterSwitch]:
    """As `inject`, but off and unknown to the state dict of the model; returns also the switch to turn it on."""
    active = {layer: layer._active_adapter for layer in _layers(root)}
    adapter = inject(root, lora, quantized)
    layers = _layers(root)
    for layer in layers:
        layer._active_adapter = active.get(layer, [])
    root.register_state_dict_post_hook(_leave_out)  # type: ignore[no-untyped-call]
    return adapter, AdapterSwitch(layers, list(adapter.values()))


def _leave_out(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Keeps the critic's adapter out of the state dict of the model that it sits in, however that is saved."""
    for name in [name for name in state_dict if name.startswith(prefix) and f".{NAME}." in f"{name}."]:
        del state_dict[name]


def _layers(model: nn.Module) -> list[BaseTunerLayer]:
    return [layer for layer in model.modules() if isinstance(layer, BaseTunerLayer)]
