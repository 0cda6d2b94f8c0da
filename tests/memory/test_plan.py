"""Plans: what they add up to, that limits are limits, errors, the command line, and what the literature says."""

import json
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from trl_grpo_plus.cli import app
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.memory.categories import Category, Phase
from trl_grpo_plus.memory.devices import GIB, NO_OVERHEAD, Overhead
from trl_grpo_plus.memory.geometry import load_geometry
from trl_grpo_plus.memory.plan import LAYOUTS, MODES, batches, compare, find_limits, fits_on, largest, peak_bytes, plan
from trl_grpo_plus.memory.setting import make_setting


def test_categories_add_up_and_the_limiting_phase_is_the_highest():
    made = plan("qwen2.5-1.5b", algorithm="ppo", mode="lora", reward_model=True)
    assert all(sum(alive.values()) == made.totals[phase] for phase, alive in made.phases.items())
    assert made.peak == max(made.totals.values()) == sum(made.by_category.values())
    assert list(made.phases) == [phase for phase in Phase if phase in made.phases]
    tree = json.loads(made.to_json())
    assert tree["peak"] == made.peak and sum(tree["phases"][tree["limiting_phase"]].values()) == made.peak
    assert tree["needed"] == made.peak + tree["overhead"] and tree["fits"] is None


def test_what_is_there_all_the_time_is_counted_by_hand():
    geometry = load_geometry("qwen2.5-0.5b")
    n, backbone = geometry.parameters, geometry.backbone_parameters
    alive = plan("qwen2.5-0.5b", algorithm="ppo", reward_model=True, frozen_critic_copy=True).phases[Phase.OPTIMIZER]
    head = (geometry.hidden + 1) * 4
    assert alive[Category.WEIGHTS_TRAINABLE] == alive[Category.REFERENCE] == 2 * n
    assert alive[Category.CRITIC] == 2 * 2 * backbone + head and alive[Category.REWARD_MODEL] == 2 * backbone
    assert alive[Category.GRADIENTS] == 2 * (n + backbone) + head
    assert alive[Category.OPTIMIZER] == 4 * (n + backbone) + 2 * head
    lora = plan("qwen2.5-0.5b", mode="lora", lora_rank=8, lora_targets=("q_proj", "v_proj"))
    adapter = 24 * 8 * ((896 + 896) + (896 + 128))
    assert lora.phases[Phase.OPTIMIZER][Category.WEIGHTS_TRAINABLE] == 4 * adapter
    assert lora.phases[Phase.OPTIMIZER][Category.WEIGHTS_FROZEN] == 2 * n
    float32 = plan("qwen2.5-0.5b", dtype="float32").phases[Phase.OPTIMIZER]
    assert float32[Category.OPTIMIZER] == 8 * n
    eight_bit = plan("qwen2.5-0.5b", optimizer="adamw_8bit").phases[Phase.OPTIMIZER]
    assert eight_bit[Category.OPTIMIZER] == pytest.approx(2.03125 * n, rel=1e-4)


def test_stages_without_rewards_hold_what_they_are_made_of():
    geometry = load_geometry("qwen2.5-0.5b")
    n, backbone = geometry.parameters, geometry.backbone_parameters
    sft = plan("qwen2.5-0.5b", algorithm="sft", dtype="float32", accumulation=4)
    assert list(sft.phases) == [Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER]
    assert sft.phases[Phase.OPTIMIZER][Category.WEIGHTS_TRAINABLE] == 4 * n
    assert sft.phases[Phase.OPTIMIZER][Category.OPTIMIZER] == 8 * n
    scores = plan("qwen2.5-0.5b", algorithm="reward_model", dtype="float32").phases[Phase.OPTIMIZER]
    assert scores[Category.WEIGHTS_TRAINABLE] == 4 * (backbone + geometry.hidden)  # a score head, no vocabulary's
    assert scores[Category.GRADIENTS] == scores[Category.WEIGHTS_TRAINABLE]
    assert scores[Category.OPTIMIZER] == 2 * scores[Category.WEIGHTS_TRAINABLE]
    options = {"prompt": 100, "completion": 900, "gradient_checkpointing": False}
    pairs = plan("qwen2.5-0.5b", algorithm="reward_model", batch=4, **options).phases[Phase.FORWARD]
    rows = plan("qwen2.5-0.5b", algorithm="sft", batch=8, **options).phases[Phase.FORWARD]
    assert pairs[Category.ACTIVATIONS] == pytest.approx(rows[Category.ACTIVATIONS], rel=0.02)
    budget = plan("qwen2.5-0.5b", algorithm="sft", batch=8, max_tokens_per_forward=1000, **options)
    assert budget.phases[Phase.FORWARD] == rows  # rows of TRL's own trainers are not packed
    exact = plan("qwen2.5-0.5b", algorithm="rejection_sampling", dtype="float32", group=4, batch=16)
    drawn = plan("qwen2.5-0.5b", algorithm="rejection_sampling", group=4, batch=16, gpu="24GB")
    caches = [made.phases[Phase.DECODE][Category.KV_CACHE] for made in (exact, drawn)]
    assert caches[0] == 2 * caches[1]  # no autocast
    assert list(drawn.phases) == [Phase.PREFILL, Phase.DECODE] and drawn.limits.group is None
    assert drawn.by_category[Category.WEIGHTS_FROZEN] == 2 * n
    keys_and_values = 16 * (512 + 1023) * 24 * 2 * 128 * 2  # rows, tokens but the last, layers, both, heads, bytes
    assert keys_and_values <= drawn.phases[Phase.DECODE][Category.KV_CACHE] < 1.1 * keys_and_values


