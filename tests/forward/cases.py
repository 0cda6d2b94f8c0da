"""Tiny random models of many architectures, micro-batches, and TRL's own path as the witness."""

import contextlib
import types

import torch
import transformers
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

VOCAB = 61
_BASE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,  # attention that is far from uniform
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

# name: config class, fields. The longest sequence of `micro_batch` is 17 tokens.
MODELS = {
    "llama": ("LlamaConfig", {}),
    "llama-mha": ("LlamaConfig", {"num_key_value_heads": 4}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "gemma3": (
        "Gemma3TextConfig",
        {"sliding_window": 6, "num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
    ),
    "mistral": ("MistralConfig", {"sliding_window": 5}),
    "mistral-long-window": ("MistralConfig", {"sliding_window": 100}),
    "phi3": ("Phi3Config", {"sliding_window": None}),
    "olmo2": ("Olmo2Config", {}),
    "qwen3-moe": ("Qwen3MoeConfig", {**_MOE, "output_router_logits": False}),
    "mixtral": ("MixtralConfig", {**_MOE, "output_router_logits": False, "sliding_window": None}),
    "granite": ("GraniteConfig", {"logits_scaling": 2.0}),
    "cohere2": (
        "Cohere2Config",
        {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"], "logit_scale": 0.5},
    ),
    "glm4": ("Glm4Config", {}),
    "smollm3": ("SmolLM3Config", {}),
    "starcoder2": ("Starcoder2Config", {"sliding_window": None}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "attn_pdrop": 0.0,
                            "resid_pdrop": 0.0, "embd_pdrop": 0.0}),
}  # fmt: skip


def build(name, *, head=True, dtype=torch.float32, attn_implementation="sdpa", **changes):
    """A tiny random causal language model, with TRL's fused head unless it is to be wrapped first."""
    config_class, fields = MODELS.get(name, (name, {}))
    config = getattr(transformers, config_class)(**{**_BASE, **fields, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=dtype, attn_implementation=attn_implementation
    ).train()
    if head:
        add_fused_lm_head(model, temperature=0.7, outputs=("log_probs", "entropy"))
    return model


def micro_batch(
    P=9, C=8, prompts=(9, 5, 1), rows=((0, 8), (1, 3), (0, 2), (2, 5), (1, 0), (0, 1), (2, 8), (1, 4)), seed=0
):
    """A rectangle: for each row (prompt, completion length). Returns ids, mask and C."""
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(3, VOCAB, (n,), generator=generator) for n in prompts]
    ids = torch.zeros(len(rows), P + C, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, (prompt, length) in enumerate(rows):
        start = P - prompts[prompt]
        ids[i, start:P] = texts[prompt]
        ids[i, P : P + length] = torch.randint(3, VOCAB, (length,), generator=generator)
        mask[i, start : P + length] = 1
    return ids, mask, C


def plain(model, ids, mask, C, autocast=contextlib.nullcontext):
    """TRL's own method, not a copy of it."""
    trainer = types.SimpleNamespace(accelerator=types.SimpleNamespace(autocast=autocast))
    method = GRPOTrainer._get_per_token_logps_and_entropies.__wrapped__
    return method(trainer, model, ids, mask, C, compute_entropy=True)[:2]


def evaluate(model, run, mask, C, weights=None):
    """Values, and gradients of a random combination of log-probabilities and entropies."""
    model.zero_grad(set_to_none=True)
    logps, entropies = run()[:2]
    if weights is None:
        generator = torch.Generator().manual_seed(7)
        weights = torch.randn(2, *logps.shape, generator=generator)
    scored = mask[:, -C:]
    loss = (logps * weights[0] * scored).sum()
    if entropies is not None:
        loss = loss + (entropies * weights[1] * scored).sum()
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return logps.detach(), None if entropies is None else entropies.detach(), gradients


def assert_same(found, expected, tolerance=1e-5):
    for have, want in zip(found[:2], expected[:2], strict=True):
        torch.testing.assert_close(have, want, rtol=0, atol=tolerance)
    scale = max(g.norm() for g in expected[2].values())
    for name in expected[2].keys() | found[2].keys():
        want = expected[2].get(name)
        have = found[2].get(name)
        want = torch.zeros_like(have) if want is None else want
        have = torch.zeros_like(want) if have is None else have
        error = (have - want).norm()
        # relative to the parameter's own gradient; a gradient that is zero but for rounding, to the largest one
        assert error <= tolerance * max(want.norm(), 1e-2 * scale), f"{name}: {error} of {want.norm()}"
