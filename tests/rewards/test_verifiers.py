"""The first verifiers: right answers pay, wrong ones, hedges and hostile texts do not, and nothing raises."""

import json
from decimal import Decimal

import pytest

from trl_grpo_plus.rewards import build_rewards, get
from trl_grpo_plus.rewards.marks import boxes, final_mark, last_box
from trl_grpo_plus.rewards.text import completion_text, without_reasoning


def value(name, completion, answer="72", **options):
    verdict = build_rewards([{name: options}])[0].function.verdict(completion, {"prompt": "p", "answer": answer})
    assert verdict.value is None or verdict.value in (0.0, 1.0)
    return verdict.value


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        ("so 48+24 = 72\n#### 72", "#### 72", 1.0),
        ("The answer is 72.", "72", 1.0),
        ("The answer is $1,234.50", "1234.5", 1.0),
        ("**Answer:** 72 apples, 3 each", "72", 1.0),
        (r"\boxed{72}", "72", 1.0),
        (r"Thus $\boxed{\$72}$.", "72", 1.0),
        (r"\boxed{\frac{1}{2}}", "0.5", 1.0),
        ("<answer> 72 </answer>", "72", 1.0),
        ("<answer>48+24 = 72</answer>", "72", 1.0),
        ("it is 72", "72", 1.0),
        ("-5", "-5", 1.0),
        ("10-5", "5", 1.0),
        ("10-5", "-5", 0.0),
        ("It costs -$5", "-5", 1.0),
        ("\u22125 degrees", "-5", 1.0),
        ("1,234, and no more", "1234", 1.0),
        ("<think>72</think> 71", "72", 0.0),
        ("<think>the answer is 72", "72", 0.0),
        ("<think>it is 71</think> 72", "72", 1.0),
        ("<answer>71 or 72</answer>", "72", 0.0),
        (r"\boxed{71, 72}", "72", 0.0),
        ("#### 71\nnot 72", "72", 0.0),
        ("\\boxed{72} no, \\boxed{71}", "72", 0.0),
        ("720", "72", 0.0),
        ("7 2", "72", 0.0),
        ("x72y", "72", 0.0),
        ("", "72", 0.0),
        ("I do not know", "72", 0.0),
        ("I will say what the answer is. 48 + 24 gives 72", "72", 1.0),
        ("1/0", "72", 0.0),
        ("72", "no number here", None),
        ("72", None, None),
    ],
)
def test_gsm8k(completion, answer, expected):
    assert value("gsm8k", completion, answer) == expected


@pytest.mark.parametrize("name", ["gsm8k", "math"])
def test_every_reference_solution_of_gsm8k_pays_and_none_with_another_final_number(name, gsm8k_dir):
    """Every fourth; `benchmarks/bench_gsm8k_rewards.py` takes all of them."""
    verify = get(name).build()
    lines = [line for split in ("train", "test") for line in (gsm8k_dir / f"{split}.jsonl").read_text().splitlines()]
    assert len(lines) == 8792
    for line in lines[::4]:
        row = json.loads(line)
        head, _, number = row["answer"].rpartition("#### ")
        wrong = f"{head}#### {Decimal(number.replace(',', '')) + 1}"
        assert verify(row["answer"], row).value == 1.0, row["answer"]
        assert verify(wrong, row).value == 0.0, wrong


