"""The evaluation during a training: the numbers of `evaluate`, at every evaluation, for the best checkpoint too."""

import json
from pathlib import Path

import pytest
import torch
import trl
import yaml
from datasets import Dataset
from rich.console import Console

from tests.processes import launch
from trl_grpo_plus import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.evaluation import EvaluationCallback, Sampling, evaluate
from trl_grpo_plus.recipe import load_recipe
from trl_grpo_plus.rewards import Verdict, register
from trl_grpo_plus.train import train

ROWS = Dataset.from_list(
    [{"prompt": [{"role": "user", "content": f"{i}+{i}="}], "answer": str(2 * i)} for i in range(4)]
)


def early_letter(completion, row):
    """Right where the completion starts with a letter before n: half of what a random model says."""
    return Verdict(float(completion[:1].lower() < "n"), completion[:1] or None)


@pytest.fixture(autouse=True)
def registered(own_registry):
    register("early_letter", description="for this test", accuracy=True, runs="inline")(early_letter)


def config(path, kind=GRPOConfig, **changes):
    options = {
        "output_dir": str(path),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "disable_tqdm": True,
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "max_completion_length": 6,
        "num_generations_eval": 4,
        "learning_rate": 0.05,
        "logging_steps": 1,
        "rewards": ["early_letter"],
        "reward_workers": 1,
        **changes,
    }
    return kind(**options)


EVALUATED = {"eval_rewards": ["early_letter", {"think_format": 0.1}], "eval_k": [1, 4]}


def test_metrics_are_those_of_an_evaluation_and_choose_the_best_checkpoint(tiny_model, tmp_path):
    trainer = GRPOTrainer(
        tiny_model,
        args=config(
            tmp_path,
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="best",
            metric_for_best_model="eval_pass@1",
            **EVALUATED,
        ),
        train_dataset=ROWS,
        eval_dataset=ROWS,
    )
    state = torch.random.get_rng_state()
    before = trainer.evaluate()
    assert torch.random.get_rng_state().equal(state), "evaluating does not change the training"
    sampling = Sampling(n=4, max_new_tokens=6, batch_size=8, seed=trainer.args.seed)
    direct = evaluate(
        trainer.model,
        ROWS,
        EVALUATED["eval_rewards"],
        tokenizer=trainer.processing_class,
        sampling=sampling,
        ks=(1, 4),
    )
    for name, e in direct.metrics.items():
        if e.problems:
            assert before[f"eval_{name}"] == pytest.approx(e.value), name
    for name in ("pass@1", "pass@4", "maj@4"):
        ends = [before[f"eval_{name}/{end}"] for end in ("low", "high")]
        assert ends == pytest.approx([direct.metrics[name].low, direct.metrics[name].high])
    trainer.train()
    logs = {log["step"]: log for log in trainer.state.log_history if "eval_pass@1" in log}
    assert sorted(logs) == [1, 2, 3, 4] and "eval_maj@4" in logs[4] and "eval_loss" not in logs[4]
    steps = [logs[step]["eval_pass@1"] for step in range(1, 5)]
    assert len(set(steps)) > 1, "the policy moves"
    assert trainer.state.best_metric == max(steps)
    assert trainer.state.best_global_step == 1 + steps.index(max(steps))
    assert any("loss" in log for log in trainer.state.log_history)


def test_training_is_the_same_with_and_without(tiny_model, tmp_path):
    losses = []
    for changes in ({}, {"eval_strategy": "steps", "eval_steps": 1, **EVALUATED}):
        args = config(tmp_path, max_steps=2, save_strategy="no", **changes)
        trainer = GRPOTrainer(tiny_model, args=args, train_dataset=ROWS, eval_dataset=ROWS)
        trainer.train()
        losses.append([log["loss"] for log in trainer.state.log_history if "loss" in log])
    assert losses[0] == losses[1]


def test_ppo_and_several_datasets(tiny_model, tmp_path):
    args = config(tmp_path, PPOConfig, critic="separate", **EVALUATED)
    trainer = PPOTrainer(
        tiny_model, args=args, train_dataset=ROWS, eval_dataset={"a": ROWS, "b": ROWS.select(range(2))}
    )
    found = trainer.evaluate()
    assert {"eval_a_pass@1", "eval_b_pass@1", "eval_b_maj@4"} <= set(found)


