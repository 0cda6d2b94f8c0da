"""The stages of recipes/r1, with their own prompts, templates, rewards and losses, on tiny models and a few rows.

The data are rows of the shapes that their data sets are published with. Rejection sampling is not here: a random model
solves nothing. What it writes stands in for it, and recipes/r1_tiny runs it.
"""

import json
from pathlib import Path

import pytest
import yaml
from transformers import AutoConfig, AutoTokenizer, LlamaForSequenceClassification

from tests.prompts.published import serve
from tests.tiny import save_tiny_model

R1 = Path(__file__).parents[2] / "recipes/r1"
SMALL = {"use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "max_steps": 2}
# One prompt a step, and as many steps as there are rows: each reward gets its own.
SMALL_RL = {"max_completion_length": 8, "gradient_accumulation_steps": 1, "max_steps": 5}
KEPT = {"prompt": [{"role": "user", "content": "1+1?"}], "completion": "<think>So.</think>2", "reward": ["math"]}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base model and a reward model, long enough for prompts of one token per character."""
    folder = tmp_path_factory.mktemp("r1")
    base = save_tiny_model(folder / "base", base=True, max_position_embeddings=2048)
    reward_model = LlamaForSequenceClassification(AutoConfig.from_pretrained(base, num_labels=1))
    reward_model.save_pretrained(folder / "reward_model")
    AutoTokenizer.from_pretrained(base).save_pretrained(folder / "reward_model")
    return folder


@pytest.mark.parametrize("stage", ["1_cold_start", "2_reasoning_rl", "4_sft", "5_final_rl"])
def test_a_stage_runs(stage, models, tmp_path, monkeypatch, grpo_plus):
    serve(monkeypatch)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/train.jsonl").write_text(json.dumps(KEPT) + "\n")
    keys = yaml.safe_load((R1 / f"{stage}.yaml").read_text())
    keys |= {**SMALL, "model_name_or_path": str(models / "base"), "output_dir": str(tmp_path / "run")}
    if stage.endswith("rl"):
        keys |= SMALL_RL
        for reward in keys["rewards"]:
            if "reward_model" in reward:
                reward["reward_model"]["model"] = str(models / "reward_model")
    for part in keys["prompts"] if isinstance(keys["prompts"], list) else ():
        if part["source"].startswith("${"):
            part["source"] = str(tmp_path / "kept")
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(keys))
    code, text = grpo_plus("train", str(tmp_path / "recipe.yaml"))
    assert code == 0, text
    assert json.loads((tmp_path / "run/summary.json").read_text())["steps"] == keys["max_steps"]
    if stage.endswith("rl"):
        logged = (tmp_path / "run/metrics.jsonl").read_text()
        names = [reward if isinstance(reward, str) else next(iter(reward)) for reward in keys["rewards"]]
        assert all(f'"rewards/{name}/mean"' in logged for name in names)
    else:
        assert AutoTokenizer.from_pretrained(tmp_path / "run").eos_token == "<|im_end|>"
