"""A whole small pipeline as a user runs it: what it leaves, what it passes over, and what it refuses."""

import fcntl
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from trl_grpo_plus.pipelines.stages import Place, training


def test_a_pipeline_runs_is_passed_over_and_refuses_what_changed(small_pipeline, grpo_plus, tmp_path):
    code, text = grpo_plus("pipeline", str(small_pipeline))
    assert code == 0, text
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    stages = {stage["stage"]: stage for stage in summary["stages"]}
    assert list(stages) == ["data", "sft", "grpo", "rejection", "again"]
    metric = {name: (s["before"]["all"]["pass@1"][0], s["after"]["all"]["pass@1"][0]) for name, s in stages.items()
              if "after" in s}  # fmt: skip
    assert metric["sft"][0] == 0 and metric["sft"][1] > 0.1
    assert metric["grpo"][0] == metric["sft"][1] and metric["rejection"] == (metric["grpo"][1],) * 2
    assert metric["again"][0] == 0, "stage 4 starts from the first model again"
    assert (run / "grpo/output/model.safetensors").exists() and not (run / "grpo/output/adapter_config.json").exists()
    assert (run / "summary.png").read_bytes().startswith(b"\x89PNG")
    for name in ("sft", "grpo", "rejection", "again"):
        assert f"| {name} |" in (run / "summary.md").read_text()

    # The numbers of the table, recounted from the samples of the evaluation.
    evaluations = {file.stem: json.loads(file.read_text()) for file in (run / "evaluations").glob("*.json")}
    assert len(evaluations) == 4  # the first model, and what sft, grpo and again made
    (of_sft,) = [e for e in evaluations.values() if e["model"] == str(run / "sft/output")]
    samples = pyarrow.parquet.read_table(run / "evaluations" / of_sft["key"] / "samples.parquet").to_pylist()
    right = np.array([s["completion"] == "<answer>1</answer>" for s in samples]).reshape(8, 2)
    assert metric["sft"][1] == pytest.approx(right.mean()) and of_sft["values"]["pass@1"] == list(right.mean(axis=1))

    # What was kept says where it is from.
    kept = [json.loads(line) for line in (run / "rejection/output/train.jsonl").read_text().splitlines()]
    drawn = pyarrow.parquet.read_table(run / "rejection/run/samples/samples.parquet").to_pylist()
    assert len(drawn) == 96 and kept
    completions = {(row["problem"], row["number"]): row["completion"] for row in drawn}
    for row in kept:
        assert row["completion"] == completions[row["problem"], row["sample"]] == "<answer>1</answer>"
        assert row["model"] == str(run / "grpo/output") and row["seed"] == 0
        assert json.loads(row["verdicts"]) == {"exact_match": 1.0}
        of_problem = [completions[row["problem"], i] == "<answer>1</answer>" for i in range(4)]
        assert row["pass_rate"] == pytest.approx(np.mean(of_problem))
        assert row["prompt"][-1]["content"] == f"{row['problem']}?"
    assert len({row["problem"] for row in kept}) == len(kept), "equal solutions are kept once"

    # The same command again does nothing; another directory of the same content neither.
    before = {file: file.stat().st_mtime_ns for file in run.rglob("*") if file.is_file() and "output" in file.parts}
    code, text = grpo_plus("pipeline", str(small_pipeline))
    assert code == 0 and text.count("done before: passed over") == 5
    assert before == {file: file.stat().st_mtime_ns for file in before}
    shutil.move(run, tmp_path / "moved")
    code, text = grpo_plus("pipeline", str(small_pipeline), "--output_dir", str(tmp_path / "moved"))
    assert code == 0 and text.count("done before: passed over") == 5 and "evaluated" not in text

    # Another configuration is not silently taken for the same, nor is another input.
    moved = ["--output_dir", str(tmp_path / "moved")]
    code, text = grpo_plus("pipeline", str(small_pipeline), *moved, "--grpo.learning_rate", "1e-5")
    assert code == 2 and "stage `grpo` was done with another configuration (learning_rate: absent -> 1e-05)" in text
    assert "--redo grpo" in text and "learning_rate" in text
    with (tmp_path / "moved/data/output/train.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "x?", "answer": "1", "completion": "<answer>1</answer>"}) + "\n")
    code, text = grpo_plus("pipeline", str(small_pipeline), *moved)
    assert code == 2 and "stage `sft` was done with another configuration (the content of ${data} is another)" in text

    code, text = grpo_plus("pipeline", str(small_pipeline), *moved, "--redo", "data", "--until", "sft")
    assert code == 0 and "passed over" not in text
    assert not (tmp_path / "moved/grpo").exists(), "what used the stage is gone as well"

    with (tmp_path / "moved/.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, text = grpo_plus("pipeline", str(small_pipeline), *moved)
    assert code == 2 and "another process runs a pipeline" in text


def test_check_says_what_would_run(small_pipeline, grpo_plus, tmp_path):
    code, text = grpo_plus("pipeline", str(small_pipeline), "--check")
    assert code == 0 and "rejection: rejection_sampling, from data, grpo" in text
    assert not (tmp_path / "run").exists()


def test_only_a_model_is_published(tmp_path):
    place = Place(tmp_path / "stage", {})
    place.work.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "summary.json", "metrics.jsonl", "README.md"):
        (place.work / name).write_text(name)
    (place.work / "checkpoint-1").mkdir()
    training.publish(None, place)
    assert {file.name for file in place.output.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
    assert Path(place.output / "model.safetensors").read_text() == "model.safetensors"
