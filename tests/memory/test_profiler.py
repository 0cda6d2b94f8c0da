"""The profiler: right by the CPU allocator's account, in ours and stock trainers, and on CUDA's (faked) statistics."""

import json
from contextlib import contextmanager

import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from rich.console import Console
from torch.profiler import record_function

from tests.memory.witness import PREFIX, allocations
from tests.tiny import save_tiny_model
from trl_grpo_plus import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.memory.categories import Category, Phase
from trl_grpo_plus.memory.figures import print_profile
from trl_grpo_plus.memory.hooks import Hooks, models_of
from trl_grpo_plus.memory.profile import MemoryProfile
from trl_grpo_plus.memory.profiler import MemoryProfiler, MemoryProfilerCallback
from trl_grpo_plus.memory.recorders import AllocatorRecorder, TrackerRecorder

PROMPTS = Dataset.from_dict({"prompt": ["what is 3 + 4?", "abc", "think first", "7 - 2 ="] * 4})
TEXTS = Dataset.from_dict({"text": ["three plus four is seven, and that is that"] * 16})
PAIRS = Dataset.from_dict(
    {"prompt": ["what is 3 + 4?"] * 8, "chosen": [" seven"] * 8, "rejected": [" eight and more"] * 8}
)
OPTIONS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_steps": 2,
    "logging_steps": 1,
    "learning_rate": 1e-4,
    "gradient_checkpointing": False,
    "bf16": False,
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
}
SAMPLING = {**OPTIONS, "num_generations": 4, "max_completion_length": 24}


def letters(completions, **kwargs):
    return [float(sum(c in "aeiou" for c in completion)) for completion in completions]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A random Llama whose layers weigh more than its head, with a small vocabulary."""
    path = tmp_path_factory.mktemp("profiled") / "model"
    return str(save_tiny_model(path, chat=False, hidden_size=128, intermediate_size=512))


def grpo(directory, output, stock=False, lora=False, **options):
    trainer, config = (trl.GRPOTrainer, trl.GRPOConfig) if stock else (GRPOTrainer, GRPOConfig)
    peft = LoraConfig(r=4, target_modules="all-linear") if lora else None
    args = config(str(output), **{**SAMPLING, **options})
    return trainer(directory, letters, args, PROMPTS, peft_config=peft)


def ppo(directory, output, **options):
    args = PPOConfig(str(output), **{**SAMPLING, "num_generations": 1, **options})
    return PPOTrainer(directory, letters, args, PROMPTS)


def sft(directory, output):
    return trl.SFTTrainer(directory, trl.SFTConfig(str(output), **OPTIONS, max_length=64), train_dataset=TEXTS)


def dpo(directory, output):
    return trl.DPOTrainer(directory, args=trl.DPOConfig(str(output), **OPTIONS), train_dataset=PAIRS)


BUILDERS = {
    "ours": grpo,
    "ours, LoRA": lambda d, o: grpo(d, o, lora=True, beta=0.1, gradient_checkpointing=True),
    "stock": lambda d, o: grpo(d, o, stock=True, beta=0.1),
    "ppo": ppo,
    "sft": sft,
    "dpo": dpo,
}
COMMON = {Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER}
ROLLOUT = {Phase.PREFILL, Phase.DECODE, Phase.REWARD}
EXPECTED = {
    "ours": COMMON | ROLLOUT,
    "ours, LoRA": COMMON | ROLLOUT | {Phase.REFERENCE},
    "stock": COMMON | ROLLOUT | {Phase.REFERENCE},
    "ppo": COMMON | ROLLOUT | {Phase.REFERENCE, Phase.OLD_LOGPROBS, Phase.CRITIC, Phase.CRITIC_VALUES},
    "sft": COMMON,
    "dpo": COMMON | {Phase.REFERENCE},
}


class MarkingRecorder(TrackerRecorder):
    """Tracks nothing; marks the same phases as ranges for the allocator's own account."""

    def active(self):
        return record_function(PREFIX + Phase.OTHER)

    @contextmanager
    def region(self, phase=None, category=None):
        if phase is None:
            yield
            return
        self._switch(phase)
        try:
            with record_function(PREFIX + phase):
                yield
        finally:
            self._switch(None)


def build(name, directory, output):
    """Returns a trainer whose weights the allocator knows of: loaded ones are maps of the file."""
    trainer = BUILDERS[name](directory, output)
    for model in [trainer.model, *(model for model, _ in models_of(trainer))]:
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data = tensor.data.clone()
    return trainer


def losses(trainer):
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


