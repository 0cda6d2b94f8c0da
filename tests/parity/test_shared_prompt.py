"""The shared-prompt forward against TRL's own method: log-probabilities, entropies and every gradient."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from trl.trainer.utils import add_fused_lm_head

from tests.forward.cases import MODELS, assert_same, build, evaluate, micro_batch, plain
from trl_grpo_plus.forward import attention as attention_module
from trl_grpo_plus.forward import build_layout, inspect_model, packed_logps_and_entropies, verify

CHECKPOINTING = [None, False, True]  # not at all, non-reentrant, reentrant


def packed(model, ids, mask, C, **options):
    return packed_logps_and_entropies(model, ids, mask, C, compute_entropy=True, **options)


def compare(model, batch=None, weights=None, tolerance=1e-5, **options):
    ids, mask, C = micro_batch() if batch is None else batch
    expected = evaluate(model, lambda: plain(model, ids, mask, C), mask, C, weights)
    found = evaluate(model, lambda: packed(model, ids, mask, C, **options), mask, C, weights)
    assert_same(found, expected, tolerance)
    return found, expected


def adapt(name, **lora):
    model = build(name)
    torch.manual_seed(1)
    model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", **lora))
    for key, parameter in model.named_parameters():
        if "lora_B" in key:  # B starts at zero, which would hide the gradient of A
            torch.nn.init.normal_(parameter, std=0.1)
    return model.train()


def checkpointed(model, use_reentrant):
    if use_reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
        model.enable_input_require_grads()  # as the Trainer does for adapters under the reentrant kind
    return model


@pytest.mark.parametrize("name", MODELS)
def test_every_geometry_is_equal(name):
    model = build(name)
    assert inspect_model(model).reason is None
    compare(model)


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize(
    "batch",
    [
        {"prompts": (1,), "rows": ((0, 8), (0, 1))},  # one-token prompt, nothing before the segments
        {"prompts": (9,), "rows": ((0, 8), (0, 8), (0, 8))},  # one prompt, one length: no padding inside
        {"prompts": (9, 9), "rows": ((0, 3), (1, 8), (0, 3), (1, 8))},  # groups interleaved
        {"prompts": (4,), "rows": ((0, 5),)},  # one row
        {"prompts": (2, 9), "rows": ((0, 0), (1, 8), (1, 0))},  # empty completion masks, one a group of its own
        {"C": 1, "prompts": (3, 9), "rows": ((0, 1), (1, 1), (1, 1))},
        {"C": 40, "prompts": (9,), "rows": ((0, 40), (0, 1), (0, 2), (0, 11), (0, 25))},  # several buckets
    ],
)
def test_batch_shapes(name, batch):
    compare(build(name), micro_batch(**batch))


@pytest.mark.parametrize("use_reentrant", CHECKPOINTING)
@pytest.mark.parametrize(
    ("name", "lora"),
    [
        ("llama", {}),
        ("llama", {"use_dora": True}),
        ("gemma3", {}),
        ("gemma3", {"use_dora": True}),
        ("qwen3-moe", {}),  # PEFT refuses DoRA on its experts
    ],
)
def test_adapters_under_gradient_checkpointing(name, lora, use_reentrant):
    compare(checkpointed(adapt(name, **lora), use_reentrant))


@pytest.mark.parametrize("use_reentrant", CHECKPOINTING[1:])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_full_training_under_gradient_checkpointing(name, use_reentrant):
    compare(checkpointed(build(name), use_reentrant))


def test_unused_base_model_through_a_disabled_adapter():
    """The reference log-probabilities of an adapter run."""
    model = adapt("llama")
    ids, mask, C = micro_batch()
    with torch.no_grad(), model.disable_adapter():
        expected, found = plain(model, ids, mask, C), packed(model, ids, mask, C)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)


def test_scores_outside_the_mask_are_zero_as_in_trl():
    ids, mask, C = micro_batch()
    model = build("llama")
    outside = mask[:, -C:] == 0
    with torch.no_grad():
        for run in (plain, packed):
            logps, entropies = run(model, ids, mask, C)[:2]
            assert (logps[outside] == 0).all()
            assert (entropies[outside] == 0).all()


def test_cast_lm_head_to_fp32():
    model = build("llama", head=False, dtype=torch.bfloat16)
    model.lm_head = model.lm_head.float()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"), cast_lm_head_to_fp32=True)
    ids, mask, C = micro_batch()
    with torch.no_grad():
        expected, found = plain(model, ids, mask, C), packed(model, ids, mask, C)
    assert found[0].dtype == expected[0].dtype == torch.float32
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0.1)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_bfloat16_is_no_further_from_the_truth_than_the_plain_path(name, autocast):
    """Over several batches, the root mean square error of values and gradients against float32."""

    def context():
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast)

    truth_model = build(name)
    model = copy.deepcopy(truth_model) if autocast else build(name, dtype=torch.bfloat16)
    if not autocast:  # the truth has the same, rounded weights
        truth_model.load_state_dict({k: v.float() for k, v in model.state_dict().items()})
    squares = {"plain": torch.zeros(3), "packed": torch.zeros(3)}
    rows = ((0, 16), (1, 7), (0, 5), (2, 10), (0, 12), (0, 3), (2, 16), (1, 14))
    for seed in range(16):
        ids, mask, C = micro_batch(P=20, C=16, prompts=(20, 9, 1), rows=rows, seed=seed)
        truth = evaluate(truth_model, lambda: plain(truth_model, ids, mask, C), mask, C)  # noqa: B023
        runs = {
            "plain": lambda: plain(model, ids, mask, C, context),  # noqa: B023
            "packed": lambda: packed(model, ids, mask, C, autocast=context),  # noqa: B023
        }
        for key, run in runs.items():
            logps, entropies, gradients = evaluate(model, run, mask, C)
            squares[key] += torch.stack(
                [
                    (logps - truth[0]).square().sum(),
                    (entropies - truth[1]).square().sum(),
                    sum((gradients[k].float() - g).square().sum() / g.square().sum() for k, g in truth[2].items()),
                ]
            )
    ratio = (squares["packed"] / squares["plain"]).sqrt()
    # Over many more batches the ratios are 0.98 to 1.02; over these few they scatter by a few percent.
    assert (ratio < 1.1).all(), ratio


@pytest.mark.parametrize("max_tokens", [None, 18])
def test_skipped_rows_have_the_gradient_of_rows_without_advantage(max_tokens):
    model = build("llama")
    ids, mask, C = micro_batch()
    skip = torch.tensor([True, False, True, False, False, True, True, True])
    weights = torch.randn(2, *mask[:, -C:].shape, generator=torch.Generator().manual_seed(3))
    weights[:, skip] = 0
    expected = evaluate(model, lambda: plain(model, ids, mask, C), mask, C, weights)
    old = torch.full(mask[:, -C:].shape, -3.0)
    found = evaluate(
        model,
        lambda: packed(model, ids, mask, C, skip_rows_B=skip, fill_logps_BC=old, max_tokens=max_tokens),
        mask, C, weights,
    )  # fmt: skip
    scored = mask[:, -C:] != 0
    ran = scored & ~skip[:, None]
    torch.testing.assert_close(found[0][ran], expected[0][ran], rtol=0, atol=1e-5)
    assert (found[0][scored & skip[:, None]] == -3.0).all()
    assert (found[0][~scored] == 0).all()
    mean = found[1][ran].mean()
    torch.testing.assert_close(found[1][scored].mean(), mean)  # TRL's metric then covers the rows that ran
    for key, gradient in expected[2].items():
        assert (found[2][key] - gradient).norm() <= 1e-5 * max(gradient.norm(), 1e-3), key


@pytest.mark.parametrize("name", ["full", "lora"])
def test_all_rows_skipped_gives_gradients_of_zero(name):
    model = build("llama") if name == "full" else adapt("llama")
    ids, mask, C = micro_batch()
    skip = torch.ones(len(ids), dtype=torch.bool)
    logps, entropies, gradients = evaluate(model, lambda: packed(model, ids, mask, C, skip_rows_B=skip), mask, C)
    assert (logps == 0).all()
    assert (entropies == 0).all()
    assert gradients.keys() == {n for n, p in model.named_parameters() if p.requires_grad}
    assert all((g == 0).all() for g in gradients.values())


@pytest.mark.parametrize("use_reentrant", CHECKPOINTING)
@pytest.mark.parametrize("name", ["llama", "gemma3", "lora"])
def test_token_budget_leaves_the_gradient_alone(name, use_reentrant):
    model = checkpointed(adapt("llama") if name == "lora" else build(name), use_reentrant)
    batch = micro_batch()
    layout = build_layout(*batch, max_tokens=16)
    assert len(layout.chunks) >= 3
    assert all(chunk.spans.length <= 16 for chunk in layout.chunks)
    compare(model, batch, layout=layout)


def test_token_budget_with_dropout_recomputes_the_same_draws():
    """With dropout, recomputed and kept activations must be of one draw: the loss gradient has to match its values."""
    torch.manual_seed(0)
    model = adapt("llama", lora_dropout=0.5)
    ids, mask, C = micro_batch()

    def run(**options):
        torch.manual_seed(5)
        return evaluate(model, lambda: packed(model, ids, mask, C, **options), mask, C)

    layout = build_layout(ids, mask, C, max_tokens=16)
    budget = run(layout=layout)
    torch.manual_seed(5)
    pieces = [  # the same forwards, in the same order, without recomputation
        packed(model, ids, mask, C, layout=type(layout)((chunk,), layout.shape, 0, 0)) for chunk in layout.chunks
    ]
    summed = (sum(p[0] for p in pieces), sum(p[1] for p in pieces))
    assert_same(budget, evaluate(model, lambda: summed, mask, C))


def test_token_budget_bounds_the_activations_of_the_backward():
    model = build("llama", num_hidden_layers=4, hidden_size=64, intermediate_size=256)
    batch = micro_batch(P=33, C=32, prompts=(33,), rows=((0, 32),) * 12)

    def peak(**options):
        alive = [0, 0]  # now, and at most

        class Kept:
            def __init__(self, tensor):
                self.tensor = tensor
                alive[0] += tensor.numel()
                alive[1] = max(alive)

            def __del__(self):
                alive[0] -= self.tensor.numel()

        ids, mask, C = batch
        with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
            logps = packed(model, ids, mask, C, **options)[0]
            logps.sum().backward()
        return alive[1]

    assert peak(max_tokens=130) < 0.45 * peak()


def test_data_parallel_wrapper(tmp_path):
    """One process: DDP's forward runs once, its hooks see every gradient once."""
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = build("llama")
        expected = evaluate(model, lambda: plain(model, *micro_batch()), *micro_batch()[1:])
        wrapped = DistributedDataParallel(model)
        calls = []
        wrapped.register_forward_hook(lambda *_: calls.append(1))
        ids, mask, C = micro_batch()
        for options in ({}, {"max_tokens": 16}, {}):
            found = evaluate(wrapped, lambda: packed(wrapped, ids, mask, C, **options), mask, C)  # noqa: B023
            gradients = {k.removeprefix("module."): g for k, g in found[2].items()}
            assert_same((*found[:2], gradients), expected)
        skip = torch.ones(len(ids), dtype=torch.bool)
        found = evaluate(wrapped, lambda: packed(wrapped, ids, mask, C, skip_rows_B=skip), mask, C)
        assert all((g == 0).all() for g in found[2].values())
        assert len(calls) == 4
        assert "forward" in vars(model)  # the fused head is still in place
    finally:
        torch.distributed.destroy_process_group()


