"""Every verifier of the registry: the reference answer pays full, and no text makes it raise, hang or overpay."""

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trl_grpo_plus.rewards import RewardFunction, build_rewards, entries, get

# name -> (options, row, a completion that deserves the highest value)
REFERENCE = {
    "exact_match": ({}, {"answer": "72"}, "<answer>72</answer>"),
    "gsm8k": ({}, {"answer": "48+24=<<48+24=72>>72\n#### 72"}, "#### 72"),
    "json_schema": ({"schema": {"const": {"a": 72}}}, {}, '{"a": 72}'),
    "length": ({"max_tokens": 100}, {"completion_ids": [1] * 10}, "short"),
    "math": ({}, {"answer": r"\frac{1}{2}"}, r"so \boxed{0.5}"),
    "multiple_choice": ({}, {"answer": "B", "choices": "ABCD"}, "The answer is B."),
    "reasoning_gym": (
        {},
        {"entry": {"answer": "72", "metadata": {"source_dataset": "chain_sum"}}},
        "<answer>72</answer>",
    ),
    "regex": ({"pattern": r"\b7+2\b"}, {}, "it is 72"),
    "repetition": ({"unit": "words"}, {}, "each word is said only once"),
    "think_format": ({}, {}, "<think>48 + 24</think>72"),
}
HIGHEST = {"length": 0.0, "repetition": 0.0}
LOWEST = {"length": -1.0, "repetition": -1.0}
TIMEOUT_S = 5
MEGABYTE = 10**6

HOSTILE = {
    "empty": "",
    "none": None,
    "space": " " * MEGABYTE,
    "megabyte": "a" * MEGABYTE,
    "digits": "1" * MEGABYTE,
    "surrogate": "\ud800" * 1000,
    "zero byte": "\x00" * 1000,
    "power tower": r"\boxed{9^{9^{9^9}}}",
    "power tower in prose": "The answer is 95**86**77",
    "python power": r"\boxed{95**86**77}",
    "factorial": r"\boxed{((10!)!)!}",
    "sum": r"\boxed{\sum_{k=1}^{10^{12}} \frac{1}{k}}",
    "product": r"\boxed{\prod_{k=1}^{10^8} k}",
    "sine": r"\boxed{\sin(10^{10^9})}",
    "root": r"\boxed{\sqrt[10^9]{10^{10^6}}}",
    "parentheses": "\\boxed{" + "(" * 5000 + "2" + ")" * 5000 + "}",
    "fractions": "\\boxed{" + r"\frac{1}{" * 300 + "2" + "}" * 300 + "}",
    "roots": "\\boxed{" + r"\sqrt" * 400 + "2}",
    "quotients": "\\boxed{" + "1/" * 900 + "2}",
    "plus-minus": "\\boxed{" + r"\pmi" * 300 + "}",
    "boxes": r"\boxed{" * 100_000,
    "many boxes": r"\boxed{1} " * 100_000,
    "tags": "<answer>" * 100_000,
    "thinking": "<think>" * 50_000 + "</think>" * 50_000,
    "braces": "{" * MEGABYTE,
    "brackets": "[" * MEGABYTE,
    "fences": "```\n" * 200_000,
    "backticks": "`" * MEGABYTE,
    "hashes": "#### " * 200_000,
    "answers": "the answer is " * 70_000,
    "turns": "<|im_end|>" * 100_000,
    "json": '{"a":' * 50_000,
    "words": "\\boxed{" + "therefore " * 1900 + "}",
    "units": "\\boxed{" + "12 cm " * 450 + "}",
    "relations": "\\boxed{" + "1<" * 1400 + "}",
}
HOSTILE |= {f"bytes {seed}": random.Random(seed).randbytes(5000).decode("latin-1") for seed in range(5)}


def function_of(name):
    options, row, completion = REFERENCE[name]
    function = build_rewards([{name: options}])[0].function
    assert isinstance(function, RewardFunction)
    return function, {"prompt": "p", "completion_ids": [1] * 10, **row}, completion


def bounded(name, verdict):
    assert verdict.failure is None, verdict
    assert verdict.value is None or LOWEST.get(name, 0.0) <= verdict.value <= HIGHEST.get(name, 1.0), verdict


def local():
    """The verifiers that need nothing outside: those with a server, a model or a sandbox have tests of their own."""
    return [entry.name for entry in entries() if entry.runs in ("pool", "inline") and entry.name != "code"]


@pytest.mark.parametrize("name", local())
def test_the_reference_answer_pays_full(name):
    function, row, completion = function_of(name)
    assert function.verdict(completion, row).value == HIGHEST.get(name, 1.0)


@pytest.mark.parametrize("name", local())
def test_no_text_makes_it_raise_hang_or_pay(name):
    function, row, _ = function_of(name)
    for label, text in HOSTILE.items():
        start = time.monotonic()
        verdict = function.verdict(text, row)
        assert time.monotonic() - start < TIMEOUT_S, label
        bounded(name, verdict)
        if name not in HIGHEST:
            assert verdict.value in (None, 0.0), label


@pytest.mark.parametrize("name", local())
def test_a_row_without_its_columns_is_unscored_or_needs_none(name):
    function, _, completion = function_of(name)
    for row in ({}, {"answer": None}, {"answer": []}, {"answer": object()}, {"answer": ""}):
        bounded(name, function.verdict(completion, row))


@pytest.mark.parametrize("text", [text for text in HOSTILE.values() if text and len(text) < 20_000])
def test_a_hostile_gold_answer_does_no_harm(text):
    function = build_rewards(["math"])[0].function
    start = time.monotonic()
    assert function.verdict(r"\boxed{5}", {"answer": text}).value in (None, 0.0)
    assert time.monotonic() - start < TIMEOUT_S


PIECES = (
    r"\frac { } 1 2 10 x ^ _ ( ) [ ] , \text{ and } $ \cup \in = < \le - + / \sqrt \pm % ! | \infty \{ \} & \\ : ; ."
)
PIECES = [
    *PIECES.split(" "),
    r"\circ",
    r"\sin",
    r"\sum_{k=1}^{3}",
    "√",
    "½",
    "个",
    "e",
    "i",
    r"\boxed{",
    " ",
    "#### ",
    "\n",
    "cm",
]


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_no_formula_makes_math_raise(text):
    verify = get("math").build()
    for answer in ("72", r"\sqrt{2}", "x^2+1", "(1,2)", r"\{1,2\}", r"(-\infty,1)\cup(3,\infty)"):
        bounded("math", verify(f"\\boxed{{{text}}}", {"answer": answer}))
    bounded("math", verify(f"\\boxed{{{text}}}", {"answer": text}))
