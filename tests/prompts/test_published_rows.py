"""The recipes on rows of the shapes that their data sets have on the Hub: they load, and right answers are paid."""

import json
from pathlib import Path

import pytest
import yaml

from tests.prompts.published import ANSWER, PUBLISHED, TACO, USER, serve
from tests.tiny import tiny_tokenizer
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.prompts import PromptSpec, load_demonstrations, load_prompts
from trl_grpo_plus.rewards import build_rewards

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    serve(monkeypatch)


def sections():
    """Yields (recipe, section, its value, whether it holds demonstrations) of everything that reads prompts."""
    for file in sorted(RECIPES.rglob("*.yaml")):
        keys = yaml.safe_load(file.read_text())
        supervised = keys.get("algorithm") == "sft"
        found = {**keys, "evaluation": (keys.get("evaluation") or {}).get("prompts")}
        for section in ("prompts", "eval_prompts", "evaluation"):
            parts = found.get(section)
            parts = [parts] if isinstance(parts, dict) else parts or []
            parts = [part for part in parts if part["source"] in PUBLISHED]
            if parts:
                yield pytest.param(parts, supervised, id=f"{file.relative_to(RECIPES)}-{section}")


@pytest.mark.parametrize(("parts", "supervised"), sections())
def test_every_section_of_a_recipe_reads_its_data(parts, supervised):
    load = load_demonstrations if supervised else load_prompts
    rows = load(PromptSpec.from_config(parts), tiny_tokenizer())
    assert len(rows) == sum(len(PUBLISHED[part["source"]][2]) for part in parts)
    wanted = "completion" if supervised else "answer"
    assert all(rows["prompt"]) and all(rows[wanted])


def test_no_source_of_a_recipe_is_left_out():
    named = {
        line.partition("source:")[2].split(",")[0].split("#")[0].strip(' "}')
        for file in RECIPES.rglob("*.yaml")
        for line in file.read_text().splitlines()
        if "source:" in line
    }
    hub_ids = {name for name in named if name.count("/") == 1 and "$" not in name}
    assert hub_ids == set(PUBLISHED)


def of_recipe(name, source):
    parts = yaml.safe_load((RECIPES / name).read_text())["prompts"]
    return PromptSpec.from_config(next(p for p in parts if p["source"] == source))


@pytest.mark.parametrize("kind", TACO)
def test_a_program_of_taco_is_asked_for_as_its_tests_call_it_and_paid(kind, monkeypatch):
    published, solution = TACO[kind], TACO[kind]["solutions"][0]
    monkeypatch.setitem(PUBLISHED, "likaixin/TACO-verified", (None, ("train",), [published]))
    row = load_prompts(of_recipe("r1/2_reasoning_rl.yaml", "likaixin/TACO-verified"), tiny_tokenizer())[0]
    called = json.loads(published["input_output"]).get("fn_name")
    assert (called or "standard input") in row["prompt"][0]["content"]
    code = build_rewards(["code"])[0].function
    verdict = code.verdict(f"<think>So.</think>\n```python\n{solution}\n```", row)
    assert verdict.value == 1.0, verdict
    for wrong in ("sum(", "a / 3", "nums[:2]"):
        broken = solution.replace(wrong, {"sum(": "max(", "a / 3": "a / 3.001", "nums[:2]": "nums[:1]"}[wrong])
        if broken != solution:
            assert code.verdict(f"```python\n{broken}\n```", row).value == 0.0


