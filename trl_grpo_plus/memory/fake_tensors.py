"""Fake tensors for a simulation: the mode, copies into it, and what has to be known or replaced before it is on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import transformers.masking_utils as masking
import trl.kernels.chunked_logprob as head
from torch._subclasses.fake_tensor import FakeTensorMode

from ..forward import attention
from ..forward.kernels import is_supported
from .categories import Category
from .setting import Setting
from .tracker import StorageTracker

_DTYPES = {2: torch.bfloat16, 4: torch.float32}


@contextlib.contextmanager
def faking(setting: Setting) -> Iterator[FakeTensorMode]:
    """Makes the mode (which is not on yet), and asks first what asks for real numbers."""
    geometry = setting.geometry
    shapes = [(1, heads, 9, geometry.head_dim) for heads in (geometry.heads, geometry.kv_heads, geometry.kv_heads)]
    for width in {setting.compute_width, setting.base_width}:
        is_supported(*(torch.zeros(shape, dtype=_DTYPES[width]) for shape in shapes))
    probe = attention._window

    def window(*args: Any, **kwargs: Any) -> int | None:
        with torch.utils._python_dispatch._disable_current_modes():
            return probe(*args, **kwargs)

    attention._window = window
    try:
        yield FakeTensorMode()
    finally:
        attention._window = probe


def fake_copy(value: Any, fake: FakeTensorMode) -> Any:
    """Returns a tensor, or a structure of dataclasses and tuples with tensors in it, as fake tensors."""
    if isinstance(value, torch.Tensor):
        with fake:
            return torch.empty(value.shape, dtype=value.dtype)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        twin = object.__new__(type(value))
        for field in dataclasses.fields(value):
            object.__setattr__(twin, field.name, fake_copy(getattr(value, field.name), fake))
        return twin
    if isinstance(value, tuple | list):
        return type(value)(fake_copy(item, fake) for item in value)
    return value


@contextlib.contextmanager
def labelled_heads(tracker: StorageTracker) -> Iterator[None]:
    """Puts what TRL's head makes under its own category."""
    function = head.ChunkedLogProbFunction
    forward, backward = function.forward, function.backward

    def labelled(original: Any) -> Any:
        def inside(*args: Any) -> Any:
            with tracker.region(None, Category.LM_HEAD):
                return original(*args)

        return staticmethod(inside)

    function.forward, function.backward = labelled(forward), labelled(backward)
    try:
        yield
    finally:
        function.forward, function.backward = staticmethod(forward), staticmethod(backward)


@contextlib.contextmanager
def on_cuda(on: bool) -> Iterator[None]:
    """Lets TRL's head make only what it makes on CUDA, where a Triton kernel works within the tile.

    The shared-prompt attention is then the merged one, whatever its trial on the CPU's kernels says.
    """
    saved = head._forward_tile, head._backward_tile, head._addmm_fp32
    names = vars(attention)
    supported = names["is_supported"]
    if on:
        names["is_supported"] = lambda *inputs: True
        head._forward_tile = head._backward_tile = lambda *args, **kwargs: None
        head._addmm_fp32 = lambda sums, a, b: sums.add_(0)
    try:
        yield
    finally:
        head._forward_tile, head._backward_tile, head._addmm_fp32 = saved
        names["is_supported"] = supported


@contextlib.contextmanager
def masks_built(padded: bool) -> Iterator[None]:
    """Answers for transformers, which cannot look into a fake mask, whether there is padding in it."""
    ask = masking._ignore_causal_mask_sdpa

    def answer(
        padding_mask: Any, q_length: int, kv_length: int, q_offset: Any, kv_offset: Any, local_size: Any = None
    ) -> bool:
        if padded or (local_size is not None and kv_length >= local_size):
            return False
        return q_length == 1 or kv_length == q_length

    masking._ignore_causal_mask_sdpa = answer
    try:
        yield
    finally:
        masking._ignore_causal_mask_sdpa = ask
