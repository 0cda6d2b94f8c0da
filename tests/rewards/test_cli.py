"""`grpo-plus rewards`: list, try, check, audit, score."""

import json

import pytest
from typer.testing import CliRunner

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.rewards import Verdict
from trl_grpo_plus.rewards.audit_cases import KINDS, probes
from trl_grpo_plus.rewards.cases import expectation
from trl_grpo_plus.rewards.cli import app


def run(*arguments, code=0):
    result = CliRunner().invoke(app, arguments)
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


# Reward functions of a user's own, good and bad.


def loose(completions, answer, **kwargs):
    """In TRL's form: pays where the answer occurs anywhere."""
    return [float(a.rstrip("}").split("#### ")[-1] in c) for c, a in zip(completions, answer, strict=True)]


def chatty(completions, solution, **kwargs):
    """In TRL's form, for chats, and it raises on what it does not expect."""
    contents = [completion[0]["content"] for completion in completions]
    return [float(c.split("Answer: ")[1].strip() == s) for c, s in zip(contents, solution, strict=True)]


async def later(completions, answer, **kwargs):
    """In TRL's form, async."""
    return [1.0 if c.strip() == f"<answer>{a}</answer>" else 0.0 for c, a in zip(completions, answer, strict=True)]


def strict(completion, row, *, bonus: float = 1.0):
    """A verifier."""
    return Verdict(bonus * (completion == f"<answer>{row['answer']}</answer>"))


def test_list():
    output = run("list")
    for name in ("gsm8k", "think_format", "gate", "multiple_choice"):
        assert name in output
    listed = {row["name"]: row for row in json.loads(run("list", "--json"))["rewards"]}
    assert listed["gsm8k"]["columns"] == ["answer"] and listed["length"]["options"]["max_tokens"] == "int (needed)"


def test_try(tmp_path):
    assert run("try", "gsm8k", "--answer", "4", "--completion", "so #### 4").startswith("value   1\nanswer  4\n")
    output = run("try", "gsm8k", "--completion", "so #### 4")
    assert "unscored" in output and "the row has no `answer`" in output
    file = tmp_path / "completion.txt"
    file.write_text("no such words")
    found = json.loads(run("try", "regex", "--completion", f"@{file}", "--option", "pattern=suc[h]", "--json"))
    assert found == {"value": 1.0, "answer": "such", "reason": "matches", "failure": None}
    row = ["--row", '{"choices": "AB", "answer": "B"}']
    assert run("try", "multiple_choice", "--completion", "Answer: B", *row).startswith("value   1")
    for arguments, message in (
        (["regex", "--completion", "x", "--option", "pattern"], "--option takes key=value"),
        (["gsm8k", "--completion", "x", "--row", "[1"], "--row must be a JSON object"),
        (["gsm8k", "--completion", "@nowhere"], "no such file"),
        (["accuracy_reward", "--completion", "x"], "rewards audit accuracy_reward"),
    ):
        with pytest.raises(UserError, match=message):
            run("try", *arguments)


CASES = [
    {"id": "a", "kind": "numeric", "completion": "#### 4", "gold": "4", "expected": 1.0},
    {"id": "b", "kind": "numeric", "completion": "#### 5", "gold": "4", "expected": 0.0, "in_thread": True},
    {"id": "c", "kind": "numeric", "completion": "#### 4", "gold": None, "expected": "skip (None); never 1.0"},
    {"id": "d", "kind": "choice", "completion": None, "gold": "A", "choices": "AB", "expected": "skip (None) or 0.0"},
    {
        "id": "e",
        "kind": "repetition",
        "completion": None,
        "gold": {"ngram": 0, "max_penalty": -1.0, "completion_ids": []},
        "expected": "ValueError when the rule is built",
    },
    {"id": "f", "kind": "numeric", "completion": "#### 4", "gold": "5", "expected": 1.0, "ambiguous": True},
    {
        "id": "g",
        "kind": "format",
        "completion": "a</think>b",
        "gold": {"spec": "think", "prefilled": True},
        "expected": 1.0,
    },
    {
        "id": "h",
        "kind": "json",
        "completion": "[1]",
        "gold": {"schema": {"type": "array"}},
        "expected": 1,
        "must_return_within_s": 9,
    },
]


def write(file, cases):
    file.write_text("\n".join(json.dumps(case) for case in cases) + "\n")
    return str(file)


def test_check_counts_agreement_by_kind(tmp_path):
    out = tmp_path / "out.json"
    output = run("check", write(tmp_path / "cases.jsonl", CASES), "--json", str(out), "--workers", "1")
    assert "7 of 7 right" in output and "f (ambiguous): found 0, right is 1" in output
    report = json.loads(out.read_text())
    kinds = {
        row["kind"]: (row["right"], row["total"], row["ambiguous_agreed"], row["ambiguous"]) for row in report["kinds"]
    }
    assert kinds == {
        "numeric": (3, 3, 0, 1),
        "choice": (1, 1, 0, 0),
        "repetition": (1, 1, 0, 0),
        "format": (1, 1, 0, 0),
        "json": (1, 1, 0, 0),
    }
    assert [o["id"] for o in report["disagreements"]] == ["f"] and report["workers"] == 1