def test_results_of_a_list_of_one_are_told_from_results_in_one():
    code = build_rewards(["code"])[0].function

    def value(returned, outputs):
        tests = json.dumps({"fn_name": "f", "inputs": [[0]] * len(outputs), "outputs": outputs})
        return code.verdict(f"def f(x):\n    return {returned}", {"prompt": "p", "answer": tests}).value

    assert value("[5]", [[5], [5]]) == value("5", [[5], [5]]) == 1.0  # every result is in one: both are possible
    assert value("5", [[[5]], [[5]]]) == 0.0
    assert value("[x, 1][:1 + x]", [[0], [0]]) == 1.0
    tests = json.dumps({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[0], [0, 1]]})
    assert code.verdict("def f(x):\n    return list(range(x))", {"prompt": "p", "answer": tests}).value == 1.0
    assert code.verdict("def f(x):\n    return 0 if x == 1 else [0, 1]", {"answer": tests}).value == 0.0
    method = "class Solution:\n    def f(self, x):\n        return list(range(x))"  # where no starter code says how
    assert code.verdict(method, {"answer": tests}).value == 1.0
    assert code.verdict(method, {"answer": tests, "starter_code": "def f(x):\n"}).value == 0.0
    for odd in ({"fn_name": "f()", "inputs": [[0]], "outputs": [0]}, {"fn_name": "f", "inputs": [0], "outputs": [0]}):
        assert code.verdict("def f(x):\n    return 0", {"answer": json.dumps(odd)}).value is None


@pytest.mark.parametrize(
    ("source", "config", "reward", "right", "wrong"),
    [
        ("openai/gsm8k", {}, "gsm8k", "So\n#### 3", "So\n#### 4"),
        ("nlile/hendrycks-MATH-benchmark", {}, "math", r"So $\boxed{3}$.", r"So $\boxed{4}$."),
        ("HuggingFaceH4/MATH-500", {"split": "test"}, "math", r"So $\boxed{3}$.", r"So $\boxed{4}$."),
        ("openai/openai_humaneval", {"split": "test"}, "code", "def add(a, b):\n    return a + b", "def add(a, b): 3"),
    ],
)
def test_a_right_answer_is_paid(source, config, reward, right, wrong):
    row = load_prompts(PromptSpec(source, name=PUBLISHED[source][0], **config))[0]
    function = build_rewards([reward])[0].function
    assert (function.verdict(right, row).value, function.verdict(wrong, row).value) == (1.0, 0.0)


def test_what_rejection_sampling_kept_is_mixed_with_conversations(tmp_path):
    kept = {"prompt": [{"role": "user", "content": "1+1?"}], "completion": "2", "reward": ["math"], "pass_rate": 0.5}
    (tmp_path / "train.jsonl").write_text(json.dumps(kept) + "\n")
    parts = yaml.safe_load((RECIPES / "r1/4_sft.yaml").read_text())["prompts"]
    parts[0]["source"] = str(tmp_path)
    rows = load_demonstrations(PromptSpec.from_config(parts), tiny_tokenizer())
    assert rows[0]["completion"] == [{"role": "assistant", "content": "2"}] and len(rows) == 3
    talks = sorted((row for row in list(rows)[1:]), key=lambda row: len(row["prompt"]))
    assert [m["role"] for m in talks[0]["prompt"]] == ["system", "user"]
    assert [m["role"] for m in talks[1]["prompt"]] == ["user", "assistant", "user"]


def test_conversations_without_an_answer_are_left_out_and_counted(monkeypatch, caplog):
    called = {"role": "assistant", "content": None}
    rows = [{"messages": talk, "source": "s"} for talk in ([USER, ANSWER], [USER], [USER, called], [])]
    monkeypatch.setitem(PUBLISHED, "HuggingFaceTB/smoltalk", ("all", ("train",), rows))
    spec = PromptSpec("HuggingFaceTB/smoltalk", name="all")
    assert len(load_demonstrations(spec, tiny_tokenizer())) == 1
    assert "3 of 4 conversations do not end with an answer" in caplog.text
    monkeypatch.setitem(PUBLISHED, "HuggingFaceTB/smoltalk", ("all", ("train",), rows[1:]))
    with pytest.raises(UserError, match="no conversation in `messages` ends with an answer"):
        load_demonstrations(spec, tiny_tokenizer())
