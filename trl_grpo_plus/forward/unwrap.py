"""Find the transformers model inside what a trainer holds."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel


def unwrap(model: torch.nn.Module) -> Any:
    """Take off data-parallel and compilation wrappers and PEFT: the `PreTrainedModel` with the fused LM head."""
    inner: Any = model
    while not isinstance(inner, PreTrainedModel) and not hasattr(inner, "get_base_model"):
        inner = inner._orig_mod if hasattr(inner, "_orig_mod") else inner.module
    return inner if isinstance(inner, PreTrainedModel) else inner.get_base_model()
