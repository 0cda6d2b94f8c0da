"""Key/value cache whose rows can be copied and dropped, and which grows in place.

Stage: rollouts. transformers' `DynamicCache` appends a token by concatenating, which copies the whole cache at every
step: at a prompt of 1,024 tokens that is as much memory traffic as the attention itself. Here every layer owns buffers
with room for the next tokens, so that appending writes one column. One operation does all the rest:

    rebuild(cache, rows, room)    new row i = old row rows[i], with room for `room` more tokens

Naming prompts several times in `rows` expands them to their copies, leaving rows out drops the finished ones and
releases their memory, and `room` makes the buffers longer. The tensors that attention sees are `DynamicCache`'s, value
by value.

Shapes: R rows, H key/value heads, T tokens, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer


class _InPlaceGrowth:
    """Appends in place to `key_buffer` and `value_buffer`, (R, H, T + room, D); mixed into transformers' layers."""

    # What `DynamicLayer` has: the part of the buffers that is filled, as views.
    keys: torch.Tensor
    values: torch.Tensor

    def fill(self, source: DynamicLayer, rows: torch.Tensor, room: int) -> None:
        """Takes over the tokens of `source`, row by row as `rows` says, and reserves `room` more."""
        self.dtype, self.device, self.is_initialized = source.keys.dtype, source.keys.device, True
        self.filled = source.keys.shape[-2]
        rows = rows.to(self.device)
        self.key_buffer = _copy_rows(source.keys, rows, room)
        self.value_buffer = _copy_rows(source.values, rows, room)
        self.keys, self.values = self._visible(self.filled)

    def _append(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        start, self.filled = self.filled, self.filled + keys.shape[-2]
        self.key_buffer[:, :, start : self.filled] = keys
        self.value_buffer[:, :, start : self.filled] = values
        return self._visible(self.filled)

    def _visible(self, tokens: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The last `tokens` of what is filled, as views (R, H, tokens, D)."""
        first = 0 if tokens is None else max(self.filled - tokens, 0)
        return self.key_buffer[:, :, first : self.filled], self.value_buffer[:, :, first : self.filled]


class InPlaceLayer(_InPlaceGrowth, DynamicLayer):  # type: ignore[misc]
    """Full attention: every token stays visible."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys, self.values = self._append(key_states, value_states)
        return self.keys, self.values


class InPlaceSlidingLayer(_InPlaceGrowth, DynamicSlidingWindowLayer):  # type: ignore[misc]
    """Sliding window: the last `sliding_window - 1` tokens stay, `cumulative_length` counts all tokens seen.

    The window slides inside the buffers; what fell out of it is left behind at the next `rebuild`.
    """

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.cumulative_length += key_states.shape[-2]
        before = self.keys.shape[-2]
        self._append(key_states, value_states)
        self.keys, self.values = self._visible(self.sliding_window - 1)
        return self._visible(before + key_states.shape[-2])


def rebuild(cache: Cache, rows: torch.Tensor, room: int) -> None:
    """Makes row i of `cache` a copy of its old row `rows[i]`, with room for `room` more tokens, in place.

    Works layer by layer, so that old and new buffers of only one layer are alive together.

    Args:
        cache: A `DynamicCache` whose layers are all of the kinds in `SUPPORTED`.
        rows: (R,) indices into the present rows; may repeat rows and leave some out.
        room: Number of tokens that may be appended before the next `rebuild`.
    """
    for i, old in enumerate(cache.layers):
        if isinstance(old, DynamicSlidingWindowLayer):
            new = InPlaceSlidingLayer(sliding_window=old.sliding_window)
            new.cumulative_length = old.cumulative_length
        else:
            new = InPlaceLayer()
        new.fill(old, rows, room)
        cache.layers[i] = new
        del old


# The layers of a fresh `DynamicCache` that `rebuild` can take over exactly. Others hold more than keys and values by
# row (recurrent states, indexers, quantised blocks).
SUPPORTED = (DynamicLayer, DynamicSlidingWindowLayer)


def _copy_rows(old: torch.Tensor, rows: torch.Tensor, room: int) -> torch.Tensor:
    """(R_old, H, T, D) -> (R, H, T + room, D); the last `room` tokens are not initialised and never read."""
    _, heads, tokens, head_dim = old.shape
    new = old.new_empty(rows.numel(), heads, tokens + room, head_dim)
    torch.index_select(old, 0, rows, out=new[:, :, :tokens])
    return new
