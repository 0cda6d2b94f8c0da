"""Models, prompts and the reference of the tests of generation.

The reference pads, generates and cuts by its own code, with every copy of a prompt prefilled and every row kept.
"""

from __future__ import annotations

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

from trl_grpo_plus.rollouts import generate_groups

PAD, VOCAB = 0, 48
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.4,
    "tie_word_embeddings": False,  # tied, a random model repeats its last token
}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
WINDOW = 6  # shorter than the prompts and than the completions
GEOMETRIES = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen3": ("Qwen3Config", {}),
    "qwen3_moe": ("Qwen3MoeConfig", MOE),
    "mixtral": ("MixtralConfig", MOE),
    "mistral_sliding": ("MistralConfig", {"sliding_window": WINDOW}),
    "gemma3": (
        "Gemma3TextConfig",
        {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8},
    ),
    "qwen2_sliding": (
        "Qwen2Config",
        {"sliding_window": WINDOW, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    "gpt_oss": ("GptOssConfig", {**MOE, "sliding_window": WINDOW}),
    "phi3": ("Phi3Config", {}),
    "olmo2": ("Olmo2Config", {}),
    "granite": ("GraniteConfig", {}),
    "cohere2": ("Cohere2Config", {"sliding_window": WINDOW}),
    "smollm3": ("SmolLM3Config", {}),
    "gpt2": ("GPT2Config", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}),
}
# Three lengths, one of a single token; copies that do not stand together.
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [20, 21, 22, 23], [30]]
PROMPT_IDS = [PROMPTS[i] for i in (0, 0, 1, 2, 1, 0, 2, 2, 1)]
EOS = [2, 3, 11, 17, 29, 41]


def build(geometry: str = "llama", seed: int = 0, **overrides):
    name, extra = GEOMETRIES[geometry]
    config = getattr(transformers, name)(**{**SIZES, **extra, **overrides})
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).train()


def config_like_trl(**overrides) -> GenerationConfig:
    fields = {
        "max_new_tokens": 24,
        "do_sample": True,
        "pad_token_id": PAD,
        "bos_token_id": 1,
        "eos_token_id": EOS,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": None,
        "repetition_penalty": 1.0,
        "cache_implementation": None,
    }
    return GenerationConfig(**{**fields, **overrides}, disable_compile=True)


def reference(model, prompt_ids, generation_config, eos=EOS, width=None):
    """What TRL does, row by row."""
    width = width or max(map(len, prompt_ids))
    ids = torch.full((len(prompt_ids), width), PAD)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompt_ids):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    with torch.no_grad():
        output = model.generate(input_ids=ids, attention_mask=mask, generation_config=generation_config)
    completions = []
    for row in output[:, width:].tolist():
        ends = [i + 1 for i, token in enumerate(row) if token in eos]
        completions.append(row[: ends[0]] if ends else row)
    return completions


def ours(model, prompt_ids, generation_config, eos=EOS, **options):
    return generate_groups(
        model, prompt_ids, generation_config, pad_token_id=PAD, eos_token_ids=eos, device="cpu", **options
    )
