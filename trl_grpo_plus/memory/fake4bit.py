"""A 4-bit linear layer without 4-bit arithmetic: the storages and temporaries of bitsandbytes' `Linear4bit`.

bitsandbytes cannot put its weights into fake tensors. This layer keeps what NF4 with double quantisation keeps, and
makes the dense copy of the weight that its matrix products make, so that a simulation sees the same bytes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

_BLOCK, _NESTED_BLOCK, _CODES = 64, 256, (16, 256)  # weights per scale, scales per scale of scales, code tables
_SKIP = ("lm_head", "score")  # what transformers leaves alone


class _Product(torch.autograd.Function):
    """x W^T with a W that is unpacked in either direction, and not kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, packed: torch.Tensor, outputs: int, bias: torch.Tensor | None) -> Any:
        ctx.packed, ctx.shape, ctx.dtype = packed, (outputs, x.size(-1)), x.dtype
        return nn.functional.linear(x, x.new_empty(ctx.shape), bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        (grad,) = grads
        return grad @ grad.new_empty(ctx.shape, dtype=ctx.dtype).to(grad.dtype), None, None, None


class FakeLinear4bit(nn.Linear):
    """Stands for a bitsandbytes layer of the same size. A subclass of `nn.Linear`, so that PEFT adapts it.

    Args:
        linear: The layer that it stands for.
        compute_dtype: Of the product.
    """

    def __init__(self, linear: nn.Linear, compute_dtype: torch.dtype) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.compute_dtype = compute_dtype
        weights, device = linear.weight.numel(), linear.weight.device
        packed = torch.empty((weights + 1) // 2, 1, dtype=torch.uint8, device=device)
        self.weight = nn.Parameter(packed, requires_grad=False)
        scales = math.ceil(weights / _BLOCK)
        self.register_buffer("scales", torch.empty(scales, dtype=torch.uint8, device=device))
        self.register_buffer("scales_of_scales", torch.empty(math.ceil(scales / _NESTED_BLOCK), device=device))
        self.register_buffer("codes", torch.empty(sum(_CODES) + 1, device=device))
        self.bias = linear.bias

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """As `Linear4bit`: in the compute dtype, back in the input's."""
        bias = None if self.bias is None else self.bias.to(self.compute_dtype)
        y: torch.Tensor = _Product.apply(  # type: ignore[no-untyped-call]
            input.to(self.compute_dtype), self.weight, self.out_features, bias
        )
        return y.to(input.dtype)


def quantize(model: nn.Module, compute_dtype: torch.dtype = torch.bfloat16) -> None:
    """Replaces the linear layers that transformers would quantise, in place."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear and name not in _SKIP:
                setattr(module, name, FakeLinear4bit(child, compute_dtype))
    model.is_loaded_in_4bit = True  # type: ignore[assignment]
