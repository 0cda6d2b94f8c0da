"""What the tests of PPO share: a data set, rewards, options, and a trainer of the tiny model."""

import torch
from datasets import Dataset
from transformers import PrinterCallback

from trl_grpo_plus import PPOConfig, PPOTrainer

OPTIONS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_ppo_epochs": 2,
    "max_completion_length": 8,
    "learning_rate": 1e-3,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
    "bf16": False,
}
TIMES = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "step_time", "total_flos")


def dataset(rows=24):
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": "q" * (i % 5 + 1)}] for i in range(rows)]})


def letters(completions, **kwargs):
    """A reward that differs between random completions."""
    return [float(sum(c in "aeiou" for c in completion[0]["content"])) for completion in completions]


def make_trainer(model, output_dir, rewards=letters, data=None, trainer=PPOTrainer, config=PPOConfig, **options):
    given = {
        name: options.pop(name)
        for name in ("peft_config", "quantization_config", "reward_model", "rollout_func")
        if name in options
    }
    options = {name: value for name, value in {**OPTIONS, **options}.items() if value is not None}
    args = config(str(output_dir), **options)
    built = trainer(model, rewards, args, data or dataset(), **given)
    built.remove_callback(PrinterCallback)
    return built


def losses(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


def logs(trainer):
    """All logs without times."""
    return [{k: v for k, v in log.items() if k not in TIMES} for log in trainer.state.log_history]


def snapshot(named):
    return {name: p.detach().clone() for name, p in named}


def moved(before, named):
    """Names of the parameters that changed."""
    return {name for name, p in named if not torch.equal(before[name], p)}
