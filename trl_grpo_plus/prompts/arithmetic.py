"""Synthetic arithmetic: procedural, seeded prompts with exact answers, and worked demonstrations for a cold start.

Stage: prompts. In: which operations, how large the operands, which split, how many rows. Out: a `datasets.Dataset` of
`{"prompt": [{"role": "user", "content": "47+38"}], "answer": "85"}` for GRPO, or of prompt-completion rows for SFT.

The splits are disjoint by content: a problem's side is decided by the md5 of its sorted operands, so `47+38`, `38+47`
and `47-38` always fall on the same side, for every seed, size and template. (Single-digit facts such as 7+8=15 are, of
course, needed on all sides.)
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Sequence
from typing import Any, Literal

from datasets import Dataset

Split = Literal["train", "validation", "test"]
Style = Literal["clean", "mixed"]
Problem = tuple[int, str, int]

OPERATIONS = ("+", "-", "*")
# Of ten md5 buckets, six train, two validate and two test.
_BUCKETS: dict[str, tuple[int, ...]] = {"train": (4, 5, 6, 7, 8, 9), "validation": (2, 3), "test": (0, 1)}
# A guessed answer is the truth plus one of these, so a guess is right one time in nine.
_GUESS_OFFSETS = (-10, -9, -2, -1, 0, 1, 2, 9, 10)


def compute(a: int, op: str, b: int) -> int:
    """Returns the exact value of `a op b`.

    Raises:
        ValueError: `op` is not one of `OPERATIONS`.
    """
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if op == "*":
        return a * b
    raise ValueError(f"`operations`: unknown operation {op!r}; known: {', '.join(OPERATIONS)}")


def split_of(a: int, b: int) -> Split:
    """Returns the split that a problem with operands `a` and `b`, in either order, belongs to."""
    bucket = int(hashlib.md5(repr(sorted((a, b))).encode(), usedforsecurity=False).hexdigest(), 16) % 10
    if bucket in _BUCKETS["train"]:
        return "train"
    return "validation" if bucket in _BUCKETS["validation"] else "test"


def work(a: int, op: str, b: int) -> str:
    """Returns the steps of `a op b` as comma-separated equations, all of them true, for non-negative operands.

    Sums and differences go column by column from the units, with the carry or borrow as a third term: `47+38` is
    `7+8=15,4+3+1=8`, `83-47` is `13-7=6,8-4-1=3`. A negative difference starts by saying so: `38-47=-(47-38)`.
    Products are split by place and summed: `47*38` is `47*8=376,47*30=1410,376+1410=1786`.
    """
    if op == "+":
        return ",".join(_columns_of_sum(a, b))
    if op == "-":
        if a < b:
            return ",".join([f"{a}-{b}=-({b}-{a})", *_columns_of_difference(b, a)])
        return ",".join(_columns_of_difference(a, b))
    if op == "*":
        return ",".join(_partial_products(a, b))
    raise ValueError(f"`operations`: unknown operation {op!r}; known: {', '.join(OPERATIONS)}")


def _digits(number: int, width: int) -> list[int]:
    return [int(digit) for digit in reversed(str(number).zfill(width))]


def _columns_of_sum(a: int, b: int) -> list[str]:
    width = len(str(max(a, b)))
    carry, steps = 0, []
    for x, y in zip(_digits(a, width), _digits(b, width), strict=True):
        steps.append(f"{x}+{y}{'+1' if carry else ''}={x + y + carry}")
        carry = (x + y + carry) // 10
    return steps


def _columns_of_difference(a: int, b: int) -> list[str]:
    width = len(str(a))
    borrow, steps = 0, []
    for x, y in zip(_digits(a, width), _digits(b, width), strict=True):
        taken = 1 if x - y - borrow < 0 else 0
        steps.append(f"{x + 10 * taken}-{y}{'-1' if borrow else ''}={x + 10 * taken - y - borrow}")
        borrow = taken
    return steps


def _partial_products(a: int, b: int) -> list[str]:
    def places(number: int) -> list[int]:
        return [d * 10**i for i, d in enumerate(_digits(number, 1)) if d] or [0]

    # Split the right operand; where it has one place only, split the left one.
    pairs = [(a, p) for p in places(b)] if len(places(b)) > 1 else [(p, b) for p in places(a)]
    steps = [f"{x}*{y}={x * y}" for x, y in pairs]
    total = pairs[0][0] * pairs[0][1]
    for x, y in pairs[1:]:
        steps.append(f"{total}+{x * y}={total + x * y}")
        total += x * y
    return steps


def solution(a: int, op: str, b: int) -> str:
    """Returns the worked completion, `<think>7+8=15,4+3+1=8</think><answer>85</answer>` for 47+38."""
    return f"<think>{work(a, op, b)}</think><answer>{compute(a, op, b)}</answer>"


def problems(
    *,
    size: int,
    seed: int = 0,
    split: Split = "train",
    operations: Sequence[str] = ("+",),
    digits: int = 2,
    operands: tuple[int, int] | None = None,
) -> list[Problem]:
    """Draws `size` distinct problems `(a, op, b)` of one split, in random order, every problem equally likely.

    Args:
        size: Number of problems.
        seed: Which ones, and in which order. The split does not depend on it.
        split: "train" (about 60 % of all operand pairs), "validation" (20 %) or "test" (20 %).
        operations: Subset of "+", "-" and "*".
        digits: Operands have exactly this many decimal digits (1 includes zero).
        operands: Lowest and highest operand, both included and not negative; overrides `digits`.

    Raises:
        ValueError: An option is out of range, or `size` exceeds the number of distinct problems; it names the option.
    """
    if split not in _BUCKETS:
        raise ValueError(f"`split` must be one of {', '.join(_BUCKETS)}, not {split!r}")
    operations = list(operations)
    if not operations or len(set(operations)) != len(operations) or not set(operations) <= set(OPERATIONS):
        raise ValueError(f"`operations` must be distinct and among {', '.join(OPERATIONS)}, not {operations!r}")
    if operands is None:
        if digits < 1:
            raise ValueError(f"`digits` must be at least 1, not {digits}")
        operands = (0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)
    low, high = operands
    if not 0 <= low <= high:
        raise ValueError(f"`operands` must be (low, high) with 0 <= low <= high, not {tuple(operands)!r}")
    if size < 1:
        raise ValueError(f"`size` must be at least 1, not {size}")

    span = high - low + 1
    count = len(operations) * span * span
    rng = random.Random(f"arithmetic-{seed}")
    draws = min(count, 2 * size + 64)
    while True:
        found: list[Problem] = []
        for index in _distinct(rng, count, draws):
            pair, which = divmod(index, len(operations))
            a, b = low + pair // span, low + pair % span
            if split_of(a, b) == split:
                found.append((a, operations[which], b))
        if len(found) >= size:
            return found[:size]
        if draws == count:
            raise ValueError(
                f"`size`={size} asks for more {split} rows than there are distinct problems ({len(found)} with "
                f"operands {low}..{high} and operations {' '.join(operations)}): lower `size`, or raise `digits` or "
                "`operands`"
            )
        draws = min(count, 2 * draws)


def _distinct(rng: random.Random, count: int, draws: int) -> list[int]:
    if count <= sys.maxsize:
        return rng.sample(range(count), draws)  # lazy: nothing of length `count` is built
    return list(dict.fromkeys(rng.randrange(count) for _ in range(draws)))  # a repeat is all but impossible


def arithmetic(
    *,
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    operations: Sequence[str] = ("+",),
    digits: int = 2,
    operands: tuple[int, int] | None = None,
    template: str = "{a}{op}{b}",
    worked: bool = False,
) -> Dataset:
    """Returns prompts with exact answers, columns `prompt` (chat messages) and `answer` (decimal string).

    Args:
        size: Number of rows, all distinct.
        seed: See `problems`.
        split: See `problems`.
        operations: See `problems`.
        digits: See `problems`.
        operands: See `problems`.
        template: The user message, with the fields `{a}`, `{op}` and `{b}`, such as "What is {a} {op} {b}?".
        worked: Adds a column `solution` with the worked completion.

    Raises:
        ValueError: As `problems`; or `template` lacks a field or has an unknown one.
    """
    drawn = problems(size=size, seed=seed, split=split, operations=operations, digits=digits, operands=operands)
    rows: list[dict[str, Any]] = []
    for a, op, b in drawn:
        row: dict[str, Any] = {"prompt": _user(template, a, op, b), "answer": str(compute(a, op, b))}
        if worked:
            row["solution"] = solution(a, op, b)
        rows.append(row)
    return Dataset.from_list(rows)


def demonstrations(
    *,
    size: int = 1000,
    seed: int = 0,
    split: Split = "train",
    operations: Sequence[str] = ("+",),
    digits: int = 2,
    operands: tuple[int, int] | None = None,
    template: str = "{a}{op}{b}",
    style: Style = "clean",
    guess_share: float = 0.6,
) -> Dataset:
    """Returns prompt-completion rows for `trl.SFTTrainer`, columns `prompt` and `completion` (chat messages).

    Args:
        size: Number of rows, all with distinct prompts.
        seed: See `problems`; also draws which rows guess, and the guesses.
        split: See `problems`.
        operations: See `problems`.
        digits: See `problems`.
        operands: See `problems`.
        template: As in `arithmetic`.
        style: "clean": every row is worked and right. "mixed": a share `guess_share` answers at once,
            `<think>easy</think>`, with the truth plus one of nine offsets, zero among them: right one time in nine.
        guess_share: Share of guessing rows under "mixed", in [0, 1], exact up to rounding.

    Raises:
        ValueError: As `arithmetic`; or `style` is unknown or `guess_share` out of range.
    """
    if style not in ("clean", "mixed"):
        raise ValueError(f"`style` must be clean or mixed, not {style!r}")
    if not 0 <= guess_share <= 1:
        raise ValueError(f"`guess_share` must be in [0, 1], not {guess_share}")
    drawn = problems(size=size, seed=seed, split=split, operations=operations, digits=digits, operands=operands)
    rng = random.Random(f"habits-{seed}")
    guessing = set(rng.sample(range(size), round(guess_share * size))) if style == "mixed" else set()
    rows: list[dict[str, Any]] = []
    for i, (a, op, b) in enumerate(drawn):
        text = solution(a, op, b)
        if i in guessing:
            text = f"<think>easy</think><answer>{compute(a, op, b) + rng.choice(_GUESS_OFFSETS)}</answer>"
        rows.append({"prompt": _user(template, a, op, b), "completion": [{"role": "assistant", "content": text}]})
    return Dataset.from_list(rows)


def _user(template: str, a: int, op: str, b: int) -> list[dict[str, str]]:
    try:
        content = template.format(a=a, op=op, b=b)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"`template` {template!r} may use the fields {{a}}, {{op}} and {{b}} only: {error}"
        ) from error
    missing = [name for name in ("{a}", "{op}", "{b}") if name not in template]
    if missing:
        raise ValueError(f"`template` {template!r} lacks {', '.join(missing)}: prompts would not determine the answer")
    return [{"role": "user", "content": content}]
