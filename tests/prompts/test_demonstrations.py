"""Rows for supervised stages, mixtures of sources, and errors that help."""

import json

import pytest

from tests.tiny import tiny_tokenizer
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.prompts import PromptSpec, load_demonstrations, load_preferences, load_prompts

USER, ANSWER = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}


@pytest.fixture
def write(tmp_path):
    def write(name, rows):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    return write


def test_every_form_of_a_demonstration_gives_the_same_rows(write):
    forms = {
        "messages": {"messages": [USER, ANSWER]},
        "sharegpt": {"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]},
        "texts": {"question": "1+1?", "response": "2"},
        "pair": {"prompt": [USER], "completion": [ANSWER]},
    }
    for name, row in forms.items():
        rows = load_demonstrations(PromptSpec(write(f"{name}.jsonl", [row])), tiny_tokenizer())
        assert rows[0] == {"prompt": [USER], "completion": [ANSWER]}, name
    plain = load_demonstrations(PromptSpec(write("texts.jsonl", [forms["texts"]])), tiny_tokenizer(chat=False))
    assert plain[0] == {"prompt": "1+1?", "completion": "2"}
    mapped = PromptSpec(write("gsm8k.jsonl", [{"question": "1+1?", "answer": "2"}]), columns={"completion": "answer"})
    assert load_demonstrations(mapped)[0] == {"prompt": "1+1?", "completion": "2"}


def test_the_template_is_that_of_the_prompts(write):
    spec = PromptSpec(write("d.jsonl", [{"prompt": "1+1?", "response": "2"}]), template="boxed", system="S")
    demonstration = load_demonstrations(spec, tiny_tokenizer())[0]
    assert demonstration["prompt"] == load_prompts(spec, tiny_tokenizer())[0]["prompt"]


def test_worked_arithmetic_is_a_source_of_demonstrations():
    rows = load_demonstrations(PromptSpec("arithmetic", size=2, options={"worked": True}))
    assert all(text.startswith("<think>") and text.endswith("</answer>") for text in rows["completion"])


def test_preferences_with_and_without_a_prompt(write):
    wrong = {"role": "assistant", "content": "3"}
    expected = {"prompt": [USER], "chosen": [ANSWER], "rejected": [wrong]}
    whole = write("whole.jsonl", [{"chosen": [USER, ANSWER], "rejected": [USER, wrong]}])
    texts = write("texts.jsonl", [{"prompt": "1+1?", "chosen": "2", "rejected": "3"}])
    for source in (whole, texts):
        assert load_preferences(PromptSpec(source), tiny_tokenizer())[0] == expected
    other = write("other.jsonl", [{"chosen": [USER, ANSWER], "rejected": [{**USER, "content": "2+1?"}, wrong]}])
    with pytest.raises(UserError, match="row 0: `chosen` and `rejected` answer different prompts"):
        load_preferences(PromptSpec(other), tiny_tokenizer())


def test_a_mixture_routes_each_part_to_its_reward(write):
    maths = write("maths.jsonl", [{"question": "1+1?", "answer": "2"}] * 3)
    code = write("code.jsonl", [{"prompt": "Add.", "tests": ["assert add(1, 1) == 2"]}])
    spec = PromptSpec.from_config(
        [{"source": maths, "reward": "gsm8k", "size": 2, "template": "boxed"}, {"source": code, "reward": "code"}]
    )
    rows = load_prompts(spec)
    assert list(rows["reward"]) == [["gsm8k"], ["gsm8k"], ["code"]] and spec.source == f"{maths} + {code}"
    assert list(rows["tests"]) == [None, None, ["assert add(1, 1) == 2"]] and rows["answer"][2] is None
    assert "boxed" in rows["prompt"][0] and rows["prompt"][2] == "Add."
    with pytest.raises(UserError, match="prompts.reward must be a reward's name or a list"):
        PromptSpec(maths, reward=[])
    tested = write("tested.jsonl", [{"prompt": "Add.", "answer": ["assert add(1, 1) == 2"]}])
    mixed = load_prompts(PromptSpec.from_config([maths, tested]))
    assert mixed["answer"][0] == "2" and json.loads(mixed["answer"][3]) == ["assert add(1, 1) == 2"]
    odd = write("odd.jsonl", [{"prompt": "x", "answer": "5", "question": 3}])
    with pytest.raises(UserError, match="the column `question` of .*odd.jsonl is not of the type that it has in"):
        load_prompts(PromptSpec.from_config([maths, odd]))


@pytest.mark.parametrize(
    ("row", "columns", "message"),
    [
        ({"text": "x"}, {}, "no column for `prompt`.*its columns: text"),
        ({"prompt": "x", "text": "y"}, {}, "no column for `completion`"),
        ({"prompt": "x", "text": "y"}, {"completion": "txt"}, r"no column `txt`.*did you mean `text`"),
        ({"messages": [USER]}, {}, "no conversation in `messages` ends with an answer"),
    ],
)
def test_mistakes(write, row, columns, message):
    with pytest.raises(UserError, match=message):
        load_demonstrations(PromptSpec(write("d.jsonl", [row]), columns=columns))
