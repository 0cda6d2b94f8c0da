"""The tracker against the allocator's account, under fake tensors, and on each thing that is easy to miss."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.profiler import record_function
from transformers import LlamaConfig, LlamaForCausalLM

from tests.memory.witness import PREFIX, allocations
from trl_grpo_plus.memory.categories import Category, Phase
from trl_grpo_plus.memory.tracker import StorageTracker, quantization_tensors

KIB = 1024


def build(checkpointing=False, tied=True):
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2048,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=tied,
        )
    )
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def step(model, optimizer, tracker=None):
    """One optimizer step of two micro-batches; phases are marked for the tracker, or for the allocator's account."""

    def phase(name, category):
        return tracker.region(name, category) if tracker else record_function(PREFIX + name)

    for _ in range(2):
        ids = torch.zeros(2, 96, dtype=torch.long)
        with phase(Phase.FORWARD, Category.ACTIVATIONS):
            loss = model(input_ids=ids, labels=ids).loss
        with phase(Phase.BACKWARD, Category.ACTIVATIONS):
            loss.backward()
        del loss
    with phase(Phase.OPTIMIZER, Category.OPTIMIZER):
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def run(tracker=None, **kwargs):
    model = build(**kwargs)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    if tracker is None:
        for _ in range(2):
            step(model, optimizer)
        return
    with tracker:
        tracker.assign_model(model, trainable=Category.WEIGHTS_TRAINABLE, frozen=Category.WEIGHTS_FROZEN)
        handles = tracker.watch_gradients(model.parameters())
        for _ in range(2):
            step(model, optimizer, tracker)
            tracker.assign_optimizer(optimizer)
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_peaks_are_the_allocators(checkpointing, tied):
    with allocations() as truth:
        run(checkpointing=checkpointing, tied=tied)
    tracker = StorageTracker(round_to_bytes=1)
    run(tracker, checkpointing=checkpointing, tied=tied)
    assert tracker.peak_bytes == pytest.approx(max(truth.phase_peaks.values()), rel=2e-3)
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert tracker.phase_peaks[phase].total_bytes == pytest.approx(truth.phase_peaks[phase], rel=2e-3), phase


def test_categories_add_up_and_are_the_right_ones():
    tracker = StorageTracker(round_to_bytes=1)
    run(tracker)
    parameters = sum(p.numel() for p in build().parameters())
    for peak in tracker.phase_peaks.values():
        assert sum(peak.by_category.values()) == peak.total_bytes
    at_the_step = tracker.phase_peaks[Phase.OPTIMIZER].by_category
    assert at_the_step[Category.WEIGHTS_TRAINABLE] == 4 * parameters
    assert at_the_step[Category.GRADIENTS] == 4 * parameters
    assert at_the_step[Category.OPTIMIZER] == pytest.approx(8 * parameters, rel=1e-3)
    assert tracker.phase_peaks[Phase.FORWARD].by_category[Category.ACTIVATIONS] > 2 * 96 * 2048 * 4  # the logits alone


def test_fake_tensors_hold_what_real_ones_do():
    real, fake = StorageTracker(), StorageTracker()
    run(real)
    with FakeTensorMode():
        run(fake)
    assert fake.peak_bytes == real.peak_bytes
    assert {p: peak.total_bytes for p, peak in fake.phase_peaks.items()} == {
        p: peak.total_bytes for p, peak in real.phase_peaks.items()
    }


def test_storages_count_once_and_go_when_freed():
    with StorageTracker(round_to_bytes=1) as tracker:
        x = torch.zeros(1024)
        view = x.view(32, 32)[:, 0]
        assert tracker.live_bytes == 4 * KIB
        del x
        assert tracker.live_bytes == 4 * KIB  # the view holds the storage
        del view
        assert tracker.live_bytes == 0
        y = torch.empty(0)
        y.resize_(512)
        y.add_(1)
        assert tracker.live_bytes == 2 * KIB
    assert tracker.peak_bytes == 4 * KIB


def test_rounding_and_other_devices():
    with StorageTracker(round_to_bytes=512) as tracker:
        held = torch.zeros(1), torch.zeros(129)
        elsewhere = torch.zeros(4096, device="meta")
        assert tracker.live_bytes == 512 + 1024
        del held, elsewhere


