"""Two runs are paired by what their problems say, not by where they stand."""

import numpy as np
import pytest
from datasets import Dataset

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.evaluation import Sampling, compare, evaluate
from trl_grpo_plus.evaluation.comparison import as_json
from trl_grpo_plus.rewards import RewardFunction, Verdict

# One problem stands there twice.
ROWS = Dataset.from_list([{"prompt": f"{i}+{i}=", "answer": str(i)} for i in (1, 2, 3, 4, 5, 6, 7, 3)])


def early(completion, row):
    return Verdict(float((sum(map(ord, completion)) + int(row["answer"])) % 3 == 0), completion[:1] or None)


def run(model, rows, directory, **sampling):
    settings = Sampling(**{"n": 3, "max_new_tokens": 6, **sampling})
    rewards = [RewardFunction("early", early, ("answer",), accuracy=True)]
    return evaluate(model, rows, rewards, sampling=settings, ks=(1, 2), output_dir=directory)


def test_pairs_by_content(tiny_model, tmp_path):
    first = run(tiny_model, ROWS, tmp_path / "a")
    order = [6, 2, 0, 7, 4, 1]  # without the problems 3 and 5
    second = run(tiny_model, ROWS.select(order), tmp_path / "b", seed=1)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found.paired, found.only_a, found.only_b) == (6, 2, 0)
    assert {"pass@1", "pass@2", "maj@2", "reward", "completions/mean_length"} <= set(found.differences)
    for name in ("pass@1", "maj@2", "completions/mean_length"):
        d = found.differences[name]
        assert d.a == pytest.approx(np.mean(first.values[name][order]))
        assert d.b == pytest.approx(np.mean(second.values[name]))
        assert d.change.value == pytest.approx(d.b - d.a)
    assert as_json(found)["metrics"]["pass@1"]["change"] == found.differences["pass@1"].change.value
    # The pairing tells: the spread of the paired differences, not that of all pairs.
    differences = second.values["pass@1"] - first.values["pass@1"][order]
    assert differences.std() > 0 and found.differences["pass@1"].change.low >= differences.min()
    same = compare(tmp_path / "a", tmp_path / "a")
    assert all(d.change.value == 0 and d.p_value == 1 for d in same.differences.values())


def test_refusals(tiny_model, tmp_path):
    run(tiny_model, ROWS, tmp_path / "a")
    run(tiny_model, Dataset.from_list([{"prompt": "x", "answer": "1"}]), tmp_path / "b")
    with pytest.raises(UserError, match="no problem in common"):
        compare(tmp_path / "a", tmp_path / "b")
    with pytest.raises(UserError, match="k=5: .* has 3 samples per problem"):
        compare(tmp_path / "a", tmp_path / "a", ks=(5,))
    (tmp_path / "c").mkdir()
    with pytest.raises(UserError, match="no finished evaluation"):
        compare(tmp_path / "a", tmp_path / "c")
