"""The allocator's own account of a run on a CPU: torch.profiler's memory events, which know nothing of dispatch modes.

An event holds how much is allocated after it. Only what is allocated while the profiler is on is known to it, so that
models must be built inside. Phases are those of `record_function` ranges with a prefix; the innermost one counts.
"""

import gc
from collections import defaultdict
from contextlib import contextmanager

import torch
from torch.profiler import ProfilerActivity, profile

PREFIX = "phase:"


class Allocations:
    """Filled when `allocations()` ends: `peak_bytes`, and `phase_peaks` by the name of the range."""

    peak_bytes = 0

    def __init__(self):
        self.phase_peaks = defaultdict(int)


@contextmanager
def allocations():
    found = Allocations()
    gc.collect()  # garbage of earlier runs must not go within
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield found
    events, ranges = [], []
    stack = list(profiler.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            if event.extra_fields.device.type == "cpu":
                fields = event.extra_fields
                events.append((event.start_time_ns, fields.total_allocated, fields.alloc_size))
        elif event.name.startswith(PREFIX):
            ranges.append((event.start_time_ns, event.end_time_ns, event.name.removeprefix(PREFIX)))
    events.sort()
    # The account goes on from earlier profiles, without what was freed in between
    before = events[0][1] - events[0][2] if events else 0
    edges = sorted([(start, 1, name) for start, _, name in ranges] + [(end, 0, name) for _, end, name in ranges])
    open_ranges, alive, i = [], 0, 0
    for time, total, _ in [*events, (float("inf"), None, None)]:
        while i < len(edges) and edges[i][0] <= time:
            _, starts, name = edges[i]
            if starts:
                open_ranges.append(name)
            else:
                open_ranges.remove(name)
            if open_ranges:  # what is alive when a range starts, or goes on, belongs to its peak
                found.phase_peaks[open_ranges[-1]] = max(found.phase_peaks[open_ranges[-1]], alive)
            i += 1
        if total is None:
            break
        alive = total - before
        found.peak_bytes = max(found.peak_bytes, alive)
        if open_ranges:
            found.phase_peaks[open_ranges[-1]] = max(found.phase_peaks[open_ranges[-1]], alive)
