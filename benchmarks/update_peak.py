"""The peak of live tensor memory in one update of a trainer."""

import gc

import torch
from transformers import TrainerCallback


class Peak(TrainerCallback):
    """Peak of live tensor memory (MiB) in the update: the policy's forward, the backward and the optimizer.

    On CUDA the allocator's own count; on a CPU the memory events of torch.profiler, added to what lives before.
    """

    def __init__(self, trainer, device):
        self.cuda = device == "cuda"
        self.peak_mib = None
        function = trainer.compute_loss

        def start(*args, **kwargs):
            if self.peak_mib is None and torch.is_grad_enabled():
                self.peak_mib = 0.0
                self.begin(trainer)
            return function(*args, **kwargs)

        trainer.compute_loss = start

    def begin(self, trainer):
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            return
        gc.collect()
        storages = {}
        for item in gc.get_objects():
            if isinstance(item, torch.Tensor) and item.device.type == "cpu" and not item.is_meta:
                storage = item.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
        self.before = sum(storages.values())
        self.profiler = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
        )
        self.profiler.__enter__()

    def on_step_end(self, args, state, control, **kwargs):
        if self.peak_mib != 0.0:
            return
        if self.cuda:
            self.peak_mib = torch.cuda.max_memory_allocated() / 2**20
            return
        self.profiler.__exit__(None, None, None)
        events = [e for e in self.profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
        live = highest = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            live += event.nbytes()
            highest = max(highest, live)
        self.peak_mib = (self.before + highest) / 2**20
