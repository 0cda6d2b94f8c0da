"""`StorageTracker`: which tensors are alive, what they are for, and how much they held at the peak of each phase.

A `TorchDispatchMode` that looks at what every operation returns. It counts storages, not tensors, so that views and
tied weights count once; a storage goes when its last reference does. It works on real tensors and under
`FakeTensorMode` alike, where nothing is allocated and the same code predicts what a real run would hold.

    with tracker:
        tracker.assign_model(model, trainable=Category.WEIGHTS_TRAINABLE, frozen=Category.WEIGHTS_FROZEN)
        with tracker.region(Phase.FORWARD, Category.ACTIVATIONS):
            loss = model(**batch).loss
    tracker.phase_peaks[Phase.FORWARD].by_category

What it cannot see: scratch inside an operation, what libraries allocate behind PyTorch, and the allocator's own blocks
and fragmentation; `round_to_bytes=512` counts as CUDA's allocator rounds, 1 as the CPU's does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from .categories import Category, Phase

_ADD = torch.ops.aten.add.Tensor
_CAST = torch.ops.aten._to_copy.default
_WEIGHTS = frozenset(
    {
        Category.WEIGHTS_TRAINABLE,
        Category.WEIGHTS_FROZEN,
        Category.REFERENCE,
        Category.CRITIC,
        Category.REWARD_MODEL,
        Category.WEIGHT_CASTS,  # 4-bit weights may be dequantised to the dtype that they had, and then cast
    }
)


@dataclass(frozen=True)
class Peak:
    """The most that was alive at once.

    Args:
        total_bytes: All categories.
        by_category: Bytes by category at that moment; they add up to `total_bytes`.
    """

    total_bytes: int
    by_category: dict[Category, int]


class _Entry:
    """A live storage. Its weak reference removes it when the storage is freed."""

    __slots__ = ("size", "category", "reference")

    def __init__(self, size: int, category: Category) -> None:
        self.size = size
        self.category = category
        self.reference: Any = None


class StorageTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the live storages of one kind of device, by category, and keeps the peak of each phase.

    A storage gets the category of the region that it was made in, until `assign` gives it another. A peak belongs to
    the innermost open region. The mode may be entered many times; what is alive is remembered in between, though not
    what is made there (give it to `assign`).

    Args:
        round_to_bytes: Each storage counts as a multiple of this.
        device_type: Storages on other devices do not count. Fake tensors count under the device that they pretend.
        on_change: Called after an operation (and after each change of region) with this tracker; for a timeline.
    """

    def __init__(
        self,
        *,
        round_to_bytes: int = 512,
        device_type: str = "cpu",
        on_change: Callable[[StorageTracker], None] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = Phase.OTHER
        self.category = Category.OTHER
        self.live_bytes = 0
        self.by_category: dict[Category, int] = dict.fromkeys(Category, 0)
        self.phase_peaks: dict[Phase, Peak] = {}
        self.operations = 0
        self._round_to = round_to_bytes
        self._device_type = device_type
        self._on_change = on_change
        self._entries: dict[int, _Entry] = {}

    # What happened

    @property
    def peak_bytes(self) -> int:
        """The most that was alive at once, in any phase."""
        return max((peak.total_bytes for peak in self.phase_peaks.values()), default=0)

    @property
    def peak_phase(self) -> Phase:
        """The phase that the peak fell in."""
        return max(self.phase_peaks, key=lambda phase: self.phase_peaks[phase].total_bytes, default=Phase.OTHER)

    @property
    def peak(self) -> Peak:
        """The peak of all phases."""
        return self.phase_peaks.get(self.peak_phase, Peak(0, {}))

    def reset_peaks(self) -> None:
        """Forgets the peaks so far; what is alive stays counted, and starts the peak of the open phase."""
        self.phase_peaks = {}
        self.note_peak()

    # What is what

    def assign(self, tensors: Iterable[torch.Tensor | None], category: Category) -> None:
        """Counts tensors that were made elsewhere, and gives them, or others, this category from now on."""
        for tensor in tensors:
            if tensor is not None:
                self._see(tensor, category, relabel=True)
        self.note_peak()

    def assign_model(self, model: nn.Module, *, trainable: Category, frozen: Category) -> None:
        """Counts a model's parameters, the constants of its quantised weights, and its buffers (as `frozen`)."""
        for parameter in model.parameters():
            self.assign([parameter], trainable if parameter.requires_grad else frozen)
            self.assign(quantization_tensors(parameter), frozen)
        self.assign(model.buffers(), frozen)

    def assign_optimizer(self, optimizer: Any) -> None:
        """Counts the state of an optimizer, which may be one of accelerate's wrappers."""
        states = getattr(optimizer, "optimizer", optimizer).state.values()
        self.assign((leaf for leaf in tree_leaves(list(states)) if isinstance(leaf, torch.Tensor)), Category.OPTIMIZER)

    def watch_gradients(self, parameters: Iterable[nn.Parameter]) -> list[Any]:
        """Gives gradients their category as soon as they are accumulated; returns the hooks' handles, to remove."""

        def arrived(parameter: torch.Tensor) -> None:
            self._see(parameter.grad, Category.GRADIENTS, relabel=True)

        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self.assign((parameter.grad for parameter in parameters), Category.GRADIENTS)
        return [each.register_post_accumulate_grad_hook(arrived) for each in parameters]  # type: ignore[no-untyped-call]

    @contextmanager
    def region(self, phase: Phase | None = None, category: Category | None = None) -> Iterator[None]:
        """Within, peaks belong to `phase` and new storages to `category`; `None` leaves either as it is."""
        before = self.phase, self.category
        self.phase, self.category = phase or self.phase, category or self.category
        self.note_peak()
        try:
            yield
        finally:
            self.phase, self.category = before
            self.note_peak()

    # Counting

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation and counts what it returns."""
        out = func(*args, **(kwargs or {}))
        self.operations += 1
        if isinstance(out, torch.Tensor):
            self._see(out, Category.WEIGHT_CASTS if self._copies_weight(func, args) else self.category)
        elif out is not None:
            for leaf in tree_leaves(out):
                if isinstance(leaf, torch.Tensor):
                    self._see(leaf, self.category)
        # The mode must not measure itself: with any dispatch mode on, autograd sums gradients out of place where it
        # would otherwise do so in place (at::isTensorSubclassLike). Those sums are its only additions with gradients
        # off inside a backward; what they return must not set a peak while the first summand is still alive.
        if not (func is _ADD and torch._C._current_graph_task_id() != -1 and not torch.is_grad_enabled()):
            self.note_peak()
        return out

    def note_peak(self) -> None:
        """Compares what is alive with the peak of the open phase."""
        peak = self.phase_peaks.get(self.phase)
        if peak is None or self.live_bytes > peak.total_bytes:
            alive = {category: size for category, size in self.by_category.items() if size}
            self.phase_peaks[self.phase] = Peak(self.live_bytes, alive)
        if self._on_change is not None:
            self._on_change(self)

    def _copies_weight(self, func: Any, args: Any) -> bool:
        """Returns whether an operation copies a weight to another dtype: autocast, or dequantisation."""
        if func is _CAST:
            source = args[0]
            if source.device.type != self._device_type or source.layout is not torch.strided:
                return False
            entry = self._entries.get(source.untyped_storage()._cdata)
            return entry is not None and entry.category in _WEIGHTS
        return bool(func.namespace == "bitsandbytes" and "dequantize" in func._opname)

    def _see(self, tensor: torch.Tensor | None, category: Category, relabel: bool = False) -> None:
        if tensor is None or tensor.device.type != self._device_type:
            return
        if is_traceable_wrapper_subclass(tensor):
            names, _ = tensor.__tensor_flatten__()
            for name in names:
                self._see(getattr(tensor, name), category, relabel)
            return
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        size = -(-storage.nbytes() // self._round_to) * self._round_to
        key = storage._cdata
        entry = self._entries.get(key)
        if entry is None:
            if size == 0:
                return
            entry = self._entries[key] = _Entry(size, category)
            entry.reference = ref(storage, partial(self._forget, key))
            self._count(category, size)
            return
        if size != entry.size:  # resized in place
            self._count(entry.category, size - entry.size)
            entry.size = size
        if relabel and category is not entry.category:
            self._count(entry.category, -size)
            self._count(category, size)
            entry.category = category

    def _forget(self, key: int, _: Any = None) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._count(entry.category, -entry.size)

    def _count(self, category: Category, size: int) -> None:
        self.by_category[category] += size
        self.live_bytes += size


def quantization_tensors(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields the constants of a bitsandbytes weight, which are neither parameters nor buffers.

    Those are the block scales (with double quantisation, 8-bit ones and the scales of the scales) and the code tables.
    """
    found = [getattr(parameter, name, None) for name in ("quant_state", "CB", "SCB")]
    while found:
        each = found.pop()
        if isinstance(each, torch.Tensor):
            yield each
        elif each is not None and hasattr(each, "absmax"):
            found += [value for value in vars(each).values() if value is not each]
