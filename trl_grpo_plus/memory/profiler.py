"""`MemoryProfiler`: the memory of every phase of a step, for any TRL trainer, ours or stock.

    with MemoryProfiler(trainer) as profiler:
        trainer.train()
    profiler.profile.peak_mib

`MemoryProfilerCallback(trainer)` does the same from the start of each training to its end, and `profile_memory=True`
in our configurations adds it. While it is on, logs hold `memory/peak_mib` and `memory/<phase>/peak_mib` (since the
last log), and at the end `<output_dir>/memory/` holds `profile.json`, `timeline.png` and `phases.png`. When it is off,
nothing of it is imported or runs.

On CUDA it reads the allocator's own statistics, and `snapshot=True` writes a file for https://pytorch.org/memory_viz.
Elsewhere it counts live tensors at every operation (`tracker.py`), which slows the run; the profile says by how much.
Memory that vLLM or other processes hold is not seen.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from transformers import TrainerCallback

from ..errors import UserError
from .categories import Category, Phase
from .hooks import Hooks, models_of
from .profile import MIB, MemoryProfile, PhaseRecord
from .recorders import AllocatorRecorder, AllocatorStats, CudaStats, Recorder, TrackerRecorder
from .tracker import Peak, quantization_tensors

_SNAPSHOT_EVENTS = 200_000


class MemoryProfiler:
    """Profiles the memory of a trainer's run, as a context.

    Args:
        trainer: A TRL trainer, or any other built on transformers' `Trainer`.
        output_dir: Where the files go at the end; by default `memory/` in the trainer's own, `None` writes none.
        backend: `allocator` (CUDA), `tracker`, or `auto`.
        snapshot: Record the allocator's history on CUDA, and write it as `snapshot.pickle`.
        stats: The allocator's statistics, where they are not PyTorch's for the trainer's device.

    Raises:
        UserError: The backend does not exist on this device.
    """

    def __init__(
        self,
        trainer: Any,
        output_dir: str | Path | None | Literal["default"] = "default",
        *,
        backend: Literal["auto", "allocator", "tracker"] = "auto",
        snapshot: bool = False,
        stats: AllocatorStats | None = None,
    ) -> None:
        self.trainer = trainer
        default = Path(trainer.args.output_dir) / "memory"
        self.output_dir = default if output_dir == "default" else Path(output_dir) if output_dir else None
        self.recorder: Recorder | None = None
        self.profile: MemoryProfile | None = None
        self._hooks: Hooks | None = None
        self._stats = stats
        self._peaks: dict[Phase, Peak] = {}
        self._device = trainer.accelerator.device
        on_cuda = self._device.type == "cuda"
        if backend == "allocator" and not (on_cuda or stats):
            raise UserError(f"backend='allocator' reads CUDA's statistics; this trainer runs on {self._device.type}")
        if snapshot and not on_cuda:
            raise UserError(f"snapshot=True records CUDA's allocator; this trainer runs on {self._device.type}")
        self._use_allocator = backend == "allocator" or (backend == "auto" and (on_cuda or stats is not None))
        self._snapshot = snapshot

    def __enter__(self) -> MemoryProfiler:
        """Starts."""
        self.start()
        return self

    def __exit__(self, *error: Any) -> None:
        """Ends; after an error too, there is a profile of what ran."""
        self.stop()

    def start(self) -> None:
        """Starts to watch the trainer; everything is put back by `stop`."""
        if self._hooks is not None:
            self.stop()
        self._peaks, self.profile = {}, None
        self._started = time.perf_counter()
        self._first_step = self.trainer.state.global_step
        if self._use_allocator:
            self.recorder = AllocatorRecorder(self._stats or CudaStats(self._device), self._resident)
        else:
            self.recorder = TrackerRecorder(self._device.type)
        self._hooks = Hooks(self.trainer, self.recorder)
        self._hooks.attach()
        self._wrap_log()
        if self._snapshot:
            torch.cuda.memory._record_memory_history(max_entries=_SNAPSHOT_EVENTS)

    def stop(self) -> MemoryProfile:
        """Stops watching, and writes the files; returns the profile.

        Raises:
            RuntimeError: It was never started.
        """
        if self._hooks is None:
            if self.profile is None:
                raise RuntimeError("the profiler has not been started")
            return self.profile
        assert self.recorder is not None
        self._collect()
        self._hooks.detach()
        self._hooks = None
        self.profile = self._make_profile(self.recorder)
        main = bool(self.trainer.is_world_process_zero())
        if self._snapshot:
            if main and self.output_dir is not None:
                self.output_dir.mkdir(parents=True, exist_ok=True)
                torch.cuda.memory._dump_snapshot(str(self.output_dir / "snapshot.pickle"))  # type: ignore[no-untyped-call]
            torch.cuda.memory._record_memory_history(enabled=None)
        if main and self.output_dir is not None:
            from .figures import save_figures

            self.profile.save(self.output_dir / "profile.json")
            save_figures(self.profile, self.output_dir)
        return self.profile

    def metrics(self) -> dict[str, float]:
        """Returns the peaks since the last call as metrics, in MiB."""
        peaks = self._collect()
        found = {
            f"memory/{phase}/peak_mib": peak.total_bytes / MIB
            for phase, peak in peaks.items()
            if phase is not Phase.OTHER
        }
        found["memory/peak_mib"] = max((peak.total_bytes for peak in peaks.values()), default=0) / MIB
        if self.recorder is not None and self.recorder.peak_reserved_bytes:
            found["memory/peak_reserved_mib"] = self.recorder.peak_reserved_bytes / MIB
        return found

    def _collect(self) -> dict[Phase, Peak]:
        assert self.recorder is not None
        peaks = self.recorder.take()
        for phase, peak in peaks.items():
            known = self._peaks.get(phase)
            if known is None or peak.total_bytes > known.total_bytes:
                self._peaks[phase] = peak
        return peaks

    def _wrap_log(self) -> None:
        """Puts the metrics into the trainer's logs of training steps, before any callback sees them."""
        assert self._hooks is not None
        log = self.trainer.log

        @functools.wraps(log)
        def with_memory(logs: dict[str, float], *args: Any, **kwargs: Any) -> Any:
            return log({**logs, **self.metrics()} if "loss" in logs else logs, *args, **kwargs)

        self._hooks._replace(self.trainer, "log", with_memory)

    def _make_profile(self, recorder: Recorder) -> MemoryProfile:
        trainer = self.trainer
        phases = {
            phase: PhaseRecord(self._peaks[phase], recorder.calls.get(phase, 0), recorder.seconds.get(phase, 0.0))
            for phase in Phase
            if phase in self._peaks
        }
        cuda = self._device.type == "cuda"
        about = {
            "trainer": f"{type(trainer).__module__.split('.')[0]}.{type(trainer).__name__}",
            "model": getattr(getattr(trainer.model, "config", None), "_name_or_path", ""),
            "per_device_train_batch_size": trainer.args.per_device_train_batch_size,
            "gradient_accumulation_steps": trainer.args.gradient_accumulation_steps,
            "gradient_checkpointing": trainer.args.gradient_checkpointing,
        }
        return MemoryProfile(
            device=torch.cuda.get_device_name(self._device) if cuda else self._device.type,
            backend=recorder.backend,
            phases=phases,
            steps=trainer.state.global_step - self._first_step,
            seconds=time.perf_counter() - self._started,
            overhead_s=recorder.overhead_s(),
            peak_reserved_bytes=recorder.peak_reserved_bytes,
            timeline=recorder.samples,
            about=about,
        )

    def _resident(self) -> dict[Category, int]:
        """Returns the bytes of weights, gradients and optimizer state on the device, each storage once."""
        trainer = self.trainer
        seen: set[int] = set()
        found: dict[Category, int] = {}

        def count(tensor: Any, category: Category) -> None:
            if isinstance(tensor, torch.Tensor) and tensor.device.type == self._device.type:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in seen:
                    seen.add(storage.data_ptr())
                    found[category] = found.get(category, 0) + storage.nbytes()

        def count_model(model: nn.Module, trainable: Category, frozen: Category) -> None:
            for parameter in model.parameters():
                count(parameter, trainable if parameter.requires_grad else frozen)
                count(parameter.grad, Category.GRADIENTS)
                for constant in quantization_tensors(parameter):
                    count(constant, frozen)
            for buffer in model.buffers():
                count(buffer, frozen)

        count_model(
            trainer.accelerator.unwrap_model(trainer.model), Category.WEIGHTS_TRAINABLE, Category.WEIGHTS_FROZEN
        )
        for model, category in models_of(trainer):
            count_model(model, category, category)
        optimizer = getattr(trainer, "optimizer", None)
        if optimizer is not None:
            for leaf in tree_leaves(list(getattr(optimizer, "optimizer", optimizer).state.values())):
                count(leaf, Category.OPTIMIZER)
        return found


class MemoryProfilerCallback(TrainerCallback):  # type: ignore[misc]
    """Profiles every training of a trainer, from its start to its end: `trainer.add_callback(...)` of this.

    Args:
        trainer: The trainer that it is added to.
        **options: Those of `MemoryProfiler`.
    """

    def __init__(self, trainer: Any, **options: Any) -> None:
        self.profiler = MemoryProfiler(trainer, **options)

    @property
    def profile(self) -> MemoryProfile | None:
        """The profile of the last training that has ended."""
        return self.profiler.profile

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts; anew, where an earlier training ended with an error."""
        self.profiler.start()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stops, and writes the files."""
        self.profiler.stop()
