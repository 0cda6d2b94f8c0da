"""The attention of the shared-prompt forward, reached through transformers' own registries.

transformers looks up two functions by the name of the model's attention implementation ("sdpa", "flash_attention_2"):
one builds the mask at the top of the forward, one attends in every layer with the mask it is handed. `enable` wraps
both under their own name. Inside `shared_prompt(spans)` the mask function builds no mask and returns a
`SharedPromptMask` instead; a layer that receives one attends over the packed row; every other call goes to the wrapped
function unchanged. The structure thus takes the mask's way: a recomputation under gradient checkpointing gets it too,
sliding and full layers get the window their own mask asked for, and nothing in the model or its config is altered.

Names: L packed tokens, H query heads, K key/value heads, D head width, n completions of a group.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from .kernels import MergedAttention, is_supported
from .layout import Group, Spans

_current: contextvars.ContextVar[Spans | None] = contextvars.ContextVar("shared_prompt_spans", default=None)
_wrapped: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {}  # the functions as they were, by name

# Keyword arguments by which a model asks for a different attention than softmax(q k / sqrt(D)) v.
_ALTERATIONS = ("softcap", "s_aux", "sinks", "position_bias", "alibi", "head_mask", "topk_indices")


class NotExactError(RuntimeError):
    """The model asks for something the packed attention does not compute."""


@dataclass(frozen=True)
class SharedPromptMask:
    """Stands for a mask: causal within a segment and to its prompt, the last `window` positions only if one is set."""

    spans: Spans
    window: int | None = None


@contextlib.contextmanager
def shared_prompt(spans: Spans) -> Iterator[None]:
    """Have the masks that are built inside say `spans`. Implementations must have been enabled."""
    token = _current.set(spans)
    try:
        yield
    finally:
        _current.reset(token)


def is_registered(implementation: str | None) -> bool:
    """Whether `enable` can wrap an attention implementation."""
    return implementation in ALL_ATTENTION_FUNCTIONS and implementation in ALL_MASK_ATTENTION_FUNCTIONS


def enable(implementation: str) -> None:
    """Teach a registered attention implementation to attend over packed rows. Calling it again changes nothing.

    Raises:
        NotExactError: The implementation is not in transformers' registries ("eager" is each model's own).
    """
    if implementation in _wrapped:
        return
    if not is_registered(implementation):
        raise NotExactError(f"attention implementation {implementation!r} is not registered with transformers")
    attend, make_mask = ALL_ATTENTION_FUNCTIONS[implementation], ALL_MASK_ATTENTION_FUNCTIONS[implementation]

    def attend_or_share(
        module: torch.nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(attention_mask, SharedPromptMask):
            return attend_shared(module, query, key, value, attention_mask, *args, **kwargs)
        return attend(module, query, key, value, attention_mask, *args, **kwargs)

    def make_mask_or_share(*args: Any, **kwargs: Any) -> Any:
        spans = _current.get()
        if spans is None:
            return make_mask(*args, **kwargs)
        return SharedPromptMask(spans, _window(**kwargs))

    _wrapped[implementation] = (attend, make_mask)
    AttentionInterface.register(implementation, attend_or_share)
    AttentionMaskInterface.register(implementation, make_mask_or_share)


def disable(implementation: str) -> None:
    """Undo `enable`."""
    if implementation in _wrapped:
        attend, make_mask = _wrapped.pop(implementation)
        AttentionInterface.register(implementation, attend)
        AttentionMaskInterface.register(implementation, make_mask)


def _window(
    mask_function: Callable[..., torch.Tensor],
    local_size: int | None = None,
    use_vmap: bool = False,
    allow_is_causal_skip: bool = True,
    **_: Any,
) -> int | None:
    """Window of the mask that a model asks for, after probing that it is causal or a causal sliding window."""
    if use_vmap or not allow_is_causal_skip:
        raise NotExactError("the model lays a pattern of its own over the causal mask")
    w = local_size or 4
    query = torch.tensor([0, 1, 1, w - 1, w, w, w + 1, w + 1])
    key = torch.tensor([1, 0, 1, 0, 0, 1, 1, 2])
    inside = (key <= query) if local_size is None else (key <= query) & (key > query - w)
    zero = torch.tensor(0)
    if not torch.equal(mask_function(zero, zero, query, key).expand(len(query)), inside):
        raise NotExactError("the model's mask is neither causal nor a causal sliding window")
    return local_size


def attend_shared(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: SharedPromptMask,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend over a packed row: (1, H, L, D), (1, K, L, D), (1, K, L, D) -> (1, L, H, D).

    Raises:
        NotExactError: The layer asks for more than causal softmax attention over the row.
    """
    spans = attention_mask.spans
    asked = [name for name in _ALTERATIONS if kwargs.get(name) is not None]
    if asked:
        raise NotExactError(f"a layer passes {asked[0]!r} to its attention")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise NotExactError("a layer's attention is not causal")
    if query.size(0) != 1 or not query.size(2) == key.size(2) == value.size(2) == spans.length:
        raise NotExactError("a layer's queries and keys are not those of the packed row")

    if torch.is_autocast_enabled(query.device.type):  # as autocast does for `scaled_dot_product_attention`
        query, key, value = (x.to(torch.get_autocast_dtype(x.device.type)) for x in (query, key, value))
    window = attention_mask.window
    if window is not None and window >= spans.longest:
        window = None
    if window is None and dropout == 0.0 and is_supported(query, key, value):
        merged: torch.Tensor = MergedAttention.apply(query, key, value, spans, scaling)  # type: ignore[no-untyped-call]
        return merged, None
    return _attend_copies(query, key, value, spans, window, dropout, scaling), None


