"""Memory modes: what each sets, that what is given wins, and that without one nothing changes."""

import copy
import json

import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import (
    AutoModelForCausalLM,
    BitsAndBytesConfig,
    GPT2Config,
    MixtralConfig,
    Qwen2Config,
)

from tests.tiny import save_tiny_model
from trl_grpo_plus import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.memory.modes import apply_mode, lora_targets, take_recipe

ROWS = Dataset.from_dict({"prompt": ["what is 3 + 4?", "abc"] * 4})
OPTIONS = {
    "per_device_train_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 6,
    "max_steps": 1,
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A random Llama whose layers divide into 4-bit blocks."""
    path = tmp_path_factory.mktemp("modes") / "model"
    return str(save_tiny_model(path, chat=False, hidden_size=64, intermediate_size=128))


def letters(completions, **kwargs):
    return [float(sum(c in "aeiou" for c in completion)) for completion in completions]


def config(output="unused", kind=GRPOConfig, **options):
    return kind(str(output), **{**OPTIONS, **options})


def applied(directory, **options):
    kwargs = {name: options.pop(name) for name in ("peft_config", "quantization_config") if name in options}
    return apply_mode(directory, config(**options), (), kwargs)


def test_each_mode_trains_and_holds_what_it_says(directory, tmp_path):
    counts = {}
    for mode in ("full", "lora", "qlora"):
        trainer = GRPOTrainer(directory, letters, config(tmp_path / mode, memory_mode=mode, beta=0.1), ROWS)
        parameters = dict(trainer.model.named_parameters())
        trained = {name: p for name, p in parameters.items() if p.requires_grad}
        counts[mode] = len(trained)
        assert (trainer.ref_model is None) == (mode != "full")  # the reference is the model without its adapter
        assert parameters[next(n for n in parameters if "embed_tokens" in n)].dtype == torch.bfloat16
        packed = [p for p in parameters.values() if p.dtype == torch.uint8]
        assert len(packed) == (14 if mode == "qlora" else 0)
        assert all(p.quant_state.nested and p.quant_state.quant_type == "nf4" for p in packed)
        trainer.train()
        assert trainer.args.gradient_checkpointing and trainer.model.is_gradient_checkpointing
        saved = json.loads((tmp_path / mode / "memory_mode.json").read_text())
        assert saved["mode"] == mode and saved["settings"]["dtype"] == "bfloat16"
        assert saved == json.loads(json.dumps(trainer.memory_choice.to_json()))
    assert counts["lora"] == counts["qlora"] == 2 * 14 and counts["full"] == len(list(trainer.model.parameters())) - 28
    assert all("lora_" in name for name in trained)


@pytest.mark.parametrize("critic", ["separate", "adapter", "shared"])
def test_ppo_takes_modes(directory, tmp_path, critic):
    args = config(tmp_path, PPOConfig, memory_mode="qlora", critic=critic, num_generations=1)
    trainer = PPOTrainer(directory, letters, args, ROWS)
    assert trainer.memory_choice.mode == "qlora" and trainer.args.gradient_checkpointing
    trainer.train()
    assert args.model_init_kwargs is None  # the caller's object is as it was


def test_without_a_mode_nothing_is_set(directory, tmp_path):
    trainer = GRPOTrainer(directory, letters, config(tmp_path), ROWS)
    stock = trl.GRPOTrainer(directory, letters, trl.GRPOConfig(str(tmp_path), **OPTIONS), ROWS)
    assert trainer.memory_choice is None and not (tmp_path / "memory_mode.json").exists()
    assert next(trainer.model.parameters()).dtype == next(stock.model.parameters()).dtype
    for name in ("gradient_checkpointing", "optim", "model_init_kwargs"):
        assert getattr(trainer.args, name) == getattr(stock.args, name)


# What is given wins


def test_a_given_setting_wins_also_where_it_is_the_default(directory):
    default = GRPOConfig.__dataclass_fields__["gradient_checkpointing"].default
    for value in (True, False, default):
        args, _, choice = applied(directory, memory_mode="lora", gradient_checkpointing=value)
        assert args.gradient_checkpointing is value and choice.given["gradient_checkpointing"] is value
    args, _, choice = applied(directory, memory_mode="lora")
    assert args.gradient_checkpointing is True and choice.settings["gradient_checkpointing"] is True


def test_an_assignment_after_construction_is_given_too(directory):
    args = config(memory_mode="full")
    args.gradient_checkpointing = False
    args.optim = "sgd"
    done, _, choice = apply_mode(directory, args, (), {})
    assert done.gradient_checkpointing is False and done.optim == "sgd"
    assert choice.given["optim"] == "sgd"


def test_copies_know_what_was_given(directory):
    args = copy.deepcopy(copy.copy(config(memory_mode="lora", gradient_checkpointing=False)))
    assert apply_mode(directory, args, (), {})[0].gradient_checkpointing is False
    words = ["--output_dir", "x", "--memory_mode", "lora", "--gradient_checkpointing", "no", "--use_cpu"]
    (parsed,) = trl.TrlParser((GRPOConfig,)).parse_args_and_config(words)  # gives every field to the constructor
    assert apply_mode(directory, parsed, (), {})[0].gradient_checkpointing is False
    assert not config().was_given("optim") and config(optim="sgd").was_given("optim")


def test_dtype_quantisation_and_adapter_of_the_user_win(directory):
    lora = LoraConfig(r=3, target_modules=["q_proj"])
    eight = BitsAndBytesConfig(load_in_8bit=True)
    args, given, choice = applied(
        directory,
        memory_mode="qlora",
        model_init_kwargs={"dtype": "float32", "revision": "main"},
        peft_config=lora,
        quantization_config=eight,
    )
    assert given["peft_config"] is lora and given["quantization_config"] is eight
    assert args.model_init_kwargs == {"dtype": "float32", "revision": "main"}
    assert choice.given["dtype"] == "float32" and choice.given["quantization_config"] == "8-bit"
    assert "dtype" not in choice.settings
    text = choice.describe()
    assert "given, and kept: dtype=float32" in text


def test_positional_arguments_are_understood(directory):
    lora = LoraConfig(r=3)
    rest = (ROWS, None, None, None, None, (None, None), None, lora)
    _, given, choice = apply_mode(directory, config(memory_mode="lora"), rest, {})
    assert given["peft_config"] is lora and given["train_dataset"] is ROWS and "peft_config" in choice.given


def test_options_of_the_adapter(directory):
    wanted = {"r": 32, "use_rslora": True, "use_dora": True, "target_modules": ["q_proj", "v_proj"]}
    _, given, choice = applied(directory, memory_mode="lora", memory_mode_kwargs=wanted)
    lora = given["peft_config"]
    assert lora.r == 32 and lora.use_rslora and lora.use_dora and lora.target_modules == {"q_proj", "v_proj"}
    assert choice.given["lora.r"] == 32 and choice.settings["lora.lora_alpha"] == 16 * 2
    _, given, _ = applied(directory, memory_mode="lora", memory_mode_kwargs="{r: 2}")  # as on a command line
    assert given["peft_config"].r == 2
    with pytest.raises(UserError, match="no option `rank`"):
        applied(directory, memory_mode="lora", memory_mode_kwargs={"rank": 3})


def test_a_loaded_model_stays_as_it_is(directory):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    _, given, choice = apply_mode(model, config(memory_mode="lora"), (), {})
    assert given["peft_config"].target_modules == set(lora_targets(directory)) and choice.given["model"].endswith("32")
    with pytest.raises(UserError, match="is loaded already"):
        apply_mode(model, config(memory_mode="qlora"), (), {})


# Recipes


def recipe_of(tmp_path, directory, **keys):
    import yaml

    from trl_grpo_plus.recipe import load_recipe

    base = {"model_name_or_path": directory, "prompts": "arithmetic", "rewards": ["exact_match"], **OPTIONS}
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({**base, **keys}))
    return load_recipe(file, ["--output_dir", str(tmp_path / "out")])


def test_recipes_say_what_is_given(directory, tmp_path):
    recipe = recipe_of(
        tmp_path, directory, memory_mode="qlora", lora_r=5, use_dora=True, lora_target_modules="q_proj", optim="sgd"
    )
    args = recipe.args
    args.model_init_kwargs = {"dtype": recipe.model.dtype, "revision": "main"}  # as the command does
    take_recipe(args, recipe.keys)
    done, given, choice = apply_mode(directory, args, (), {"peft_config": None, "quantization_config": None})
    assert done.model_init_kwargs["dtype"] == "bfloat16" and done.model_init_kwargs["revision"] == "main"
    lora = given["peft_config"]
    assert (lora.r, lora.use_dora, lora.target_modules) == (5, True, {"q_proj"})
    assert done.optim == "sgd" and done.gradient_checkpointing is True
    assert choice.settings["gradient_checkpointing"] is True and choice.given["optim"] == "sgd"


def test_a_dtype_in_the_recipe_wins(directory, tmp_path):
    recipe = recipe_of(tmp_path, directory, memory_mode="full", dtype="float32", gradient_checkpointing=True)
    args = recipe.args
    args.model_init_kwargs = {"dtype": recipe.model.dtype}
    take_recipe(args, recipe.keys)
    done, _, choice = apply_mode(directory, args, (), {})
    assert done.model_init_kwargs["dtype"] == "float32" and "gradient_checkpointing" in choice.given


# What cannot be


def test_unknown_modes_and_options_are_refused(directory):
    with pytest.raises(UserError, match="one of full, lora, qlora, auto, found 'tiny'"):
        config(memory_mode="tiny")
    _, _, choice = applied(directory, memory_mode="qlora", optim="paged_adamw_8bit")
    assert "without paging" in choice.describe()


@pytest.mark.parametrize("how", ["mode", "argument", "init kwargs", "model"])
def test_quantised_weights_and_vllm_are_refused(directory, tmp_path, how):
    four = BitsAndBytesConfig(load_in_4bit=True)
    args = config(tmp_path, memory_mode="qlora" if how == "mode" else None)
    args.use_vllm = True
    model, kwargs = directory, {}
    if how == "argument":
        kwargs["quantization_config"] = four
    if how == "init kwargs":
        args.model_init_kwargs = {"quantization_config": four}
    if how == "model":
        model = AutoModelForCausalLM.from_pretrained(directory, quantization_config=four)
    with pytest.raises(UserError, match="vLLM"):
        GRPOTrainer(model, letters, args, ROWS, **kwargs)


def test_activation_offloading_needs_a_device(directory, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="this run is on the CPU"):
        GRPOTrainer(directory, letters, config(tmp_path, activation_offloading=True), ROWS)
    kept, restored = [], []

    def pack(tensor):
        kept.append(tensor)
        return len(kept) - 1

    def unpack(index):
        restored.append(index)
        return kept[index]

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
    monkeypatch.setattr("trl_grpo_plus.memory.offload.activation_offloading", lambda model, device: hooks)
    trainer = GRPOTrainer(directory, letters, config(tmp_path, activation_offloading=True), ROWS)
    trainer.train()
    assert kept and restored  # the forward went out through the context, and the backward came back


# Targets


def test_targets_are_those_of_the_architecture(directory):
    llama = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert lora_targets(directory) == llama
    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50}
    with torch.device("meta"):
        qwen = AutoModelForCausalLM.from_config(Qwen2Config(**small, intermediate_size=64, num_key_value_heads=2))
        gpt2 = AutoModelForCausalLM.from_config(GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=50))
        mixtral = AutoModelForCausalLM.from_config(
            MixtralConfig(**small, intermediate_size=64, num_key_value_heads=2, num_local_experts=2)
        )
    assert lora_targets(qwen) == llama
    assert lora_targets(gpt2) == ["c_attn", "c_fc", "c_proj"]
    assert not {"gate", "router", "lm_head"} & set(lora_targets(mixtral))
    assert {"q_proj", "v_proj"} <= set(lora_targets(mixtral))
    with pytest.raises(UserError, match="no linear layers"):
        lora_targets(torch.nn.Sequential(torch.nn.LayerNorm(3)))
