"""Inputs of the tiny pipeline: an untrained model of 0.2 M parameters, and two tasks that it can learn on a CPU.

Stage: before the pipeline. Maths: sums (`prompts.arithmetic`, `26+57`). Code: two additions, `f>26+57`, are to be
written as one function, `f=lambda x:x+83`, which hidden tests then call. Both are worked in `<think>` first. All
splits are disjoint by content, and the sums behind the programs are split as the sums are.

The demonstrations of the cold start have a habit that the preferences of the last stage take off: some say every step
twice. Nothing is wrong with these answers, so no verifier minds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..prompts.arithmetic import Split, compute, problems, solution, work
from ..quickstart.model import ALPHABET, tiny_model, tiny_tokenizer

LAMBDA = "f=lambda x:"  # one token: spelling it would be most of what the tiny model learns
_SPLITS: dict[Split, int] = {"test": 200, "validation": 200, "train": 600}  # programs of each


def write_inputs(
    output: Path,
    *,
    seed: int = 0,
    digits: int = 2,
    demonstrations: int = 2048,
    wordy_share: float = 0.5,
    general: int = 512,
    preferences: int = 512,
    model: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Writes everything that the tiny pipeline reads, and returns how many rows of each.

    `model/`, `cold_start/train.jsonl` (demonstrations of both tasks), `code/<split>.jsonl` (prompts with tests),
    `general/train.jsonl` (demonstrations of a third task) and `preferences/<split>.jsonl`.

    Args:
        output: The directory.
        seed: Weights, and the order of everything.
        digits: Of the sums.
        demonstrations: Of the cold start.
        wordy_share: Share of the demonstrations that say every step twice.
        general: Demonstrations of the third task: digits in reverse.
        preferences: Pairs of a plain and a wordy answer.
        model: Sizes; see `quickstart.model.tiny_model`.
    """
    rng = random.Random(f"tiny-{seed}")
    tokenizer = tiny_tokenizer(ALPHABET + "f>xr")
    tokenizer.add_tokens([LAMBDA])
    tiny_model(tokenizer, seed=seed, **(model or {})).save_pretrained(output / "model")
    tokenizer.save_pretrained(output / "model")

    # Every split has its own problems; another seed only draws others of them.
    code = {split: problems(size=size, seed=seed + 1, split=split, digits=digits) for split, size in _SPLITS.items()}
    sums = problems(size=demonstrations + preferences, seed=seed, digits=digits)
    worked = [_sum(*each) for each in sums]
    half = demonstrations // 2
    programs = [_program(*each) for each in problems(size=half + preferences, seed=seed + 2, digits=digits)]
    taught = worked[:half] + programs[:half]
    rng.shuffle(taught)
    rows = {
        "cold_start/train": [
            {"prompt": prompt, "completion": wordy if rng.random() < wordy_share else plain}
            for prompt, plain, wordy in taught
        ],
        "general/train": [_reversed(rng) for _ in range(general)],
    }
    for split, tasks in code.items():
        rows[f"code/{split}"] = [{"prompt": _program(*each)[0], "answer": _tests(*each)} for each in tasks]
    pairs = worked[demonstrations:] + programs[half:]
    rng.shuffle(pairs)
    compared = [{"prompt": prompt, "chosen": plain, "rejected": wordy} for prompt, plain, wordy in pairs[:preferences]]
    held_out = max(1, preferences // 4)
    rows["preferences/test"], rows["preferences/train"] = compared[:held_out], compared[held_out:]
    for name, each in rows.items():
        file = output / f"{name}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in each))
    return {"rows": {name: len(each) for name, each in rows.items()}}


def _program(a: int, op: str, b: int) -> tuple[str, str, str]:
    """Returns (prompt, plain solution, wordy solution) of two additions in one function."""
    steps = work(a, op, b).split(",")
    answer = f"<answer>{LAMBDA}x+{compute(a, op, b)}</answer>"
    return f"f>{a}{op}{b}", _think(steps) + answer, _think(_twice(steps)) + answer


def _tests(a: int, op: str, b: int) -> str:
    return json.dumps([f"assert f({x})=={x + compute(a, op, b)}" for x in (1, 2, 5, 10)])


def _sum(a: int, op: str, b: int) -> tuple[str, str, str]:
    answer = f"<answer>{compute(a, op, b)}</answer>"
    return f"{a}{op}{b}", solution(a, op, b), _think(_twice(work(a, op, b).split(","))) + answer


def _reversed(rng: random.Random) -> dict[str, str]:
    digits = "".join(rng.choices("0123456789", k=rng.randint(3, 6)))
    return {"prompt": f"r{digits}", "completion": digits[::-1]}


def _think(steps: list[str]) -> str:
    return f"<think>{','.join(steps)}</think>"


def _twice(steps: list[str]) -> list[str]:
    return [step for step in steps for _ in range(2)]
