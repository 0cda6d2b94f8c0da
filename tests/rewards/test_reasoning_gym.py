"""`reasoning_gym`: the datasets' own scorers, on the rows that the prompts stage makes."""

import json

import pytest

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.prompts.reasoning_gym import reasoning_gym_rows
from trl_grpo_plus.rewards import build_rewards

reasoning_gym = pytest.importorskip("reasoning_gym")

NAMES = [
    "chain_sum",
    "countdown",
    "leg_counting",
    "letter_counting",
    "number_sorting",
    "propositional_logic",
    "mini_sudoku",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_scorers_of_real_datasets(name):
    function = build_rewards(["reasoning_gym"])[0].function
    dataset = reasoning_gym.create_dataset(name, seed=3, size=3)
    for entry in dataset:
        row = {"prompt": entry["question"], "task": name, "entry": json.dumps(entry, default=str)}
        gold = entry["answer"] or entry["metadata"].get("example_answer")
        best = dataset.score_answer(gold, entry)
        assert best == 1.0
        for completion in (f"<think>hm</think><answer>{gold}</answer>", f"<think>hm</think>{gold}"):
            assert function.verdict(completion, row).value == best
        wrong = "<answer>no idea at all</answer>"
        verdict = function.verdict(wrong, row)
        assert verdict.value == dataset.score_answer("no idea at all", entry) and verdict.value < 0.5
        assert function.verdict(f"<think>{gold}", row).value == 0.0


def test_rows_of_the_prompts_stage_and_full_marks_only():
    row = reasoning_gym_rows("chain_sum", "train", 1, 0, {})[0]
    exact = build_rewards([{"reasoning_gym": {"exact": True}}])[0].function
    assert exact.verdict(f"<answer>{row['answer']}</answer>", row).value == 1.0
    assert exact.verdict("<answer>no idea</answer>", row).value == 0.0
    assert exact.verdict("4", {"prompt": "p"}).value is None and exact.verdict("4", {"entry": "{"}).value is None
    assert exact.verdict("4", {"entry": '{"answer": "4"}'}).value is None


def test_unknown_datasets_are_named():
    with pytest.raises(UserError, match="did you mean `chain_sum`"):
        build_rewards([{"reasoning_gym": {"dataset": "chain_sums"}}])
    with pytest.raises(UserError):
        build_rewards([{"reasoning_gym": {"dataste": "x"}}])
