"""kill -9 in the middle of each kind of stage: the same command goes on, and the end is that of a run never killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The stage that is killed, and what it has left by then: it is in the middle, not at an end.
KILLS = {
    "sft": "sft/run/checkpoint-*/trainer_state.json",
    "grpo": "grpo/run/checkpoint-*/trainer_state.json",
    "rejection": "rejection/run/samples/parts/*.parquet",
}


def start(pipeline, output, *arguments):
    command = [sys.executable, "-m", "trl_grpo_plus.cli", "pipeline", str(pipeline), "--output_dir", str(output)]
    command += arguments
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


@pytest.mark.slow
def test_killed_in_each_stage(small_pipeline, tmp_path):
    killed = tmp_path / "killed"
    for stage, left in KILLS.items():
        process = start(small_pipeline, killed)
        while not list(killed.glob(left)):
            assert process.poll() is None, process.stdout.read().decode()[-3000:]
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert json.loads((killed / stage / "stage.json").read_text())["state"] == "started", stage
        assert not (killed / stage / "output").exists()
    process = start(small_pipeline, killed)
    text = process.communicate()[0].decode()
    assert process.returncode == 0, text[-3000:]
    assert text.count("passed over") == 3 and "keeps" in text  # data, sft and grpo; the sampling went on

    whole = tmp_path / "whole"
    process = start(small_pipeline, whole)
    text = process.communicate()[0].decode()
    assert process.returncode == 0, text[-3000:]
    for name in ("sft/output/model.safetensors", "again/output/model.safetensors"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name
    ours, theirs = (
        [
            {key: value for key, value in json.loads(line).items() if key not in ("model", "model_fingerprint")}
            for line in (run / "rejection/output/train.jsonl").read_text().splitlines()
        ]
        for run in (killed, whole)
    )
    assert ours == theirs
    metrics = [
        [(s["stage"], s.get("after", {}).get("all", {}).get("pass@1")) for s in summary["stages"]]
        for summary in (json.loads((run / "summary.json").read_text()) for run in (killed, whole))
    ]
    assert metrics[0] == metrics[1]
