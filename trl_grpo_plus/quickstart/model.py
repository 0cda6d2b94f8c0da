"""A tiny chat model from a seed: a character tokenizer with a chat template and a small Llama, nothing downloaded.

Stage: before the pipeline. In: a seed and sizes. Out: a directory like any other model's (`config.json`, safetensors,
`tokenizer.json`), which `AutoModelForCausalLM`, `AutoTokenizer` and every trainer load by its path. (A Qwen2 would not
do: for that model type transformers 5 replaces whatever tokenizer was saved with its own byte-level one.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

ALPHABET = "0123456789+-*=,()easy"
# Not "special": `skip_special_tokens=True` must leave them in, or no reward would ever see a tag.
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
PAD, EOS, USER, ASSISTANT, UNKNOWN = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|unknown|>"
# The prompt with its generation prompt is a prefix of the whole conversation, as SFT and multi-turn training need.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% else %}<|user|>{{ message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer(alphabet: str = ALPHABET) -> Any:
    """Returns a tokenizer with one token per character of `alphabet` and per tag, padding on the left.

    Args:
        alphabet: Characters with a token of their own; all others become the unknown token.
    """
    words = [PAD, EOS, USER, ASSISTANT, UNKNOWN, *TAGS, *dict.fromkeys(alphabet)]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"(?m)."), behavior="isolated")
    backend.decoder = decoders.Fuse()
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    backend.add_special_tokens([AddedToken(t, special=True) for t in (PAD, EOS, USER, ASSISTANT, UNKNOWN)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=512,
    )


def tiny_model(
    tokenizer: Any, *, seed: int = 0, hidden_size: int = 96, layers: int = 2, heads: int = 4, intermediate: int = 256
) -> Any:
    """Returns a randomly initialised float32 Llama with tied embeddings for `tokenizer`.

    Args:
        tokenizer: Gives the vocabulary size and the pad and end tokens.
        seed: Fixes the weights; the global random state is left as it was.
        hidden_size: Width, a multiple of twice `heads`.
        layers: Number of decoder layers.
        heads: Attention heads, each with its own keys and values.
        intermediate: Width of the feed-forward layers.
    """
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},  # short texts: no slow rotations needed
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
    # Sample from the plain distribution, as the trainer's log-probabilities assume.
    model.generation_config.update(pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id)
    return model


def save_tiny_model(directory: str | Path, *, seed: int = 0, alphabet: str = ALPHABET, **sizes: int) -> Path:
    """Writes the untrained model and its tokenizer to `directory` and returns it.

    Args:
        directory: Created where missing.
        seed: Fixes the weights.
        alphabet: See `tiny_tokenizer`.
        **sizes: `hidden_size`, `layers`, `heads`, `intermediate`, see `tiny_model`.
    """
    tokenizer = tiny_tokenizer(alphabet)
    tiny_model(tokenizer, seed=seed, **sizes).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return Path(directory)
