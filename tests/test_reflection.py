"""Reflection words: counted as words, logged by name, switched on by a recipe's key."""

import json

import pytest

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.reflection import WORDS, ReflectionWords, words_of

WORDS_OF_ONE = list("abcdefghijklmnopqrstuvwxyz0123456789")  # what the random model has a chance to say


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("Wait. WAIT, let me check: but is 2+2=5 wrong?", 5),
        ("The button was rechecked by waiters, erroneously.", 0),  # parts of other words
        ("wait", 1),
        ("", 0),
        ("However, I verify.\nAn error: retry, evaluate; a mistake", 6),
    ],
)
def test_words_are_counted_as_words(text, number):
    assert ReflectionWords(None).count(text) == number


def test_which_words():
    assert words_of("default") == words_of(["default"]) == WORDS and words_of(None) == ()
    assert ReflectionWords(None, words_of(["hm...", "a+b"])).count("hm... a+b hmmm aab") == 1  # nothing is a pattern
    for wrong in ("wait", [1], [""]):
        with pytest.raises(UserError, match="reflection_words must be `default` or a list"):
            words_of(wrong)


def test_the_log_has_the_counts_of_the_completions(write_recipe, grpo_plus, tmp_path):
    changes = {"log_completions": True, "max_steps": 2, "eval_prompts": None}
    code, text = grpo_plus("train", write_recipe(reflection_words=WORDS_OF_ONE, **changes))
    assert code == 0, text
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    logs = [line for line in lines if "reward" in line]
    import pyarrow.parquet

    counter = ReflectionWords(None, WORDS_OF_ONE)
    for log in logs:
        file = tmp_path / f"run/completions/completions_{log['step']:05d}.parquet"
        texts = [str(c[-1]["content"]) for c in pyarrow.parquet.read_table(file).to_pydict()["completion"]]
        counts = [counter.count(each) for each in texts]
        assert log["reflection/words"] == pytest.approx(sum(counts) / len(counts))
        assert log["reflection/share"] == pytest.approx(sum(n > 0 for n in counts) / len(counts))
    assert len(logs) == 2 and any(log["reflection/words"] for log in logs)


def test_off_by_default(write_recipe, grpo_plus, tmp_path):
    code, text = grpo_plus("train", write_recipe(max_steps=1))
    assert code == 0, text
    assert "reflection" not in (tmp_path / "run/metrics.jsonl").read_text()
