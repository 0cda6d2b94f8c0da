"""Whether the shared-prompt forward gives TRL's numbers on a model, and in words why not.

It does where tokens meet only in causal (or sliding-window) softmax attention that goes through transformers'
attention registry, and where nothing depends on how many tokens a forward holds. The checks look at the config and at
the modules for what breaks that, without a list of architectures. What they overlook is for `verify` to find, which
compares real numbers at the start.

Dropout is no obstacle: both paths draw from the same distribution, although not the same numbers. It is noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel

from .attention import is_registered
from .unwrap import unwrap

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_PEFT_ACROSS_TOKENS = {"ADAPTION_PROMPT", "XLORA", "POLY", "CPT", "CARTRIDGE"}
_POSITION_OFFSET = 16  # tables of learned positions may have a few entries more than positions (OPT: 2)
_BATCH_KEYS_REFUSED = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles",
    "image_sizes", "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip


@dataclass(frozen=True)
class Exactness:
    """What the shared-prompt forward can do exactly on a model.

    Attributes:
        reason: Why it cannot be exact, or `None`.
        max_width: Widest rectangle (prompt and completion columns) for which it is exact, `None` for any.
        trim_reason: Why cutting padding columns off a rectangle is not exact (it shifts positions), or `None`.
        split_reason: Why a micro-batch cannot be split under a token budget, or `None`.
        notes: Where the results are equal in distribution only.
    """

    reason: str | None = None
    max_width: int | None = None
    trim_reason: str | None = None
    split_reason: str | None = None
    notes: tuple[str, ...] = ()

    def batch_reason(self, width: int, inputs: Mapping[str, Any] | None = None) -> str | None:
        """Why a micro-batch of `width` columns, with these further model inputs, must take the plain path."""
        if self.reason is not None:
            return self.reason
        if self.max_width is not None and width > self.max_width:
            return (
                f"the micro-batch spans {width} positions, and beyond {self.max_width} the rotary frequencies depend "
                "on the longest position of a forward"
            )
        given = [key for key in _BATCH_KEYS_REFUSED if inputs is not None and inputs.get(key) is not None]
        return f"the micro-batch has {given[0]!r} (image inputs)" if given else None


def inspect_model(model: torch.nn.Module, *, aux_loss: bool = False, sequence_parallel: bool = False) -> Exactness:
    """Judge a model as the trainer holds it.

    Args:
        model: The model, wrapped or not.
        aux_loss: Whether the trainer asks for a mixture-of-experts load-balancing loss.
        sequence_parallel: Whether a sequence is spread over several devices.
    """
    inner = unwrap(model)
    config = inner.config.get_text_config()
    reasons = (
        "a mixture-of-experts load-balancing loss counts the tokens of the forward"
        if aux_loss or getattr(config, "output_router_logits", False)
        else None,
        "sequences are spread over several devices" if sequence_parallel else None,
        _wrapper_reason(model),
        _config_reason(inner.config, config),
        _module_reason(inner),
        _implementation_reason(config),
        _peft_reason(model),
    )
    return Exactness(
        reason=next((reason for reason in reasons if reason is not None), None),
        max_width=_max_width(config),
        trim_reason=_trim_reason(inner, config),
        split_reason=_split_reason(model),
        notes=tuple(_dropout_notes(inner)),
    )


def _wrapper_reason(model: torch.nn.Module) -> str | None:
    if isinstance(model, DataParallel):
        return "DataParallel runs the model in threads; launch one process per device instead"
    inner = unwrap(model)
    if hasattr(model, "_orig_mod") or getattr(inner, "_compiled_call_impl", None) is not None:
        return "the model is compiled, and every packed row has another shape"
    return None


def _config_reason(whole: Any, config: Any) -> str | None:
    if config is not whole or getattr(whole, "vision_config", None) is not None:
        return "the model is multimodal"
    if getattr(config, "is_encoder_decoder", False):
        return "the model is an encoder-decoder"
    if getattr(config, "is_causal", True) is False or getattr(config, "use_bidirectional_attention", None):
        return "the model's attention is not causal"
    other = sorted(set(getattr(config, "layer_types", None) or ()) - _LAYER_TYPES)
    if other:
        return f"the model has layers of type {', '.join(map(repr, other))}, where tokens meet outside full attention"
    if getattr(config, "attention_chunk_size", None) is not None:
        return "the model attends in chunks"
    for name in ("attn_logit_softcapping", "attn_softcap"):
        if getattr(config, name, None) is not None:
            return f"the model caps its attention scores ({name}={getattr(config, name)})"
    if getattr(config, "alibi", False) or getattr(config, "position_embedding_type", None) == "alibi":
        return "the model's attention has ALiBi position biases"
    return None


def _implementation_reason(config: Any) -> str | None:
    implementation = config._attn_implementation
    if not is_registered(implementation):
        return (
            f"attention implementation {implementation!r} is not one that can be deferred to; "
            "load the model with attn_implementation='sdpa' if it supports that"
        )
    return None


def _module_reason(inner: Any) -> str | None:
    if getattr(inner, "_is_stateful", False):
        return "the model carries a recurrent state from token to token (linear attention or state space layers)"
    if inner.base_model is inner:
        return "the model has no backbone apart from its LM head"
    for name, module in inner.named_modules():
        if isinstance(module, torch.nn.Conv1d) and module.kernel_size != (1,):
            return f"the model mixes neighbouring tokens in a convolution ({name})"
    for name, _ in inner.named_parameters():
        if "sink" in name.rsplit(".", 1)[-1]:
            return f"the model's attention has sinks ({name})"
    return None


def _peft_reason(model: torch.nn.Module) -> str | None:
    for wrapped in _wrappers(model):
        for name, peft in (getattr(wrapped, "peft_config", None) or {}).items():
            kind = str(getattr(peft.peft_type, "value", peft.peft_type))
            if getattr(peft, "is_prompt_learning", False):
                return f"adapter {name!r} puts virtual tokens before the prompt ({kind})"
            if kind in _PEFT_ACROSS_TOKENS:
                return f"adapter {name!r} ({kind}) depends on the sequence as a whole"
            if getattr(peft, "alora_invocation_tokens", None):
                return f"adapter {name!r} is switched on from a token of the sequence (activated LoRA)"
    return None


def _max_width(config: Any) -> int | None:
    parameters = getattr(config, "rope_parameters", None) or {}
    widths = []
    for rope in parameters.values() if all(isinstance(v, dict) for v in parameters.values()) else [parameters]:
        kind = rope.get("rope_type", "default")
        if kind == "longrope":
            widths.append(int(rope.get("original_max_position_embeddings") or config.max_position_embeddings))
        elif "dynamic" in kind:
            widths.append(int(config.max_position_embeddings) - 1)
    return min(widths) if widths else None


def _trim_reason(inner: Any, config: Any) -> str | None:
    if _max_width(config) is not None:
        return "the rotary frequencies depend on the longest position of a forward"
    parameters = getattr(config, "rope_parameters", None) or {}
    if getattr(config, "attn_temperature_tuning", False) or parameters.get("llama_4_scaling_beta") is not None:
        return "attention scores are scaled by absolute positions"
    positions = getattr(config, "max_position_embeddings", None)
    token_table = inner.get_input_embeddings()
    for name, module in inner.named_modules():
        table = isinstance(module, torch.nn.Embedding) and module is not token_table
        if table and positions is not None and 0 <= module.num_embeddings - positions <= _POSITION_OFFSET:
            return f"the model has learned absolute positions ({name})"
    return None


def _split_reason(model: torch.nn.Module) -> str | None:
    for wrapped in _wrappers(model):
        if not isinstance(wrapped, DistributedDataParallel) and "module" in wrapped._modules:
            return f"{type(wrapped).__name__} does not allow several forwards before a backward"
        if type(wrapped).__name__.startswith("FSDP"):
            return "sharded parameters do not allow a forward to be recomputed as a whole"
    return None


def _dropout_notes(inner: Any) -> Iterable[str]:
    rates = {float(module.p) for module in inner.modules() if isinstance(module, torch.nn.modules.dropout._DropoutNd)}
    rates |= {rate for m in inner.modules() if isinstance(rate := getattr(m, "attention_dropout", None), float)}
    if any(rates):
        yield "dropout draws other numbers than TRL's path would: equal in distribution, not to the bit"
    if any(getattr(module, name, 0) for module in inner.modules() for name in ("jitter_noise", "router_jitter_noise")):
        yield "router jitter draws other numbers than TRL's path would: equal in distribution, not to the bit"


def _wrappers(model: torch.nn.Module) -> Iterable[torch.nn.Module]:
    """The model and what it wraps, down to and including a PEFT model."""
    inner = unwrap(model)
    current: Any = model
    while current is not inner:
        yield current
        if hasattr(current, "peft_config"):
            break
        current = current._orig_mod if hasattr(current, "_orig_mod") else current.module
    yield inner