def test_four_bit_adapters():
    """QLoRA: the plain and the packed path go through the same quantised weights."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = build("llama", head=False, hidden_size=64, intermediate_size=64, head_dim=16)
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            quantised = bitsandbytes.nn.Linear4bit(
                module.in_features, module.out_features, bias=False, compute_dtype=torch.float32, quant_type="nf4"
            )
            quantised.weight = bitsandbytes.nn.Params4bit(module.weight.data, requires_grad=False, quant_type="nf4")
            model.set_submodule(name, quantised)
    model = model.to("cpu")
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]))
    for key, parameter in model.named_parameters():
        if "lora_B" in key:
            torch.nn.init.normal_(parameter, std=0.1)
    found, _ = compare(checkpointed(model.train(), False))
    assert all(g.norm() > 0 for g in found[2].values())


def test_plain_calls_are_untouched_once_enabled():
    """The registered functions defer: bit for bit the same, with and without padding."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model = build("gemma3")
    ids, mask, C = micro_batch()
    attention_module.disable("sdpa")
    original = ALL_ATTENTION_FUNCTIONS["sdpa"]
    before = evaluate(model, lambda: plain(model, ids, mask, C), mask, C)
    generated = model.generate(ids[:1], attention_mask=mask[:1], max_new_tokens=5, do_sample=False)
    attention_module.enable("sdpa")
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is not original
    after = evaluate(model, lambda: plain(model, ids, mask, C), mask, C)
    assert torch.equal(before[0], after[0])
    assert all(torch.equal(g, after[2][k]) for k, g in before[2].items())
    assert torch.equal(generated, model.generate(ids[:1], attention_mask=mask[:1], max_new_tokens=5, do_sample=False))
    assert model.config._attn_implementation == "sdpa"
    attention_module.disable("sdpa")
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is original


