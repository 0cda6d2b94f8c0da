"""The exact plan: depth, 4-bit layers, and that the closed form and the simulation are two witnesses of one thing."""

import pytest
import torch
from torch import nn

from trl_grpo_plus.memory.categories import Category
from trl_grpo_plus.memory.closed_form import phase_peaks
from trl_grpo_plus.memory.fake4bit import FakeLinear4bit
from trl_grpo_plus.memory.geometry import Geometry
from trl_grpo_plus.memory.setting import Setting
from trl_grpo_plus.memory.simulate import simulate, simulate_at

# Fake tensors cost the same at any size.
SHAPE = {"hidden": 1024, "heads": 16, "kv_heads": 4, "head_dim": 64, "intermediate": 3072, "vocab": 40_000}


def setting(layers, **options):
    shape = {"name": "a model", "model_type": "qwen2", "qkv_bias": True, "layers": layers, **SHAPE}
    return Setting(
        geometry=Geometry(**shape),
        **{"prompt": 200, "completion": 240, "group": 4, "batch": 4, "accumulation": 2, **options},
    )


def totals(peaks):
    return {phase: sum(alive.values()) for phase, alive in peaks.items()}


def test_two_depths_tell_the_peaks_of_any():
    deep = setting(7, mode="lora", gradient_checkpointing=False, device="cpu", reference=True)
    assert totals(simulate(deep)) == pytest.approx(totals(simulate_at(deep, 7)), rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "full", "dtype": "float32", "reference": True},
        {"mode": "qlora", "max_tokens_per_forward": 700, "device": "cpu"},
        {"mode": "lora", "algorithm": "ppo", "critic": "adapter", "share_prompt": False, "reward_model": True},
        {"mode": "full", "algorithm": "sft", "group": None},
        {"mode": "lora", "algorithm": "reward_model", "group": None, "gradient_checkpointing": False},
        {"mode": "full", "algorithm": "rejection_sampling", "accumulation": None, "batch": 8},
    ],
    ids=lambda options: f"{options.get('algorithm', 'grpo')}-{options['mode']}",
)
def test_the_closed_form_and_the_simulation_agree(options):
    planned = setting(5, **options)
    exact, closed = simulate(planned), phase_peaks(planned)
    assert set(exact) == set(closed)
    found = totals(closed)
    for phase, total in totals(exact).items():
        assert found[phase] == pytest.approx(total, rel=0.02), phase
    last = list(exact)[-1]
    standing = (Category.WEIGHTS_TRAINABLE, Category.WEIGHTS_FROZEN, Category.REFERENCE, Category.OPTIMIZER)
    for category in (*standing, Category.REWARD_MODEL):
        sizes = [peaks[last].get(category, 0) for peaks in (exact, closed)]
        assert sizes[1] == pytest.approx(sizes[0], rel=0.02, abs=4096), category  # rotary frequencies


def test_the_stand_in_keeps_what_bitsandbytes_keeps():
    from trl_grpo_plus.memory.tracker import quantization_tensors

    bnb = pytest.importorskip("bitsandbytes")
    linear = nn.Linear(192, 320, bias=False).to(torch.bfloat16)
    theirs = bnb.nn.Linear4bit(192, 320, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4")
    theirs.weight = bnb.nn.Params4bit(linear.weight.data.clone(), requires_grad=False, quant_type="nf4")
    theirs = theirs.to("cpu")
    ours = FakeLinear4bit(linear, torch.bfloat16)
    kept = [theirs.weight, *quantization_tensors(theirs.weight)]
    have = [ours.weight, *ours.buffers()]
    sizes = [
        sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in ts}.values()) for ts in (kept, have)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)
    x = torch.zeros(3, 192, dtype=torch.bfloat16, requires_grad=True)
    y = ours(x)
    y.sum().backward()
    assert y.shape == (3, 320) and y.dtype is torch.bfloat16 and x.grad.shape == x.shape
