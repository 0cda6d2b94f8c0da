"""The shipped tiny pipeline: its inputs, and its first stages in a smaller size, killed and gone on with."""

import json
import signal
import time

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from tests.pipelines.test_kill import ROOT, start
from trl_grpo_plus.pipelines.tiny import LAMBDA, write_inputs
from trl_grpo_plus.prompts.arithmetic import split_of
from trl_grpo_plus.rewards import get

RECIPE = ROOT / "recipes/r1_tiny/pipeline.yaml"
SMALLER = {
    "inputs.demonstrations": 256,
    "evaluation.prompts.0.size": 12,
    "evaluation.prompts.1.size": 12,
    "cold_start.max_steps": 12,
    "cold_start.save_steps": 4,
    "reasoning_rl.max_steps": 8,
    "reasoning_rl.eval_steps": 2,
    "reasoning_rl.save_steps": 2,
    "reasoning_rl.per_device_train_batch_size": 16,
    "reasoning_rl.eval_prompts.0.size": 4,
    "reasoning_rl.eval_prompts.1.size": 4,
}


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    output = tmp_path_factory.mktemp("inputs")
    write_inputs(output, demonstrations=256, preferences=64, general=32)
    return output


def test_the_demonstrations_are_right_and_within_the_alphabet(inputs):
    tokenizer = AutoTokenizer.from_pretrained(inputs / "model")
    exact, checked = get("exact_match").build(), 0
    for row in read(inputs / "cold_start/train.jsonl") + read(inputs / "general/train.jsonl"):
        ids = tokenizer(row["prompt"] + row["completion"])["input_ids"]
        assert tokenizer.unk_token_id not in ids and len(ids) < 64
        if row["prompt"][0].isdigit():
            a, b = map(int, row["prompt"].split("+"))
            assert split_of(a, b) == "train"
            assert exact(row["completion"], {"answer": str(a + b)}).value == 1.0
            checked += 1
    assert checked == 128


def test_programs_are_right_and_no_split_knows_another_ones_sums(inputs):
    def parts(prompt):
        a, b = map(int, prompt.removeprefix("f>").split("+"))
        return a, b

    seen = {}
    for split in ("train", "validation", "test"):
        rows = read(inputs / f"code/{split}.jsonl")
        seen[split] = {parts(row["prompt"]) for row in rows}
        assert len(seen[split]) == len(rows) > 0 and {split_of(*each) for each in seen[split]} == {split}
        for row in rows:
            names = {}
            exec(f"{LAMBDA}x+{sum(parts(row['prompt']))}", names)
            for line in json.loads(row["answer"]):
                exec(line, names)
    programs = [row for row in read(inputs / "cold_start/train.jsonl") if row["prompt"].startswith("f>")]
    assert len(programs) == 128
    for row in programs:
        a, b = parts(row["prompt"])
        assert row["completion"].endswith(f"<answer>{LAMBDA}x+{a + b}</answer>") and split_of(a, b) == "train"


def test_preferences_differ_in_repetition_only(inputs):
    for row in read(inputs / "preferences/train.jsonl") + read(inputs / "preferences/test.jsonl"):
        plain, wordy = (row[key].partition("<think>")[2].partition("</think>") for key in ("chosen", "rejected"))
        assert [step for step in plain[0].split(",") for _ in range(2)] == wordy[0].split(",")
        assert plain[2] == wordy[2]
    AutoModelForSequenceClassification.from_pretrained(inputs / "model", num_labels=1)


@pytest.mark.slow
def test_killed_in_the_middle_of_reinforcement_and_gone_on_with(tmp_path):
    overrides = [f"--{key}={value}" for key, value in SMALLER.items()]
    output = tmp_path / "run"
    process = start(RECIPE, output, *overrides, "--until=reasoning_rl")
    while not list(output.glob("reasoning_rl/run/checkpoint-2/trainer_state.json")):
        assert process.poll() is None, process.stdout.read().decode()[-3000:]
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process = start(RECIPE, output, *overrides, "--until=reasoning_rl")
    text = process.communicate()[0].decode()
    assert process.returncode == 0, text[-3000:]
    assert "going on from" in text and text.count("passed over") == 2
    summary = json.loads((output / "summary.json").read_text())
    for stage in summary["stages"][1:]:
        for side in ("before", "after"):
            assert {"pass@1", "maj@8"} <= set(stage[side]["all"]), stage["stage"]
            assert {"exact_match", "code"} <= set(stage[side])
    for name in ("cold_start", "reasoning_rl"):
        assert f"| {name} |" in (output / "summary.md").read_text()
