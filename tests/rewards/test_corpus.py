"""Real inputs on which graders failed, with the right values: every unambiguous case of `tests/data`."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.rewards.corpus import call_of
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.rewards import build_rewards

DATA = Path(__file__).parents[1] / "data"


def cases(name):
    for line in (DATA / name).read_text().splitlines():
        case = json.loads(line)
        if case["kind"] != "code" and not case.get("ambiguous"):
            yield pytest.param(case, id=case["id"])


def check(case):
    name, options, completion, row = call_of(case)
    expected = case["expected"]
    if not isinstance(expected, (int, float)) and "ValueError" in expected:
        with pytest.raises(UserError):
            build_rewards([{name: options}])
        return
    verdict = build_rewards([{name: options}])[0].function.verdict(completion, row)
    if isinstance(expected, (int, float)):
        assert verdict.value == pytest.approx(expected, abs=1e-6), (case["why"], verdict)
    else:
        assert verdict.value is None or (verdict.value == 0.0 and "0.0" in expected), (case["why"], verdict)


@pytest.mark.parametrize("case", cases("reward_cases.jsonl"))
def test_the_corpus(case):
    check(case)


@pytest.mark.parametrize("case", cases("reward_cases_own.jsonl"))
def test_cases_written_before_the_verifiers_were(case):
    check(case)


def test_verdicts_are_the_same_in_another_thread():
    in_thread = {"reward_cases.jsonl": 0, "reward_cases_own.jsonl": 0}
    for name in in_thread:
        for parameter in cases(name):
            (case,) = parameter.values
            if case["kind"] == "math":
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(check, case).result(timeout=case.get("must_return_within_s", 10))
                in_thread[name] += 1
    assert min(in_thread.values()) > 100
