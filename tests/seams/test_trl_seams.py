"""What `_trl_seams.py` says about TRL is true of the installed TRL, and it names every override that we have."""

import importlib
import inspect
from importlib.metadata import version
from pathlib import Path

import trl
from packaging.specifiers import SpecifierSet

from trl_grpo_plus import GRPOTrainer, _trl_seams


def parameters(function):
    return tuple(inspect.signature(function).parameters)


def test_the_installed_trl_is_in_the_range_that_the_package_declares():
    assert version("trl") in SpecifierSet(_trl_seams.TRL_VERSIONS)
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f'"trl{_trl_seams.TRL_VERSIONS}"' in pyproject


def test_the_methods_that_we_override_have_the_parameters_that_we_were_built_against():
    for name, expected in _trl_seams.OVERRIDDEN.items():
        assert parameters(getattr(trl.GRPOTrainer, name)) == expected, name


def test_every_override_is_named():
    ours = {n for n, v in vars(GRPOTrainer).items() if inspect.isfunction(v) or isinstance(v, staticmethod)}
    overrides = {name for name in ours if hasattr(trl.GRPOTrainer, name)}
    assert overrides == set(_trl_seams.OVERRIDDEN)


def test_the_functions_that_we_import_exist():
    for path, expected in _trl_seams.FUNCTIONS.items():
        module, _, name = path.partition(":")
        assert parameters(getattr(importlib.import_module(module), name)) == expected, path


def test_class_attributes():
    for name in _trl_seams.CLASS_ATTRIBUTES:
        assert hasattr(trl.GRPOTrainer, name), name
    assert trl.GRPOTrainer.loss_is_scaled_for_ga is _trl_seams.LOSS_IS_SCALED
    assert isinstance(inspect.getattr_static(trl.GRPOTrainer, "get_off_policy_mask"), staticmethod)
    assert isinstance(inspect.getattr_static(GRPOTrainer, "get_off_policy_mask"), staticmethod)


def test_instance_attributes_and_logger_stand_in_the_source():
    module = importlib.import_module(_trl_seams.LOGGER)
    source = inspect.getsource(module.GRPOTrainer)
    for name in _trl_seams.INSTANCE_ATTRIBUTES:
        assert f"self.{name}" in source, name
    for name in _trl_seams.BATCH_KEYS:
        assert f'"{name}"' in source, name
    for name in _trl_seams.REWARD_KWARGS:
        assert name in source, name
