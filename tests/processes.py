"""Two processes on the CPU with gloo, as `accelerate launch` starts them."""

import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]


def launch(module, *arguments, processes=2, timeout_s=600):
    """Runs a module of the tests in so many processes, and waits for its end."""
    launcher = []
    if processes > 1:
        # `--cpu` would start one process only; with `use_cpu` in the options, these run on the CPU with gloo
        launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", str(processes)]
        launcher += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        launcher += ["--main_process_port", "0"]
    command = [sys.executable, *launcher, "-m", module, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stderr[-3000:]


def leave():
    """Ends one process of several at once: a destructor of gloo can wait for the thread that waits for its lock."""
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)
