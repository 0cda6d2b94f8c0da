"""Two processes (accelerate, CPU, gloo) train as one does on the same global batch."""

import json

import pytest

from tests.processes import launch

SHARED = {"fixed": True, "max_steps": 6, "max_completion_length": 9}
# All of a rollout in one step: within one, which row goes with which does not matter
ONE = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "steps_per_generation": 4}
TWO = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "steps_per_generation": 4}


def run(processes, file, **options):
    launch("tests.ppo.run_training", json.dumps({**options, "losses": str(file)}), processes=processes)
    return json.loads(file.read_text())


@pytest.mark.parametrize(
    "options",
    [
        {"critic": "separate"},
        {"critic": "adapter"},
        {"critic": "shared"},
        {"critic": "adapter", "lora": 4, "gradient_checkpointing": True},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_two_processes_have_the_losses_of_one(tiny_model, tmp_path, options):
    shared = {"model": tiny_model, "output_dir": str(tmp_path), **SHARED, **options}
    one = run(1, tmp_path / "one.json", **shared, **ONE)
    two = run(2, tmp_path / "two.json", **shared, **TWO)
    assert (one["processes"], two["processes"]) == (1, 2)
    assert two["wrapped"] == ["DistributedDataParallel", "DistributedDataParallel"]
    assert len(one["logs"]) == 7
    for a, b in zip(one["logs"][:-1], two["logs"][:-1], strict=True):
        # Padding depends on which rows share a process, and with it the work.
        for name in {n for n in a.keys() & b.keys() if not n.startswith("work/")}:
            assert b[name] == pytest.approx(a[name], rel=1e-4, abs=1e-6), (a["step"], name)
        assert abs(a["loss"] - b["loss"]) < 1e-5
    assert one["logs"][0]["value/grad_norm"] > 0
