"""Attention over a packed row without copying a prompt's keys and values to its completions.

A completion token attends to its prompt and to its own segment. The two parts are computed apart and merged by their
log-sum-exp:

    lse = logaddexp(lse_prompt, lse_own),    out = out_prompt * exp(lse_prompt - lse) + out_own * exp(lse_own - lse)

All G segments of a prompt are then one long query against its keys, without a mask, and the segments' own parts are
one batch of plain causal attention. The backward of FlashAttention (arXiv 2307.08691, algorithm 2) needs the output
and the log-sum-exp of the whole softmax only, p_ij = exp(s_ij - lse_i): handing it the merged ones gives each part's
share of the gradients. What is kept for the backward is q, k, v, out and lse of the row, as for one plain call.

PyTorch exposes the log-sum-exp in its `_scaled_dot_product_flash_attention*` operators only, whose signatures may
change. `is_supported` therefore tries the operators on a small example, gradients included, once for each kind of
input; where they do not answer as expected the caller uses `scaled_dot_product_attention` on copies instead.

Names: L packed tokens, H query heads, K key/value heads, D head width, n rows and S columns of a bucket.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .layout import Bucket, Group, Spans

_aten: Any = torch.ops.aten


class FlashKernel:
    """PyTorch's flash attention operator of one device type: forward with log-sum-exp, and backward.

    Tensors are (batch, heads, tokens, width), the log-sum-exp (batch, heads, tokens) in float32. Key/value heads may
    be fewer than query heads.
    """

    def __init__(self, device_type: str) -> None:
        self.on_cuda = device_type == "cuda"
        self.random_state: tuple[Any, ...] = ()  # an argument of the CUDA backward, not read without dropout

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        operator = (
            _aten._scaled_dot_product_flash_attention
            if self.on_cuda
            else _aten._scaled_dot_product_flash_attention_for_cpu
        )
        out, lse, *rest = operator(q, k, v, 0.0, causal, scale=scale)
        self.random_state = tuple(rest[4:6])
        return out, lse

    def backward(
        self,
        grad: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        causal: bool,
        scale: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        inputs = (grad, q, k, v, out, lse.contiguous())
        if not self.on_cuda:
            dq, dk, dv = _aten._scaled_dot_product_flash_attention_for_cpu_backward(*inputs, 0.0, causal, scale=scale)
            return dq, dk, dv
        lengths = (None, None, q.size(2), k.size(2))  # dense inputs have no cumulative lengths
        dq, dk, dv = _aten._scaled_dot_product_flash_attention_backward(
            *inputs, *lengths, 0.0, causal, *self.random_state, scale=scale
        )
        return dq, dk, dv


class MergedAttention(torch.autograd.Function):
    """Shared-prompt causal attention: (1, H, L, D), (1, K, L, D), (1, K, L, D) -> (1, L, H, D)."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Spans, scale: float | None
    ) -> torch.Tensor:
        kernel = FlashKernel(q.device.type)
        out_LHD = q.new_empty(q.size(2), q.size(1), q.size(3))
        precise = torch.promote_types(q.dtype, torch.float32)
        lse_HL = q.new_empty(q.size(1), q.size(2), dtype=precise)

        for group in spans.groups:
            if group.prompt_stop > group.prompt_start:
                block = slice(group.prompt_start, group.prompt_stop)
                out, lse = kernel.forward(q[:, :, block], k[:, :, block], v[:, :, block], True, scale)
                out_LHD[block], lse_HL[:, block] = out[0].transpose(0, 1), lse[0]

        for bucket in spans.buckets:
            own_q, own_k, own_v = (_take(x[0].transpose(0, 1), bucket) for x in (q, k, v))
            out, lse = kernel.forward(own_q, own_k, own_v, True, scale)
            _put(out_LHD, out, bucket)
            _put(lse_HL.t(), lse, bucket)

        for group in spans.groups:
            if group.prompt_stop > group.prompt_start:
                block, own = slice(group.prompt_start, group.prompt_stop), slice(group.start, group.stop)
                out, lse = kernel.forward(q[:, :, own], k[:, :, block], v[:, :, block], False, scale)
                own_weight = torch.sigmoid(lse_HL[:, own] - lse[0]).t().unsqueeze(-1)  # exp(lse_own - lse)
                prompt_part, own_part = out[0].transpose(0, 1).to(precise), out_LHD[own].to(precise)
                out_LHD[own] = torch.lerp(prompt_part, own_part, own_weight).to(q.dtype)
                lse_HL[:, own] = torch.logaddexp(lse_HL[:, own], lse[0])

        ctx.save_for_backward(q, k, v, out_LHD, lse_HL)
        ctx.spans, ctx.scale, ctx.kernel = spans, scale, kernel
        return out_LHD.unsqueeze(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out_LHD, lse_HL = ctx.saved_tensors
        spans, scale, kernel = ctx.spans, ctx.scale, ctx.kernel
        out, grad, lse = out_LHD.unsqueeze(0).transpose(1, 2), grad.transpose(1, 2), lse_HL.unsqueeze(0)
        dq_LHD, dk_LKD, dv_LKD = (x.new_empty(x.size(2), x.size(1), x.size(3)) for x in (q, k, v))

        for bucket in spans.buckets:
            inputs = [_take(x[0].transpose(0, 1), bucket) for x in (grad, q, k, v, out)]
            lse_nHS = _take(lse_HL.t(), bucket)
            if bucket.real is not None:
                # exp(s - inf) = 0: a padded query then adds nothing to any gradient.
                padding = torch.ones(bucket.rows * bucket.length, dtype=torch.bool, device=q.device)
                padding[bucket.real] = False
                lse_nHS = lse_nHS.masked_fill(padding.view(bucket.rows, 1, bucket.length), torch.inf)
            for total, part in zip(
                (dq_LHD, dk_LKD, dv_LKD), kernel.backward(*inputs, lse_nHS, True, scale), strict=True
            ):
                _put(total, part, bucket)

        for group in spans.groups:
            if group.prompt_stop == group.prompt_start:
                continue
            block, own = slice(group.prompt_start, group.prompt_stop), slice(group.start, group.stop)
            prompt = (k[:, :, block], v[:, :, block])
            dq, dk, dv = kernel.backward(
                grad[:, :, block], q[:, :, block], *prompt, out[:, :, block], lse[:, :, block], True, scale
            )
            dq_own, dk_own, dv_own = kernel.backward(
                grad[:, :, own], q[:, :, own], *prompt, out[:, :, own], lse[:, :, own], False, scale
            )
            dq_LHD[block] = dq[0].transpose(0, 1)
            dq_LHD[own] += dq_own[0].transpose(0, 1)
            dk_LKD[block] = (dk + dk_own)[0].transpose(0, 1)
            dv_LKD[block] = (dv + dv_own)[0].transpose(0, 1)
        dq, dk, dv = (x.unsqueeze(0).transpose(1, 2) for x in (dq_LHD, dk_LKD, dv_LKD))
        return dq, dk, dv, None, None


def _take(x_LH: torch.Tensor, bucket: Bucket) -> torch.Tensor:
    """Segments of a bucket as a batch: (L, heads, ...) -> (n, heads, S, ...)."""
    if bucket.gather is None:
        rows = x_LH[bucket.start : bucket.start + bucket.rows * bucket.length]
    else:
        rows = x_LH.index_select(0, bucket.gather)
    return rows.view(bucket.rows, bucket.length, *x_LH.shape[1:]).transpose(1, 2)


def _put(x_LH: torch.Tensor, part_nHS: torch.Tensor, bucket: Bucket) -> None:
    """Write a batch back to its tokens, padding left out: the inverse of `_take`."""
    rows = part_nHS.transpose(1, 2).flatten(0, 1).to(x_LH.dtype)
    if bucket.real is None or bucket.place is None:
        x_LH[bucket.start : bucket.start + bucket.rows * bucket.length] = rows
    else:
        x_LH[bucket.place] = rows[bucket.real]


def is_supported(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether `MergedAttention` can run on such inputs, by a small trial."""
    if q.size(-1) != v.size(-1) or not q.dtype == k.dtype == v.dtype:
        return False
    if q.device.type == "cuda":
        if q.dtype not in (torch.bfloat16, torch.float16) or q.size(-1) % 8:
            return False
    elif q.device.type != "cpu":
        return False
    return _trial(q.device, q.dtype, q.size(1), k.size(1), q.size(3))


@functools.cache
def _trial(device: torch.device, dtype: torch.dtype, H: int, K: int, D: int) -> bool:
    """Compare `MergedAttention` and its gradients with plain attention on two segments after a prompt of three."""
    P = 3
    gather = torch.tensor([3, 4, 4, 4, 5, 6, 7, 8], device=device)
    real = torch.tensor([0, 1, 4, 5, 6, 7], device=device)
    spans = Spans(9, (Group(0, P, P, 9, (2, 4)),), (Bucket(2, 4, P, gather, real, gather[real]),), 7)

    def wave(heads: int, frequency: float) -> torch.Tensor:  # the global random state is not touched
        x = torch.sin(torch.arange(heads * 9 * D, device=device, dtype=torch.float32) * frequency)
        return x.view(1, 9, heads, D).transpose(1, 2).to(dtype).requires_grad_()

    try:
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            torch.autocast(device.type, enabled=False),
            # Hides the hooks of a gradient checkpoint around the call: it would count these tensors as its own.
            torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
        ):
            inputs = [wave(H, 1.3), wave(K, 0.7), wave(K, 2.1)]
            mask = torch.tensor(
                [[i >= j and (j < P or i < 5 or j >= 5) for j in range(9)] for i in range(9)], device=device
            )
            weight = wave(H, 0.37).detach()

            def plain(q: torch.Tensor, *kv: torch.Tensor) -> list[torch.Tensor]:
                k, v = (x.repeat_interleave(H // K, dim=1) for x in kv)
                out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
                return [out.detach(), *torch.autograd.grad((out * weight.to(out)).sum(), (q, *kv))]

            exact = plain(*(x.detach().float().requires_grad_() for x in inputs))
            rounded = plain(*inputs)
            merged: torch.Tensor = MergedAttention.apply(*inputs, spans, None)  # type: ignore[no-untyped-call]
            merged = merged.transpose(1, 2)
            found = [merged.detach(), *torch.autograd.grad((merged * weight).sum(), inputs)]
        # No further from the truth than plain attention in this precision is, up to a factor; by the norm, since
        # single small entries of a gradient are all rounding in half precision.
        return all(
            float((mine.float() - truth).norm())
            <= 3 * float((theirs.float() - truth).norm()) + 1e-4 * float(truth.norm())
            for mine, theirs, truth in zip(found, rounded, exact, strict=True)
        )
    except (RuntimeError, AttributeError, TypeError, ValueError, IndexError):
        return False
