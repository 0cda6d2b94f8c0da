"""QLoRA on a CPU: the adapters' gradients are those of the dequantised model, whatever ran before.

The witness is TRL's own trainer on an ordinary model whose weights are the dequantised ones. On CPUs with AVX512-BF16
the same is shown to fail without the guard.
"""

import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig

from tests.tiny import save_tiny_model
from trl_grpo_plus import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from trl_grpo_plus.errors import UserError

bnb = pytest.importorskip("bitsandbytes")
from bitsandbytes.functional import dequantize_4bit, has_avx512bf16  # noqa: E402

BFLOAT16_NOISE = 3e-2  # of a gradient's norm: 8 bits of mantissa, summed over some hundred tokens and two layers
OPTIONS = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 12,
    "gradient_checkpointing": False,
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
    "temperature": 1.0,
}
ROWS = Dataset.from_dict({"prompt": ["what is 3 + 4? think first", "abc"] * 4})


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A random Llama whose layers divide into 4-bit blocks."""
    path = tmp_path_factory.mktemp("four_bit") / "model"
    return str(save_tiny_model(path, chat=False, hidden_size=64, intermediate_size=128))


def letters(completions, **kwargs):
    return [float(sum(c in "aeiou" for c in completion)) for completion in completions]


def qlora(directory, output, trainer=GRPOTrainer, config=GRPOConfig, **options):
    built = trainer(
        directory,
        letters,
        config(str(output), **{**OPTIONS, **options}),
        ROWS,
        ROWS.select(range(2)),
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        ),
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )
    torch.manual_seed(1)
    for name, parameter in built.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return built


def dequantised(directory, output, quantised):
    """TRL's trainer of an ordinary model with the weights and adapters of a quantised one."""
    args = trl.GRPOConfig(str(output), **OPTIONS, model_init_kwargs={"dtype": "bfloat16"})
    lora = LoraConfig(r=4, target_modules="all-linear")
    plain = trl.GRPOTrainer(directory, letters, args, ROWS, peft_config=lora)
    ours = dict(quantised.model.named_parameters())
    with torch.no_grad():
        for name, parameter in plain.model.named_parameters():
            source = ours[name]
            state = getattr(source, "quant_state", None)
            values = source if state is None else dequantize_4bit(source.data.clone(), state)
            parameter.data = values.to(torch.bfloat16).clone()
    return plain


def gradients(trainer, inputs, model=None):
    model = (model or trainer.model).train()
    model.zero_grad()
    trainer.current_gradient_accumulation_steps = 1
    trainer._compute_loss(model, inputs).backward()
    return {name: p.grad.float().clone() for name, p in model.named_parameters() if p.grad is not None}


def rollout(trainer):
    torch.manual_seed(2)
    trainer.model.train()
    batch = next(iter(trainer.get_train_dataloader()))
    inputs = trainer._prepare_inputs(batch)
    rewards = torch.tensor([1.0, -1.0, 0.5, -0.5])
    return {**inputs, "advantages": rewards}


def differences(ours, theirs):
    assert ours.keys() == theirs.keys() and ours
    return {name: float((ours[name] - theirs[name]).norm() / theirs[name].norm()) for name in ours}


@pytest.mark.parametrize("share_prompt", [True, False])
def test_adapters_get_the_gradients_of_the_dequantised_model(directory, tmp_path, share_prompt):
    trainer = qlora(directory, tmp_path / "ours", share_prompt=share_prompt)
    plain = dequantised(directory, tmp_path / "plain", trainer)
    inputs = rollout(trainer)
    truth = gradients(plain, inputs)
    assert all("lora_" in name for name in truth)
    worst = {"at first": max(differences(gradients(trainer, inputs), truth).values())}
    again = rollout(trainer)  # generates, in training mode
    assert again["completion_ids"].shape[0] == 4
    worst["after generation"] = max(differences(gradients(trainer, inputs), truth).values())
    trainer.evaluate()
    worst["after evaluation"] = max(differences(gradients(trainer, inputs), truth).values())
    trainer.model.eval()
    with torch.no_grad():
        trainer.model(input_ids=inputs["prompt_ids"])
        trainer.model.generate(inputs["prompt_ids"], max_new_tokens=2)
    worst["after eval() and generate()"] = max(differences(gradients(trainer, inputs), truth).values())
    assert max(worst.values()) < BFLOAT16_NOISE, worst


@pytest.mark.skipif(not has_avx512bf16(), reason="bitsandbytes repacks 4-bit weights on CPUs with AVX512-BF16 only")
def test_without_the_guard_gradients_are_lost(directory, tmp_path, monkeypatch):
    monkeypatch.setattr("trl_grpo_plus.trainer.keep_trainable", lambda model: 0)
    trainer = qlora(directory, tmp_path / "ours")
    plain = dequantised(directory, tmp_path / "plain", trainer)
    inputs = rollout(trainer)
    truth = gradients(plain, inputs)
    trainer.evaluate()
    assert max(differences(gradients(trainer, inputs), truth).values()) > 10 * BFLOAT16_NOISE


@pytest.mark.parametrize("trainer, config", [(GRPOTrainer, GRPOConfig), (PPOTrainer, PPOConfig)])
def test_a_model_that_was_repacked_before_is_refused(directory, tmp_path, trainer, config):
    built = qlora(directory, tmp_path / "first")
    for module in built.model.modules():
        if isinstance(module, bnb.nn.Linear4bit):
            module.weight.quant_state.packing_format_for_cpu = True  # as an evaluation elsewhere leaves it
    with pytest.raises(UserError, match="load the model anew"):
        trainer(built.model, letters, config(str(tmp_path / "second"), **OPTIONS), ROWS)


def test_every_layer_is_guarded_with_nothing_switched_on(directory, tmp_path):
    switches = ("share_prompt", "trim_padding", "skip_zero_advantage", "prefill_once", "drop_finished")
    trainer = qlora(directory, tmp_path / "off", **dict.fromkeys(switches, False))
    layers = [module for module in trainer.model.modules() if isinstance(module, bnb.nn.Linear4bit)]
    assert len(layers) == 14 and not any(layer.support_avx512bf16_for_cpu for layer in layers)
