"""Rewards by name in the trainer: values, weights, unscored completions, model card and tags."""

import math
import os

import pytest
import torch
from datasets import Dataset

from tests.parity.test_drop_in import OPTIONS
from trl_grpo_plus import GRPOConfig, GRPOTrainer, RewardFunction, Verdict
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.rewards import RewardFailure


def rows():
    return Dataset.from_dict({"prompt": ["2+2=", "3+4="], "answer": ["4", "7"]})


def length(completion, row):
    """A verifier of a user's own: fails on some completions, leaves others unscored."""
    if len(completion) % 3 == 0:
        raise RuntimeError("boom")
    return Verdict(float(len(completion) % 5), str(len(completion)), "length")


def test_named_rewards_follow_the_functions_with_their_weights(tiny_model_without_chat, tmp_path):
    args = GRPOConfig(
        str(tmp_path), max_steps=2, log_completions=True, reward_weights=[2.0], reward_max_failures=1.0, **OPTIONS
    )
    args.num_completions_to_print = 0
    trainer = GRPOTrainer(
        tiny_model_without_chat,
        lambda completions, **kwargs: [1.0] * len(completions),
        args,
        rows(),
        rewards=["gsm8k", {"think_format": 0.25}, RewardFunction("length", length)],
    )
    assert trainer.reward_weights.tolist() == [2.0, 1.0, 0.25, 1.0]
    assert trainer.reward_func_names[1:] == ["gsm8k", "think_format", "length"]
    assert args.reward_weights == [2.0], "the caller's configuration stays as it was"
    trainer.train()
    log = trainer.state.log_history[0]
    unscored = log["rewards/length/unscored"]
    assert 0 <= unscored <= 1 and log["rewards/gsm8k/unscored"] == 0
    texts = list(trainer._logs["completion"])
    values = trainer._logs["rewards"]["length"]
    for text, value, reason in zip(texts, values, trainer._logs["extra"]["length_reason"], strict=True):
        if len(text) % 3 == 0:
            assert math.isnan(value) and reason == "RuntimeError: boom"
        else:
            assert value == len(text) % 5


def test_unscored_completions_are_left_out_of_the_baseline(tiny_model_without_chat, tmp_path):
    args = GRPOConfig(str(tmp_path), **OPTIONS)
    trainer = GRPOTrainer(tiny_model_without_chat, None, args, rows(), rewards=[RewardFunction("length", length)])
    completions = ["a", "ab", "abc", "abcd"]  # values 1, 2, None, 4
    rewards = trainer._calculate_rewards([{"prompt": "x"}] * 4, ["x"] * 4, completions, [[1]] * 4)
    assert rewards[:2, 0].tolist() == [1.0, 2.0] and torch.isnan(rewards[2, 0]) and rewards[3, 0] == 4.0


def test_rewards_can_stand_in_the_configuration(tiny_model_without_chat, tmp_path):
    args = GRPOConfig(str(tmp_path), rewards="[gsm8k, {exact_match: {weight: 0.5}}]", **OPTIONS)
    trainer = GRPOTrainer(tiny_model_without_chat, args=args, train_dataset=rows())
    assert trainer.reward_func_names == ["gsm8k", "exact_match"]


def test_a_missing_answer_column_is_named(tiny_model_without_chat, tmp_path):
    args = GRPOConfig(str(tmp_path), rewards=["gsm8k"], **OPTIONS)
    with pytest.raises(UserError, match="`answer`.*the training dataset lacks.*its columns: prompt, answr"):
        GRPOTrainer(tiny_model_without_chat, args=args, train_dataset=rows().rename_column("answer", "answr"))


def test_a_group_that_does_not_divide_the_batch_names_sizes_that_would(tmp_path):
    with pytest.raises(UserError, match="num_generations=8 does not divide.*= 12 completions.*8 or 16"):
        GRPOConfig(str(tmp_path), per_device_train_batch_size=12, use_cpu=True)


def test_model_card_and_tags_say_what_trained_it(tiny_model_without_chat, tmp_path):
    args = GRPOConfig(str(tmp_path), rewards=["gsm8k"], **OPTIONS)
    trainer = GRPOTrainer(tiny_model_without_chat, args=args, train_dataset=rows())
    trainer.create_model_card()
    card = (tmp_path / "README.md").read_text()
    assert "- trl-grpo-plus: 0.1.0\n- TRL: " in card
    assert {"trl", "grpo", "trl-grpo-plus"} <= set(trainer.model.model_tags)


def test_lora_trains_and_its_base_stays(tiny_model_without_chat, tmp_path):
    from peft import LoraConfig

    args = GRPOConfig(str(tmp_path), max_steps=2, **OPTIONS)
    trainer = GRPOTrainer(
        tiny_model_without_chat,
        args=args,
        train_dataset=rows(),
        rewards=[RewardFunction("length", lambda c, row: Verdict(float(len(c))))],
        peft_config=LoraConfig(r=4, target_modules="all-linear"),
    )
    before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    trainer.train()
    for name, parameter in trainer.model.named_parameters():
        if "lora_" not in name:
            assert parameter.equal(before[name]), name
    assert any(not p.equal(before[n]) for n, p in trainer.model.named_parameters() if "lora_B" in n)


