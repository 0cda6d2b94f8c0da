"""The merged kernel and the copies, against one dense masked attention over the packed row."""

import pytest
import torch

from tests.forward.cases import build, micro_batch
from trl_grpo_plus.forward import NotExactError, attention, build_layout, kernels
from trl_grpo_plus.forward.packed import packed_logps_and_entropies

BATCHES = [
    {},
    {"prompts": (1,), "rows": ((0, 8), (0, 3))},
    {"prompts": (9,), "rows": ((0, 8),) * 4},
    {"C": 40, "prompts": (9, 2), "rows": ((0, 40), (1, 1), (0, 2), (1, 11), (0, 25))},
]


def dense_mask(spans, window):
    """(L, L): who sees whom, token by token."""
    L = spans.length
    mask = torch.zeros(L, L, dtype=torch.bool)
    for group in spans.groups:
        prompt = list(range(group.prompt_start, group.prompt_stop))
        start = group.start
        chains = [prompt]
        for length in group.segment_lengths:
            chains.append(prompt + list(range(start, start + length)))
            start += length
        for chain in chains:
            for i, query in enumerate(chain):
                for j, key in enumerate(chain[: i + 1]):
                    mask[query, key] |= window is None or i - j < window
    return mask


def inputs(spans, heads, kv_heads, width, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, spans.length, n, width, generator=generator).to(dtype).transpose(1, 2).requires_grad_()
        for n in (heads, kv_heads, kv_heads)
    ]


def attend(spans, window, q, k, v):
    mask = attention.SharedPromptMask(spans, window)
    return attention.attend_shared(torch.nn.Module(), q, k, v, mask, scaling=0.3)[0]


@pytest.mark.parametrize("kernel", ["merged", "copies"])
@pytest.mark.parametrize("window", [None, 1, 3, 9, 12, "one short", 1000])
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 3), (4, 1)])
def test_both_ways_equal_dense_attention(monkeypatch, batch, heads, kv_heads, window, kernel):
    spans = build_layout(*micro_batch(**batch)).chunks[0].spans
    window = spans.longest - 1 if window == "one short" else window
    q, k, v = inputs(spans, heads, kv_heads, 8)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=dense_mask(spans, window), scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    if kernel == "merged":
        assert kernels.is_supported(q, k, v)
    else:
        monkeypatch.setattr(attention, "is_supported", lambda *_: False)
    found = attend(spans, window, q, k, v)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    wanted = torch.autograd.grad((expected * weights).sum(), (q, k, v))
    for have, want in zip(torch.autograd.grad((found * weights).sum(), (q, k, v)), wanted, strict=True):
        torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)


def test_merged_gradients_by_finite_differences():
    spans = build_layout(*micro_batch(prompts=(3,), rows=((0, 3), (0, 1)))).chunks[0].spans
    q, k, v = (x.detach().double().requires_grad_() for x in inputs(spans, 2, 1, 4))
    assert torch.autograd.gradcheck(
        lambda *x: kernels.MergedAttention.apply(*x, spans, None), (q, k, v), eps=1e-5, atol=1e-4
    )


def test_far_scores_stay_finite():
    """A part of the softmax with all of the mass, and one with none."""
    spans = build_layout(*micro_batch()).chunks[0].spans
    q, k, v = (x.detach().mul(100).requires_grad_() for x in inputs(spans, 4, 2, 8))
    out = attend(spans, None, q, k, v)
    out.sum().backward()
    assert all(torch.isfinite(x).all() for x in (out, q.grad, k.grad, v.grad))


def test_value_heads_of_another_width():
    """Multi-head latent attention: the merged kernel declines, the copies serve."""
    spans = build_layout(*micro_batch()).chunks[0].spans
    q, k, v = inputs(spans, 2, 2, 8)
    v = v[..., :6]
    assert not kernels.is_supported(q, k, v)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=dense_mask(spans, None), scale=0.3
    ).transpose(1, 2)
    torch.testing.assert_close(attend(spans, None, q, k, v), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("option", [{"softcap": 50.0}, {"s_aux": 1.0}, {"is_causal": False}])
def test_other_attentions_are_not_answered(option):
    spans = build_layout(*micro_batch()).chunks[0].spans
    q, k, v = inputs(spans, 4, 2, 8)
    with pytest.raises(NotExactError):
        attention.attend_shared(torch.nn.Module(), q, k, v, attention.SharedPromptMask(spans), **option)


@pytest.mark.parametrize(
    "function",
    [lambda b, h, q, k: k >= q, lambda b, h, q, k: k == k, lambda b, h, q, k: (k <= q) & (q // 4 == k // 4)],
)
def test_other_masks_are_not_answered(function):
    with pytest.raises(NotExactError):
        attention._window(function, local_size=4)
    with pytest.raises(NotExactError):
        attention._window(function)


def test_attention_dropout_goes_through_the_copies():
    """Random draws differ, so compare the mean over many of them."""
    model = build("llama", attention_dropout=0.3)
    batch = micro_batch(prompts=(9,), rows=((0, 8), (0, 8)))
    with torch.no_grad():
        runs = torch.stack([packed_logps_and_entropies(model, *batch)[0] for _ in range(3)])
        assert (runs[0] != runs[1]).any()
        model.eval()
        assert torch.equal(*(packed_logps_and_entropies(model, *batch)[0] for _ in range(2)))


def test_a_trial_leaves_the_random_state_alone():
    kernels._trial.cache_clear()
    state = torch.get_rng_state()
    assert kernels._trial(torch.device("cpu"), torch.float32, 4, 2, 8)
    assert torch.equal(torch.get_rng_state(), state)


# Qwen2.5-7B's heads among them: its gradients in half precision are far from each other, and as far from the truth.
@pytest.mark.parametrize("shape", [(28, 4, 128), (8, 2, 32), (9, 3, 64), (16, 1, 256)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_trial_accepts_what_rounds_as_plain_attention_does(dtype, shape):
    assert kernels._trial(torch.device("cpu"), dtype, *shape)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_kernel_that_answers_wrongly_is_not_used(monkeypatch, dtype):
    kernels._trial.cache_clear()
    backward = kernels.FlashKernel.backward
    monkeypatch.setattr(kernels.FlashKernel, "backward", lambda self, *a: tuple(1.5 * g for g in backward(self, *a)))
    assert not kernels._trial(torch.device("cpu"), dtype, 4, 2, 8)
    kernels._trial.cache_clear()
