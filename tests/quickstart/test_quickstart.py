"""The quickstart's parts on small sizes: the model directory, the stop, the evaluator's numbers, a whole short run."""

import io
import json
import math
import re
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.quickstart import evaluate as evaluation
from trl_grpo_plus.quickstart import rewards
from trl_grpo_plus.quickstart.coldstart import ColdStartSettings, StopAtAccuracy
from trl_grpo_plus.quickstart.model import save_tiny_model
from trl_grpo_plus.quickstart.run import QuickstartSettings
from trl_grpo_plus.quickstart.show import show
from trl_grpo_plus.recipe import load_recipe
from trl_grpo_plus.rewards import build_rewards

SHORT = {
    "cold_start": ColdStartSettings(max_steps=4, batch_size=8, first_check=2, check_every=2),
    "demonstrations": 64,
    "steps": 2,
    "prompts_per_step": 2,
    "num_generations": 4,
    "validation_problems": 8,
    "eval_problems": 6,
    "eval_samples": 2,
}


def test_the_model_directory_is_an_ordinary_one(tmp_path):
    path = save_tiny_model(tmp_path / "model", seed=3)
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
    text = "<think>7+8=15,4+3+1=8</think><answer>85</answer>"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text and tokenizer.unk_token_id not in ids
    again = AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path / "again", seed=3))
    other = AutoModelForCausalLM.from_pretrained(save_tiny_model(tmp_path / "other", seed=4))
    weights = [m.model.embed_tokens.weight for m in (model, again, other)]
    assert weights[0].equal(weights[1]) and not weights[0].equal(weights[2])
    conversation = [{"role": "user", "content": "1+2"}, {"role": "assistant", "content": text}]
    prompt = tokenizer.apply_chat_template(conversation[:1], add_generation_prompt=True, tokenize=False)
    assert tokenizer.apply_chat_template(conversation, tokenize=False).startswith(prompt)


def test_the_cold_start_stops_at_the_first_check_that_meets_the_target():
    accuracies = iter([0.1, 0.29, 0.31, 0.9])
    seen = []
    stop = StopAtAccuracy(
        lambda model: next(accuracies), target=0.3, first_check=4, check_every=2, on_check=lambda *x: seen.append(x)
    )
    for step in range(1, 20):
        control = SimpleNamespace(should_training_stop=False)
        stop.on_step_end(None, SimpleNamespace(global_step=step), control, model=None)
        if control.should_training_stop:
            break
    assert step == 8 and stop.reached and seen == stop.history == [(4, 0.1), (6, 0.29), (8, 0.31)]


def test_the_evaluator_against_a_loop(tmp_path, monkeypatch):
    """Canned completions, counted by hand."""
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": p}] for p in "ab"], "answer": ["1", "2"]})
    worked = "<think>y=2</think><answer>2</answer>"
    drawn = [["<think>x=1</think><answer>1</answer>", "<answer>2</answer>"], [worked, worked]]

    def canned(model, tokenizer, prompts, *, greedy=False, **options):
        texts = [["<answer>1</answer>"]] * 2 if greedy else drawn
        return [[evaluation.Completion(text, 5 + i) for i, text in enumerate(each)] for each in texts]

    monkeypatch.setattr(evaluation, "generate", canned)
    found, _ = evaluation.evaluate(None, None, rows, samples=2)
    assert found.pass1 == 3 / 4 and found.per_problem == (0.5, 1.0) and found.greedy == 0.5
    assert found.worked_share == 3 / 4 and found.given_worked == 1.0 and found.mean_length == 5.5
    low, high = found.interval
    assert 0.5 <= low <= 0.75 <= high <= 1.0


def test_the_interval_covers_as_it_says():
    generator = torch.Generator().manual_seed(0)
    hits, runs, p = 0, 200, 0.3
    for i in range(runs):
        draws = (torch.rand(100, 4, generator=generator) < p).float().mean(dim=1).tolist()
        low, high = evaluation.interval_over_problems(draws, draws=400, seed=i)
        hits += low <= p <= high
    assert abs(hits / runs - 0.95) < 4 * math.sqrt(0.95 * 0.05 / runs)


