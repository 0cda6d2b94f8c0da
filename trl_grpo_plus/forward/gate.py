"""Which way a micro-batch takes: the shared-prompt forward where it is exact and pays, else the plain rectangle.

The judgement of the model (`exactness`) is made at the start; the first micro-batch that would be packed is compared
with the plain path (`verify`), and a difference beyond rounding closes the gate for good. Each reason is said once.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch

from ..errors import UserError
from .exactness import Exactness
from .layout import Layout, LayoutError, build_layout, should_pack
from .verify import Plain, verify

Switch = bool | Literal["auto"]


class Gate:
    """Decides for each micro-batch whether it is packed.

    Args:
        option: `share_prompt`: "auto" packs where it is exact and runs fewer tokens, True wherever it can, False
            never.
        exactness: What the shared-prompt forward can do on the model.
        max_tokens: Token budget of one forward, or `None`.
        say: Called with each reason for falling back, once.

    Raises:
        UserError: `option` is True, or a budget is set, and the model does not allow it.
    """

    def __init__(
        self, option: Switch, exactness: Exactness, max_tokens: int | None, say: Callable[[str], None]
    ) -> None:
        self.option = option
        self.exactness = exactness
        self.max_tokens = max_tokens
        self.verified: str | None = None  # what the comparison found
        self.reason = "share_prompt=False" if option is False else exactness.reason
        self._say = say
        self._said: set[str] = set()
        if option is True and self.reason is not None:
            raise UserError(f"share_prompt=True is not exact here: {self.reason}. Set it to auto or false")
        impossible = self.reason or exactness.split_reason
        if max_tokens is not None and impossible is not None:
            raise UserError(f"max_tokens_per_forward needs the shared-prompt forward: {impossible}. Leave it out")

    @property
    def open(self) -> bool:
        """Whether micro-batches may be packed at all."""
        return self.reason is None

    def layout(
        self,
        input_ids_BT: torch.Tensor,
        attention_mask_BT: torch.Tensor,
        logits_to_keep: int,
        skip_rows_B: torch.Tensor | None = None,
    ) -> Layout | None:
        """Returns the layout of a micro-batch that is to be packed, or `None` where it takes the plain path.

        Args:
            input_ids_BT: Left-padded prompts and right-padded completions.
            attention_mask_BT: 1 on real tokens.
            logits_to_keep: C, the number of completion columns.
            skip_rows_B: True for rows that are left out of the forward.
        """
        if not self.open:
            return None
        if (reason := self.exactness.batch_reason(input_ids_BT.size(1))) is not None:
            self.fall_back(reason)
            return None
        try:
            layout = build_layout(
                input_ids_BT, attention_mask_BT, logits_to_keep, skip_rows_B=skip_rows_B, max_tokens=self.max_tokens
            )
        except LayoutError as error:
            self.fall_back(str(error))
            return None
        pays = self.option is True or self.max_tokens is not None or should_pack(layout)
        return layout if pays else None

    def check(
        self,
        model: torch.nn.Module,
        input_ids_BT: torch.Tensor,
        attention_mask_BT: torch.Tensor,
        logits_to_keep: int,
        plain: Plain,
        compute_entropy: bool,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> bool:
        """Returns whether packing may go on, after comparing the first micro-batch with the plain path.

        Raises:
            UserError: They differ and `share_prompt` is True.
        """
        if self.verified is None:
            found = verify(
                model,
                input_ids_BT,
                attention_mask_BT,
                logits_to_keep,
                plain,
                compute_entropy=compute_entropy,
                autocast=autocast,
            )
            self.verified = found.message
            if not found.ok:
                self.close(f"it is not equal to the plain path on this model: {found.message}")
        return self.open

    def close(self, reason: str) -> None:
        """Sends everything from now on down the plain path.

        Raises:
            UserError: `share_prompt` is True.
        """
        self.reason = reason
        if self.option is True:
            raise UserError(f"share_prompt=True: {reason}")
        self._say(f"the shared-prompt forward is off: {reason}")

    def fall_back(self, reason: str) -> None:
        """Notes that one micro-batch takes the plain path; says so the first time for each reason.

        Raises:
            UserError: `share_prompt` is True.
        """
        if self.option is True:
            raise UserError(f"share_prompt=True: {reason}")
        if reason not in self._said:
            self._said.add(reason)
            self._say(f"a micro-batch takes the plain forward: {reason}")
