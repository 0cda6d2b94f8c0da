"""Our generation against `model.generate`, which is what TRL calls: greedily, token for token."""

from __future__ import annotations

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.parity.generation_cases import (
    EOS,
    GEOMETRIES,
    PAD,
    PROMPT_IDS,
    PROMPTS,
    VOCAB,
    build,
    config_like_trl,
    ours,
    reference,
)


@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_greedy_equals_generate(geometry):
    model = build(geometry)
    if geometry == "gpt2":
        model.eval()  # its dropout is on by default, see the tests on dropout
    greedy = config_like_trl(do_sample=False)
    expected = reference(model, PROMPT_IDS, greedy)
    assert len({len(c) for c in expected}) > 1, "the test needs rows that end at different times"
    for chunk in ("auto", 1, 5):
        completions, stats = ours(model, PROMPT_IDS, greedy, chunk=chunk)
        assert completions == expected
        assert stats.prefill_tokens == 3 * 9 and stats.stock_prefill_tokens == 9 * 9
        assert stats.decode_tokens < stats.stock_decode_tokens == 9 * (max(map(len, expected)) - 1)
    with_padding, _ = ours(model, PROMPT_IDS, greedy, pad_to_multiple_of=8)
    assert with_padding == reference(model, PROMPT_IDS, greedy, width=16)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("geometry", ["llama", "gemma3", "mistral_sliding"])
def test_greedy_past_the_first_room(geometry, attention):
    """Up to 150 new tokens: the cache is made longer twice and windows slide far."""
    model = build(geometry)
    model.set_attn_implementation(attention)
    greedy = config_like_trl(do_sample=False, max_new_tokens=150, min_new_tokens=130)
    expected = reference(model, PROMPT_IDS, greedy)
    assert len(set(map(tuple, expected))) == 3 and len(set(expected[0])) > 10, "the test needs varied completions"
    assert ours(model, PROMPT_IDS, greedy)[0] == expected


@pytest.mark.parametrize(
    "fields",
    [
        {"repetition_penalty": 1.7},
        {"min_new_tokens": 9},
        {"min_length": 22},
        {"suppress_tokens": [4, 5, 6, 7, 8]},
        {"begin_suppress_tokens": list(range(20, VOCAB))},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[33], [28, 30]]},
        {"sequence_bias": [[[9], 3.0], [[20, 21], -4.0]]},
        {"exponential_decay_length_penalty": (4, 1.3)},
        {"forced_eos_token_id": 2},
        {"forced_bos_token_id": 7},
        {"renormalize_logits": True, "remove_invalid_values": True},
        {"eos_token_id": 2},
        {"eos_token_id": None},
        {"max_new_tokens": 1},
        {"max_new_tokens": None, "max_length": 20},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_greedy_with_each_option(fields):
    model = build()
    greedy = config_like_trl(**{"do_sample": False, **fields})
    expected = reference(model, PROMPT_IDS, greedy)
    assert ours(model, PROMPT_IDS, greedy)[0] == expected
    assert ours(model, PROMPT_IDS, greedy, chunk=3)[0] == expected
    without_effect_here = {"renormalize_logits", "forced_eos_token_id", "forced_bos_token_id", "eos_token_id"}
    if not without_effect_here & set(fields):
        assert expected != reference(model, PROMPT_IDS, config_like_trl(do_sample=False))


@pytest.mark.parametrize(("generate_eos", "trl_eos"), [([2, 3], EOS), (EOS, [2, 3])])
def test_trl_and_generate_know_different_eos(generate_eos, trl_eos):
    """`generation_kwargs` may change where `generate` stops; TRL cuts at its own list, and keeps padding otherwise."""
    model = build()
    greedy = config_like_trl(do_sample=False, eos_token_id=generate_eos, max_new_tokens=80)
    expected = reference(model, PROMPT_IDS, greedy, eos=trl_eos)
    for options in ({}, {"drop_finished": False}, {"chunk": 50}):
        assert ours(model, PROMPT_IDS, greedy, eos=trl_eos, **options)[0] == expected


def test_model_generation_config_is_merged():
    model = build()
    model.generation_config.repetition_penalty = 1.7
    greedy = config_like_trl(do_sample=False, repetition_penalty=None)
    assert ours(model, PROMPT_IDS, greedy)[0] == reference(model, PROMPT_IDS, greedy)


def test_no_prompt_repeats():
    model = build()
    greedy = config_like_trl(do_sample=False)
    completions, stats = ours(model, PROMPTS, greedy)
    assert completions == reference(model, PROMPTS, greedy)
    assert stats.prefill_tokens == stats.stock_prefill_tokens


def test_nothing_to_generate():
    assert ours(build(), [], config_like_trl())[0] == []


def test_pad_token_inside_a_prompt():
    """The padding token may be a token of the prompt: [0, 5] is not [5] with padding."""
    model = build()
    greedy = config_like_trl(do_sample=False)
    prompt_ids = [[5], [PAD, 5], [5], [PAD, 5], [7, 8, 9]]
    completions, stats = ours(model, prompt_ids, greedy)
    assert completions == reference(model, prompt_ids, greedy)
    assert stats.prefill_tokens == 3 * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lora_and_gradient_checkpointing(dtype):
    torch.manual_seed(1)
    model = get_peft_model(build().to(dtype), LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    model.train()
    model.gradient_checkpointing_enable()
    model.gradient_checkpointing_disable()  # as TRL's `unwrap_model_for_generation` does around generation
    greedy = config_like_trl(do_sample=False)
    expected = reference(model, PROMPT_IDS, greedy)
    assert ours(model, PROMPT_IDS, greedy)[0] == expected
    assert model.training
    with model.disable_adapter():
        without = reference(model, PROMPT_IDS, greedy)
        assert ours(model, PROMPT_IDS, greedy)[0] == without
    assert without != expected


def test_qlora(tmp_path):
    build(hidden_size=64, intermediate_size=128, head_dim=16).save_pretrained(tmp_path)
    quantization = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    )
    base = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=quantization, device_map={"": "cpu"})
    model = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)).train()
    greedy = config_like_trl(do_sample=False)
    assert ours(model, PROMPT_IDS, greedy)[0] == reference(model, PROMPT_IDS, greedy)
