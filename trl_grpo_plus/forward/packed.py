"""The shared-prompt forward: log-probabilities and entropies of a micro-batch, each distinct prompt run once.

    input_ids, attention_mask (B, P + C) -> layout -> row (1, L) -> model -> scores (1, N) -> logps, entropies (B, C)

It answers what TRL's `_get_per_token_logps_and_entropies` answers, values and gradients, with the same call: the
wrapped model with TRL's fused LM head, so autocast, PEFT, hooks and gradient checkpointing take part as usual. Only
the positions that score a completion token reach the LM head.

Under a token budget (`max_tokens`) the micro-batch runs as several forwards. The loss needs the log-probabilities of
all of them at once, so every forward but the last is recomputed in the backward: the activations of one forward are
alive at a time, and the gradient is that of the whole micro-batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from .attention import enable, shared_prompt
from .layout import Chunk, Layout, build_layout
from .unwrap import unwrap

_Scores = tuple[torch.Tensor, torch.Tensor | None]  # log-probabilities and entropies


@dataclass(frozen=True)
class ForwardStats:
    """Work of a micro-batch: tokens through the model, against the tokens of TRL's rectangle."""

    tokens_run: int
    tokens_stock: int
    forwards: int
    rows_skipped: int


def packed_logps_and_entropies(
    model: torch.nn.Module,
    input_ids_BT: torch.Tensor,
    attention_mask_BT: torch.Tensor,
    logits_to_keep: int,
    *,
    compute_entropy: bool = False,
    skip_rows_B: torch.Tensor | None = None,
    fill_logps_BC: torch.Tensor | None = None,
    max_tokens: int | None = None,
    layout: Layout | None = None,
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> tuple[torch.Tensor, torch.Tensor | None, ForwardStats]:
    """Score the completion tokens of a micro-batch.

    Outside the completion mask both results are 0, as in TRL. A row that is skipped takes no part in the forward: its
    log-probabilities are `fill_logps_BC` without gradient (or 0), its entropies the mean over the tokens that ran, so
    that a mean over all tokens is the mean over those. When nothing is left to run, the result still depends on every
    trainable parameter, with a gradient of zero.

    Args:
        model: The model as the trainer holds it (wrapped or not), given TRL's fused LM head; the temperature is
            that of the head.
        input_ids_BT: Left-padded prompts and right-padded completions.
        attention_mask_BT: 1 on real tokens.
        logits_to_keep: C, the number of completion columns.
        compute_entropy: Whether to return entropies; the head must then compute them.
        skip_rows_B: True for rows that contribute nothing to the loss.
        fill_logps_BC: Values for the rows that are skipped, such as the log-probabilities at sampling time.
        max_tokens: Token budget of one forward.
        layout: The layout of these very inputs, when the caller has built it; `skip_rows_B` and `max_tokens` are then
            the layout's.
        autocast: Makes the context that the forward runs in, such as `accelerator.autocast`.

    Returns:
        Log-probabilities (B, C), entropies (B, C) or `None`, and the work done.

    Raises:
        LayoutError: The inputs cannot be packed.
        NotExactError: The model asks for an attention that the packed row does not have.
    """
    if layout is None:
        layout = build_layout(
            input_ids_BT, attention_mask_BT, logits_to_keep, skip_rows_B=skip_rows_B, max_tokens=max_tokens
        )
    chunks = layout.chunks
    enable(unwrap(model).config.get_text_config()._attn_implementation)

    def run_all(inner: torch.nn.Module) -> _Scores:
        return _run_chunks(inner, chunks, compute_entropy, autocast)

    if len(chunks) == 1:
        logps_N, entropies_N = run_all(model)
    else:
        logps_N, entropies_N = _inside_ddp(model, run_all)

    size = layout.shape[0] * layout.shape[1]
    target_N = torch.cat([chunk.target_N for chunk in chunks]) if chunks else None
    logps_BC = _scatter(logps_N, target_N, size).view(layout.shape)
    entropies_BC = None if entropies_N is None else _scatter(entropies_N, target_N, size).view(layout.shape)
    rows_skipped = 0
    if layout.skipped_B is not None:
        skipped_BC = layout.skipped_B[:, None] & (attention_mask_BT[:, -logits_to_keep:] != 0)
        if fill_logps_BC is not None:
            logps_BC = torch.where(skipped_BC, fill_logps_BC.detach().to(logps_BC), logps_BC)
        if entropies_BC is not None and entropies_N is not None and chunks:
            entropies_BC = torch.where(skipped_BC, entropies_N.detach().mean(), entropies_BC)
        rows_skipped = layout.rows_skipped
    stats = ForwardStats(layout.tokens_run, layout.tokens_stock, len(chunks), rows_skipped)
    return logps_BC, entropies_BC, stats


def _scatter(values_N: torch.Tensor, target_N: torch.Tensor | None, size: int) -> torch.Tensor:
    if target_N is None:  # `values_N` is a zero that keeps the graph
        return values_N.expand(size)
    return values_N.new_zeros(size).index_copy(0, target_N, values_N)


def _run_chunks(
    model: torch.nn.Module,
    chunks: tuple[Chunk, ...],
    compute_entropy: bool,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> _Scores:
    """Run the forwards one after another and join their scores, (N,) each."""
    if not chunks:
        zero = _differentiable_zero(model)
        return zero, zero if compute_entropy else None
    parts: list[_Scores] = []
    for i, chunk in enumerate(chunks):
        if torch.is_grad_enabled() and i < len(chunks) - 1:
            # The backward goes through the forwards in reverse: the last one's activations are gone before another
            # is recomputed. Running to the end of a recomputation keeps contexts and hooks in order.
            with set_checkpoint_early_stop(False):
                part = checkpoint(_run_chunk, model, chunk, compute_entropy, autocast, use_reentrant=False)
        else:
            part = _run_chunk(model, chunk, compute_entropy, autocast)
        parts.append(part)
    logps = torch.cat([logps_N for logps_N, _ in parts])
    entropies = torch.cat([e for _, e in parts if e is not None]) if compute_entropy else None
    return logps, entropies


def _run_chunk(
    model: torch.nn.Module,
    chunk: Chunk,
    compute_entropy: bool,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> _Scores:
    input_ids = chunk.input_ids_L.unsqueeze(0)
    labels_N = chunk.labels_N
    with shared_prompt(chunk.spans), _only_last(model, len(labels_N)), autocast():
        outputs = model(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            position_ids=chunk.position_ids_L.unsqueeze(0),
            shift_labels=labels_N.unsqueeze(0),
            fused_lm_head=True,
        )
    return outputs.log_probs[0], outputs.entropy[0] if compute_entropy else None


@contextlib.contextmanager
def _only_last(model: torch.nn.Module, count: int) -> Iterator[None]:
    """Let the LM head see the last `count` positions of the backbone's output only."""

    def cut(module: torch.nn.Module, args: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[:, -count:]
        return output

    handle = unwrap(model).base_model.register_forward_hook(cut)
    try:
        yield
    finally:
        handle.remove()


def _inside_ddp(model: torch.nn.Module, body: Callable[[torch.nn.Module], _Scores]) -> _Scores:
    """Run `body` within one forward of a `DistributedDataParallel` wrapper, which wants one per backward."""
    if not isinstance(model, DistributedDataParallel):
        return body(model)
    inner = model.module
    patched = inner.__dict__.get("forward")  # such as accelerate's mixed-precision wrapper

    def restore() -> None:
        if patched is None:
            inner.__dict__.pop("forward", None)
        else:
            inner.__dict__["forward"] = patched

    def forward(_: None) -> _Scores:
        restore()
        return body(inner)

    inner.__dict__["forward"] = forward
    try:
        scores: _Scores = model(None)  # DDP moves its arguments to the device, and expects to find one
        return scores
    finally:
        restore()


def _differentiable_zero(model: torch.nn.Module) -> torch.Tensor:
    """A zero (1,) on which every trainable parameter has a gradient of zero."""
    zeros = [p.reshape(-1)[:0].sum().float() for p in model.parameters() if p.requires_grad]
    if not zeros or not torch.is_grad_enabled():
        return torch.zeros(1, device=next(model.parameters()).device)
    return torch.stack([zero.to(zeros[0].device) for zero in zeros]).sum().reshape(1)
