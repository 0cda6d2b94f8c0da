"""Each reason to fall back, from a model that has it."""

import copy

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, get_peft_model

from tests.forward.cases import build, micro_batch, plain
from trl_grpo_plus.forward import inspect_model, packed_logps_and_entropies

HYBRID = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
          "num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "fields", "words"),
    [
        ("Gemma2Config", {"attn_implementation": "eager"}, "caps its attention scores"),
        ("GptOssConfig", {"attn_implementation": "eager", "num_local_experts": 4}, "sinks"),
        ("MambaConfig", {"attn_implementation": "eager"}, "linear_attention"),
        ("Qwen3NextConfig", {**HYBRID, "layer_types": ["linear_attention", "full_attention"]}, "'linear_attention'"),
        ("Lfm2Config", {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8}, "'conv'"),
        ("BloomConfig", {"attn_implementation": "eager"}, "attention implementation 'eager'"),
        ("llama", {"attn_implementation": "eager"}, "attn_implementation='sdpa'"),
    ],
)
def test_reasons_from_config_and_modules(config, fields, words):
    assert words in inspect_model(build(config, head=False, **fields)).reason


def test_reasons_from_modules_alone():
    """The checks do not depend on a config that says so."""
    model = build("llama")
    assert inspect_model(model).reason is None
    model.model.layers[0].self_attn.sinks = torch.nn.Parameter(torch.zeros(4))
    assert "sinks" in inspect_model(model).reason
    model = build("llama")
    model.model.layers[0].mix = torch.nn.Conv1d(32, 32, 3)
    assert "convolution" in inspect_model(model).reason
    model = build("llama")
    model._is_stateful = True
    assert "recurrent state" in inspect_model(model).reason


def test_reasons_from_the_training_set_up():
    model = build("mixtral")
    assert inspect_model(model).reason is None
    assert "load-balancing" in inspect_model(model, aux_loss=True).reason
    assert "several devices" in inspect_model(model, sequence_parallel=True).reason
    model.config.output_router_logits = True
    assert "load-balancing" in inspect_model(model).reason
    assert "compiled" in inspect_model(torch.compile(build("llama"))).reason
    assert "DataParallel" in inspect_model(torch.nn.DataParallel(build("llama"))).reason


def test_reasons_from_adapters():
    model = get_peft_model(build("llama"), PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    assert "virtual tokens" in inspect_model(model).reason
    assert (
        "activated LoRA"
        in inspect_model(
            get_peft_model(build("llama"), LoraConfig(alora_invocation_tokens=[5], task_type="CAUSAL_LM"))
        ).reason
    )
    found = inspect_model(get_peft_model(build("llama"), LoraConfig(lora_dropout=0.1)))
    assert found.reason is None
    assert "dropout" in found.notes[0]


def test_rotary_frequencies_that_depend_on_length_limit_the_width():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    found = inspect_model(build("llama", rope_parameters=rope, max_position_embeddings=32))
    assert found.reason is None
    assert found.trim_reason is not None
    assert found.batch_reason(31) is None
    assert "beyond 31" in found.batch_reason(32)
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 20, **factors}
    found = inspect_model(build("phi3", rope_parameters=rope, original_max_position_embeddings=20))
    assert found.batch_reason(20) is None
    assert "beyond 20" in found.batch_reason(21)


def test_longrope_is_equal_within_its_width():
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 17, **factors}
    model = build("phi3", rope_parameters=rope, original_max_position_embeddings=17)
    ids, mask, C = micro_batch()
    with torch.no_grad():
        expected, found = plain(model, ids, mask, C)[0], packed_logps_and_entropies(model, ids, mask, C)[0]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_learned_positions_forbid_trimming_only():
    found = inspect_model(build("gpt2"))
    assert found.reason is None
    assert "wpe" in found.trim_reason
    assert inspect_model(build("llama")).trim_reason is None


def test_image_inputs_take_the_plain_path():
    found = inspect_model(build("llama"))
    assert found.batch_reason(10, {"pixel_values": None}) is None
    assert "pixel_values" in found.batch_reason(10, {"pixel_values": torch.zeros(1)})
    assert "token_type_ids" in found.batch_reason(10, {"token_type_ids": torch.zeros(1)})


def test_inspection_changes_nothing():
    model = build("gemma3")
    before = copy.deepcopy(model.config.to_dict())
    inspect_model(model)
    assert model.config.to_dict() == before
