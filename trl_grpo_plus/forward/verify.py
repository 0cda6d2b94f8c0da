"""Comparison of the packed path with the plain path on one real micro-batch, once, before training relies on it.

Rounding makes the two differ even where they are equal in exact arithmetic. How much is measured: the plain path runs
twice, the second time with extra padding columns on the left, which changes nothing but the rounding. The packed path
must then lie within a small multiple of that noise, or within the floor of the precision. The extra columns serve a
second purpose: a model that treats padding or positions in a way of its own shows it here, even if the first
micro-batch had no padding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from .packed import packed_logps_and_entropies
from .unwrap import unwrap

Plain = Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor | None]]

_EXTRA_COLUMNS = 3
_TIMES_NOISE = 3.0
# Root mean square and largest difference of log-probabilities: accepted whatever the noise, and never accepted.
_FLOOR = {torch.float32: (1e-5, 1e-4), torch.bfloat16: (5e-3, 5e-2), torch.float16: (1e-3, 1e-2)}
_CEILING = {torch.float32: (1e-3, 1e-2), torch.bfloat16: (1e-1, 2.0), torch.float16: (3e-2, 0.5)}


@dataclass(frozen=True)
class Verification:
    """Result of the comparison: whether it held, and what was seen, in words."""

    ok: bool
    message: str
    max_difference: float = float("nan")


def verify(
    model: torch.nn.Module,
    input_ids_BT: torch.Tensor,
    attention_mask_BT: torch.Tensor,
    logits_to_keep: int,
    plain: Plain,
    *,
    compute_entropy: bool = True,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Verification:
    """Compare both paths, without gradient and without dropout. The random state is left as it was.

    Args:
        model: The model as the trainer holds it.
        input_ids_BT: Left-padded prompts and right-padded completions.
        attention_mask_BT: 1 on real tokens.
        logits_to_keep: C, the number of completion columns.
        plain: TRL's path: (input_ids, attention_mask, logits_to_keep) -> (B, C) log-probabilities and entropies.
        compute_entropy: Whether to compare entropies too.
        autocast: Makes the context that the packed forward runs in.
    """
    C = logits_to_keep
    wide_ids = torch.nn.functional.pad(input_ids_BT, (_EXTRA_COLUMNS, 0))
    wide_mask = torch.nn.functional.pad(attention_mask_BT, (_EXTRA_COLUMNS, 0))
    scored_BC = attention_mask_BT[:, -C:] != 0
    if not bool(scored_BC.any()):
        return Verification(False, "the micro-batch has no completion token to compare")
    with torch.no_grad(), _kept_random_state(input_ids_BT.device), _without_dropout(model):
        expected = plain(wide_ids, wide_mask, C)
        control = plain(input_ids_BT, attention_mask_BT, C)
        try:
            found = packed_logps_and_entropies(
                model, wide_ids, wide_mask, C, compute_entropy=compute_entropy, autocast=autocast
            )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever an unknown model does with the packed row, the plain path remains
            return Verification(False, f"the packed forward failed: {type(error).__name__}: {error}")
        dtype = _compute_dtype(model, input_ids_BT.device, autocast)

    worst = 0.0
    for name, want, have, again in zip(("log-probability", "entropy"), expected, found[:2], control, strict=True):
        if want is None or have is None or again is None:
            continue
        noise, difference = (torch.where(scored_BC, (x - want).abs().float(), 0.0) for x in (again, have))
        worst = max(worst, float(difference.max()))
        limits = _limits(noise[scored_BC], dtype)
        mean_square = difference[scored_BC].square().mean()
        if not (float(mean_square.sqrt()) <= limits[0] and float(difference.max()) <= limits[1]):
            row, token = divmod(int(difference.nan_to_num(nan=torch.inf).argmax()), C)
            return Verification(
                False,
                f"the {name} of completion token {token} in row {row} is {float(have[row, token]):.6g} packed and "
                f"{float(want[row, token]):.6g} plain; differences are {float(mean_square.sqrt()):.2g} in the mean "
                f"(root of squares) and {float(difference.max()):.2g} at most, while {_name(dtype)} rounding explains "
                f"{limits[0]:.2g} and {limits[1]:.2g}",
                float(difference.max()),
            )
    return Verification(True, f"equal to the plain path within {worst:.2g} ({_name(dtype)} rounding)", worst)


def _limits(noise: torch.Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """Accepted (root mean square, largest) difference."""
    measured = (float(noise.square().mean().sqrt()), float(noise.max()))
    floor, ceiling = _FLOOR.get(dtype, _FLOOR[torch.float32]), _CEILING.get(dtype, _CEILING[torch.float32])
    root, largest = (
        min(max(_TIMES_NOISE * m, low), high) for m, low, high in zip(measured, floor, ceiling, strict=True)
    )
    return root, largest


def _compute_dtype(
    model: torch.nn.Module, device: torch.device, autocast: Callable[[], AbstractContextManager[Any]]
) -> torch.dtype:
    with autocast():
        if torch.is_autocast_enabled(device.type):
            return torch.get_autocast_dtype(device.type)
    dtype: torch.dtype = unwrap(model).get_input_embeddings().weight.dtype
    return dtype


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


@contextlib.contextmanager
def _kept_random_state(device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield


@contextlib.contextmanager
def _without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Switch off what draws random numbers.

    The model stays in training mode otherwise: evaluation mode may do more than that (4-bit weights are repacked on
    some CPUs, after which training loses gradients).
    """
    undo: list[tuple[Any, str, Any]] = []
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and value > 0 and ("dropout" in name or "jitter" in name):
                undo.append((module, name, value))
                setattr(module, name, 0.0)
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.training:
            undo.append((module, "training", True))
            module.training = False
    try:
        yield
    finally:
        for module, name, value in undo:
            setattr(module, name, value)
