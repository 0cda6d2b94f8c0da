"""The registry and `rewards:` lists: names, options, weights, errors that help, TRL's own functions."""

import asyncio

import pytest

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.rewards import (
    RewardFunction,
    RewardSettings,
    Runtime,
    Verdict,
    build_rewards,
    entries,
    get,
    register,
    registry,
)


def shout(completion, row, *, mark: str = "!"):
    """A verifier that returns a bare number."""
    return float(completion.endswith(mark))


class Longest:
    """A verifier as a class."""

    def __init__(self, limit: int = 3):
        self.limit = limit

    def verify(self, completion, row):
        return Verdict(float(len(completion) <= self.limit))


def per_batch(completions, factor=1.0, **kwargs):
    """A reward function in TRL's form."""
    return [factor * len(c) for c in completions]


async def slow_per_batch(completions, **kwargs):
    await asyncio.sleep(0)
    return [1.0] * len(completions)


def test_weights_and_options():
    built = build_rewards(
        ["gsm8k", {"think_format": 0.1}, {"exact_match": {"weight": 2, "tag": None, "name": "same"}}]
    )
    assert [(r.name, r.weight, r.accuracy) for r in built] == [
        ("gsm8k", 1.0, True),
        ("think_format", 0.1, False),
        ("same", 2.0, True),
    ]
    assert built[2].function.verdict("4", {"answer": "4"}).value == 1.0
    assert built[0].columns == ("answer",)
    assert build_rewards([{"gsm8k": {"column": "solution"}}])[0].columns == ("solution",)
    assert build_rewards({"gsm8k": 2})[0].weight == 2.0 and build_rewards("math_verify")[0].name == "math"


def test_trl_functions_by_name_path_and_factory():
    built = build_rewards(
        [
            "accuracy_reward",
            {"tests.rewards.test_registry:per_batch": {"weight": 0.5, "factor": 3.0}},
            "tests.rewards.test_registry:slow_per_batch",
            {"get_soft_overlong_punishment": {"max_completion_len": 100, "soft_punish_cache": 20}},
        ]
    )
    assert [r.name for r in built] == [
        "accuracy_reward",
        "per_batch",
        "slow_per_batch",
        "soft_overlong_punishment_reward",
    ]
    assert built[1].function(completions=["ab"]) == [6.0] and built[1].weight == 0.5
    assert asyncio.iscoroutinefunction(built[2].function)
    assert built[3].function(completion_ids=[[1] * 90]) == [-0.5]
    assert built[0].accuracy and not built[1].accuracy


def test_verifiers_of_a_user_by_path():
    function, klass = build_rewards(
        [
            {"tests.rewards.test_registry:shout": {"mark": "?"}},
            {"tests.rewards.test_registry:Longest": {"limit": 2}},
        ]
    )
    assert function.function(["p", "p"], ["what?", "no"]) == [1.0, 0.0]
    assert klass.function(["p", "p"], ["ab", "abc"]) == [1.0, 0.0]


def test_a_number_is_a_verdict_without_a_reason():
    function = build_rewards([{"tests.rewards.test_registry:shout": {"mark": "?"}}])[0].function
    assert function.verdicts(["what?", "no"], [{}, {}]) == [Verdict(1.0), Verdict(0.0)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ([{"exact_match": {"ignore_case": "perhaps"}}], r"option `ignore_case` cannot be 'perhaps': expected bool"),
        ([{"tests.rewards.test_registry:Longest": {"limit": True}}], "option `limit` cannot be True: expected int"),
        ([{"tests.rewards.test_registry:Longest": {"limit": "1.5"}}], "option `limit` cannot be '1.5': expected int"),
        (["gsm8"], r"unknown reward `gsm8` \(did you mean `gsm8k`\?\)"),
        ([{"gsm8k": {"colum": "x"}}], r"no option `colum` \(did you mean `column`\?\)"),
        ([{"gsm8k": "high"}], "write a weight or options"),
        ([{"gsm8k": {"weight": "high"}}], "weight must be a number, found 'high'"),
        ([{"gsm8k": float("nan")}], "weight must be a number"),
        (["gsm8k", "gsm8k"], "names `gsm8k` twice"),
        (["no_such_module_x:f"], "cannot be loaded: No module named"),
        (["tests.rewards.test_registry:nothing"], "cannot be loaded"),
        ([3], "each entry of `rewards`"),
        (3, "must be a list of names"),
        ([{"get_soft_overlong_punishment": {"max_len": 3}}], "has no option `max_len`"),
        ([{"get_soft_overlong_punishment": {"max_completion_len": 3}}], "soft_punish_cache"),
    ],
)
def test_errors_name_the_entry_and_what_to_do(spec, message):
    with pytest.raises(UserError, match=message):
        build_rewards(spec)


