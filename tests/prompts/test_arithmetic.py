"""Synthetic arithmetic: splits disjoint by content, answers and worked steps right by another evaluator."""

import itertools
import random
import re

import pytest

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.prompts import PromptSpec, load_prompts
from trl_grpo_plus.prompts.arithmetic import arithmetic, demonstrations, problems, solution, split_of, work

SPLITS = ("train", "validation", "test")


def contents(rows):
    return [messages[0]["content"] for messages in rows["prompt"]]


def test_splits_are_disjoint_by_content_for_any_seed_and_order():
    pairs = {}
    for split in SPLITS:
        for seed in (0, 1):
            for a, _, b in problems(size=800, seed=seed, split=split, operations=("+", "-", "*")):
                assert pairs.setdefault(frozenset((a, b)), split) == split
                assert split_of(a, b) == split_of(b, a) == split
    assert set(pairs.values()) == set(SPLITS)


def test_seeded_and_distinct():
    first = contents(arithmetic(size=300, seed=5))
    assert first == contents(arithmetic(size=300, seed=5)) != contents(arithmetic(size=300, seed=6))
    assert len(set(first)) == 300


@pytest.mark.parametrize("digits", [1, 2, 3])
@pytest.mark.parametrize("op", ["+", "-", "*"])
def test_worked_steps_are_true_and_lead_to_the_answer(op, digits):
    rng = random.Random(0)
    low, high = (0, 9) if digits == 1 else (10 ** (digits - 1), 10**digits - 1)
    for _ in range(300):
        a, b = rng.randint(low, high), rng.randint(low, high)
        gold = {"+": a + b, "-": a - b, "*": a * b}[op]
        for step in work(a, op, b).split(","):
            left, _, right = step.partition("=")
            assert evaluate(left) == evaluate(right), step
        assert solution(a, op, b).endswith(f"<answer>{gold}</answer>")
        if op == "+":  # the columns' last digits, from the units up, spell the sum
            columns = [int(step.rpartition("=")[2]) for step in work(a, op, b).split(",")]
            assert int("".join([str(columns[-1]), *(str(c % 10) for c in reversed(columns[:-1]))])) == gold


def test_columns_of_a_difference_spell_it_for_every_pair_up_to_99():
    for a, b in itertools.product(range(100), repeat=2):
        steps = work(a, "-", b).split(",")
        if a < b:
            assert steps.pop(0) == f"{a}-{b}=-({b}-{a})"
        results = [step.rpartition("=")[2] for step in steps]
        assert all(len(result) == 1 for result in results)
        assert int("".join(reversed(results))) == abs(a - b)


def test_the_split_of_a_problem_never_moves():
    """A changed hash would let problems that settings were tuned on into the test split."""
    assert [split_of(a, a + 1)[:2] for a in range(10, 18)] == ["tr", "va", "te", "te", "tr", "tr", "va", "va"]
    everything = {split: problems(size=n, split=split) for split, n in zip(SPLITS, (4875, 1572, 1653), strict=True)}
    assert sum(len(set(rows)) for rows in everything.values()) == 90 * 90


def test_huge_operands_are_drawn_without_listing_them():
    assert len(set(problems(size=100, digits=12, operations=("+", "*")))) == 100


def evaluate(text):
    """Sums and products of integers, with a minus before a parenthesis: by hand, not by Python."""
    if text.startswith("-("):
        return -evaluate(text[2:-1])
    total, sign = 0, 1
    for part in re.findall(r"[+-]|[^+-]+", text):
        if part in "+-":
            sign = 1 if part == "+" else -1
            continue
        product = 1
        for factor in part.split("*"):
            product *= int(factor)
        total += sign * product
    return total


def test_mixed_demonstrations_guess_as_often_as_they_say():
    rows = demonstrations(size=1000, style="mixed", guess_share=0.6)
    texts = [messages[0]["content"] for messages in rows["completion"]]
    guesses = [(p, t) for p, t in zip(contents(rows), texts, strict=True) if "easy" in t]
    assert len(guesses) == 600
    right = sum(int(re.search(r"<answer>(-?\d+)", t)[1]) == evaluate(p) for p, t in guesses)
    assert 30 < right < 110, "one guess in nine is right"
    assert all(int(re.search(r"<answer>(-?\d+)", t)[1]) == evaluate(p)
               for p, t in zip(contents(rows), texts, strict=True) if "easy" not in t)  # fmt: skip
    clean = demonstrations(size=50, style="clean")
    assert all("=" in messages[0]["content"] for messages in clean["completion"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 10_000}, "`size`=10000 asks for more train rows than there are distinct problems"),
        ({"operations": ("/",)}, "`operations`"),
        ({"digits": 0}, "`digits` must be at least 1"),
        ({"operands": (9, 3)}, "`operands` must be"),
        ({"split": "dev"}, "`split` must be one of"),
        ({"template": "{a} and {b}"}, "lacks {op}"),
        ({"template": "{a}{op}{b}{c}"}, "may use the fields"),
    ],
)
def test_mistakes_name_the_option(options, message):
    with pytest.raises(ValueError, match=message):
        arithmetic(**options)
    with pytest.raises(UserError, match="prompts: arithmetic: "):
        fields = {k: v for k, v in options.items() if k in ("size", "split")}
        load_prompts(PromptSpec("arithmetic", **fields, options={k: v for k, v in options.items() if k not in fields}))


def test_as_prompts_of_a_recipe():
    options = {"operations": ["+", "-"], "digits": 1, "template": "What is {a} {op} {b}?"}
    rows = load_prompts(PromptSpec("arithmetic", split="test", size=9, options=options, template="Q: {prompt}"))
    for prompt, answer in zip(rows["prompt"], rows["answer"], strict=True):
        a, op, b = re.fullmatch(r"Q: What is (\d) ([+-]) (\d)\?", prompt).groups()
        assert int(answer) == (int(a) + int(b) if op == "+" else int(a) - int(b))