@pytest.mark.parametrize(
    ("completion", "answer", "expected"),
    [
        (r"\boxed{\frac{1}{2}}", "1/2", 1.0),
        (r"\boxed{0.5}", r"\frac12", 1.0),
        (r"so $\boxed{x^2+2x+1}$", "(x+1)^2", 1.0),
        ("<answer>1/2</answer>", r"$\frac{1}{2}$", 1.0),
        ("The final answer is $5$.", "5", 1.0),
        ("#### 4.00 + 2.00 = 6.00", "6", 1.0),
        ("#### 4.00 + 2.00 = 5.00", "5", 0.0),
        (r"\boxed{\frac{1}{3}}", "1/2", 0.0),
        ("<think>\\boxed{5}</think> \\boxed{6}", "5", 0.0),
        ("<think>\\boxed{5}", "5", 0.0),
        ("nothing", "5", 0.0),
        (r"\boxed{9^{9^{9^9}}}", "5", 0.0),
        (r"\boxed{95**86**77}", "5", 0.0),
        (r"\boxed{5}", None, None),
    ],
)
def test_math(completion, answer, expected):
    assert value("math", completion, answer) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("<answer>72</answer>", 1.0),
        ("<think>x</think><answer> 72\n</answer>", 1.0),
        ("<think><answer>72</answer></think>", 0.0),
        ("72", 0.0),
        ("<answer>72.0</answer>", 0.0),
        ("<answer>71</answer><answer>72</answer>", 0.0),
        ("</answer>72<answer>", 0.0),
        ("<answer>72</answer><|im_end|>", 1.0),
        ("<think><answer>72</answer>", 0.0),
    ],
)
def test_exact_match(completion, expected):
    assert value("exact_match", completion) == expected


def test_exact_match_options():
    assert value("exact_match", "Paris", "paris", tag=None) == 0.0
    assert value("exact_match", "Paris", "paris", tag=None, ignore_case=True) == 1.0
    assert value("exact_match", "<final>x</final>", "x", tag="final") == 1.0
    assert value("exact_match", "Paris<|im_end|>", "Paris", tag=None) == 1.0


@pytest.mark.parametrize(
    ("completion", "options", "expected"),
    [
        ("<think>2+2</think>4", {}, 1.0),
        ("<think>\n2+2\n</think>\n\n4", {}, 1.0),
        ("<think>2+2</think>", {}, 0.0),
        ("<think>2+2</think>\n<|im_end|>", {}, 0.0),
        ("<think>2+2</think>4</s>\n", {}, 1.0),
        ("<think>2+2</think><answer>4</answer><|im_end|>\n<|endoftext|>", {"answer_tag": True}, 1.0),
        ("<think> </think>4", {}, 0.0),
        ("so <think>2+2</think>4", {}, 0.0),
        ("<think>a<think>b</think>4", {}, 0.0),
        ("<think>a</think>4</think>", {}, 0.0),
        ("2+2</think>4", {}, 0.0),
        ("2+2</think>4", {"opened": True}, 1.0),
        ("<think>2+2</think>4", {"opened": True}, 0.0),
        ("<think>2+2</think><answer>4</answer>", {"answer_tag": True}, 1.0),
        ("<think>2+2</think>4", {"answer_tag": True}, 0.0),
        ("<think>2+2</think><answer></answer>", {"answer_tag": True}, 0.0),
        ("<think>2+2</think><answer>4</answer> or 5", {"answer_tag": True}, 0.0),
        ("<think>2+2</think><answer>4</answer><answer>5</answer>", {"answer_tag": True}, 0.0),
    ],
)
def test_think_format(completion, options, expected):
    assert value("think_format", completion, **options) == expected


def test_think_format_sees_that_the_prompt_opens_the_tag():
    function = build_rewards(["think_format"])[0].function
    assert function.verdict("2+2</think>4", {"prompt": "2+2?<think>\n"}).value == 1.0
    assert function.verdict("2+2</think>4", {"prompt": "2+2?"}).value == 0.0


def test_completions_in_all_forms():
    assert completion_text("a") == "a" and completion_text(None) == "" and completion_text([]) == ""
    assert completion_text([{"role": "assistant", "content": "a"}]) == "a"
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    assert completion_text([{"role": "assistant", "content": parts}]) == "ab"
    turns = [
        {"role": "assistant", "content": "x"},
        {"role": "tool", "content": "y"},
        {"role": "assistant", "content": "z"},
    ]
    assert completion_text(turns) == "z"
    assert completion_text([{"role": "assistant", "content": None}]) == ""
    parsed = [{"role": "assistant", "reasoning_content": "r", "content": "c"}]
    assert completion_text(parsed) == "<think>\nr\n</think>\nc"
    with pytest.raises(TypeError, match="string or a list of messages"):
        completion_text(3)