def _attend_copies(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    spans: Spans,
    window: int | None,
    dropout: float,
    scale: float | None,
) -> torch.Tensor:
    """The same attention with public operators: each segment gets a copy of its prompt's keys and values.

    Serves sliding windows (the copies are cut to what the window reaches), dropout, and whatever the merged kernel
    cannot run.
    """
    outputs: dict[int, torch.Tensor] = {}  # by where they start in the row

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, before: int) -> torch.Tensor:
        mask = None
        if before or (window is not None and window < q.size(2)):
            mask = _band(spans, q.size(2), before, window, q.device)
        repeats = q.size(1) // k.size(1)
        grouped = repeats > 1 and (mask is None or q.device.type == "cpu")
        if repeats > 1 and not grouped:  # CUDA's fused kernels take a mask or fewer key heads, not both
            k, v = (x.repeat_interleave(repeats, dim=1) for x in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scale, enable_gqa=grouped
        )

    for group in spans.groups:
        block = slice(group.prompt_start, group.prompt_stop)
        if group.prompt_stop > group.prompt_start:
            outputs[group.prompt_start] = attend(q[:, :, block], k[:, :, block], v[:, :, block], 0)[0].transpose(0, 1)
        reach = group.prompt_stop - group.prompt_start
        if window is not None:
            reach = min(reach, window - 1)
        tail = slice(group.prompt_stop - reach, group.prompt_stop)
        own_q, own_k, own_v = (_segments(x, group) for x in (q, k, v))
        n = own_q.size(0)
        out = attend(
            own_q,
            torch.cat([k[:, :, tail].expand(n, -1, -1, -1), own_k], dim=2),
            torch.cat([v[:, :, tail].expand(n, -1, -1, -1), own_v], dim=2),
            reach,
        ).transpose(1, 2)
        outputs[group.start] = torch.cat([out[i, :length] for i, length in enumerate(group.segment_lengths)])
    return torch.cat([outputs[start] for start in sorted(outputs)]).unsqueeze(0)


def _segments(x: torch.Tensor, group: Group) -> torch.Tensor:
    """A group's segments as a right-padded batch: (1, heads, L, D) -> (n, heads, S, D)."""
    tokens = x[0, :, group.start : group.stop].transpose(0, 1)
    pieces = list(torch.split(tokens, list(group.segment_lengths)))
    return torch.nn.utils.rnn.pad_sequence(pieces, batch_first=True).transpose(1, 2)


def _band(spans: Spans, length: int, before: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Mask (length, before + length) of queries that follow `before` keys: causal, and within the window if set.

    Padding needs no mask of its own: it lies to the right, where no real query looks.
    """
    key = (length, before, window, device)
    if key not in spans.cache:
        query_S1 = torch.arange(length, device=device)[:, None]
        key_T = torch.arange(-before, length, device=device)
        band = key_T <= query_S1
        if window is not None:
            band &= key_T > query_S1 - window
        spans.cache[key] = band
    return spans.cache[key]
