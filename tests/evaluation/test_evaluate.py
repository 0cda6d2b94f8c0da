"""The evaluation of a tiny model: the numbers are those of the samples, and a killed run draws the same ones."""

import json
import math
import random

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, GenerationConfig

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.evaluation import Sample, Sampling, evaluate, load_model, load_tokenizer, score_samples, summarize
from trl_grpo_plus.evaluation import run as run_module
from trl_grpo_plus.evaluation.store import read_run
from trl_grpo_plus.rewards import RewardFunction, Verdict, Weighted

ROWS = Dataset.from_list(
    [
        {"prompt": [{"role": "user", "content": f"{'1+' * i}{i}="}], "answer": str(2 * i), "level": i}
        for i in (1, 7, 3, 12, 5)
    ]
)
SAMPLING = Sampling(n=6, max_new_tokens=8, batch_size=8, seed=3)


def number_verifier(completion, row):
    """The first digit is the answer; equal modulo 5 votes together; a letter first is not extracted."""
    text = completion.strip()[:1]
    if text == "!":
        return Verdict.unscored("cannot say")
    return Verdict(float(text.isdigit() and int(text) % 5 == int(row["answer"]) % 5), text if text.isdigit() else None)


def digits(same=lambda a, b: int(a) % 5 == int(b) % 5):
    return Weighted(RewardFunction("digits", number_verifier, ("answer",), accuracy=True, same=same), 2.0)


def samples_of(texts):
    return [
        Sample(problem, number, text, [1] * (number + 1), number == 0)
        for problem, each in enumerate(texts)
        for number, text in enumerate(each)
    ]


def test_scores_votes_and_means_by_hand():
    rows = Dataset.from_dict({"prompt": ["a", "b"], "answer": ["2", "3"]})
    texts = [["7", "2", "1", "x"], ["8", "!", "4", "9"]]
    scored = score_samples(samples_of(texts), rows, [digits()])
    assert [s.right for s in scored] == [True, True, False, False, True, None, False, False]
    assert [s.vote for s in scored] == [0, 0, 1, None, 0, None, 1, 1]
    assert [s.reward for s in scored] == [2, 2, 0, 0, 2, None, 0, 0]
    found = summarize(scored, 2, (1, 2))
    value = {name: e.value for name, e in found.metrics.items()}
    assert value["pass@1"] == pytest.approx((2 / 4 + 1 / 3) / 2)
    assert value["pass@2"] == pytest.approx(((1 - 1 / 6) + (1 - 1 / 3)) / 2)
    # First problem: of 6 pairs, {7,2} wins, with 1 or x: (7,1) and (2,1) tie, (7,x) and (2,x) win, (1,x) loses.
    assert value["maj@2"] == pytest.approx(((1 + 2 * 0.5 + 2) / 6 + (2 * 0.5) / 3) / 2)
    assert value["unscored"] == pytest.approx(1 / 8) and value["answered"] == pytest.approx((3 / 4 + 1) / 2)
    assert value["completions/mean_length"] == 2.5 and value["completions/clipped_ratio"] == 0.25
    assert value["reward"] == pytest.approx((1 + 2 / 3) / 2)


def test_votes_by_text_alone_differ():
    rows = Dataset.from_dict({"prompt": ["a"], "answer": ["2"]})
    by_text = score_samples(samples_of([["7", "2", "1", "1"]]), rows, [digits(same=lambda a, b: False)])
    assert [s.vote for s in by_text] == [0, 1, 2, 2]
    broken = score_samples(samples_of([["7", "2"]]), rows, [digits(same=lambda a, b: 1 / 0)])
    assert [s.vote for s in broken] == [0, 1], "a comparison that fails has not found the answers equal"


def test_the_first_reward_that_scored_it_decides():
    rows = Dataset.from_dict({"prompt": ["a", "b"], "kind": ["x", "y"]})

    def only(kind, value):
        def verify(completion, row):
            return Verdict(value, completion) if row["kind"] == kind else Verdict.unscored("another kind")

        return RewardFunction(f"of_{kind}", verify, ("kind",), accuracy=True)

    def trl_reward(completions, kind, completion_ids, **others):
        return [0.25 * len(ids) if k == "x" else None for k, ids in zip(kind, completion_ids, strict=True)]

    rewards = [only("x", 1.0), only("y", 0.5), Weighted(trl_reward, 1.0)]
    scored = score_samples(samples_of([["1"], ["1"]]), rows, rewards)
    assert [s.right for s in scored] == [True, False] and [s.reward for s in scored] == [1.25, 0.5]
    assert [s.right for s in score_samples(samples_of([["1"], ["1"]]), rows, rewards, correct="of_y")] == [None, False]
    with pytest.raises(UserError, match="no reward is named `of_z`; the rewards are of_x"):
        score_samples([], rows, rewards, correct="of_z")
    with pytest.raises(UserError, match="none of trl_reward says which answers are right"):
        score_samples([], rows, [Weighted(trl_reward, 1.0)])


