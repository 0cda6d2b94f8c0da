"""`grpo-plus eval` as a user runs it: a kill and a second start, the table, the comparison, refusals that help."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trl_grpo_plus import cli
from trl_grpo_plus.evaluation import Sampling, evaluate
from trl_grpo_plus.evaluation.store import read_run
from trl_grpo_plus.prompts import PromptSpec

ROWS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(5) for b in range(4)]


@pytest.fixture
def data(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(tmp_path / "rows.jsonl")


def run(capsys, monkeypatch, *arguments):
    """Returns (exit code, what was printed, white space folded)."""
    monkeypatch.setattr(sys, "argv", ["grpo-plus", "eval", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    return stop.value.code or 0, re.sub(r"\s+", " ", out + err)


def test_several_k_and_rewards_and_a_comparison(tiny_model, data, tmp_path, capsys, monkeypatch):
    common = ["--model", tiny_model, "--data", data, "--max_new_tokens", "6", "--n", "4"]
    rewards = ["--rewards", "gsm8k", "{think_format: {weight: 0.1}}"]
    one = [*common, *rewards, "--k", "1", "2", "4", "--output_dir", str(tmp_path / "one")]
    code, text = run(capsys, monkeypatch, *one)
    assert code == 0, text
    for name in ("pass@1", "pass@2", "pass@4", "maj@4", "format_rate", "rewards/think_format/mean"):
        assert f"│ {name} │" in text
    assert "80/80" in text and "20 problems, 4 samples each" in text and "cut off: a larger max_new_tokens" in text
    result = json.loads((tmp_path / "one/result.json").read_text())
    assert result["rewards"] == {"gsm8k": 1.0, "think_format": 0.1} and result["data"]["source"] == data
    assert result["drawn_now"] == 80 and result["environment"]["trl"]

    code, text = run(capsys, monkeypatch, *common, *rewards, "--seed", "1", "--size", "15", "--output_dir",
                     str(tmp_path / "two"))  # fmt: skip
    assert code == 0, text
    code, text = run(capsys, monkeypatch, "--compare", str(tmp_path / "one"), str(tmp_path / "two"))
    assert code == 0, text
    assert (
        "15 problems in both, 5 only in A and 0 only in B" in text and "│ pass@1 │" in text and "│ pass@2" not in text
    )
    code, text = run(capsys, monkeypatch, "--compare", str(tmp_path / "one"), str(tmp_path / "two"), "--k", "2", "3")
    assert code == 0 and "│ pass@3 │" in text


def test_overlap_with_the_training_data_is_reported(tiny_model, data, tmp_path, capsys, monkeypatch):
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in ("0+1 =", "9+9=")))
    given = [
        "--model",
        tiny_model,
        "--data",
        data,
        "--rewards",
        "gsm8k",
        "--max_new_tokens",
        "4",
        "--template",
        "boxed",
    ]
    given += [
        "--max_new_tokens",
        "4",
        "--train_data",
        str(tmp_path / "train.jsonl"),
        "--output_dir",
        str(tmp_path / "out"),
    ]
    code, text = run(capsys, monkeypatch, *given)
    assert code == 0 and "1 of 20 held-out problems stand in the training data (1 the same, 0 nearly)" in text, text
    assert json.loads((tmp_path / "out/result.json").read_text())["overlap"]["exact"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "x", "--rewards", "gsm8k"], "--data is missing"),
        (["--k", "1", "8"], "k must be between 1 and n=1, found 8"),
        (["--rewards", "gsm8"], "unknown reward `gsm8` (did you mean `gsm8k`?)"),
        (["--rewards", "think_format"], "none of think_format says which answers are right"),
        (["--columns", "{prompt: qestion}"], "has no column `qestion`"),
        (["--columns", "{prompt: ["], "--columns is not valid YAML"),
        (["--greedy", "--n", "4"], "temperature 0 is greedy"),
        (["--compare", "nowhere", "nowhere"], "nowhere is no finished evaluation"),
    ],
)
def test_refusals_help(tiny_model, data, tmp_path, capsys, monkeypatch, options, message):
    given = [] if options[0] in ("--model", "--compare") else ["--model", tiny_model, "--data", data]
    given += [] if "--rewards" in options or "--compare" in options else ["--rewards", "gsm8k"]
    code, text = run(capsys, monkeypatch, *given, *options, "--output_dir", str(tmp_path / "out"))
    assert code == 2 and text.startswith("error: ") and message in text, text


def test_a_directory_of_something_else_is_left_alone(tiny_model, data, tmp_path, capsys, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("x")
    given = ["--model", tiny_model, "--data", data, "--rewards", "gsm8k", "--output_dir", str(tmp_path / "out")]
    code, text = run(capsys, monkeypatch, *given, "--overwrite")
    assert code == 2 and "holds something else" in text and (tmp_path / "out/mine.txt").exists()


def test_a_killed_process_goes_on(tiny_model, data, tmp_path):
    """SIGKILL amid the drawing: the second start draws what is missing, and all samples are those of one run."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "200"}
    command = [sys.executable, "-m", "trl_grpo_plus.cli", "eval", "--model", tiny_model, "--data", data]
    command += ["--rewards", "gsm8k", "--n", "8", "--max_new_tokens", "40", "--batch_size", "4", "--output_dir"]
    output = tmp_path / "killed"
    process = subprocess.Popen([*command, str(output)], stdout=subprocess.PIPE, env=environment)
    deadline = time.monotonic() + 120
    while len(list(output.glob("parts/*.parquet"))) < 5:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = len(list(output.glob("parts/*.parquet")))
    assert kept < 40, "it ended before it was killed"
    sampling = Sampling(n=8, max_new_tokens=40, batch_size=4)
    spec = PromptSpec(data, split="test")
    resumed, whole = (
        evaluate(tiny_model, spec, ["gsm8k"], sampling=sampling, output_dir=directory)
        for directory in (output, tmp_path / "whole")
    )
    assert resumed.details["drawn_now"] == 160 - 4 * kept and whole.details["drawn_now"] == 160
    assert read_run(output) == read_run(tmp_path / "whole") and resumed.metrics == whole.metrics