@pytest.mark.parametrize(
    ("more", "options"),
    [({"completion": 2048}, {}), ({"prompt": 1024}, {}), ({"gradient_checkpointing": False}, {}),
     ({"share_prompt": False}, {}), ({"reference": True}, {"mode": "full"}), ({"mode": "full"}, {}),
     ({"lora_rank": 64}, {}), ({"batch": 16}, {}), ({"critic": "separate"}, {"algorithm": "ppo", "critic": "adapter"}),
     ({"critic": "adapter"}, {"algorithm": "ppo", "critic": "shared"}), ({"dtype": "float32"}, {}),
     ({"accumulation": 2}, {"mode": "full"}), ({"group": 64}, {"batch": 1, "completion": 8192})],
)  # fmt: skip
def test_more_of_something_takes_more(more, options):
    base = {"mode": "lora", **options}
    assert peak_bytes(make_setting("qwen2.5-1.5b", **{**base, **more})) > peak_bytes(
        make_setting("qwen2.5-1.5b", **base)
    )


def test_the_reference_of_an_adapter_costs_nothing():
    base, with_kl = (plan("qwen2.5-1.5b", mode="lora", reference=kl) for kl in (False, True))
    assert with_kl.peak == base.peak and Phase.REFERENCE in with_kl.phases and Phase.REFERENCE not in base.phases


def test_a_token_budget_bounds_what_a_micro_batch_takes():
    base = {"mode": "lora", "batch": 16, "group": 8, "gradient_checkpointing": False}
    whole = peak_bytes(make_setting("qwen2.5-1.5b", **base))
    split = [peak_bytes(make_setting("qwen2.5-1.5b", max_tokens_per_forward=n, **base)) for n in (2048, 4096, 8192)]
    assert split == sorted(split) and split[0] < 0.3 * whole and split[-1] < whole


def test_limits_are_limits():
    setting = make_setting("qwen2.5-1.5b", mode="qlora", batch=4, group=8)
    device, overhead = 12 * GIB, Overhead()
    found = find_limits(setting, fits_on(device, overhead))
    sizes = batches(8)
    for field, value, above in (
        ("batch", found.batch, sizes[sizes.index(found.batch) + 1]),
        ("completion", found.completion, found.completion + 1),
        ("group", found.group, found.group + 4),
    ):
        below, beyond = (plan(setting.but(**{field: n}), gpu=device, limits=False) for n in (value, above))
        assert below.fits and not beyond.fits, field
        assert beyond.needed - below.needed < 3 * GIB
    assert find_limits(setting, lambda s: False) == find_limits(setting, fits_on(1, NO_OVERHEAD))
    assert find_limits(setting, lambda s: False).batch is None


def test_largest_is_a_search_that_misses_nothing():
    values = list(range(1, 38))
    for limit in range(39):
        assert largest(values, lambda n, limit=limit: n <= limit) == (min(limit, 37) or None)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"algorithm": "dpo"}, "--algorithm 'dpo'"), ({"mode": "lroa"}, "did you mean `lora`"),
     ({"batch": 0}, "--batch 0"),
     ({"group": 1}, "needs at least 2"), ({"promt": 3}, "did you mean `prompt`"), ({"completion": -1}, "--completion"),
     ({"lora_targets": ("wq",)}, "q_proj"), ({"gpu": "rtx9"}, "is not known"), ({"optimizer": "adam"}, "adamw"),
     ({"frozen_critic_copy": True, "critic": "shared"}, "frozen_critic_copy"), ({"batch": 2.5}, "whole number"),
     ({"exact": True, "gpus": 4}, "closed form only"),
     ({"algorithm": "sft", "group": 4}, "not in groups"), ({"algorithm": "sft", "reference": True}, "grpo and ppo"),
     ({"algorithm": "rejection_sampling", "mode": "qlora"}, "without quantisation"),
     ({"algorithm": "rejection_sampling", "gpus": 2}, "one GPU")],
)  # fmt: skip
def test_bad_input_is_named(options, message):
    with pytest.raises(UserError, match=message):
        plan("qwen2.5-0.5b", **options)


