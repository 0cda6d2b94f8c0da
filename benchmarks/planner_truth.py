"""What a planned run really holds: settings drawn at random, and our trainers really training them on the CPU.

The measured side shares nothing with the planner: a `GRPOTrainer` or `PPOTrainer` is built from a model directory and
trains; the tensors that live when an optimizer step begins are found by Python's garbage collector, and what comes and
goes from then on is torch.profiler's memory events.
"""

import dataclasses
import gc
import json
import os
import random
import shutil
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import torch
import transformers
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.profiler import record_function
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BitsAndBytesConfig,
    PreTrainedTokenizerFast,
    PrinterCallback,
    TrainerCallback,
)

from trl_grpo_plus import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from trl_grpo_plus.memory.geometry import Geometry, read_config
from trl_grpo_plus.memory.setting import Setting

# Heads x width = hidden, except where `head_dim` says otherwise. Small vocabularies let the layers be the peak: on a
# CPU, TRL's head works in tiles that are 32,768 words wide.
GEOMETRIES = {
    "llama-2k": ("LlamaConfig", {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 6,
                                 "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 2048}),
    "qwen2-2k": ("Qwen2Config", {"hidden_size": 320, "intermediate_size": 1216, "num_hidden_layers": 4,
                                 "num_attention_heads": 5, "num_key_value_heads": 1, "vocab_size": 2048,
                                 "tie_word_embeddings": True}),
    "qwen3-2k": ("Qwen3Config", {"hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 5,
                                 "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
                                 "vocab_size": 2048, "tie_word_embeddings": True}),
    "gemma3-2k": ("Gemma3TextConfig", {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6,
                                       "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64,
                                       "vocab_size": 2048, "sliding_window": 512}),
    "llama-32k": ("LlamaConfig", {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4,
                                  "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 32000,
                                  "tie_word_embeddings": True}),
    "qwen2-48k": ("Qwen2Config", {"hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 8,
                                  "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 49152}),
}  # fmt: skip


def model_config(name: str):
    kind, fields = GEOMETRIES[name]
    return getattr(transformers, kind)(
        **fields, max_position_embeddings=2048, pad_token_id=0, bos_token_id=1, eos_token_id=2
    )


def geometry(name: str) -> Geometry:
    return read_config(model_config(name).to_dict(), name)


def draw(rng: random.Random) -> Setting:
    """Returns a setting from all that the planner knows about."""
    mode = rng.choice(["full", "full", "lora", "lora", "qlora"])
    algorithm = rng.choice(["grpo", "grpo", "ppo"])
    autocast = mode == "qlora" or rng.random() < 0.5
    dtype = "bfloat16" if mode == "qlora" or (autocast and rng.random() < 0.6) else "float32"
    options = {
        "geometry": geometry(rng.choice(sorted(GEOMETRIES))), "algorithm": algorithm, "mode": mode, "dtype": dtype,
        "autocast": autocast, "gradient_checkpointing": rng.random() < 0.5,
        "prompt": rng.choice([24, 48, 96, 160]), "completion": rng.choice([16, 32, 64, 96]),
        "group": rng.choice([2, 4, 8]) if algorithm == "grpo" else 1, "batch": rng.choice([2, 4, 8]),
        "share_prompt": rng.random() < 0.6, "padding": rng.random() < 0.5, "reference": rng.random() < 0.5,
        "iterations": rng.choice([1, 1, 2]), "lora_rank": rng.choice([4, 16]), "device": "cpu",
    }  # fmt: skip
    if algorithm == "ppo":
        options["critic"] = rng.choice(["separate", "adapter", "shared"])
        options["reward_model"] = rng.random() < 0.3
        options["frozen_critic_copy"] = options["critic"] == "separate" and rng.random() < 0.3
        options["accumulation"] = rng.choice([1, 2])
    else:
        options["accumulation"] = None
        if options["share_prompt"] and rng.random() < 0.25:
            options["max_tokens_per_forward"] = options["prompt"] + 2 * options["completion"] + 2
    setting = Setting(**options)
    if algorithm == "grpo" and setting.steps == 1 and rng.random() < 0.4:
        setting = setting.but(accumulation=2)
    return setting


def word_tokenizer(size: int) -> PreTrainedTokenizerFast:
    words = ["<pad>", "<bos>", "<eos>", "<unk>", *(f"t{i}" for i in range(4, size))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left"
    )


def save_model(name: str, directory: Path) -> Path:
    """Writes a model of random weights, and a reward model of its shape."""
    config = model_config(name)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    word_tokenizer(config.vocab_size).save_pretrained(directory)
    config.num_labels = 1
    AutoModelForSequenceClassification.from_config(config).save_pretrained(directory / "reward")
    word_tokenizer(config.vocab_size).save_pretrained(directory / "reward")
    return directory


def reward(completion_ids, **kwargs):
    """Differs between all rows of a group, and never lies on its mean."""
    return [float(i * i % 17) + 0.01 * i for i in range(len(completion_ids))]


def tensors() -> list[torch.Tensor]:
    """Returns the tensors that are alive on the CPU."""
    gc.collect()
    found = (item for item in gc.get_objects() if isinstance(item, torch.Tensor))
    return [item for item in found if item.device.type == "cpu" and not item.is_meta]


class Watch(TrainerCallback):
    """Reads the peak of the steps that the second rollout serves, by phase, in bytes."""

    def __init__(self, first_step: int, others: list[torch.Tensor]):
        self.first_step = first_step
        self.others = others  # what was there before the trainer was, kept so that no identity is given twice
        self.profiler = None
        self.phases: dict[str, int] = {}

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step != self.first_step:
            return
        storages, others = {}, {id(item) for item in self.others}
        for item in tensors():
            if id(item) not in others:
                storage = item.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        self.before = sum(storages.values())
        self.profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        self.profiler.__enter__()

    def on_train_end(self, args, state, control, **kwargs):
        self.profiler.__exit__(None, None, None)
        events = sorted(self.profiler.profiler.kineto_results.events(), key=lambda e: e.start_ns())
        spans = [
            (e.start_ns(), e.start_ns() + e.duration_ns(), e.name()) for e in events if e.name().startswith("at ")
        ]
        live = self.before
        for event in events:
            if event.name() == "[memory]":
                live += event.nbytes()
                inside = [name for start, stop, name in spans if start <= event.start_ns() <= stop]
                for name in [*inside, "all"]:
                    self.phases[name] = max(self.phases.get(name, 0), live)


def named(owner, attribute: str, name) -> None:
    """Lets the profiler know when a method runs."""
    function = getattr(owner, attribute)

    def wrapped(*args, **kwargs):
        with record_function("at " + (name if isinstance(name, str) else name())):
            return function(*args, **kwargs)

    setattr(owner, attribute, wrapped)


def training(setting: Setting) -> dict:
    """Returns what all trainers are configured with."""
    return {
        "gradient_checkpointing": setting.gradient_checkpointing,
        "bf16": setting.autocast,
        "model_init_kwargs": {"dtype": setting.dtype},
        "learning_rate": 1e-5,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
    }


def adapters(setting: Setting, task: str = "CAUSAL_LM") -> dict:
    """Returns a trainer's arguments for a setting's mode."""
    quantization = lora = None
    if setting.mode == "qlora":
        quantization = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )  # fmt: skip
    if setting.mode != "full":
        lora = LoraConfig(r=setting.lora_rank, target_modules="all-linear", task_type=task)
    return {"peft_config": lora, "quantization_config": quantization}


def build_trainer(setting: Setting, model: Path, output_dir: Path):
    ppo = setting.ppo
    config, base = (PPOConfig, PPOTrainer) if ppo else (GRPOConfig, GRPOTrainer)
    options = {}
    if ppo:
        options = {
            "critic": setting.critic, "frozen_critic_copy": setting.frozen_critic_copy,
            "critic_lora_r": setting.lora_rank, "kl_coef": 0.05 if setting.reference else 0.0,
            "num_ppo_epochs": setting.iterations,
        }  # fmt: skip
    else:
        options = {
            "beta": 0.04 if setting.reference else 0.0, "num_iterations": setting.iterations,
            "max_tokens_per_forward": setting.max_tokens_per_forward,
        }  # fmt: skip
    args = config(
        output_dir=str(output_dir),
        per_device_train_batch_size=setting.batch,
        gradient_accumulation_steps=setting.steps,
        num_generations=setting.group,
        max_completion_length=setting.completion,
        generation_kwargs={"min_new_tokens": setting.completion},
        max_steps=2 * setting.iterations,
        share_prompt="auto" if setting.share_prompt else "false",
        **training(setting),
        **options,
    )

    class Trainer(base):
        """Cuts some completions by a token where lengths are to differ; says where it is."""

        def _generate_single_turn(self, *given, **named):
            with record_function("at rollout"):
                ids, *others = super()._generate_single_turn(*given, **named)
            if setting.padding:
                ids = [row[: len(row) - (i % 4 == 1)] for i, row in enumerate(ids)]
            return ids, *others

        def _calculate_rewards(self, *given, **named):
            with record_function("at reward"):
                return super()._calculate_rewards(*given, **named)

        def _get_per_token_logps_and_entropies(self, *given, **named):
            with record_function("at forward" if torch.is_grad_enabled() else "at logprobs"):
                return super()._get_per_token_logps_and_entropies(*given, **named)

    if ppo:

        def values(self, *given, **named):
            with record_function("at critic" if torch.is_grad_enabled() else "at critic_values"):
                return base._values(self, *given, **named)

        Trainer._values = values

    tokenizer_size = setting.geometry.vocab
    rng = random.Random(0)
    rows = []
    for i in range(64):
        tokens = setting.prompt - (setting.padding and i % 8 == 7)
        rows.append({"prompt": " ".join(f"t{rng.randrange(4, tokenizer_size)}" for _ in range(tokens))})
    given = {"reward_model": str(model / "reward")} if setting.reward_model else {}
    tokenizer = word_tokenizer(setting.geometry.vocab)
    others = tensors()
    trainer = Trainer(
        str(model),
        [reward],
        args,
        Dataset.from_list(rows),
        processing_class=tokenizer,
        reward_processing_classes=[tokenizer] * (1 + setting.reward_model),
        **adapters(setting),
        **given,
    )
    trainer.remove_callback(PrinterCallback)
    watch = Watch(setting.iterations, others)
    trainer.add_callback(watch)
    named(trainer.accelerator, "backward", "backward")
    create = trainer.create_optimizer

    def create_optimizer(*a, **k):
        optimizer = create(*a, **k)
        named(optimizer, "step", "optimizer")
        return optimizer

    trainer.create_optimizer = create_optimizer
    return trainer, watch


def measure(setting: Setting, scratch: Path) -> dict[str, int]:
    """Returns the peak of tensor bytes in each part of a step, and in `all` of it."""
    model = scratch / setting.geometry.name
    if not model.exists():
        save_model(setting.geometry.name, model)
    trainer, watch = build_trainer(setting, model, scratch / "out")
    trainer.train()
    shutil.rmtree(scratch / "out", ignore_errors=True)
    return watch.phases


def describe(setting: Setting) -> dict:
    plain = {f.name: f.default for f in dataclasses.fields(Setting)}
    return {k: v for k, v in setting.to_dict().items() if v != plain.get(k)}


if __name__ == "__main__":
    import argparse
    import sys
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    from trl_grpo_plus._quiet import quiet

    quiet()
    with tempfile.TemporaryDirectory() as directory:
        for seed in given.seeds:
            drawn = draw(random.Random(seed))
            found = measure(drawn, Path(directory))
            print(json.dumps({"seed": seed, "setting": describe(drawn), "measured": found}), flush=True)
    sys.exit(0)
