"""With nothing switched on, our trainer is TRL's: the documented example with one import changed, bit for bit."""

import functools
import textwrap

import pytest
import trl
from datasets import Dataset
from trl.rewards import think_format_reward

import trl_grpo_plus
from trl_grpo_plus.config import SWITCHES

# TRL's documented GRPO example, with a local model and dataset in place of those from the Hub, and sizes for a test.
EXAMPLE = textwrap.dedent(
    """
    from {package} import GRPOConfig, GRPOTrainer
    from trl.rewards import think_format_reward

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[think_format_reward, letters],
        args=GRPOConfig(output_dir=output_dir, max_steps=4, **options),
        train_dataset=dataset,
    )
    trainer.train()
    """
)
OPTIONS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 8,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "save_strategy": "no",
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
}
OFF = dict.fromkeys(SWITCHES, False)  # what saves work draws other random numbers, or rounds in another order
TIMES = {"train_runtime", "train_samples_per_second", "train_steps_per_second", "step_time", "total_flos"}


def letters(completions, **kwargs):
    """A reward that differs between random completions."""
    return [float(sum(c in "aeiou" for c in completion[0]["content"])) for completion in completions]


def dataset():
    problems = ["1+1", "12+7", "what is 3 times 4?", "9-4"]
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": p}] for p in problems]})


def logs(trainer):
    return [{k: v for k, v in log.items() if k not in TIMES} for log in trainer.state.log_history]


def run_example(package, model, output_dir, options):
    names = {"model": model, "letters": letters, "dataset": dataset(), "output_dir": output_dir, "options": options}
    exec(EXAMPLE.format(package=package), names)  # the text of the documentation, run as a user would
    return names["trainer"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beta": 0.04},
        {"num_iterations": 2, "loss_type": "grpo", "scale_rewards": "none"},
        {"steps_per_generation": 4, "importance_sampling_level": "sequence", "loss_type": "dr_grpo"},
    ],
    ids=["default", "beta", "iterations", "off_policy"],
)
def test_changing_only_the_import_gives_the_same_loss_log(tiny_model, tmp_path, options):
    options = {**OPTIONS, **options}
    theirs = run_example("trl", tiny_model, str(tmp_path / "a"), options)
    ours = run_example("trl_grpo_plus", tiny_model, str(tmp_path / "b"), {**options, **OFF})
    assert type(ours) is trl_grpo_plus.GRPOTrainer and type(theirs) is trl.GRPOTrainer
    assert any(log.get("grad_norm", 0) > 0 for log in logs(theirs)), "the run must train"
    assert logs(ours) == logs(theirs)
    for (name, a), (_, b) in zip(theirs.model.named_parameters(), ours.model.named_parameters(), strict=True):
        assert a.equal(b), name


def test_a_plain_trl_config_is_accepted(tiny_model, tmp_path):
    args = trl.GRPOConfig(str(tmp_path), max_steps=1, **OPTIONS)
    trainer = trl_grpo_plus.GRPOTrainer(tiny_model, letters, args, dataset())
    trainer.train()
    assert trainer.state.global_step == 1


def test_arguments_are_taken_by_position_and_the_default_config_is_ours(tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the default output directory is relative
    on_a_cpu = functools.partial(trl_grpo_plus.GRPOConfig, use_cpu=True, bf16=False)  # TRL's default needs a GPU
    monkeypatch.setattr("trl_grpo_plus.trainer.GRPOConfig", on_a_cpu)
    trainer = trl_grpo_plus.GRPOTrainer(tiny_model, think_format_reward, None, dataset())
    assert type(trainer.args) is trl_grpo_plus.GRPOConfig
    assert trainer.args.output_dir == "model-GRPO"


def test_class_level_defaults_serve_trainers_built_without_init():
    bare = object.__new__(trl_grpo_plus.GRPOTrainer)
    added = set(vars(trl_grpo_plus.GRPOTrainer)) - set(vars(trl.GRPOTrainer))
    for name in added:
        if not name.startswith("__"):
            getattr(bare, name)
    assert bare.verifiers == ()