def numbered(completions, **kwargs):
    """A reward that differs between all completions, whatever they say."""
    return [float(i) for i in range(len(completions))]


def test_what_trl_would_have_run_is_the_same_whoever_generates(tiny_model_without_chat, tmp_path):
    logs = []
    for ours in ("auto", "false"):
        args = GRPOConfig(
            str(tmp_path),
            max_steps=2,
            prefill_once=ours,
            drop_finished=ours,
            share_prompt="false",
            trim_padding="false",
            skip_zero_advantage="auto",
            generation_kwargs={"do_sample": False},
            **OPTIONS,
        )
        trainer = GRPOTrainer(tiny_model_without_chat, numbered, args, rows())
        trainer.train()
        logs.append([log for log in trainer.state.log_history if "work/tokens_stock" in log])
    for mine, trls in zip(*logs, strict=True):
        assert mine["work/tokens_stock"] == trls["work/tokens_stock"] == trls["work/tokens_run"]
        assert 0 < mine["work/tokens_run"] < mine["work/tokens_stock"]


def in_a_worker(completion, row):
    """A verifier that says where it ran."""
    return Verdict(float(len(completion) % 3), str(os.getpid()), f"gold {row['answer']}")


def test_verifiers_themselves_run_in_workers_with_their_metrics(tiny_model_without_chat, tmp_path):
    args = GRPOConfig(
        str(tmp_path), max_steps=2, log_completions=True, reward_workers="1", reward_timeout_s=30.0, **OPTIONS
    )
    args.num_completions_to_print = 0
    trainer = GRPOTrainer(
        tiny_model_without_chat,
        None,
        args,
        rows(),
        rewards=[in_a_worker, {"exact_match": 0.5}, {"regex": {"pattern": "1"}}],
    )
    trainer.train()
    log = trainer.state.log_history[0]
    for name in ("in_a_worker", "exact_match", "regex"):
        for key, least, most in (("unscored", 0, 0), ("timeouts", 0, 0), ("errors", 0, 0), ("cache_hits", 0, 1)):
            assert least <= log[f"rewards/{name}/{key}"] <= most, (name, key)
        assert log[f"rewards/{name}/latency_s"] > 0 and f"rewards/{name}/std" in log
    pids = set(trainer._logs["extra"]["in_a_worker_answer"])
    assert len(pids) == 1 and str(os.getpid()) not in pids
    assert set(trainer._logs["extra"]["in_a_worker_reason"]) <= {"gold 4", "gold 7"}
    assert (tmp_path / "reward_cache.sqlite3").exists()


def test_a_reward_that_fails_too_often_stops_the_run(tiny_model_without_chat, tmp_path):
    args = GRPOConfig(str(tmp_path), reward_max_failures=0.25, **OPTIONS)
    trainer = GRPOTrainer(tiny_model_without_chat, None, args, rows(), rewards=[RewardFunction("length", length)])
    asked = [{"prompt": "x"}] * 4, ["x"] * 4, ["a", "abc", "ab", "abcd"], [[1]] * 4
    assert torch.isnan(trainer._calculate_rewards(*asked)[1, 0])  # one in four is allowed
    asked[2][0] = "abc"
    with pytest.raises(RewardFailure, match=r"failed on 2 of 4 completions, .*reward_max_failures=0.25(.|\n)*boom"):
        trainer._calculate_rewards(*asked)


def test_async_functions_and_ours_together(tiny_model_without_chat, tmp_path):
    async def later(completions, **kwargs):
        return [0.5] * len(completions)

    args = GRPOConfig(str(tmp_path), **OPTIONS)
    trainer = GRPOTrainer(
        tiny_model_without_chat,
        [later, lambda completions, **kwargs: [1.0] * len(completions)],
        args,
        rows(),
        rewards="gsm8k",
    )
    inputs = [{"prompt": "2+2=", "answer": "4"}] * 2
    rewards = trainer._calculate_rewards(inputs, ["2+2="] * 2, ["4", "5"], [[1]] * 2)
    assert rewards.tolist() == [[0.5, 1.0, 1.0], [0.5, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"reward_workers": "many"}, "reward_workers must be auto or a positive whole number"),
        ({"reward_timeout_s": 0.0}, "reward_timeout_s must be a positive number of seconds"),
        ({"reward_max_failures": 1.5}, r"reward_max_failures must be a share in \[0, 1\]"),
    ],
)
def test_options_of_rewards_are_checked(option, message, tmp_path):
    with pytest.raises(UserError, match=message):
        GRPOConfig(str(tmp_path), **option)
