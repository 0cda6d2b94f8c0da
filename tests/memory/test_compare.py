"""`grpo-plus profile`, and the comparison of layouts: the models that each holds, by counting parameters."""

import json

import pytest
import yaml
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from trl_grpo_plus.cli import app
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.memory.compare import LAYOUTS, arm, compare, profile_recipe

MIB = 2**20


@pytest.fixture(scope="module")
def keys(tiny_model):
    return {
        "model_name_or_path": tiny_model,
        "dtype": "float32",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "prompts": {"source": "arithmetic", "size": 32},
        "rewards": ["exact_match"],
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_completion_length": 8,
        "generation_kwargs": {"min_new_tokens": 8},
        "disable_tqdm": True,
    }


@pytest.fixture(scope="module")
def records(keys, tmp_path_factory):
    return {r["layout"]: r for r in compare(keys, tmp_path_factory.mktemp("compare"), say=lambda line: None)}


def at_peak_of_step(record):
    """What is resident while the optimizer runs, in weights of the policy."""
    return record["profile"]["phases"]["optimizer"]["by_category_mib"]


def test_each_layout_holds_its_models(keys, records):
    model = AutoModelForCausalLM.from_pretrained(keys["model_name_or_path"])
    weights = sum(p.nbytes for p in model.parameters()) / MIB
    head = model.get_output_embeddings().weight.nbytes / MIB
    backbone = weights - head
    small = 0.02 * weights  # value heads, buffers, counters of steps
    for layout, reference, critic, reward, trained in (
        ("grpo", weights, 0, 0, weights),
        ("grpo_no_kl", 0, 0, 0, weights),
        ("ppo_four_models", weights, backbone, backbone, weights + backbone),
        ("ppo", weights, backbone, 0, weights + backbone),
        ("ppo_shared", weights, 0, 0, weights),
    ):
        held = at_peak_of_step(records[layout])
        assert held["weights_trainable"] == pytest.approx(weights), layout
        assert held.get("reference", 0) == pytest.approx(reference, abs=small), layout
        assert held.get("critic", 0) == pytest.approx(critic, abs=small), layout
        assert held.get("reward_model", 0) == pytest.approx(reward, abs=small), layout
        assert held["gradients"] == pytest.approx(trained, abs=small), layout
        assert held["optimizer"] == pytest.approx(2 * trained, abs=2 * small), layout
    adapter = at_peak_of_step(records["ppo_adapter"])
    assert adapter["critic"] < backbone and adapter["reference"] == pytest.approx(weights, abs=small)


def test_all_arms_see_the_same_prompts_and_tokens(records):
    tokens = [record["tokens"] for record in records.values()]
    assert len(records) == len(LAYOUTS) and len(tokens[0]) == 2 and all(each == tokens[0] for each in tokens)


def test_an_arm_keeps_what_is_not_the_algorithms():
    keys = {"beta": 0.1, "loss_type": "dr_grpo", "learning_rate": 1e-5, "use_peft": True, "num_generations": 6}
    keys["model_name_or_path"] = "m"
    ppo = arm(keys, "ppo_four_models", "full")
    assert ppo["kl_coef"] == 0.1 and ppo["critic"] == "separate" and ppo["learning_rate"] == 1e-5
    assert not {"beta", "loss_type", "use_peft"} & set(ppo) and ppo["memory_mode"] == "full"
    back = arm({"algorithm": "ppo", "kl_coef": 0.2, "critic": "shared", "model_name_or_path": "m"}, "grpo", None)
    assert back["beta"] == 0.2 and back["num_generations"] == 8 and not {"kl_coef", "critic"} & set(back)
    assert arm({"beta": 0.1}, "grpo_no_kl", None)["beta"] == 0.0


def test_the_command_profiles_a_recipe(keys, tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(keys))
    out = tmp_path / "out"
    done = CliRunner().invoke(app, ["profile", str(file), "--steps", "1", "--out", str(out), "--beta", "0.1"])
    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert "Memory by phase" in text and "profiling took at least" in text
    record = json.loads((out / "profile.json").read_text())
    assert record["steps"] == 1 and "reference" in record["phases"] and "checkpoint" not in record["phases"]
    assert not list(out.rglob("*.safetensors"))


def test_the_command_compares(keys, tmp_path, monkeypatch):
    monkeypatch.setattr("trl_grpo_plus.memory.compare.LAYOUTS", {k: LAYOUTS[k] for k in ("grpo", "ppo_shared")})
    monkeypatch.setattr(
        "trl_grpo_plus.memory.compare.compare.__kwdefaults__",
        {**compare.__kwdefaults__, "layouts": ("grpo", "ppo_shared")},
    )
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(keys))
    out = tmp_path / "out"
    words = ["profile", str(file), "--compare", "--modes", "full,lora", "--steps", "1", "--out", str(out)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    rows = json.loads((out / "comparison.json").read_text())["rows"]
    assert [(r["layout"], r["mode"]) for r in rows] == [
        ("grpo", "full"),
        ("ppo_shared", "full"),
        ("grpo", "lora"),
        ("ppo_shared", "lora"),
    ]
    assert rows[0]["of_grpo"] == rows[2]["of_grpo"] == 1.0 and rows[2]["resident_mib"] < rows[0]["resident_mib"]
    assert (out / "comparison.png").stat().st_size > 1000


def test_what_cannot_be_profiled_says_so(keys, tmp_path):
    file = tmp_path / "sft.yaml"
    file.write_text(yaml.safe_dump({**keys, "algorithm": "nothing"}))
    with pytest.raises(UserError, match="algorithm"):
        profile_recipe(file, [], tmp_path, 1)
    done = CliRunner().invoke(app, ["profile", str(file), "--modes", "full"])
    assert isinstance(done.exception, UserError) and "--compare" in str(done.exception)
