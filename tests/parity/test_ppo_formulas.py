"""PPO's mathematics against slow loops written from the papers, in plain Python: no torch and no helper in common.

Values and gradients agree to 1e-6, with masks; the loops' gradients are central differences. And each formula's test
sees the sign flips and other slips that are listed at the end.
"""

import inspect
import math
import random
import types

import pytest
import torch

import trl_grpo_plus.ppo as ppo

B, T = 5, 7
GAMMA, LAM, KL, LOW, HIGH, VALUE_CLIP = 0.97, 0.9, 0.3, 0.2, 0.28, 0.2
TOLERANCE = 1e-6


def make_case(seed=0):
    """Random rows: full, short, with tokens of a tool in the middle and at the end, of one action, and empty."""
    rng = random.Random(seed)

    def table(scale=1.0):
        return [[rng.gauss(0, scale) for _ in range(T)] for _ in range(B)]

    mask = [[1] * T, [1] * 4 + [0] * 3, [1, 1, 0, 0, 1, 1, 0], [1] + [0] * 6, [0] * T]
    return {
        "mask": mask,
        "scores": [rng.gauss(0, 1) for _ in range(B)],
        "logps": table(0.4),
        "old_logps": table(0.4),
        "ref_logps": table(0.4),
        "values": table(),
        "old_values": table(),
        "last_values": [0.0, rng.gauss(0, 1), rng.gauss(0, 1), 0.0, 0.0],
        "rewards": table(),
        "returns": table(),
        "advantages": table(),
    }


# The loops


def actions(mask_row):
    return [t for t in range(T) if mask_row[t]]


def loop_rewards(case):
    """Score on the last action, minus KL times log(pi_old / pi_ref) on each."""
    out = [[0.0] * T for _ in range(B)]
    for b in range(B):
        steps = actions(case["mask"][b])
        for t in steps:
            out[b][t] -= KL * case["logps"][b][t] + -KL * case["ref_logps"][b][t]
        if steps:
            out[b][steps[-1]] += case["scores"][b]
    return out


def loop_gae(case):
    """The sum of arXiv 1506.02438, eq. 16, term by term: sum over l of (gamma lambda)^l delta_(t+l)."""
    advantages = [[0.0] * T for _ in range(B)]
    returns = [[0.0] * T for _ in range(B)]
    for b in range(B):
        steps = actions(case["mask"][b])
        for i, t in enumerate(steps):
            total = 0.0
            for k in range(i, len(steps)):
                here = case["values"][b][steps[k]]
                after = case["values"][b][steps[k + 1]] if k + 1 < len(steps) else case["last_values"][b]
                delta = case["rewards"][b][steps[k]] + GAMMA * after - here
                total += (GAMMA * LAM) ** (k - i) * delta
            advantages[b][t] = total
            returns[b][t] = total + case["values"][b][t]
    return advantages, returns


def loop_whiten(case):
    xs = [case["advantages"][b][t] for b in range(B) for t in actions(case["mask"][b])]
    mean = sum(xs) / len(xs)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in xs) / len(xs) + 1e-8)
    out = [[0.0] * T for _ in range(B)]
    for b in range(B):
        for t in actions(case["mask"][b]):
            out[b][t] = (case["advantages"][b][t] - mean) / deviation
    return out


def loop_policy_loss(case):
    """arXiv 1707.06347, eq. 7, by cases: the bound of the clip range holds where it lowers the objective."""
    out = [[0.0] * T for _ in range(B)]
    for b in range(B):
        for t in actions(case["mask"][b]):
            ratio = math.exp(case["logps"][b][t]) / math.exp(case["old_logps"][b][t])
            advantage = case["advantages"][b][t]
            if advantage >= 0:
                objective = advantage * (ratio if ratio < 1 + HIGH else 1 + HIGH)
            else:
                objective = advantage * (ratio if ratio > 1 - LOW else 1 - LOW)
            out[b][t] = -objective
    return out


def loop_value_loss(case, clip=VALUE_CLIP):
    out = [[0.0] * T for _ in range(B)]
    for b in range(B):
        for t in actions(case["mask"][b]):
            value, old, target = case["values"][b][t], case["old_values"][b][t], case["returns"][b][t]
            plain = (target - value) ** 2 / 2
            moved = value if clip is None else old + max(-clip, min(clip, value - old))
            bounded = (target - moved) ** 2 / 2
            out[b][t] = plain if plain > bounded else bounded
    return out


# What the package computes of the same case. `inputs` are the case's tables that the gradient is taken for.


def tensors(case):
    out = {name: torch.tensor(value, dtype=torch.float64) for name, value in case.items() if name != "mask"}
    return {**out, "mask": torch.tensor(case["mask"])}


FORMULAS = {
    "rewards": (
        lambda m, x: m.token_rewards(x["scores"], x["mask"], KL, x["logps"], x["ref_logps"]),
        loop_rewards,
        ("scores", "logps", "ref_logps"),
    ),
    "advantages": (
        lambda m, x: m.gae(x["rewards"], x["values"], x["last_values"], x["mask"], GAMMA, LAM)[0],
        lambda case: loop_gae(case)[0],
        ("rewards", "values", "last_values"),
    ),
    "returns": (
        lambda m, x: m.gae(x["rewards"], x["values"], x["last_values"], x["mask"], GAMMA, LAM)[1],
        lambda case: loop_gae(case)[1],
        ("rewards", "values", "last_values"),
    ),
    "whiten": (lambda m, x: m.whiten(x["advantages"], x["mask"]), loop_whiten, ("advantages",)),
    "policy_loss": (
        lambda m, x: m.clipped_surrogate(x["logps"], x["old_logps"], x["advantages"], LOW, HIGH)[0] * x["mask"],
        loop_policy_loss,
        ("logps",),
    ),
    "value_loss": (
        lambda m, x: m.clipped_value_loss(x["values"], x["old_values"], x["returns"], VALUE_CLIP)[0] * x["mask"],
        loop_value_loss,
        ("values",),
    ),
    "value_loss_unclipped": (
        lambda m, x: m.clipped_value_loss(x["values"], x["old_values"], x["returns"], None)[0] * x["mask"],
        lambda case: loop_value_loss(case, None),
        ("values",),
    ),
}


