"""Two processes (gloo, on a CPU): the same weights as TRL's trainer in two processes, on the same rollouts."""

import json

import pytest
import torch

from tests.processes import launch


def run(which, model, directory, options):
    launch("tests.parity.distributed_run", which, model, str(directory), json.dumps(options))
    return torch.load(directory / f"{which}.pt", weights_only=False)


@pytest.mark.parametrize(
    "options",
    [
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_iterations": 2},
        {"per_device_train_batch_size": 4, "beta": 0.04, "max_tokens_per_forward": 40, "lora": True},
    ],
    ids=["full", "lora_budget"],
)
def test_two_processes(options, tiny_model_without_chat, tmp_path):
    theirs = run("trl", tiny_model_without_chat, tmp_path, options)
    ours = run("ours", tiny_model_without_chat, tmp_path, options)
    assert theirs["processes"] == ours["processes"] == 2
    for name, parameter in theirs["weights"].items():
        assert torch.allclose(ours["weights"][name], parameter, rtol=0, atol=1e-5), name
    for mine, other in zip(ours["log"][:-1], theirs["log"][:-1], strict=True):
        assert mine["loss"] == pytest.approx(other["loss"], abs=1e-6)
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
        assert mine["work/saved"] > 0
