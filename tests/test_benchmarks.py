"""The prepared GPU check runs, on a CPU and a tiny geometry, and writes what it should."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_gpu_check_on_a_cpu(tmp_path):
    environment = {**os.environ, "DEVICE": "cpu", "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = ["bash", "benchmarks/gpu_check.sh", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads((tmp_path / "out.json").read_text())
    parity = record["parity"]
    assert parity["packed_float32"]["logp_max_difference"] < 1e-5
    assert parity["packed_float32"]["gradient_relative_difference"] < 1e-5
    ours, theirs = parity["packed_bfloat16"], parity["plain_bfloat16"]
    assert ours["logp_rms_difference"] < 2 * theirs["logp_rms_difference"]
    memory = {case["case"]: case for case in record["memory"]}
    assert len(memory) == 5
    for case in memory.values():
        assert {"forward", "backward", "optimizer", "rollout.decode"} <= set(case["phases_mib"])
        assert abs(case["planned"]["exact"]["error"]) < 0.02, case
    assert memory["GRPO QLoRA"]["measured_mib"] < memory["GRPO full"]["measured_mib"]
    assert len(record["results"]) == 3
    for result in record["results"]:
        assert result["tokens_run"] < result["tokens_stock"]
        assert set(result["peak_mib"]) == {"stock", "ours"} and min(result["peak_mib"].values()) > 0
        assert {"generation", "forward", "backward", "optimizer", "step"} <= set(result["seconds"]["ours"])
        assert result["savings"]["share_prompt"] == "on"
