"""Answers in the many ways people write them, right ones and near misses: pairs of answers, and whole sentences."""

import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

from trl_grpo_plus.rewards import get

LINES = (Path(__file__).parents[1] / "data/answers_as_written.jsonl").read_text().splitlines()
CASES = [json.loads(line) for line in LINES]


@pytest.mark.parametrize("kind", ["pair", "math", "gsm8k", "multiple_choice"])
def test_answers_as_written(kind):
    verify = get("math" if kind == "pair" else kind).build()
    mine = [case for case in CASES if case["kind"] == kind]
    wrong = []
    for case in mine:
        text = f"The result is $\\boxed{{{case['text']}}}$." if kind == "pair" else case["text"]
        verdict = verify(text, {"answer": case["gold"], "choices": "ABCD"})
        if verdict.value != case["expected"]:
            wrong.append((case["text"], case["gold"], case["expected"], verdict))
    assert not wrong and len(mine) > 50


def test_no_plain_number_pays_for_another():
    """Python's own fractions are the witness."""
    verify = get("math").build()
    texts = {text for case in CASES for text in (case["text"], case["gold"])}
    numbers = sorted(text for text in texts if re.fullmatch(r"-?\d+(?:\.\d+)?", text))
    assert len(numbers) > 40
    for gold in numbers:
        for text in numbers:
            value = verify(f"\\boxed{{{text}}}", {"answer": gold}).value
            assert value == float(Fraction(text) == Fraction(gold)), (text, gold)
