"""Tiny random models with a character tokenizer, saved as ordinary model directories."""

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHARACTERS = [chr(c) for c in range(32, 127)] + ["\n"]
TAGS = ["<think>", "</think>", "<answer>", "</answer>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def tiny_tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<eos>", "<unk>", *TAGS, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"</?think>|</?answer>|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_base_tokenizer() -> PreTrainedTokenizerFast:
    """As of a published base model: its family's chat template ends an answer with a token that is not its own end."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = CHAT_TEMPLATE.replace("{{ eos_token }}", "<|im_end|>\n")
    return tokenizer


def save_tiny_model(directory: Path, chat: bool = True, seed: int = 0, base: bool = False, **sizes: int) -> Path:
    tokenizer = tiny_base_tokenizer() if base else tiny_tokenizer(chat)
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            **{"hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 512, **sizes},
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
