"""Activations that wait for the backward in the host's memory: TRL's own helper, for trainers that lack the option."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from trl.models.activation_offloading import get_act_offloading_ctx_manager

from ..errors import UserError


def activation_offloading(model: Any, device: torch.device) -> AbstractContextManager[Any]:
    """Returns the context of a forward and its backward whose activations are kept off the device in between.

    Raises:
        UserError: There is no device to spare: the run is on a CPU.
    """
    if device.type == "cpu":
        raise UserError("activation_offloading moves activations from a GPU to the host, and this run is on the CPU")
    context: AbstractContextManager[Any] = get_act_offloading_ctx_manager(model=model)
    return context
