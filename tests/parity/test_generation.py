"""Our generation against `model.generate`, which is what TRL calls: greedy token for token, sampled in distribution.

The reference pads, generates and cuts by its own code, with every copy of a prompt prefilled and every row kept.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch
import transformers
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, GenerationConfig

from trl_grpo_plus.rollouts import generate_groups, why_not, why_not_prefill_once

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


# Greedy: token for token


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


# Sampled


@pytest.mark.parametrize("geometry", ["llama", "gemma3"])
@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.2}]
)
def test_same_seed_same_samples_while_no_row_leaves(geometry, fields):
    model = build(geometry)
    sampled = config_like_trl(**fields)
    torch.manual_seed(3)
    expected = reference(model, PROMPT_IDS, sampled)
    assert len(set(map(tuple, expected))) > 3, "the test needs copies that differ"
    torch.manual_seed(3)
    assert ours(model, PROMPT_IDS, sampled, drop_finished=False)[0] == expected


def test_a_seed_reproduces_the_samples():
    model = build()
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        runs.append(ours(model, PROMPT_IDS * 4, config_like_trl()))
    assert runs[0] == runs[1] and runs[0] != runs[2]
    assert runs[0][1].decode_tokens < runs[0][1].stock_decode_tokens


TINY, TINY_EOS = 6, [2]
WARPS = [
    {},
    {"temperature": 0.6},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"temperature": 1.4, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
]


def warp(logits: list[float], fields: dict) -> list[float]:
    """Probabilities after temperature, top-k, top-p and min-p, from their definitions."""
    exps = [math.exp(x / fields.get("temperature", 1.0)) for x in logits]
    order = sorted(range(len(exps)), key=lambda i: -exps[i])
    if fields.get("top_k"):
        exps = [e if i in order[: fields["top_k"]] else 0.0 for i, e in enumerate(exps)]
    if "top_p" in fields:  # the smallest set whose mass reaches top_p
        kept, mass = set(), 0.0
        for i in order:
            if mass < fields["top_p"]:
                kept.add(i)
            mass += exps[i] / sum(exps)
        exps = [e if i in kept else 0.0 for i, e in enumerate(exps)]
    if "min_p" in fields:
        exps = [e if e >= fields["min_p"] * max(exps) else 0.0 for e in exps]
    return [e / sum(exps) for e in exps]


def enumerate_completions(model, prompt: list[int], new_tokens: int, fields: dict) -> dict[tuple[int, ...], float]:
    """Exact probability of every completion, by running each prefix alone, without cache and without padding."""
    probabilities = {}

    def extend(completion: tuple[int, ...], probability: float) -> None:
        if completion and (completion[-1] in TINY_EOS or len(completion) == new_tokens):
            probabilities[completion] = probability
            return
        with torch.no_grad():
            logits = model(torch.tensor([prompt + list(completion)]), use_cache=False).logits[0, -1]
        for token, p in enumerate(warp(logits.double().tolist(), fields)):
            if p > 0:
                extend((*completion, token), probability * p)

    extend((), 1.0)
    return probabilities


def chi_square_p(statistic: float, degrees: int) -> float:
    return float(torch.special.gammaincc(torch.tensor(degrees / 2.0).double(), torch.tensor(statistic / 2.0).double()))


def goodness_of_fit(counts: Counter, probabilities: dict) -> float:
    """P-value; outcomes expected fewer than 5 times are put together."""
    assert set(counts) <= set(probabilities), "an outcome that has probability 0"
    total = sum(counts.values())
    cells, rest = [], [0.0, 0.0]
    for outcome, p in probabilities.items():
        if p * total >= 5:
            cells.append((counts[outcome], p * total))
        else:
            rest = [rest[0] + counts[outcome], rest[1] + p * total]
    cells += [tuple(rest)] if rest[1] >= 5 else []
    return chi_square_p(sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1)


def tiny(seed: int = 0):
    return build("llama", seed=seed, vocab_size=TINY, initializer_range=0.13)


TINY_PROMPTS = [[3, 4, 5, 3, 1], [5, 1]]


@pytest.mark.parametrize("fields", WARPS, ids=str)
def test_samples_follow_the_exact_probabilities(fields):
    model = tiny()
    torch.manual_seed(0)
    prompt_ids = TINY_PROMPTS * 8000  # copies interleaved, padding in half of the rows
    completions, _ = ours(
        model, prompt_ids, config_like_trl(max_new_tokens=3, eos_token_id=TINY_EOS, **fields), TINY_EOS
    )
    for which, prompt in enumerate(TINY_PROMPTS):
        counts = Counter(map(tuple, completions[which::2]))
        assert goodness_of_fit(counts, enumerate_completions(model, prompt, 3, fields)) > 1e-3
        # The test has power: a slightly different temperature is noticed.
        other = {**fields, "temperature": 1.25 * fields.get("temperature", 1.0)}
        wrong = enumerate_completions(model, prompt, 3, other)
        if set(counts) <= set(wrong):
            assert goodness_of_fit(counts, wrong) < 1e-4


def test_copies_are_independent():
    """First tokens of two copies of a prompt are distributed as the product."""
    model = tiny()
    torch.manual_seed(0)
    prompt = TINY_PROMPTS[0]
    completions, _ = ours(model, [prompt] * 8000, config_like_trl(max_new_tokens=1, eos_token_id=TINY_EOS), TINY_EOS)
    single = enumerate_completions(model, prompt, 1, {})
    pairs = {(a, b): p * q for (a, p), (b, q) in itertools.product(single.items(), repeat=2)}
    tokens = list(map(tuple, completions))
    counts = Counter(zip(tokens[:4000], tokens[4000:], strict=True))
    assert goodness_of_fit(counts, pairs) > 1e-3


def test_long_samples_are_distributed_as_those_of_generate():
    """Lengths and last tokens of completions of up to 40 tokens, while rows are dropped all the time."""
    model = tiny()
    sampled = config_like_trl(max_new_tokens=40, eos_token_id=TINY_EOS, temperature=1.3)
    prompt_ids = TINY_PROMPTS * 1500
    torch.manual_seed(0)
    completions, stats = ours(model, prompt_ids, sampled, TINY_EOS)
    torch.manual_seed(1)
    stock = reference(model, prompt_ids, sampled, TINY_EOS)
    assert stats.decode_tokens < 0.6 * stats.stock_decode_tokens
    for which in range(2):
        samples = [Counter((len(c), c[-1], c[len(c) // 2]) for c in side[which::2]) for side in (completions, stock)]
        pooled = samples[0] + samples[1]
        common = [outcome for outcome, n in pooled.items() if n >= 20]
        table = [[side[o] for o in common] + [1500 - sum(side[o] for o in common)] for side in samples]
        statistic = sum((a - b) ** 2 / (a + b) for a, b in zip(*table, strict=True))
        assert len(common) > 20
        assert chi_square_p(statistic, len(common)) > 1e-3


# Dropout, memory, fall-backs


def test_active_dropout_is_not_shared():
    lora = LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.3, init_lora_weights=False)
    model = get_peft_model(build(), lora).train()
    assert "lora_dropout" in why_not_prefill_once(model)
    completions, stats = ours(model, PROMPT_IDS, config_like_trl())
    assert len(completions) == 9 and stats.prefill_tokens == stats.stock_prefill_tokens
    with pytest.raises(ValueError, match="dropout is active"):
        ours(model, PROMPT_IDS, config_like_trl(), prefill_once=True)
    model.eval()
    assert why_not_prefill_once(model) is None
    assert "attention_dropout" in why_not_prefill_once(build(attention_dropout=0.1))
    assert "resid_pdrop" in why_not_prefill_once(build("gpt2")) or "drop" in why_not_prefill_once(build("gpt2"))


def test_prefill_of_every_row():
    model = build()
    greedy = config_like_trl(do_sample=False)
    completions, stats = ours(model, PROMPT_IDS, greedy, prefill_once=False)
    assert completions == reference(model, PROMPT_IDS, greedy)
    assert stats.prefill_tokens == stats.stock_prefill_tokens


def test_the_cache_of_finished_rows_is_released(monkeypatch):
    """Elements of the cache after each rebuild: bounded by the rows that are alive, not by those that started."""
    from trl_grpo_plus.rollouts import decoding

    sizes = []

    def rebuild(cache, rows, room):
        decoding_rebuild(cache, rows, room)
        layer = cache.layers[0]
        sizes.append((rows.numel(), layer.keys.untyped_storage().nbytes() // layer.keys[0, :, 0].nbytes))

    decoding_rebuild = decoding.rebuild
    monkeypatch.setattr(decoding, "rebuild", rebuild)
    torch.manual_seed(0)
    ours(build(), PROMPT_IDS * 8, config_like_trl(max_new_tokens=48))
    rows, columns = zip(*sizes, strict=True)
    assert rows[-1] < rows[0] / 4
    for r, c in sizes:
        assert c <= r * (9 + 48)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"num_beams": 2}, "num_beams"),
        ({"num_return_sequences": 2}, "num_return_sequences"),
        ({"stop_strings": ["x"]}, "stop_strings"),
        ({"cache_implementation": "static"}, "static"),
        ({"cache_implementation": "offloaded"}, "offloaded"),
        ({"guidance_scale": 1.5}, "guidance_scale"),
        ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
        ({"penalty_alpha": 0.6}, "penalty_alpha"),
        ({"dola_layers": "low"}, "dola_layers"),
        ({"prefill_chunk_size": 4}, "prefill_chunk_size"),
        ({"use_cache": False}, "use_cache"),
        ({"token_healing": True}, "token_healing"),
        ({"watermarking_config": {"bias": 2.0}}, "watermarking_config"),
        ({"encoder_repetition_penalty": 1.2}, "encoder_repetition_penalty"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_generation_options_that_are_left_to_generate(fields, reason):
    model = build()
    assert reason in why_not(model, config_like_trl(**fields))
    with pytest.raises(ValueError, match=reason):
        ours(model, PROMPT_IDS, config_like_trl(**fields))


def test_options_of_the_model_count():
    model = build()
    model.generation_config.guidance_scale = 2.0
    assert "guidance_scale" in why_not(model, config_like_trl())
    assert why_not(model, config_like_trl(guidance_scale=1.0)) is None


@pytest.mark.parametrize(
    ("name", "extra", "reason"),
    [
        ("MambaConfig", {"state_size": 4}, "MambaForCausalLM"),
        ("T5Config", {"d_model": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8, "d_ff": 16}, "decoder-only"),
        ("BloomConfig", {"n_layer": 1, "n_head": 2}, "BloomForCausalLM"),
        ("Qwen3NextConfig", {"layer_types": ["linear_attention", "full_attention"], **MOE}, "state"),
        ("LlamaConfig", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ],
)
def test_models_that_are_left_to_generate(name, extra, reason):
    config = getattr(transformers, name)(**{**SIZES, **extra})
    auto = transformers.AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    assert reason in why_not(auto.from_config(config), config_like_trl())


def test_a_replaced_generate_is_called(monkeypatch):
    model, wrapped = build(), get_peft_model(build(), LoraConfig(target_modules="all-linear"))
    assert why_not(model, config_like_trl()) is None and why_not(wrapped, config_like_trl()) is None
    for replaced in (model, wrapped, wrapped.get_base_model()):
        with monkeypatch.context() as patch:
            patch.setattr(replaced, "generate", lambda **kwargs: None)
            whole = wrapped if replaced is not model else model
            assert "generate" in why_not(whole, config_like_trl())
    with monkeypatch.context() as patch:
        patch.setattr(transformers.GenerationMixin, "generate", lambda self, **kwargs: None)
        assert "generate" in why_not(model, config_like_trl())


def test_adapters_that_are_left_to_generate():
    prompt_tuning = get_peft_model(build(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    assert "PROMPT_TUNING" in why_not(prompt_tuning, config_like_trl())
    activated = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], alora_invocation_tokens=[5])
    assert "activated LoRA" in why_not(get_peft_model(build(), activated), config_like_trl())


def test_an_unknown_processor_keeps_all_rows(monkeypatch):
    """A processor that was not read may hold something by row: finished rows then stay, as in `generate`."""

    class Stateful(transformers.LogitsProcessor):
        def __call__(self, input_ids, scores):
            self.rows = getattr(self, "rows", scores.shape[0])
            assert scores.shape[0] == self.rows
            return scores

    model = build()
    original = model._get_logits_processor

    def with_stateful(*args, **kwargs):
        return transformers.LogitsProcessorList([*original(*args, **kwargs), Stateful()])

    monkeypatch.setattr(model, "_get_logits_processor", with_stateful)
    greedy = config_like_trl(do_sample=False)
    completions, stats = ours(model, PROMPT_IDS, greedy)
    assert completions == reference(model, PROMPT_IDS, greedy)
    assert stats.decode_tokens == stats.stock_decode_tokens


@pytest.mark.parametrize("chunk", [0, -1, "often"])
def test_chunk_is_checked(chunk):
    with pytest.raises(ValueError, match="chunk"):
        ours(build(), PROMPT_IDS, config_like_trl(), chunk=chunk)


def test_every_field_of_the_generation_config_was_read():
    """A field that a new transformers adds must be looked at: until then, a value in it means falling back."""
    from trl_grpo_plus.rollouts.support import _ANY_VALUE, _NO_EFFECT

    refused = {"stop_strings", "prefill_chunk_size", "prompt_lookup_num_tokens", "assistant_early_exit", "dola_layers"}
    refused |= {"constraints", "force_words_ids", "watermarking_config", "speculation_type"}
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert fields <= set(_ANY_VALUE) | set(_NO_EFFECT) | refused
