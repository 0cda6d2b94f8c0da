"""Where generation is left to `model.generate`, and what the cache of finished rows costs."""

from __future__ import annotations

import pytest
import torch
import transformers
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, GenerationConfig

from tests.parity.generation_cases import MOE, PROMPT_IDS, SIZES, build, config_like_trl, ours, reference
from trl_grpo_plus.rollouts import why_not, why_not_prefill_once


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