def test_an_engine_of_the_trainers_draws_where_it_has_one(tiny_model, tmp_path, monkeypatch):
    trainer = GRPOTrainer(tiny_model, args=config(tmp_path, **EVALUATED), train_dataset=ROWS, eval_dataset=ROWS)
    asked = []

    def engine(prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        asked.append((len(prompt_ids), num_generations))
        ids = trainer.processing_class("ab")["input_ids"]
        return [[*ids, trainer.eos_token_ids[0]] if i % 2 else ids for i in range(len(prompt_ids))], None

    monkeypatch.setattr(trainer, "use_vllm", True)
    monkeypatch.setattr(trainer, "_generate_single_turn", engine)
    found = trainer.evaluate()
    assert asked == [(8, 1), (8, 1)] and found["eval_pass@1"] == 1.0
    assert found["eval_completions/clipped_ratio"] == 0.5 and found["eval_completions/mean_length"] == 2.5


def test_the_callback_gives_them_to_any_trainer(tiny_model, tmp_path):
    demonstrations = Dataset.from_dict({"text": ["a" * 8, "b" * 8] * 4})
    args = trl.SFTConfig(
        str(tmp_path),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        disable_tqdm=True,
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="eval_pass@1",
    )
    trainer = trl.SFTTrainer(tiny_model, args=args, train_dataset=demonstrations, eval_dataset=demonstrations)
    trainer.add_callback(EvaluationCallback(trainer, ROWS, ["early_letter"], Sampling(n=2, max_new_tokens=4), ks=(2,)))
    trainer.train()
    logs = [log for log in trainer.state.log_history if "eval_pass@2" in log]
    assert [log["step"] for log in logs] == [1, 2]
    assert trainer.state.best_metric == max(log["eval_pass@1"] for log in logs)


def test_a_recipe_reports_it_before_and_after(tiny_model, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"{i}+1="}) + "\n" for i in range(6)))
    keys = vars(config(tmp_path / "run", max_steps=1, **EVALUATED))
    given = {k: keys[k] for k in ("use_cpu", "bf16", "gradient_checkpointing", "max_steps", "max_completion_length")}
    given |= {"per_device_train_batch_size": 8, "num_generations_eval": 3, "eval_k": [1, 3], "report_to": "none"}
    given |= {"model_name_or_path": tiny_model, "rewards": ["early_letter"], "eval_rewards": ["early_letter"]}
    given |= {"prompts": str(tmp_path / "rows.jsonl"), "eval_prompts": str(tmp_path / "rows.jsonl")}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump({**given, "output_dir": str(tmp_path / "run")}))
    summary = train(load_recipe(tmp_path / "r.yaml"), Console(width=200))
    text = capsys.readouterr().out
    assert "6 of 6 held-out problems stand in the training data (6 the same, 0 nearly)" in text
    assert summary["before"]["pass@3"] >= summary["before"]["pass@1"] and "maj@3/low" in summary["after"]
    assert "│ pass@1 " in text and " to " in text and "runtime" not in summary["before"]
    assert json.loads(Path(tmp_path / "run/summary.json").read_text())["after"] == summary["after"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eval_rewards": ["early_leter"]}, "unknown reward `early_leter` .did you mean `early_letter`"),
        ({"eval_rewards": ["think_format"]}, "eval_rewards.*says which answers are right"),
        ({"eval_rewards": ["early_letter"], "eval_k": [8]}, "k must be between 1 and n=4, found 8"),
    ],
)
def test_refusals(tiny_model, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        GRPOTrainer(tiny_model, args=config(tmp_path, **changes), train_dataset=ROWS)


def test_no_rows(tiny_model, tmp_path):
    trainer = GRPOTrainer(tiny_model, args=config(tmp_path, **EVALUATED), train_dataset=ROWS)
    with pytest.raises(UserError, match="needs held-out prompts"):
        trainer.evaluate()
    trainer.evaluate(ROWS.select(range(1)))


def test_two_processes_share_the_problems(tiny_model, tmp_path):
    arguments = [tiny_model, str(tmp_path), str(tmp_path / "two.json")]
    launch("tests.evaluation.run_evaluation", *arguments)
    from tests.evaluation.run_evaluation import main

    main(tiny_model, str(tmp_path), str(tmp_path / "one.json"))
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert (one.pop("processes"), two.pop("processes")) == (1, 2) and 0 < one["eval_pass@1"] < 1
    for found in (one, two):
        found.pop("eval_runtime")
    assert one == two