class Killed(Exception):
    pass


def test_a_killed_run_goes_on_and_draws_nothing_twice(tiny_model, tmp_path, monkeypatch):
    whole = evaluate(tiny_model, ROWS, [digits()], sampling=SAMPLING, ks=(1, 4), output_dir=tmp_path / "whole")
    drawn = []
    original = run_module.model_generator

    def counting(model, tokenizer, sampling, fail_at=None):
        generate = original(model, tokenizer, sampling)

        def count(prompt_ids, seed):
            if len(drawn) == fail_at:
                raise Killed
            drawn.append(seed)
            return generate(prompt_ids, seed)

        return count

    monkeypatch.setattr(run_module, "model_generator", lambda *a: counting(*a, fail_at=2))
    with pytest.raises(Killed):
        evaluate(tiny_model, ROWS, [digits()], sampling=SAMPLING, ks=(1, 4), output_dir=tmp_path / "part")
    assert len(list((tmp_path / "part/parts").glob("*.parquet"))) == 2
    with pytest.raises(UserError, match="no problems.parquet, which is not finished"):
        read_run(tmp_path / "part")
    torch.manual_seed(random.randrange(1000))  # the state of the process must not matter
    monkeypatch.setattr(run_module, "model_generator", counting)
    seen = []
    resumed = evaluate(
        tiny_model,
        ROWS,
        [digits()],
        sampling=SAMPLING,
        ks=(1, 4),
        output_dir=tmp_path / "part",
        on_batch=lambda batch, total: seen.append((len(batch), total)),
    )
    assert len(drawn) == len(set(drawn)) == math.ceil(30 / 8) and seen == [(8, 30)] * 3 + [(6, 30)]
    assert [s.sample for s in resumed.scored] == [s.sample for s in whole.scored]
    assert resumed.metrics == whole.metrics
    assert not (tmp_path / "part/parts").exists()

    # A finished run is scored anew, by other rewards as well, and draws nothing.
    again = evaluate(
        tiny_model, ROWS, [digits(), {"think_format": 0.5}], sampling=SAMPLING, ks=(2,), output_dir=tmp_path / "part"
    )
    assert len(drawn) == 4 and [s.sample for s in again.scored] == [s.sample for s in whole.scored]
    assert again.metrics["format_rate"].value == 0.0 and "pass@2" in again.metrics
    stored = json.loads((tmp_path / "part/result.json").read_text())
    assert stored["metrics"]["pass@2"]["value"] == again.metrics["pass@2"].value and stored["problems"] == 5
    problems, samples = read_run(tmp_path / "part")
    assert json.loads(problems[1]["prompt"]) == ROWS[1]["prompt"] and problems[1]["level"] == 7
    assert [s["completion"] for s in samples] == [s.sample.text for s in whole.scored]
    assert [s["rewards/digits"] for s in samples] == [s.verdicts["digits"].value for s in whole.scored]

    with pytest.raises(UserError, match=r"other settings \(max_new_tokens: 8 there, 9 now\)"):
        other = Sampling(n=6, max_new_tokens=9, batch_size=8, seed=3)
        evaluate(tiny_model, ROWS, [digits()], sampling=other, output_dir=tmp_path / "part")


def test_samples_depend_on_the_seed_and_the_prompts_only(tiny_model, tmp_path):
    model, tokenizer = load_model(tiny_model), load_tokenizer(tiny_model)

    def texts(**changes):
        sampling = Sampling(**{**vars(SAMPLING), **changes})
        return [
            s.sample.text for s in evaluate(model, ROWS, [digits()], tokenizer=tokenizer, sampling=sampling).scored
        ]

    first = texts()
    state = torch.random.get_rng_state()
    model.train()
    assert texts() == first and model.training and torch.random.get_rng_state().equal(state)
    assert texts(seed=4) != first
    greedy = texts(n=1, temperature=0.0)
    assert greedy == texts(n=1, temperature=0.0, seed=9) and len(greedy) == 5
    with pytest.raises(UserError, match="greedy: all n=6 samples"):
        texts(temperature=0)
    with pytest.raises(UserError, match="k must be between 1 and n=1, found 2"):
        evaluate(model, ROWS, [digits()], tokenizer=tokenizer, ks=(2,))
    with pytest.raises(UserError, match="output_dir needs a model given by its directory"):
        evaluate(model, ROWS, [digits()], tokenizer=tokenizer, output_dir=tmp_path / "x")