@pytest.mark.parametrize(
    ("text", "kind", "content"),
    [
        (r"\boxed{a{b}c} \boxed{\frac{1}{2}} tail", r"\boxed", r"a{b}c, \frac{1}{2}"),
        (r"\boxed{1}, no: \boxed{2}", r"\boxed", "2"),
        (r"$x=\boxed{1}$ or $x=\boxed{2}$", r"\boxed", "1, 2"),
        (r"\boxed{42} \boxed{42}", r"\boxed", "42"),
        (r"\boxed {4}", r"\boxed", "4"),
        (r"\boxed 4.", r"\boxed", "4"),
        (r"boxed{4}", r"\boxed", "4"),
        ("\boxed{4}", r"\boxed", "4"),
        (r"\fbox{\boxed{4}}", r"\boxed", r"\boxed{4}"),
        (r"\boxed{\{1\}}", r"\boxed", r"\{1\}"),
        (r"\boxed{12}, written in \boxed{}", r"\boxed", "12"),
        ("#### 7\nmore", "####", "7"),
        ("#### \\boxed{7}", r"\boxed", "7"),
        ("#### Step 2\nso \\boxed{7}\n#### Check the sum\nfine", r"\boxed", "7"),
        ("<answer>1</answer><answer>2</answer>", "<answer>", "2"),
        (r"<answer>It is \boxed{2}.</answer>", r"\boxed", "2"),
        (r"\boxed{1}. Wait. The answer is 2.", "answer is", "2"),
        (r"The answer is 1.5 m. I hope it is correct.", "answer is", "1.5 m"),
        ("**Final Answer**\n\n$\\frac12$\n", "answer is", r"$\frac12$"),
        ("\u7b54\u6848\u662f 12\u3002", "answer is", "12"),
    ],
)
def test_the_last_mark_counts(text, kind, content):
    mark = final_mark(text)
    assert (mark.kind, mark.content) == (kind, content)


def test_marks_that_are_cut_off_or_missing():
    assert final_mark("none") is None and last_box("none") is None and final_mark("the answer is what we want") is None
    assert final_mark(r"\boxed{a} \boxed{unclosed").cut_off and final_mark("<answer>1</answer> <answer>2").cut_off
    assert [box.content for box in boxes(r"\boxed{\boxed{1}} \boxed{2}")] == [r"\boxed{1}", "2"]
    assert without_reasoning("a</think>b</think>c") == "c" and without_reasoning("<think>a") is None
    assert without_reasoning("<think>a</think><think>b") is None and without_reasoning("a</s>") == "a"
    assert final_mark(r"<answer>\boxed{1}").content == "1" and final_mark(r"<answer>1 \boxed{").cut_off
    assert final_mark(r"\boxed{Answer: 1}").kind == r"\boxed"


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ('```json\n{"a": 1}```', 1.0),
        ('```json\n{"a": 1}```\nHope this helps!', 1.0),
        ('```json\n{"a": 2}```\nCorrected:\n```json\n{"a": 1}```', 1.0),
        ('```json\n{"a": 1}```\nCorrected:\n```json\n{"a": 2}```', 0.0),
        ('```json\n{"a": 1, "b": "```"}\n```', 0.0),
        ('{"a": 1}<|im_end|>', 1.0),
    ],
)
def test_json_in_fences_that_close_on_the_same_line(completion, expected):
    assert (
        build_rewards(["json_schema"])[0].function.verdict(completion, {"schema": {"const": {"a": 1}}}).value
        == expected
    )


def test_tokens_that_end_a_turn_are_no_part_of_an_answer():
    assert get("json_schema").build(schema={"const": 5})("5<|im_end|>", {}).value == 1.0
    assert get("regex").build(pattern="72", whole=True)("72<|im_end|>", {}).value == 1.0
    assert get("regex").build(pattern="7", whole=True)("72</s>", {}).value == 0.0