def check(model, **options):
    ids, mask, C = micro_batch()
    return verify(model, ids, mask, C, lambda *args: plain(model, *args), **options)


def test_verification_passes_and_leaves_the_model_and_the_random_state_alone():
    model = adapt("llama", lora_dropout=0.3)
    state = torch.get_rng_state()
    result = check(model)
    assert result.ok, result.message
    assert result.max_difference < 1e-5
    assert torch.equal(torch.get_rng_state(), state)
    assert all(m.training for m in model.modules())


def test_linear_attention_is_refused_and_caught():
    model = build(
        "Qwen3NextConfig", linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8,
        linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"], num_experts=4,
        num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16,
    )  # fmt: skip
    assert "linear_attention" in inspect_model(model).reason
    result = check(model)
    assert not result.ok
    assert "row" in result.message and "completion token" in result.message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_attention_is_caught(monkeypatch, dtype):
    """A segment that cannot see the last token before it; everything else is right."""
    attend = attention_module._attend_copies

    def shifted_band(spans, length, before, window, device):
        query, key = torch.arange(length)[:, None], torch.arange(-before, length)
        return (key <= query) & (key != -1) if before else key <= query

    model = build("llama", dtype=dtype)
    assert check(model).ok
    monkeypatch.setattr(attention_module, "is_supported", lambda *_: False)
    assert check(model).ok
    monkeypatch.setattr(attention_module, "_band", shifted_band)
    assert attention_module._attend_copies is attend
    result = check(model)
    assert not result.ok
    assert "packed and" in result.message


def test_a_model_that_cannot_run_a_packed_row_is_caught():
    """OPT counts positions from the attention mask; Doge lays a pattern over the causal mask."""
    opt = build("OPTConfig", ffn_dim=48, word_embed_proj_dim=32)
    assert not check(opt).ok
    doge = build("DogeConfig", num_experts=4)
    result = check(doge)
    assert not result.ok
    assert "NotExactError" in result.message