def test_regions_nest_and_peaks_belong_to_the_innermost():
    with StorageTracker(round_to_bytes=1) as tracker:
        with tracker.region(Phase.FORWARD, Category.ACTIVATIONS):
            kept = torch.zeros(256)
            with tracker.region(Phase.CRITIC, Category.CRITIC):
                more = torch.zeros(1024)
                del more
            with tracker.region(category=Category.LM_HEAD):
                head = torch.zeros(128)
        del kept, head
        tracker.reset_peaks()
        assert tracker.peak_bytes == 0
        with tracker.region(Phase.FORWARD, Category.ACTIVATIONS):
            kept = torch.zeros(256)
            with tracker.region(Phase.CRITIC, Category.CRITIC):
                more = torch.zeros(1024)
                del more
            with tracker.region(category=Category.LM_HEAD):
                head = torch.zeros(128)
    assert tracker.phase_peaks[Phase.CRITIC].by_category == {Category.ACTIVATIONS: KIB, Category.CRITIC: 4 * KIB}
    assert tracker.phase_peaks[Phase.FORWARD].by_category == {Category.ACTIVATIONS: KIB, Category.LM_HEAD: KIB // 2}
    assert tracker.peak_phase == Phase.CRITIC
    del kept, head


def test_the_mode_does_not_measure_itself():
    """A weight used twice gets its two gradients summed; autograd does that in place when no mode is on."""

    def run(tracker=None):
        weight = nn.Parameter(torch.zeros(256, 256))
        x = torch.zeros(4, 256)
        if tracker:
            tracker.assign([weight], Category.WEIGHTS_TRAINABLE)
        (x @ weight @ weight).sum().backward()

    with allocations() as truth:
        run()
    with StorageTracker(round_to_bytes=1) as tracker:
        run(tracker)
    assert tracker.peak_bytes == pytest.approx(truth.peak_bytes, rel=2e-2)


def test_constants_of_4_bit_weights_count():
    bnb = pytest.importorskip("bitsandbytes")
    layer = bnb.nn.Linear4bit(256, 256, bias=False, quant_type="nf4", compress_statistics=True).to("cpu")
    found = list(quantization_tensors(layer.weight))
    absmax = 256 * 256 // 64  # 1 byte each; a float32 for each 256 of them
    assert {absmax, 4 * (absmax // 256)} <= {t.nbytes for t in found}
    with StorageTracker(round_to_bytes=1) as tracker:
        tracker.assign_model(layer, trainable=Category.WEIGHTS_TRAINABLE, frozen=Category.WEIGHTS_FROZEN)
        assert tracker.by_category[Category.WEIGHTS_FROZEN] >= 256 * 256 // 2 + absmax + 4 * (absmax // 256)


def test_casts_of_weights_have_a_category_of_their_own():
    weight, x = nn.Parameter(torch.zeros(64, 64)), torch.zeros(64, 64)
    with StorageTracker(round_to_bytes=1) as tracker:
        tracker.assign([weight], Category.WEIGHTS_FROZEN)
        tracker.assign([x], Category.OTHER)
        with tracker.region(Phase.FORWARD, Category.ACTIVATIONS):
            cast, other = weight.to(torch.bfloat16), x.to(torch.bfloat16)
            assert tracker.by_category[Category.WEIGHT_CASTS] == cast.nbytes
            assert tracker.by_category[Category.ACTIVATIONS] == other.nbytes
            with torch.autocast("cpu", dtype=torch.bfloat16):
                x @ weight  # autocast caches its copy of the weight until its end
                assert tracker.by_category[Category.WEIGHT_CASTS] == 2 * cast.nbytes


def test_dequantised_weights_count_as_casts():
    bnb = pytest.importorskip("bitsandbytes")
    layer = bnb.nn.Linear4bit(256, 128, bias=False, quant_type="nf4", compute_dtype=torch.bfloat16).to("cpu")
    x = torch.zeros(512, 256, dtype=torch.bfloat16, requires_grad=True)
    with StorageTracker(round_to_bytes=1) as tracker, tracker.region(Phase.BACKWARD, Category.ACTIVATIONS):
        layer(x).sum().backward()
    held = tracker.phase_peaks[Phase.BACKWARD].by_category
    assert held[Category.WEIGHT_CASTS] >= 256 * 128 * 2
