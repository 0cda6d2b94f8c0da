"""Fixtures shared by all tests: nothing may reach a model hub, and tiny models are made here from configurations."""

import json
import os
import re
import sys
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CI="1")

import pytest  # noqa: E402
import torch  # noqa: E402
import yaml  # noqa: E402

from tests.tiny import save_tiny_model  # noqa: E402

torch.set_num_threads(1)  # tiny models: a second thread saves nothing, and costs much on a busy machine


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Directory of a random two-layer Llama with a character tokenizer and a chat template."""
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture(scope="session")
def tiny_model_without_chat(tmp_path_factory):
    """The same without a chat template."""
    return str(save_tiny_model(tmp_path_factory.mktemp("tiny_plain") / "model", chat=False))


@pytest.fixture(scope="session")
def gsm8k_dir():
    """Directory with the real GSM8K (train.jsonl, test.jsonl); skips where it is not at hand."""
    directory = Path(os.environ.get("GRPO_PLUS_GSM8K", Path(__file__).parents[2] / "shared/data/gsm8k"))
    if not (directory / "train.jsonl").exists():
        pytest.skip("GSM8K is not at hand: put train.jsonl and test.jsonl into a directory named by GRPO_PLUS_GSM8K")
    return directory


@pytest.fixture
def own_registry(monkeypatch):
    """What a test registers, other tests do not see: some ask each registered verifier for something."""
    from trl_grpo_plus.rewards import registry

    registry.names()  # loads other packages' verifiers, which happens once
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.setattr(registry, "_NAMES", dict(registry._NAMES))


@pytest.fixture
def grpo_plus(capsys, monkeypatch):
    """Runs the command line in this process: arguments -> (exit code, what it printed, white space folded)."""
    from trl_grpo_plus import cli

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["grpo-plus", *arguments])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            cli.main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, re.sub(r"\s+", " ", out + err)

    return run


@pytest.fixture
def write_recipe(tmp_path, tiny_model):
    """Writes a recipe that trains the tiny model on sums of one digit; keys that are `None` are left out."""
    rows = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(3)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = {
        "model_name_or_path": tiny_model,
        "prompts": {"source": str(tmp_path / "rows.jsonl"), "template": "think_answer"},
        "eval_prompts": {"source": str(tmp_path / "rows.jsonl"), "size": 4},
        "rewards": ["gsm8k", {"think_format": 0.1}],
        "output_dir": str(tmp_path / "run"),
        "use_cpu": True,
        "bf16": False,
        "max_completion_length": 8,
        "report_to": "none",
    }

    def write(**keys):
        merged = {name: value for name, value in {**common, **keys}.items() if value is not None}
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(merged))
        return str(tmp_path / "recipe.yaml")

    return write
