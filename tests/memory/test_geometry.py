"""Parameter counts against transformers' own models on the meta device; names; configs; devices."""

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.memory.devices import GIB, MIB, NO_OVERHEAD, Overhead, parse_device
from trl_grpo_plus.memory.geometry import _DEEPSEEK_V3, BUILT_IN, load_geometry, read_config


def transformers_config(geometry):
    fields = {
        "hidden_size": geometry.hidden, "num_hidden_layers": geometry.layers,
        "intermediate_size": geometry.intermediate,
        "num_attention_heads": geometry.heads, "num_key_value_heads": geometry.kv_heads, "head_dim": geometry.head_dim,
        "vocab_size": geometry.vocab, "tie_word_embeddings": geometry.tied,
    }  # fmt: skip
    if geometry.window:
        fields["sliding_window"] = geometry.window
    return AutoConfig.for_model(geometry.model_type, **fields)


def count(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return model, sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", BUILT_IN)
def test_parameters_are_those_of_the_model_in_transformers(name):
    geometry = BUILT_IN[name]
    model, parameters = count(transformers_config(geometry))
    assert geometry.parameters == parameters
    assert geometry.backbone_parameters == sum(p.numel() for p in model.base_model.parameters())
    linears = {x.name: (x.outputs, x.inputs, x.bias) for x in geometry.linears}
    layer = {n.rsplit(".", 1)[-1]: m for n, m in model.base_model.layers[0].named_modules()}
    for linear, (outputs, inputs, bias) in linears.items():
        assert layer[linear].weight.shape == (outputs, inputs) and (layer[linear].bias is not None) == bias


# What the models' cards and papers say.
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("qwen2.5-0.5b", 494_032_768), ("qwen2.5-7b", 7_615_616_512), ("llama-3-8b", 8_030_261_248),
     ("llama-3-70b", 70_553_706_496), ("smollm2-135m", 134_515_008), ("gemma-3-1b", 999_885_952)],
)  # fmt: skip
def test_parameters_are_the_published_ones(name, parameters):
    assert load_geometry(name).parameters == parameters


@pytest.mark.parametrize(
    "fields",
    [
        _DEEPSEEK_V3,
        {"model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 300, "num_local_experts": 5,
         "num_experts_per_tok": 2, "tie_word_embeddings": False},
        {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
         "head_dim": 32, "num_key_value_heads": 2, "intermediate_size": 96, "moe_intermediate_size": 48,
         "vocab_size": 300, "num_experts": 6, "num_experts_per_tok": 2, "tie_word_embeddings": True},
    ],
    ids=lambda fields: fields["model_type"],
)  # fmt: skip
def test_mixtures_of_experts_are_counted(fields):
    geometry = read_config(fields, "moe")
    others = {k: v for k, v in fields.items() if k != "model_type"}
    model, parameters = count(AutoConfig.for_model(fields["model_type"], **others))
    buffers = 0  # the router's correction bias is a buffer in transformers
    assert geometry.weights_only and geometry.parameters == parameters + buffers
    assert 0 < geometry.active_parameters < geometry.parameters


def test_deepseek_v3_has_671_billion_of_which_37_are_active():
    geometry = load_geometry("deepseek-ai/DeepSeek-V3")
    assert round(geometry.parameters / 1e9) == 671 and 36 < geometry.active_parameters / 1e9 < 38


def test_configs_and_names_lead_to_the_same_geometry(tmp_path):
    for name in ("qwen2.5-1.5b", "gemma-3-1b", "smollm2-135m", "qwen3-0.6b"):
        transformers_config(BUILT_IN[name]).save_pretrained(tmp_path / name)
        read = load_geometry(tmp_path / name)
        built_in = BUILT_IN[name]
        for field in (
            "hidden",
            "layers",
            "kv_heads",
            "head_dim",
            "tied",
            "qkv_bias",
            "qk_norm",
            "window",
            "parameters",
        ):
            assert getattr(read, field) == getattr(built_in, field), (name, field)
        assert (read.full_attention_layers or read.layers) == (built_in.full_attention_layers or built_in.layers)
    assert load_geometry("Qwen/Qwen2.5-7B-Instruct") is BUILT_IN["qwen2.5-7b"]
    assert load_geometry("meta-llama/Llama-3.1-8B-Instruct") is BUILT_IN["llama-3-8b"]
    assert load_geometry("google/gemma-3-4b-it") is BUILT_IN["gemma-3-4b"]


def test_what_cannot_be_read_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="did you mean `qwen2.5-7b`"):
        load_geometry("qwen2.5-7")
    with pytest.raises(UserError, match="could not be read from the Hub"):
        load_geometry("nobody/nothing-at-all")
    (tmp_path / "config.json").write_text("{nonsense")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        load_geometry(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserError, match="found list"):
        load_geometry(tmp_path)
    for fields, message in (({"model_type": "llama"}, "lacks a usable field"), ({"model_type": "mamba"}, "lacks")):
        (tmp_path / "config.json").write_text(json.dumps(fields))
        with pytest.raises(UserError, match=message):
            load_geometry(tmp_path)
    with pytest.raises(UserError, match="not known to the planner"):
        read_config({**_DEEPSEEK_V3, "model_type": "jamba"}, "x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("24GB", 24 * GIB), ("24", 24 * GIB), ("23028 MiB", 23028 * MIB), ("7.5gib", int(7.5 * GIB)),
     ("rtx4090", 24564 * MIB), ("NVIDIA GeForce RTX 4090", 24564 * MIB), ("4090", 24564 * MIB),
     ("A100-80GB", 81920 * MIB), ("a100_40gb", 40960 * MIB), ("T4", 15360 * MIB), ("H100", 81559 * MIB)],
)  # fmt: skip
def test_devices(text, expected):
    assert parse_device(text) == expected


@pytest.mark.parametrize("text", ["rtx9999", "", "0GB", "24TB", "-3GB"])
def test_unknown_devices_are_refused(text):
    with pytest.raises(UserError):
        parse_device(text)


def test_overhead_is_kept_apart_and_adds_up():
    overhead = Overhead()
    room = overhead.room_for_tensors(24 * GIB)
    assert 21 * GIB < room < 24 * GIB and 24 * GIB - 2 <= room + overhead.of(room) <= 24 * GIB
    assert NO_OVERHEAD.room_for_tensors(GIB) == GIB and overhead.room_for_tensors(1) == 0
