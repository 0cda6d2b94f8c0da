"""Plans against what our trainers really take on the CPU: settings drawn at random (the benchmark draws forty)."""

import random
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
SEEDS = {2: True, 6: True, 9: True, 10: False}  # and whether the simulation is compared as well
STAGES = {1: "sft", 13: "reward_model", 11: "rejection_sampling"}


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("seed", SEEDS)
def test_plans_hold(seed, scratch, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from planner_truth import describe, draw, measure

    from trl_grpo_plus.memory.plan import plan

    setting = draw(random.Random(seed))
    print(f"seed {seed}: {describe(setting)}")
    measured = measure(setting, scratch)["all"]
    closed = plan(setting).peak / measured - 1
    assert abs(closed) < 0.02, f"closed form {closed:+.2%} on {describe(setting)}"
    if SEEDS[seed]:
        exact = plan(setting, exact=True).peak / measured - 1
        assert abs(exact) < 0.005, f"simulation {exact:+.3%} on {describe(setting)}"


@pytest.mark.parametrize("seed", STAGES, ids=STAGES.values())
def test_plans_of_stages_hold(seed, scratch, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    from planner_truth_stages import draw_stage, measure_stage

    from trl_grpo_plus.memory.plan import plan

    setting = draw_stage(random.Random(seed))
    assert setting.algorithm == STAGES[seed]
    measured = measure_stage(setting, scratch)["all"]
    for exact in (False, True):
        assert abs(plan(setting, exact=exact).peak / measured - 1) < 0.02, (exact, setting)