def test_generation_leaves_the_random_state_and_the_mode(tmp_path):
    path = save_tiny_model(tmp_path / "model")
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
    model.train()
    prompts = [[{"role": "user", "content": "1+2"}], [{"role": "user", "content": "12+34"}]]
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    first = evaluation.generate(model, tokenizer, prompts, samples=3, seed=1, max_new_tokens=6)
    assert torch.random.get_rng_state().equal(state) and model.training
    assert first == evaluation.generate(model, tokenizer, prompts, samples=3, seed=1, max_new_tokens=6)
    assert first != evaluation.generate(model, tokenizer, prompts, samples=3, seed=2, max_new_tokens=6)
    assert [len(each) for each in first] == [3, 3] and all(1 <= c.length <= 6 for each in first for c in each)


def test_a_padded_greedy_batch_is_the_argmax_of_each_prompt_alone(tmp_path):
    path = save_tiny_model(tmp_path / "model", seed=5, hidden_size=16, layers=1, heads=2, intermediate=16)
    tokenizer, model = AutoTokenizer.from_pretrained(path), AutoModelForCausalLM.from_pretrained(path)
    prompts = [[{"role": "user", "content": text}] for text in ("1+2", "123+4567", "9+10", "88888888*7")]
    batch = evaluation.generate(model, tokenizer, prompts, greedy=True, max_new_tokens=8, batch_size=3)
    for prompt, (completion,) in zip(prompts, batch, strict=True):
        start = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)["input_ids"]
        ids = list(start)
        while len(ids) < len(start) + 8 and (len(ids) == len(start) or ids[-1] != tokenizer.eos_token_id):
            with torch.no_grad():
                ids.append(int(model(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        assert completion.text == tokenizer.decode(ids[len(start) :], skip_special_tokens=True)
        assert completion.length == len(ids) - len(start)


def test_the_control_pays_by_chance_whatever_is_said():
    pays = rewards.coin_flip(0, 0.3)(["a"] * 5000)
    assert abs(sum(pays) / 5000 - 0.3) < 4 * math.sqrt(0.21 / 5000)
    assert pays == rewards.coin_flip(0, 0.3)(["b"] * 5000) != rewards.coin_flip(1, 0.3)(["b"] * 5000)


@pytest.mark.parametrize("changes", [{}, {"control": True}, {"lora": True, "style": "mixed"}], ids=str)
def test_a_short_run_from_start_to_end(tmp_path, changes):
    console = Console(file=io.StringIO(), width=200)
    result = show(QuickstartSettings(**SHORT, **changes), tmp_path / "out", console)
    text = console.file.getvalue()
    for words in ("held-out pass@1 before GRPO", "groups without signal", "What these numbers do not show", "gain:"):
        assert words in text
    assert ("honesty check" in text) == (not changes.get("control"))
    stored = json.loads((tmp_path / "out/summary.json").read_text())
    assert stored["after"]["pass1"] == result["after"]["pass1"] and len(stored["curve"]) == 2
    assert stored["gain"] == pytest.approx(stored["after"]["pass1"] - stored["before"]["pass1"])
    assert set(stored["no_signal"]) == {"first_tenth", "last_tenth"}
    named = {
        re.match(r"rewards/(\w+)/mean", key)[1]
        for key in stored["curve"][0]
        if key.endswith("/mean") and "rewards" in key
    }
    assert named == ({"random", "think_format"} if changes.get("control") else {"exact_match", "think_format"})
    assert (tmp_path / "out/coldstart/model.safetensors").exists()
    trained = "adapter_model.safetensors" if changes.get("lora") else "model.safetensors"
    assert (tmp_path / "out/trained" / trained).exists()
    assert (tmp_path / "out/plots/reward.png").exists()


def test_a_directory_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="holds something else"):
        show(QuickstartSettings(**SHORT), tmp_path, Console(file=io.StringIO()))
    assert (tmp_path / "mine.txt").exists()


def test_the_recipe_is_the_quickstarts_grpo_stage():
    settings, recipe = QuickstartSettings(), load_recipe("recipes/quickstart.yaml")
    assert recipe.args.num_generations == settings.num_generations
    assert recipe.args.per_device_train_batch_size == settings.prompts_per_step * settings.num_generations
    for name in ("max_completion_length", "learning_rate", "lr_scheduler_type", "warmup_steps"):
        assert getattr(recipe.args, name) == getattr(settings, name), name
    assert recipe.args.max_steps == settings.steps
    assert recipe.prompts.options == {"operations": list(settings.operations), "digits": settings.digits}
    ours, theirs = build_rewards(recipe.args.rewards), build_rewards(rewards.REWARDS)
    assert [(r.name, r.weight) for r in ours] == [(r.name, r.weight) for r in theirs]