def test_settings_that_a_model_ships_with_do_not_leak(tiny_model, tmp_path):
    model, tokenizer = load_model(tiny_model), load_tokenizer(tiny_model)
    plain = evaluate(model, ROWS, [digits()], tokenizer=tokenizer, sampling=SAMPLING)
    model.generation_config = GenerationConfig(
        eos_token_id=model.generation_config.eos_token_id,
        pad_token_id=0,
        do_sample=True,
        top_k=1,
        min_p=0.9,
        repetition_penalty=1.8,
        temperature=0.1,
    )
    shipped = model.generation_config
    again = evaluate(model, ROWS, [digits()], tokenizer=tokenizer, sampling=SAMPLING)
    assert [s.sample for s in again.scored] == [s.sample for s in plain.scored]
    assert model.generation_config is shipped


def test_a_model_that_is_not_exact_on_our_path_takes_transformers(tiny_model, monkeypatch):
    from trl_grpo_plus import rollouts

    model, tokenizer = load_model(tiny_model), load_tokenizer(tiny_model)
    greedy = Sampling(max_new_tokens=8, temperature=0)
    ours = evaluate(model, ROWS, [digits()], tokenizer=tokenizer, sampling=greedy)
    monkeypatch.setattr(rollouts, "why_not", lambda *a: "for the test")
    monkeypatch.setattr(rollouts, "generate_groups", None)
    theirs = evaluate(model, ROWS, [digits()], tokenizer=tokenizer, sampling=greedy)
    assert [s.sample for s in ours.scored] == [s.sample for s in theirs.scored]


def test_an_adapter_is_put_on_its_base(tiny_model, tmp_path):
    from peft import LoraConfig, get_peft_model

    tokenizer = load_tokenizer(tiny_model)
    torch.manual_seed(0)
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32),
        LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False),
    )
    adapted.save_pretrained(tmp_path / "adapter")
    greedy = Sampling(max_new_tokens=8, temperature=0)
    base = evaluate(tiny_model, ROWS, [digits()], sampling=greedy)
    merged = evaluate(adapted.merge_and_unload(), ROWS, [digits()], tokenizer=tokenizer, sampling=greedy)
    loaded = evaluate(str(tmp_path / "adapter"), ROWS, [digits()], sampling=greedy)
    texts = [[s.sample.text for s in each.scored] for each in (base, merged, loaded)]
    assert texts[2] == texts[1] != texts[0]


def test_models_that_cannot_be_loaded(tmp_path, tiny_model):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="neither config.json nor adapter_config.json"):
        evaluate(str(tmp_path / "empty"), ROWS, [digits()])
    with pytest.raises(UserError, match="no such directory: ./nowhere"):
        evaluate("./nowhere", ROWS, [digits()])
    with pytest.raises(UserError, match="dtype must be one of auto, float32"):
        load_model(tiny_model, "float64")
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "no/such-base"}))
    with pytest.raises(UserError, match="no tokenizer for no/such-base"):
        evaluate(str(tmp_path / "adapter"), ROWS, [digits()])


@pytest.mark.parametrize(
    ("reward", "texts", "votes"),
    [
        (
            "math",
            [r"\boxed{\frac{1}{2}}", r"\boxed{0.5}", r"\boxed{1/2}", r"\boxed{2}", ""],
            [0, 0, 0, 1, None],
        ),
        ("gsm8k", ["It is 1,000.", "#### 1000", "The answer is 1000.0", "#### 10", ""], [0, 0, 0, 1, None]),
    ],
)
def test_answers_that_are_equal_vote_together(reward, texts, votes):
    rows = Dataset.from_dict({"prompt": ["a"], "answer": ["0.5" if reward == "math" else "1000"]})
    scored = score_samples(samples_of([texts]), rows, [reward])
    assert [s.vote for s in scored] == votes and [s.right for s in scored] == [True] * 3 + [False] * 2
    assert summarize(scored, 1, (5,)).metrics["maj@5"].value == 1.0
