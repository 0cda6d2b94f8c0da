"""Rewards made of rewards, and rows that choose among them."""

import pytest

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.rewards import RewardFunction, Verdict, build_rewards

ROW = {"answer": "4"}
GOOD, WRONG, UNFORMED = "<think>2+2</think>\n#### 4", "<think>2+2</think>\n#### 5", "#### 4"


def reward(spec):
    (built,) = build_rewards([spec])
    return built.function


def values(function, *completions, rows=None):
    return [v.value for v in function.verdicts(completions, rows or [ROW] * len(completions))]


def test_a_gate_pays_only_where_the_form_holds():
    gate = reward({"gate": {"if": "think_format", "then": "gsm8k"}})
    assert gate.__name__ == "gsm8k_if_think_format" and gate.accuracy and gate.columns == ("answer",)
    assert values(gate, GOOD, WRONG, UNFORMED) == [1.0, 0.0, 0.0]
    good, _, unformed = gate.verdicts([GOOD, WRONG, UNFORMED], [ROW] * 3)
    assert good.answer == "4" and unformed.reason.startswith("think_format: ")
    harsh = reward({"gate": {"if": "think_format", "then": {"gsm8k": 2.0}, "otherwise": -1, "name": "harsh"}})
    assert harsh.__name__ == "harsh" and not harsh.accuracy
    assert values(harsh, GOOD, WRONG, UNFORMED) == [2.0, 0.0, -1.0]


def test_a_gate_does_not_ask_what_it_will_not_pay():
    asked = []
    inner = RewardFunction("inner", lambda completion, row: asked.append(completion) or Verdict(1.0))
    gate = reward({"gate": {"if": "think_format", "then": inner}})
    assert values(gate, GOOD, UNFORMED) == [1.0, 0.0] and asked == [GOOD]


def test_a_gate_that_cannot_decide_is_unscored():
    failing = RewardFunction("failing", lambda completion, row: 1 / 0)
    (verdict,) = reward({"gate": {"if": failing, "then": "gsm8k"}}).verdicts([GOOD], [ROW])
    assert verdict.value is None and verdict.failure == "error" and "ZeroDivisionError" in verdict.reason


def test_clip_holds_a_reward_between_bounds():
    linear = RewardFunction("linear", lambda completion, row: float(completion))
    assert values(reward({"clip": {"of": linear, "min": -0.5, "max": 2}}), "-3", "1", "7") == [-0.5, 1.0, 2.0]
    assert values(reward({"clip": {"of": linear, "max": 2}}), "-3", "7") == [-3.0, 2.0]


def test_sum_is_one_reward_of_several():
    total = reward({"sum": {"of": ["gsm8k", {"think_format": 0.1}], "name": "total"}})
    assert total.__name__ == "total" and values(total, GOOD, WRONG, UNFORMED) == [1.1, 0.1, 1.0]
    assert total.verdict(GOOD, {}).reason == "gsm8k: the row has no `answer`"
    nested = reward(
        {"clip": {"of": {"gate": {"if": "think_format", "then": ["gsm8k", {"think_format": 1}]}}, "max": 1.5}}
    )
    assert values(nested, GOOD, WRONG, UNFORMED) == [1.5, 1.0, 0.0]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"gate": {"if": "think_format"}}, "`gate` needs `then`"),
        ({"gate": {"if": "think_format", "then": "gsm8k", "els": 1}}, "`gate` has no option `els`"),
        ({"gate": {"if": "think_format", "then": "gsm8k", "at_least": "x"}}, "at_least must be a number"),
        ({"gate": {"if": "think_forma", "then": "gsm8k"}}, "did you mean `think_format`"),
        ({"gate": {"if": "think_format", "then": "accuracy_reward"}}, "`accuracy_reward` is a function in TRL's form"),
        ({"clip": {"of": "gsm8k"}}, "`clip` needs `min`, `max` or both"),
        ({"clip": {"of": "gsm8k", "min": 1, "max": 0}}, "min no larger than max"),
        ({"sum": {"of": []}}, "of is empty"),
    ],
)
def test_errors_say_what_to_write(spec, message):
    with pytest.raises(UserError, match=message):
        build_rewards([spec])


def test_rows_choose_their_rewards():
    maths, letters = (r.function for r in build_rewards(["gsm8k", {"multiple_choice": {"name": "letters"}}]))
    rows = [
        {"answer": "4", "reward": "gsm8k"},
        {"answer": "B", "choices": "ABCD", "reward": ["multiple_choice"]},
        {"answer": "4", "reward": ["gsm8k", "letters"], "choices": "ABCD"},
        {"answer": "4", "reward": None},
        {"answer": "4", "reward": 0.5},  # another use of the word
    ]
    completions = ["#### 4", "Answer: B", "#### 4", "#### 4", "#### 5"]
    scored = maths.score(completions, rows)
    assert [v.value for v in scored.verdicts] == [1.0, None, 1.0, 1.0, 0.0]
    assert scored.verdicts[1].reason == "the row asks for ['multiple_choice']" and scored.verdicts[1].failure is None
    assert scored.metrics()["unscored"] == 0.0  # of those that it applies to
    assert letters.score(completions, rows).applies == [False, True, True, True, True]


def test_a_gate_is_chosen_by_what_it_pays_for():
    gate = reward({"gate": {"if": "think_format", "then": "gsm8k"}})
    rows = [
        {"answer": "4", "reward": "gsm8k"},
        {"answer": "4", "reward": "code"},
        {"answer": "4", "reward": "think_format"},
    ]
    scored = gate.score([GOOD] * 3, rows)
    assert [v.value for v in scored.verdicts] == [1.0, None, None]
    assert scored.applies == [True, False, False]


def test_a_row_that_asks_for_no_reward_of_the_run_is_an_error():
    (maths,) = build_rewards(["gsm8k"])
    with pytest.raises(UserError, match=r"asks for code.*the run has gsm8k"):
        maths.function(["p"], ["#### 4"], answer=["4"], reward=["code"])
