"""GRPO with the `code` reward, end to end: a tiny model that writes right and wrong programs learns the right ones."""

import json

import pytest
import torch
from datasets import Dataset

from tests.tiny import save_tiny_model
from trl_grpo_plus import GRPOConfig, GRPOTrainer

PROGRAMS = ["def f(x):\n return x+1", "def f(x):\n return x-1"]  # in equal parts, to begin with
TESTS = ["assert f(1) == 2", "assert f(5) == 6"]


@pytest.fixture(scope="module")
def half_right(tmp_path_factory):
    """A model that has learned by heart to write one of the two programs."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = save_tiny_model(tmp_path_factory.mktemp("code") / "model", chat=False)
    model, tokenizer = (c.from_pretrained(directory) for c in (AutoModelForCausalLM, AutoTokenizer))
    rows = tokenizer([f"f:{program}<eos>" for program in PROGRAMS], return_tensors="pt")["input_ids"]
    labels = rows.clone()
    labels[:, :2] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(120):
        loss = model(rows, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert loss.item() < 0.06  # ln 2 spread over a row, for the one character that differs
    model.save_pretrained(directory)
    return str(directory)


def test_it_learns_to_pass_the_tests(half_right, tmp_path):
    rows = Dataset.from_list([{"prompt": "f:", "answer": json.dumps(TESTS)}] * 64)
    args = GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        num_generations=16,
        max_completion_length=28,
        max_steps=24,
        learning_rate=2e-3,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        rewards=["code"],
    )
    trainer = GRPOTrainer(half_right, args=args, train_dataset=rows)
    trainer.train()
    log = [line for line in trainer.state.log_history if "rewards/code/mean" in line]
    rewards = [line["rewards/code/mean"] for line in log]
    assert 0.2 < rewards[0] < 0.8 and sum(rewards[-3:]) / 3 > 0.8, rewards
    assert all(line["rewards/code/unscored"] == 0.0 for line in log)
    assert all(line["rewards/code/sandbox_level"] in (3.0, 4.0) for line in log)