def weighted_sum(table):
    """A scalar with a different weight for each entry, so that its gradient shows every entry's."""
    return sum((1 + b + T * t / 10) * table[b][t] for b in range(B) for t in range(T))


def check(module, name, seed):
    ours, loop, inputs = FORMULAS[name]
    case = make_case(seed)
    x = tensors(case)
    for each in inputs:
        x[each].requires_grad_(True)
    result = ours(module, x)
    expected = loop(case)
    assert (result - torch.tensor(expected, dtype=torch.float64)).abs().max() < TOLERANCE
    weighted_sum(result).backward()
    step = 1e-6
    for each in inputs:
        rows = case[each] if isinstance(case[each][0], list) else [case[each]]
        gradient = x[each].grad if isinstance(case[each][0], list) else x[each].grad.unsqueeze(0)
        for i, row in enumerate(rows):
            for j, value in enumerate(row):
                row[j] = value + step
                above = weighted_sum(loop(case))
                row[j] = value - step
                below = weighted_sum(loop(case))
                row[j] = value
                assert abs(gradient[i, j].item() - (above - below) / (2 * step)) < TOLERANCE, (each, i, j)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("seed", range(3))
def test_values_and_gradients_agree_with_the_loop(name, seed):
    check(ppo, name, seed)


SLIPS = [
    ("rewards", "rewards_BT - kl_coef", "rewards_BT + kl_coef"),
    ("rewards", "logps_BT - ref_logps_BT, 0.0", "ref_logps_BT - logps_BT, 0.0"),
    ("rewards", "remaining_BT == 1", "remaining_BT == 2"),
    ("advantages", "gamma * next_value_B - values_BT", "gamma * next_value_B + values_BT"),
    ("advantages", "rewards_BT[:, t] + gamma", "rewards_BT[:, t] - gamma"),
    ("advantages", "gamma * lam * next_advantage_B", "lam * next_advantage_B"),
    ("advantages", "torch.where(is_action_B, values_BT[:, t], next_value_B)", "values_BT[:, t]"),
    ("advantages", "torch.where(is_action_B, advantage_B, next_advantage_B)", "advantage_B"),
    (
        "advantages",
        "next_value_B, next_advantage_B = last_values_B",
        "next_value_B, next_advantage_B = 0 * last_values_B",
    ),
    ("returns", "advantages_BT + values_BT, 0.0", "advantages_BT - values_BT, 0.0"),
    ("whiten", "x_BT - mean) * torch.rsqrt", "x_BT + mean) * torch.rsqrt"),
    ("whiten", "rsqrt(variance + 1e-8)", "rsqrt(variance + 1e-4)"),
    ("whiten", "(((x_BT - mean) * mask_BT) ** 2)", "((x_BT - mean) ** 2)"),
    ("policy_loss", "-torch.min(ratio_BT", "torch.min(ratio_BT"),
    ("policy_loss", "-torch.min(ratio_BT", "-torch.max(ratio_BT"),
    ("policy_loss", "torch.exp(logps_BT - old_logps_BT)", "torch.exp(old_logps_BT - logps_BT)"),
    ("policy_loss", "ratio_BT, 1 - low, 1 + high", "ratio_BT, 1 - high, 1 + low"),
    ("value_loss", "0.5 * torch.max", "0.5 * torch.min"),
    ("value_loss", "old_values_BT + change_BT", "old_values_BT - change_BT"),
    ("value_loss", "(clipped_BT - returns_BT)", "(clipped_BT + returns_BT)"),
    ("value_loss_unclipped", "return 0.5 * error_BT", "return error_BT"),
]


@pytest.mark.parametrize(("name", "right", "wrong"), SLIPS)
def test_a_slip_is_seen(name, right, wrong):
    source = inspect.getsource(ppo)
    assert source.count(right) == 1, "the slip must be one that the source can have"
    module = types.ModuleType("trl_grpo_plus.ppo_with_a_slip")
    module.__package__ = "trl_grpo_plus"
    exec(compile(source.replace(right, wrong), module.__name__, "exec"), vars(module))
    with pytest.raises(AssertionError):
        for seed in range(3):
            check(module, name, seed)


def test_a_value_within_the_range_never_counts_as_clipped():
    """V_old + (V - V_old) is not V in floating point: such a token once counted as clipped, by rounding alone."""
    old = torch.tensor([-0.16569072008, -0.15364164114, -0.15364179015])
    new = torch.tensor([0.00879154168, 0.00386000611, 0.00385989435])
    assert (old + (new - old) != new).any()
    for target in (0.0538, 0.0028, -1.0, 1.0):
        loss, clipped = ppo.clipped_value_loss(new, old, torch.full_like(new, target), 0.2)
        assert not clipped.any()
        torch.testing.assert_close(loss, 0.5 * (new - target) ** 2, rtol=0, atol=0)
    _, clipped = ppo.clipped_value_loss(new, old, torch.ones(3), 0.1)
    assert clipped.all(), "beyond the range, towards the target: the clipped error is the larger one"