@pytest.mark.parametrize("name", BUILDERS)
def test_phase_peaks_are_the_allocators(directory, tmp_path, name):
    with allocations() as truth:
        trainer = build(name, directory, tmp_path / "marked")
        hooks = Hooks(trainer, MarkingRecorder())
        hooks.attach()
        trainer.train()
        hooks.detach()
    marked = losses(trainer)
    trainer = build(name, directory, tmp_path / "profiled")
    with MemoryProfiler(trainer) as profiler:
        trainer.train()
    assert losses(trainer) == marked  # the same run, bit for bit
    profile = profiler.profile
    assert set(profile.phases) == EXPECTED[name]
    for phase, record in profile.phases.items():
        if phase is not Phase.OTHER:
            assert record.peak.total_bytes == pytest.approx(truth.phase_peaks[phase], rel=1e-2), phase
        assert sum(record.peak.by_category.values()) == record.peak.total_bytes
    assert profile.peak.total_bytes == pytest.approx(max(truth.phase_peaks.values()), rel=1e-2)


def test_categories_of_a_lora_run(directory, tmp_path):
    trainer = grpo(directory, tmp_path, lora=True)
    trained = sum(p.nbytes for p in trainer.model.parameters() if p.requires_grad)
    frozen = sum(p.nbytes for p in trainer.model.parameters() if not p.requires_grad)
    with MemoryProfiler(trainer) as profiler:
        trainer.train()
    phases = profiler.profile.phases
    step = phases[Phase.OPTIMIZER].peak.by_category
    assert step[Category.WEIGHTS_TRAINABLE] == step[Category.GRADIENTS] == trained
    assert step[Category.OPTIMIZER] == pytest.approx(2 * trained, rel=1e-3)
    assert step[Category.WEIGHTS_FROZEN] == pytest.approx(frozen, rel=1e-2)  # and buffers
    decoded = phases[Phase.DECODE].peak.by_category
    rows, kv_per_token = 8, 2 * 2 * 64 * 4  # completions; two layers' keys and values of two heads of 32, float32
    assert decoded[Category.KV_CACHE] >= rows * 24 * kv_per_token
    assert phases[Phase.FORWARD].peak.by_category[Category.LM_HEAD] > 2**20  # TRL's tile is 32768 wide
    assert phases[Phase.BACKWARD].peak.by_category[Category.ACTIVATIONS] > 0


def test_models_of_ppo_have_their_categories(directory, tmp_path):
    trainer = ppo(directory, tmp_path)
    size = sum(p.nbytes for p in trainer.model.parameters())
    with MemoryProfiler(trainer) as profiler:
        trainer.train()
    held = profiler.profile.phases[Phase.FORWARD].peak.by_category
    assert held[Category.WEIGHTS_TRAINABLE] == size
    assert held[Category.REFERENCE] == pytest.approx(size, rel=1e-2)
    head = trainer.model.get_output_embeddings().weight.nbytes
    assert held[Category.CRITIC] == pytest.approx(size - head, rel=1e-2)


def test_everything_is_put_back(directory, tmp_path):
    from transformers.cache_utils import Cache
    from trl.kernels.chunked_logprob import ChunkedLogProbFunction

    def state(trainer):
        modules = list(trainer.model.modules())
        return (
            dict(vars(trainer)) | {"accelerator": None, "state": None},
            vars(trainer.accelerator).get("backward"),
            Cache.update,
            ChunkedLogProbFunction.forward,
            ChunkedLogProbFunction.backward,
            sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in modules),
            sum(len(p._post_accumulate_grad_hooks or ()) for p in trainer.model.parameters()),
        )

    trainer = grpo(directory, tmp_path)
    before = state(trainer)
    with MemoryProfiler(trainer, None):
        assert "compute_loss" in vars(trainer)
    assert state(trainer) == before

    def broken(*args, **kwargs):
        raise RuntimeError("out of luck")

    trainer.reward_funcs = [broken]
    before = state(trainer)
    with pytest.raises(RuntimeError, match="out of luck"), MemoryProfiler(trainer, None) as profiler:
        trainer.train()
    after = state(trainer)
    assert after[1:] == before[1:] and "compute_loss" not in vars(trainer) and "log" not in vars(trainer)
    assert Phase.DECODE in profiler.profile.phases  # a profile of what ran
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_off_it_costs_nothing_and_on_it_changes_no_number(directory, tmp_path):
    plain = grpo(directory, tmp_path / "plain")
    plain.train()
    profiled = grpo(directory, tmp_path / "profiled", profile_memory=True)
    profiled.train()
    assert losses(plain) == losses(profiled)
    logs = [log for log in profiled.state.log_history if "loss" in log]
    assert not any(key.startswith("memory/") for log in plain.state.log_history for key in log)
    for log in logs:
        keys = {key for key in log if key.startswith("memory/")}
        wanted = {f"memory/{phase}/peak_mib" for phase in EXPECTED["ours"] - {Phase.OTHER}}
        assert keys == wanted | {"memory/peak_mib"}
        assert log["memory/peak_mib"] == max(log[key] for key in keys)
    assert logs[0]["memory/optimizer/peak_mib"] > 0
    for name in ("profile.json", "timeline.png", "phases.png"):
        assert (tmp_path / "profiled/memory" / name).stat().st_size > 500
    record = json.loads((tmp_path / "profiled/memory/profile.json").read_text())
    profile = MemoryProfile.from_json(record)
    assert profile.to_json() == record
    assert profile.steps == 2 and 0 < profile.overhead_s < profile.seconds
    console = Console(record=True, width=200)
    print_profile(console, profile)
    text = console.export_text()
    assert f"peak: {profile.peak_mib:,.1f} MiB in {profile.peak_phase}" in text and "profiling took at least" in text


