"""Checkpoint, kill, resume: the same losses afterwards as of a run that nobody stopped."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.ppo.runs import losses, make_trainer, moved, snapshot
from trl_grpo_plus.errors import UserError

ROOT = Path(__file__).parents[2]


def run(**options):
    """Runs a training in its own process; returns its exit status."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", "-m", "tests.ppo.run_training", json.dumps(options)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    "options",
    [{"critic": "separate"}, {"critic": "adapter", "lora": 4}, {"critic": "shared"}],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_a_killed_run_resumes_as_if_never_stopped(tiny_model, tmp_path, options):
    """24 rows and 16 completions a rollout: 4 steps each epoch. The kill is in the second epoch and amid a rollout."""
    shared = {"model": tiny_model, "max_steps": 11, "save_strategy": "steps", "save_steps": 6, **options}
    whole = run(**shared, output_dir=str(tmp_path / "whole"), losses=str(tmp_path / "whole.json"))
    assert whole.returncode == 0, whole.stderr
    killed = run(**shared, output_dir=str(tmp_path / "cut"), losses=str(tmp_path / "killed.json"), kill_at=8)
    assert killed.returncode == -signal.SIGKILL and not (tmp_path / "killed.json").exists()
    checkpoint = tmp_path / "cut/checkpoint-6"
    assert torch.load(checkpoint / "rollout_0.pt")["micro_batches"] is not None
    resumed = run(
        **shared, output_dir=str(tmp_path / "cut"), losses=str(tmp_path / "cut.json"), resume=str(checkpoint)
    )
    assert resumed.returncode == 0, resumed.stderr
    expected, found = (json.loads((tmp_path / name).read_text())["logs"] for name in ("whole.json", "cut.json"))
    assert len(expected) == 12 and found[:-1] == expected[:-1]  # the last has the mean loss since the process began
    metrics = found[7]
    assert metrics["step"] == 8 and metrics["grad_norm"] > 0 and metrics["value/grad_norm"] > 0


@pytest.mark.parametrize("critic", ["separate", "adapter", "shared"])
def test_a_resumed_run_at_the_end_of_a_rollout(tiny_model, tmp_path, critic):
    options = {"critic": critic, "max_steps": 8, "save_strategy": "steps", "save_steps": 4}
    whole = make_trainer(tiny_model, tmp_path / "a", **options)
    whole.train()
    again = make_trainer(tiny_model, tmp_path / "b", **options)
    again.train(resume_from_checkpoint=str(tmp_path / "a/checkpoint-4"))
    assert losses(again) == losses(whole)
    assert torch.load(tmp_path / "a/checkpoint-4/rollout_0.pt")["micro_batches"] is None


def test_without_the_critics_optimizer_state_the_losses_would_differ(tiny_model, tmp_path):
    """Breaks the test above once: the critic's moments are part of what is restored."""
    options = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4}
    whole = make_trainer(tiny_model, tmp_path / "a", **options)
    whole.train()
    file = tmp_path / "a/checkpoint-4/optimizer.pt"
    state = torch.load(file)
    critic = {i for group in state["param_groups"] if group.get("role") == "critic" for i in group["params"]}
    assert critic and critic <= state["state"].keys()
    for i in critic:
        state["state"][i]["exp_avg"].zero_()
    torch.save(state, file)
    again = make_trainer(tiny_model, tmp_path / "b", **options)
    again.train(resume_from_checkpoint=str(tmp_path / "a/checkpoint-4"))
    assert losses(again)[:4] == losses(whole)[:4] and losses(again)[5:] != losses(whole)[5:]


def test_the_critic_is_saved_and_loaded(tiny_model, tmp_path):
    trainer = make_trainer(tiny_model, tmp_path, max_steps=4)
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    other = make_trainer(tiny_model, tmp_path)
    assert moved(snapshot(trainer.critic_module.trained.items()), other.critic_module.trained.items())
    other.critic_module.load(tmp_path / "saved/critic")
    assert not moved(snapshot(trainer.critic_module.trained.items()), other.critic_module.trained.items())
    about = json.loads((tmp_path / "saved/critic/critic.json").read_text())
    assert about["layout"] == "separate" and about["trained_parameters"] > 20_000


def test_a_checkpoint_of_another_critic_is_refused(tiny_model, tmp_path):
    make_trainer(tiny_model, tmp_path, critic="shared").save_model(str(tmp_path / "saved"))
    with pytest.raises(
        UserError, match="holds a critic of layout `shared` with 2 tensors, and this one is `separate`"
    ):
        make_trainer(tiny_model, tmp_path).critic_module.load(tmp_path / "saved/critic")
    with pytest.raises(UserError, match="there is no critic in"):
        make_trainer(tiny_model, tmp_path).critic_module.load(tmp_path)


def test_the_best_model_comes_with_its_critic(tiny_model, tmp_path):
    trainer = make_trainer(
        tiny_model, tmp_path, max_steps=4, save_strategy="steps", save_steps=2, learning_rate=1e-2
    )  # fmt: skip
    trainer.train()
    trainer.state.best_model_checkpoint = str(tmp_path / "checkpoint-2")
    last = snapshot(trainer.critic_module.trained.items())
    trainer._load_best_model()
    assert moved(last, trainer.critic_module.trained.items())


def test_a_rollout_of_another_length_is_not_used(tiny_model, tmp_path):
    make_trainer(tiny_model, tmp_path, max_steps=2, save_strategy="steps", save_steps=1).train()
    same = make_trainer(tiny_model, tmp_path)
    same._load_from_checkpoint(str(tmp_path / "checkpoint-1"))
    assert same._step == 2 and len(same._buffered_inputs) == 4
    other = make_trainer(tiny_model, tmp_path, num_ppo_epochs=3)
    other._load_from_checkpoint(str(tmp_path / "checkpoint-1"))
    assert other._step == 0 and other._buffered_inputs is None
    (tmp_path / "checkpoint-1/rollout_0.pt").unlink()
    same._load_from_checkpoint(str(tmp_path / "checkpoint-1"))
    assert same._step == 0 and same._buffered_inputs is None
