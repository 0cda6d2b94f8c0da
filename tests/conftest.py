"""Fixtures shared by all tests: nothing may reach a model hub, and tiny models are made here from configurations."""

import os

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", CI="1")

import pytest  # noqa: E402
import torch  # noqa: E402

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
    from pathlib import Path

    directory = Path(os.environ.get("GRPO_PLUS_GSM8K", Path(__file__).parents[2] / "shared/data/gsm8k"))
    if not (directory / "train.jsonl").exists():
        pytest.skip("GSM8K is not at hand: put train.jsonl and test.jsonl into a directory named by GRPO_PLUS_GSM8K")
    return directory