def test_sharding_divides_what_is_shared_and_nothing_else():
    alone = plan("llama-3-8b", mode="full", reference=True)
    eight = plan("llama-3-8b", mode="full", reference=True, gpus=8)
    for category in (Category.WEIGHTS_TRAINABLE, Category.REFERENCE, Category.OPTIMIZER):
        assert eight.phases[Phase.FORWARD][category] == -(-alone.phases[Phase.FORWARD][category] // 8)
    assert eight.phases[Phase.FORWARD][Category.ACTIVATIONS] == alone.phases[Phase.FORWARD][Category.ACTIVATIONS]
    peaks = [plan("llama-3-8b", mode="full", reference=True, gpus=n).peak for n in (1, 2, 4, 8, 16, 32, 64)]
    assert peaks == sorted(peaks, reverse=True)


def test_claims_of_the_literature_can_be_asked():
    seven = load_geometry("qwen2.5-7b").parameters
    assert 28 < 4 * seven / 1e9 < 31  # four copies of "7B"
    plans = compare("qwen2.5-7b")
    assert set(plans) == set(MODES) and all(set(row) == set(LAYOUTS) for row in plans.values())
    full = plans["full, bfloat16"]
    without_critic = full["grpo"].peak / full["ppo: policy, reference, critic"].peak
    assert 0.5 < without_critic < 0.7
    # 70B with GRPO, full, in bfloat16: how many 80 GB GPUs?
    fits = [n for n in (8, 16, 32, 64) if plan("llama-3-70b", gpu="80GB", gpus=n, limits=False, batch=1).fits]
    assert fits and fits[-1] == 64
    deepseek = plan("deepseek-v3", gpus=64)
    assert deepseek.by_category[Category.WEIGHTS_TRAINABLE] == pytest.approx(671e9 * 2 / 64, rel=0.001)
    assert "activations are not" in deepseek.notes[0]


def test_the_command_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys; from trl_grpo_plus.cli import app; app(sys.argv[1:], standalone_mode=False);"
        "heavy = {'torch', 'transformers', 'trl'} & set(sys.modules); assert not heavy, heavy"
    )
    command = [sys.executable, "-c", code, "plan", "--model", "qwen2.5-7b", "--compare"]
    begin = time.process_time()
    done = subprocess.run(command, capture_output=True, text=True, env=None)
    assert done.returncode == 0, done.stderr
    assert "QLoRA" in done.stdout and time.process_time() - begin < 2


def test_the_command_line():
    runner = CliRunner()
    shown = runner.invoke(app, ["plan", "--model", "qwen2.5-7b", "--mode", "qlora", "--gpu", "24GB"])
    assert shown.exit_code == 0 and "Fits in the 24.00 GiB" in shown.output and "micro-batch up to" in shown.output
    shown = runner.invoke(app, ["plan", "--model", "llama-3-70b", "--mode", "full", "--gpu", "rtx4090"])
    assert "Does not fit" in shown.output and "no micro-batch fits" in shown.output
    shown = runner.invoke(app, ["plan", "--model", "smollm2-135m", "--json", "--algorithm", "ppo"])
    assert json.loads(shown.output)["setting"]["algorithm"] == "ppo"
    shown = runner.invoke(app, ["plan", "--model", "smollm2-135m", "--json", "--compare"])
    assert set(json.loads(shown.output)) == set(MODES)
    shown = runner.invoke(app, ["plan", "--model", "qwen2.5-7b", "--algorithm", "sft", "--gpu", "rtx4090"])
    assert "SFT" in shown.output and "micro-batch up to" in shown.output and "group" not in shown.output
    for bad in ([], ["--model", "qwen9"], ["--model", "smollm2-135m", "--gpus", "65"]):
        assert isinstance(runner.invoke(app, ["plan", *bad]).exception, UserError)


def test_a_comparison_in_two_processes_is_that_of_one():
    one, two = (compare("qwen2.5-0.5b", prompt=64, completion=32, processes=n) for n in (1, 2))
    for mode, layouts in one.items():
        assert {name: made.phases for name, made in layouts.items()} == {n: m.phases for n, m in two[mode].items()}