def test_a_name_is_registered_once(own_registry):
    register("brand_new", description="test", aliases=("bn",))(shout)
    assert get("bn").name == "brand_new" and list(get("bn").options) == ["mark"]
    with pytest.raises(ValueError, match="`gsm8k` is registered already"):
        register("gsm8k", description="again")(shout)
    with pytest.raises(ValueError, match="`bn` is registered already"):
        register("other", description="again", aliases=("bn",))(shout)


def test_options_take_the_type_of_the_signature():
    entry = registry.from_target(Longest)
    assert entry.check({"limit": "4"}) == {"limit": 4}
    assert get("exact_match").check({"tag": 5, "ignore_case": "no"}) == {"tag": "5", "ignore_case": False}
    with pytest.raises(ValueError, match="runs must be one of pool, inline, thread, batch"):
        register("x", description="x", runs="fork")


def test_every_entry_says_what_it_is():
    for entry in entries():
        assert entry.description and entry.target.__doc__


def test_failures_are_unscored_with_a_reason():
    def verify(completion, row):
        if completion == "raise":
            raise ValueError("bad text")
        return {"nan": float("nan"), "none": None, "text": "x"}[completion]

    function = RewardFunction("f", verify)
    function.bind(Runtime(RewardSettings(max_failures=1.0)))
    metrics, extra = {}, {}
    values = function(
        ["p"] * 4,
        ["raise", "nan", "none", "text"],
        log_extra=extra.__setitem__,
        log_metric=metrics.__setitem__,
        other=[1, 2, 3, 4],
        trainer_state=object(),
    )
    assert values == [None] * 4
    assert metrics.pop("rewards/f/latency_s") >= 0.0
    shares = {"unscored": 1.0, "timeouts": 0.0, "errors": 0.75, "cache_hits": 0.0}
    assert metrics == {f"rewards/f/{key}": value for key, value in shares.items()}
    assert extra["f_reason"][0] == "ValueError: bad text" and "nan" in extra["f_reason"][1]
    assert all(extra["f_reason"])


def test_a_row_holds_the_prompt_and_the_columns_of_its_completion():
    seen = []
    function = RewardFunction("f", lambda completion, row: seen.append(dict(row)) or Verdict(1.0))
    function(["p1", "p2"], ["a", "b"], answer=["1", "2"], trainer_state=object(), too_short=["x"])
    assert seen == [{"prompt": "p1", "answer": "1"}, {"prompt": "p2", "answer": "2"}]


def test_a_verdict_without_a_value_needs_a_reason():
    with pytest.raises(ValueError, match="must say why"):
        Verdict(None)


def test_answers_are_compared_where_they_are_verified():
    def same(a, b):
        while a == "hang":
            pass
        return a.lower() == b.lower()

    entry = registry.Entry("e", shout, "", same=same, options={})
    function = RewardFunction.of_entry(entry, {})
    function.bind(Runtime(RewardSettings(timeout_s=1.0)))
    assert function.same("A", "a") and not function.same("A", "b") and not function.same("hang", "hang")
    assert build_rewards(["exact_match"])[0].function.same(" 4", "4")