def test_the_callback_profiles_each_training(directory, tmp_path):
    trainer = sft(directory, tmp_path)
    callback = MemoryProfilerCallback(trainer, output_dir=tmp_path / "there")
    trainer.add_callback(callback)
    trainer.train()
    first = callback.profile
    assert first.steps == 2 and (tmp_path / "there/profile.json").exists()
    assert "compute_loss" not in vars(trainer)
    trainer.train()
    assert callback.profile is not first
    assert callback.profile.peak.total_bytes == pytest.approx(first.peak.total_bytes, rel=1e-2)


class FakeAllocator:
    """An allocator's statistics, driven by hand."""

    def __init__(self):
        self.now = self.highest = 100

    def allocate(self, size):
        self.now += size
        self.highest = max(self.highest, self.now)

    def allocated(self):
        return self.now

    def peak_allocated(self):
        return self.highest

    def peak_reserved(self):
        return self.highest + 50

    def reset(self):
        self.highest = self.now


def test_nested_phases_on_allocator_statistics():
    stats = FakeAllocator()
    recorder = AllocatorRecorder(stats, lambda: {Category.WEIGHTS_TRAINABLE: 80, Category.GRADIENTS: 20})
    stats.allocate(1000)
    stats.allocate(-1000)  # before any phase
    with recorder.region(Phase.FORWARD, Category.ACTIVATIONS):
        stats.allocate(300)
        stats.allocate(-100)  # 300 alive, 400 at most
        with recorder.region(Phase.CRITIC, Category.ACTIVATIONS):
            stats.allocate(500)  # 800
            with recorder.region(None, Category.LM_HEAD):
                stats.allocate(50)  # 850: still the critic's
                stats.allocate(-50)
            stats.allocate(-500)
        stats.allocate(50)  # 350: less than forward's own peak before
    stats.allocate(-250)
    peaks = recorder.take()
    assert {phase: peak.total_bytes for phase, peak in peaks.items()} == {
        Phase.OTHER: 1100,
        Phase.FORWARD: 400,
        Phase.CRITIC: 850,
    }
    assert peaks[Phase.CRITIC].by_category == {
        Category.WEIGHTS_TRAINABLE: 80,
        Category.GRADIENTS: 20,
        Category.ACTIVATIONS: 750,
    }
    assert recorder.peak_reserved_bytes == 1150
    with recorder.region(Phase.OPTIMIZER):
        stats.allocate(10)
    assert {phase: peak.total_bytes for phase, peak in recorder.take().items()} == {
        Phase.OPTIMIZER: 110,
        Phase.OTHER: 110,
    }


def test_a_training_on_allocator_statistics(directory, tmp_path):
    """The hooks with the CUDA recorder: the fake allocator grows by a known amount in each reward call."""
    stats = FakeAllocator()

    def reward(completions, **kwargs):
        stats.allocate(2**30)
        stats.allocate(-(2**30))
        return letters(completions)

    trainer = trl.GRPOTrainer(directory, reward, trl.GRPOConfig(str(tmp_path), **SAMPLING), PROMPTS)
    with MemoryProfiler(trainer, stats=stats) as profiler:
        trainer.train()
    phases = profiler.profile.phases
    assert profiler.profile.backend == "allocator statistics"
    assert set(phases) == EXPECTED["ours"]
    assert phases[Phase.REWARD].peak.total_bytes == 2**30 + 100
    assert {record.peak.total_bytes for phase, record in phases.items() if phase is not Phase.REWARD} == {100}
    assert "memory/peak_reserved_mib" in trainer.state.log_history[0]


def test_what_only_cuda_has_is_refused_elsewhere(directory, tmp_path):
    trainer = sft(directory, tmp_path)
    with pytest.raises(UserError, match="runs on cpu"):
        MemoryProfiler(trainer, backend="allocator")
    with pytest.raises(UserError, match="snapshot=True"):
        MemoryProfiler(trainer, snapshot=True)
