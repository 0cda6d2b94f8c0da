"""What the stages around reinforcement learning really hold: SFT, a reward model's training, rejection sampling.

As in `planner_truth`: settings drawn at random; TRL's own `SFTTrainer` and `RewardTrainer` train, and the evaluation's
generator draws, while torch.profiler counts.
"""

import random
import shutil
from pathlib import Path

import torch
from datasets import Dataset
from planner_truth import (
    GEOMETRIES,
    Watch,
    adapters,
    geometry,
    named,
    save_model,
    tensors,
    training,
    word_tokenizer,
)
from transformers import AutoModelForCausalLM, PrinterCallback, TrainerControl, TrainerState
from trl import RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from trl_grpo_plus.evaluation.sampling import Sampling, model_generator
from trl_grpo_plus.memory.setting import Setting


def draw_stage(rng: random.Random) -> Setting:
    """Returns a setting of a stage that the planner knows about."""
    algorithm = rng.choice(["sft", "sft", "reward_model", "rejection_sampling"])
    trains = algorithm != "rejection_sampling"
    mode = rng.choice(["full", "lora", "qlora"]) if trains else "full"
    autocast = trains and (mode == "qlora" or rng.random() < 0.5)
    dtype = "bfloat16" if mode == "qlora" or rng.random() < 0.5 else "float32"
    if trains and dtype == "bfloat16" and not autocast:
        dtype = "float32"
    return Setting(
        geometry=geometry(rng.choice(sorted(GEOMETRIES))),
        algorithm=algorithm,
        mode=mode,
        dtype=dtype,
        autocast=autocast,
        gradient_checkpointing=trains and rng.random() < 0.5,
        prompt=rng.choice([24, 48, 96, 160]),
        completion=rng.choice([16, 32, 64, 96]),
        group=None if trains else rng.choice([1, 2, 4]),
        batch=rng.choice([2, 4, 8]) if trains else 8,
        accumulation=rng.choice([1, 2]) if trains else None,
        padding=rng.random() < 0.5,
        lora_rank=rng.choice([4, 16]),
        device="cpu",
    )


def measure_stage(setting: Setting, scratch: Path) -> dict[str, int]:
    """Returns the peak of tensor bytes in each part of a step, and in `all` of it."""
    model = scratch / setting.geometry.name
    if not model.exists():
        save_model(setting.geometry.name, model)
    if not setting.trains:
        return _generated(setting, model)
    trainer, watch = _trainer(setting, model, scratch / "out")
    trainer.train()
    shutil.rmtree(scratch / "out", ignore_errors=True)
    return watch.phases


def _words(rng: random.Random, count: int, vocabulary: int) -> str:
    return "".join(f"t{rng.randrange(4, vocabulary)} " for _ in range(count))


def _rows(setting: Setting) -> Dataset:
    """Rows of `span` tokens with the end token, which TRL appends; of `padding`, every fourth is shorter by one."""
    rng, rows = random.Random(0), []
    for i in range(64):
        prompt = _words(rng, setting.prompt, setting.geometry.vocab)
        words = setting.completion - 1 - (setting.padding and i % 4 == 1)
        texts = [_words(rng, words, setting.geometry.vocab) for _ in range(2)]
        names = ("completion",) if setting.algorithm == "sft" else ("chosen", "rejected")
        rows.append({"prompt": prompt, **dict(zip(names, texts, strict=False))})
    return Dataset.from_list(rows)


def _trainer(setting: Setting, model: Path, output_dir: Path):
    sft = setting.algorithm == "sft"
    kind, config = (SFTTrainer, SFTConfig) if sft else (RewardTrainer, RewardConfig)
    args = config(
        output_dir=str(output_dir),
        per_device_train_batch_size=setting.batch,
        gradient_accumulation_steps=setting.steps,
        max_length=setting.span,
        max_steps=2,
        **training(setting),
    )
    others = tensors()
    trainer = kind(
        str(model if sft else model / "reward"),
        args=args,
        train_dataset=_rows(setting),
        processing_class=word_tokenizer(setting.geometry.vocab),
        **adapters(setting, "CAUSAL_LM" if sft else "SEQ_CLS"),
    )
    trainer.remove_callback(PrinterCallback)
    watch = Watch(1, others)
    trainer.add_callback(watch)
    named(trainer, "compute_loss", "forward")
    named(trainer.accelerator, "backward", "backward")
    return trainer, watch


def _generated(setting: Setting, directory: Path) -> dict[str, int]:
    """Draws with other seeds until no completion ends early."""
    others = tensors()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, setting.dtype)).eval()
    tokenizer = word_tokenizer(setting.geometry.vocab)
    rng = random.Random(0)
    prompts = []
    for i in range(-(-setting.batch // setting.rows_per_prompt)):
        tokens = setting.prompt - (setting.padding and i % 4 == 1)
        ids = [rng.randrange(4, setting.geometry.vocab) for _ in range(tokens)]
        prompts += [ids] * setting.rows_per_prompt
    generate = model_generator(
        model, tokenizer, Sampling(n=setting.rows_per_prompt, max_new_tokens=setting.completion)
    )
    for seed in range(100):
        watch = Watch(0, others)
        watch.on_step_begin(None, TrainerState(), TrainerControl())
        drawn = generate(prompts[: setting.batch], seed)
        watch.on_train_end(None, TrainerState(), TrainerControl())
        if all(truncated for _, truncated in drawn):
            return watch.phases
    raise RuntimeError("each of a hundred batches has a completion that ends early")
