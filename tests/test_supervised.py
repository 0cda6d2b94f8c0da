"""SFT and reward models from recipes, as a user runs them: they learn, leave their files, and go on after a kill."""

import json
import shutil

import pytest
import yaml
from safetensors.torch import load_file
from transformers import AutoTokenizer, GenerationConfig

from tests.tiny import save_tiny_model, tiny_base_tokenizer, tiny_tokenizer
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.resume import last_whole_checkpoint
from trl_grpo_plus.supervised import check_end_of_answer

ROWS = [{"prompt": f"{a}+{b}", "response": f"<answer>{a + b}</answer>"} for a in range(8) for b in range(4)]
PAIRS = [{"prompt": f"{a}?", "chosen": f"{a}!", "rejected": f"{a}, well, {a}"} for a in range(32)]
COMMON = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "max_steps": 12,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-2,
    "save_steps": 4,
    "save_total_limit": 3,
}


@pytest.fixture
def recipe(tmp_path, tiny_model):
    def write(algorithm, rows, **changes):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        keys = {
            **COMMON,
            "algorithm": algorithm,
            "model_name_or_path": tiny_model,
            "prompts": str(tmp_path / "rows.jsonl"),
            "eval_prompts": {"source": str(tmp_path / "rows.jsonl"), "size": 8},
            "output_dir": str(tmp_path / "run"),
            **changes,
        }
        (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(keys))
        return str(tmp_path / "recipe.yaml")

    return write


def test_sft_learns_and_goes_on_from_its_last_whole_checkpoint(recipe, grpo_plus, tmp_path):
    code, text = grpo_plus("train", recipe("sft", ROWS))
    assert code == 0, text
    output = tmp_path / "run"
    summary = json.loads((output / "summary.json").read_text())
    assert summary["steps"] == 12 and summary["after"]["loss"] < 0.7 * summary["before"]["loss"]
    assert (output / "model.safetensors").exists() and (output / "tokenizer.json").exists()
    assert "SFT 12/12" in text and "held-out loss" in text
    whole = (output / "model.safetensors").read_bytes()

    # Killed while it wrote its last checkpoint: the one before counts, and the end is the same bit for bit.
    (output / "checkpoint-12/trainer_state.json").write_text('{"epoch": 1')
    assert last_whole_checkpoint(output) == output / "checkpoint-8"
    (output / "model.safetensors").unlink()
    code, text = grpo_plus("train", str(output / "recipe.yaml"), "--resume")
    assert code == 0, text
    assert (output / "model.safetensors").read_bytes() == whole
    steps = [json.loads(line)["step"] for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert [s for s in steps if s] == sorted(s for s in steps if s) and steps.count(9) == 1
    shutil.rmtree(output / "checkpoint-8")
    shutil.rmtree(output / "checkpoint-4")
    assert last_whole_checkpoint(output) is not None  # the resumed run wrote 12 anew


def test_a_reward_model_learns_preferences(recipe, grpo_plus, tmp_path):
    code, text = grpo_plus("train", recipe("reward_model", PAIRS))
    assert code == 0, text
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["after"]["accuracy"] == 1.0 and summary["after"]["loss"] < summary["before"]["loss"]
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    assert "held-out accuracy" in text


def test_sft_of_an_adapter(recipe, grpo_plus, tmp_path):
    changes = {"use_peft": True, "lora_target_modules": "all-linear", "max_steps": 2, "eval_prompts": None}
    code, text = grpo_plus("train", recipe("sft", ROWS, **changes))
    assert code == 0, text
    assert (tmp_path / "run/adapter_config.json").exists()
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert 0 < summary["parameters_trained"] < summary["parameters"] and summary["after"] is None


def test_sft_of_4bit_weights_after_an_evaluation_trains_every_adapter(recipe, grpo_plus, tmp_path):
    pytest.importorskip("bitsandbytes")
    changes = {"use_peft": True, "lora_target_modules": "all-linear", "load_in_4bit": True, "max_steps": 2}
    code, text = grpo_plus("train", recipe("sft", ROWS, **changes))
    assert code == 0, text
    weights = load_file(tmp_path / "run/adapter_model.safetensors")
    up = {name: weight for name, weight in weights.items() if "lora_B" in name}  # all zero before training
    assert len(up) == 14 and not [name for name, weight in up.items() if not weight.any()]


def test_a_key_of_another_algorithm_is_named(recipe, grpo_plus):
    code, text = grpo_plus("train", recipe("sft", ROWS, num_generations=8))
    assert code == 2 and "unknown key `num_generations` (a key of `algorithm: grpo`)" in text


def test_an_answer_must_end_where_generation_stops(recipe, grpo_plus, tmp_path):
    check_end_of_answer(tiny_tokenizer())
    with pytest.raises(UserError, match=r"an answer with '<\|im_end\|>', but the tokenizer's end is '<eos>'.*Set"):
        check_end_of_answer(tiny_base_tokenizer())
    base = save_tiny_model(tmp_path / "base", base=True)
    talks = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 32
    options = {"model_name_or_path": str(base), "eval_prompts": None, "max_steps": 1, "save_strategy": "no"}
    code, text = grpo_plus("train", recipe("sft", talks, **options))
    assert code == 2 and "Set `eos_token:" in text
    end = tiny_base_tokenizer().convert_tokens_to_ids("<|im_end|>")
    check_end_of_answer(tiny_base_tokenizer(), frozenset({end}))
    code, text = grpo_plus("train", recipe("sft", talks, eos_token="<|im_end|>", **options))
    assert code == 0, text
    trained = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert trained.eos_token == "<|im_end|>"
    ends = GenerationConfig.from_pretrained(tmp_path / "run").eos_token_id
    assert trained.eos_token_id in (ends if isinstance(ends, list) else [ends])

    # A model whose own settings stop at the end of a turn (Gemma, Phi) needs no other token.
    shipped = GenerationConfig.from_pretrained(base)
    shipped.eos_token_id = [tiny_base_tokenizer().eos_token_id, end]
    shipped.save_pretrained(base)
    code, text = grpo_plus("train", recipe("sft", talks, **{**options, "output_dir": str(tmp_path / "other")}))
    assert code == 0, text