@pytest.mark.parametrize("case", [0, 1, 2, 4, 6, 7])
def test_check_sees_a_wrong_value(tmp_path, case):
    wrong = {**CASES[case], "expected": 0.5}
    output = run("check", write(tmp_path / "cases.jsonl", [wrong]), code=1)
    assert f"{wrong['id']}: found" in output and "0 of 1 right" in output


def test_check_says_which_line_is_wrong(tmp_path):
    for case, message in (
        (
            {"id": "a", "kind": "poem", "completion": "", "gold": "", "expected": 1},
            "line 2 is no case.*unknown kind 'poem'",
        ),
        ({"id": "a", "kind": "math", "completion": "", "gold": ""}, "line 2 is no case: KeyError: 'expected'"),
        (
            {"id": "a", "kind": "math", "completion": "", "gold": "", "expected": "maybe"},
            "`expected` is not understood",
        ),
    ):
        with pytest.raises(UserError, match=message):
            run("check", write(tmp_path / "cases.jsonl", [CASES[0], case]))


@pytest.mark.parametrize(
    ("sentence", "allowed", "refused"),
    [
        ("skip (None); never 1.0", (None,), False),
        ("skip (None) or 0.0; never 1.0", (None, 0.0), False),
        ("0.0 or -0.5", (0.0, -0.5), False),
        ("ValueError when the rule is built", (), True),
        (None, (None,), False),
        (1, (1.0,), False),
    ],
)
def test_sentences_say_what_is_right(sentence, allowed, refused):
    assert expectation(sentence) == (allowed, refused)


def audit(name, kind, tmp_path, code):
    out = tmp_path / "audit.json"
    output = run(
        "audit", f"tests.rewards.test_cli:{name}", "--kind", kind, "--json", str(out), "--timeout-s", "20", code=code
    )
    return output, json.loads(out.read_text())["probes"]


def test_audit_finds_what_a_loose_function_pays_for(tmp_path):
    output, found = audit("loose", "text", tmp_path, code=1)
    paid = {probe["what"] for probe in found if probe["paid_wrongly"]}
    assert paid >= {"all candidates as one answer", "the gold answer denied", "several answers, the last one wrong"}
    assert "given as texts" in output and "Pays for and should not: " in output


def test_audit_gives_chats_to_who_wants_chats_and_names_what_raises(tmp_path):
    output, found = audit("chatty", "choice", tmp_path, code=1)
    assert "given as chat messages" in output
    assert {p["what"] for p in found if p["paid_wrongly"]} == {"the gold answer in a thought that does not end"}
    assert any("IndexError" in probe["reason"] for probe in found) and "Raises, hangs or crashes on: " in output


@pytest.mark.parametrize("name", ["later", "strict"])
def test_audit_passes_who_pays_for_the_answer_only(tmp_path, name):
    output, found = audit(name, "text", tmp_path, code=0)
    assert (
        "Pays for and should not: none\nDoes not pay for and should: none\nRaises, hangs or crashes on: none" in output
    )
    assert {probe["family"] for probe in found} == {"right", "near miss", "guess", "echo", "hostile"}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_probes_of_every_family(kind):
    families = [probe.family for probe in probes(kind)]
    assert set(families) >= {"right", "near miss", "echo", "hostile"} and len(families) > 25


def test_score_grades_a_file(tmp_path):
    data = write(
        tmp_path / "data.jsonl",
        [
            {"prompt": "1+1", "answer": "2", "completions": ["#### 2", "#### 3"]},
            {"prompt": "1+2", "answer": "3", "completions": [[{"role": "assistant", "content": "#### 3"}]]},
        ],
    )
    out = tmp_path / "out.jsonl"
    trl_form = "tests.rewards.test_cli:loose"
    output = run("score", data, "--rewards", "gsm8k", "--rewards", "{think_format: 0.1}", "--out", str(out))
    assert "3 completions" in output and "0.6667" in output
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["rewards"]["gsm8k"]["value"] for line in lines] == [1.0, 0.0, 1.0] and lines[0]["answer"] == "2"
    texts = write(tmp_path / "texts.jsonl", [{"prompt": "", "answer": "2", "text": "so 2"}])
    assert "1.0000" in run("score", texts, "--rewards", trl_form, "--field", "text")
    for arguments, message in (
        ([texts, "--rewards", "gsm8k"], "line 1 has no completion"),
        ([data, "--rewards", "exact_match: {column: spec}"], "reads the column `spec`, which the file lacks"),
        (["nowhere.jsonl", "--rewards", "gsm8k"], "no such file"),
    ):
        with pytest.raises(UserError, match=message):
            run("score", *arguments)
