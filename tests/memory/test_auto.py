"""`memory_mode="auto"`: what it takes the run for, what it chooses on devices of several sizes, and that it trains."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from trl_grpo_plus import GRPOConfig, GRPOTrainer, PPOConfig
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.memory import auto
from trl_grpo_plus.memory.auto import choose_mode, describe
from trl_grpo_plus.memory.geometry import load_geometry

GIB = 2**30
ROWS = Dataset.from_dict({"prompt": ["abc", "what is 3 + 4?", "x"] * 4})
MODELS = ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b")


class OnCuda(GRPOConfig):
    """A configuration that takes itself to be on a GPU."""

    @property
    def device(self):
        super().device  # noqa: B018
        return torch.device("cuda")


def config(kind=GRPOConfig, **options):
    fixed = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 8}
    shared = {"use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True, "save_strategy": "no"}
    return kind("unused", **{**fixed, **shared, "memory_mode": "auto", **options})


def on(gib, monkeypatch, model, kind=OnCuda, **options):
    monkeypatch.setattr(auto, "free_bytes", lambda args: int(gib * GIB))
    args = config(kind, **{"per_device_train_batch_size": 8, "num_generations": 8, "bf16": True,
                           "max_completion_length": 1024, **options})  # fmt: skip
    return choose_mode(model, args, {})


@pytest.mark.parametrize("model", MODELS)
def test_the_mode_is_the_first_that_fits(model, monkeypatch):
    """Bounds by hand: bfloat16 weights, gradients and AdamW are 8 bytes a parameter, LoRA 2, QLoRA half a byte."""
    billions = load_geometry(model).parameters / 1e9
    order = ("full", "lora", "qlora")
    before = len(order)
    for gib in (8, 16, 24, 48, 80):
        try:
            mode, split, reasons = on(gib, monkeypatch, model)
        except UserError:
            assert gib * GIB < 0.7e9 * billions + 6 * GIB
            continue
        assert order.index(mode) <= before, "more memory never trains less"
        before = order.index(mode)
        room = gib * GIB / 1e9
        if mode == "full":
            assert 8 * billions < room
        if 8 * billions + 20 < room:
            assert mode == "full"
        if mode == "lora":
            assert 2 * billions < room
        assert f"auto: {mode} with a micro-batch of" in reasons[-1]
        assert all(f"auto: {skipped} needs" in text for skipped, text in zip(order, reasons[1:-1], strict=False))


def test_a_known_case(monkeypatch):
    assert on(80, monkeypatch, "qwen2.5-0.5b")[0] == "full"
    assert on(24, monkeypatch, "qwen2.5-7b")[0] == "lora"
    small = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
    assert on(12, monkeypatch, "qwen2.5-7b", **small)[0] == "qlora"
    with pytest.raises(UserError, match="not even qlora"):
        on(3, monkeypatch, "qwen2.5-7b")


def test_the_micro_batch_grows_and_the_product_stays(monkeypatch):
    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 64}
    mode, split, _ = on(80, monkeypatch, "qwen2.5-0.5b", **options)
    batch, steps = split["per_device_train_batch_size"], split["gradient_accumulation_steps"]
    assert batch > 1 and batch * steps == 64 and split["steps_per_generation"] == steps
    _, less, _ = on(10, monkeypatch, "qwen2.5-0.5b", **options)
    assert less.get("per_device_train_batch_size", 1) < batch


def test_a_run_is_described_as_it_is(tiny_model):
    args = config(
        beta=0.1, num_iterations=2, memory_mode_kwargs={"r": 5}, gradient_accumulation_steps=3, share_prompt=False,
        gradient_checkpointing=False, optim="adamw_8bit", model_init_kwargs={"dtype": "float32"}, num_generations=2,
    )  # fmt: skip
    setting, notes = describe(tiny_model, args, {"train_dataset": ROWS})
    assert (setting.algorithm, setting.batch, setting.accumulation, setting.group) == ("grpo", 4, 3, 2)
    assert (setting.dtype, setting.autocast, setting.completion, setting.iterations) == ("float32", False, 8, 2)
    assert (setting.reference, setting.lora_rank, setting.share_prompt) == (True, 5, False)
    assert (setting.gradient_checkpointing, setting.optimizer, setting.device) == (False, "adamw_8bit", "cpu")
    assert setting.prompt == len("what is 3 + 4?") and "up to 14 tokens" in notes[0]
    setting, notes = describe("qwen2.5-0.5b", config(), {})
    assert setting.prompt == 512 and "not known" in notes[0] and setting.gradient_checkpointing
    setting, _ = describe(tiny_model, config(PPOConfig, critic="shared", num_generations=1), {})
    assert (setting.algorithm, setting.critic, setting.reference, setting.iterations) == ("ppo", "shared", True, 4)


def test_what_is_fixed_narrows_the_modes(tiny_model, monkeypatch):
    monkeypatch.setattr(auto, "free_bytes", lambda args: 80 * GIB)
    four = BitsAndBytesConfig(load_in_4bit=True)
    assert choose_mode(tiny_model, config(), {})[0] == "full"
    assert choose_mode(tiny_model, config(), {"peft_config": LoraConfig(r=2)})[0] == "lora"
    assert choose_mode(tiny_model, config(memory_mode_kwargs={"r": 2}), {})[0] == "lora"
    assert choose_mode(tiny_model, config(), {"quantization_config": four})[0] == "qlora"
    monkeypatch.setattr(auto, "free_bytes", lambda args: 1000)
    loaded = AutoModelForCausalLM.from_pretrained(tiny_model)
    with pytest.raises(UserError, match="not even lora"):
        choose_mode(loaded, config(), {})


def test_it_trains_with_what_it_chose_and_says_why(tiny_model, tmp_path):
    def letters(completions, **kwargs):
        return [float(sum(c in "aeiou" for c in completion)) for completion in completions]

    args = config(per_device_train_batch_size=2, gradient_accumulation_steps=4, max_steps=1)
    args.output_dir = str(tmp_path)
    trainer = GRPOTrainer(tiny_model, letters, args, ROWS)
    assert trainer.memory_choice.mode == "full" and trainer.memory_choice.asked == "auto"
    assert trainer.args.per_device_train_batch_size == 8 and trainer.args.gradient_accumulation_steps == 1
    assert trainer.args.steps_per_generation == 1 and trainer.args.generation_batch_size == 8
    assert args.per_device_train_batch_size == 2  # the caller's object is as it was
    text = trainer.memory_choice.describe()
    assert "memory mode full (memory_mode=auto)" in text and "full with a micro-batch of 8 x 1 needs" in text
    trainer.train()
    assert trainer.state.global_step == 1
