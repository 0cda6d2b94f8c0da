"""Run by `test_distributed.py` in each of two processes: a scripted training, whose log and weights rank 0 writes."""

import json
import sys
from pathlib import Path

import torch
import trl

import trl_grpo_plus
from tests.parity.test_training import LORA, run
from tests.processes import leave

if __name__ == "__main__":
    which, model, directory, options = sys.argv[1:]
    torch.set_num_threads(1)
    base = {"trl": trl.GRPOTrainer, "ours": trl_grpo_plus.GRPOTrainer}[which]
    settings = json.loads(options)
    trainer = run(base, model, Path(directory), LORA if settings.pop("lora", False) else None, **settings)
    if trainer.accelerator.is_main_process:
        weights = {name: p.detach() for name, p in trainer.accelerator.unwrap_model(trainer.model).named_parameters()}
        found = {
            **{"log": trainer.state.log_history, "weights": weights},
            "processes": trainer.accelerator.num_processes,
        }
        torch.save(found, Path(directory) / f"{which}.pt")
    leave()
