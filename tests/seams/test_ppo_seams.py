"""What `_trl_seams.py` says about PPO's part of TRL, and of the libraries below it, is true of what is installed."""

import importlib
import inspect

import trl

from trl_grpo_plus import PPOTrainer, _trl_seams
from trl_grpo_plus.critic.training import CriticTrainer


def parameters(function):
    return tuple(inspect.signature(function).parameters)


def test_the_methods_that_ppo_overrides_have_the_parameters_that_it_was_built_against():
    for name, expected in _trl_seams.PPO_OVERRIDDEN.items():
        assert parameters(getattr(trl.GRPOTrainer, name)) == expected, name
    for name, expected in _trl_seams.PPO_CALLED.items():
        assert parameters(getattr(trl.GRPOTrainer, name))[: len(expected)] == expected, name


def test_every_override_of_ppo_is_named():
    ours = {n: v for each in (CriticTrainer, PPOTrainer) for n, v in vars(each).items() if inspect.isfunction(v)}
    overrides = {name for name in ours if hasattr(trl.GRPOTrainer, name)}
    assert overrides == {*_trl_seams.PPO_OVERRIDDEN, "__init__"}
    for name in overrides - {"_compute_loss"}:
        assert "super()" in inspect.getsource(ours[name]), name


def test_the_attributes_and_batch_keys_that_ppo_reads_stand_in_the_source():
    module = importlib.import_module(_trl_seams.LOGGER)
    source = inspect.getsource(module.GRPOTrainer)
    for name in _trl_seams.PPO_ATTRIBUTES:
        assert f"self.{name}" in source, name
    for name in _trl_seams.PPO_BATCH_KEYS:
        assert f'"{name}"' in source, name


def test_the_names_that_ppo_relies_on_elsewhere():
    for path, name in _trl_seams.PPO_ELSEWHERE.items():
        module, _, owner = path.partition(":")
        assert name in inspect.getsource(getattr(importlib.import_module(module), owner)), path


def test_the_trainer_sets_only_the_policys_gradients_to_zero():
    """Should the Trainer come to clear the optimizer's gradients, ours need no callback for the critic's."""
    from transformers import Trainer

    source = inspect.getsource(Trainer._run_epoch)
    assert "model.zero_grad()" in source and "optimizer.zero_grad()" not in source
