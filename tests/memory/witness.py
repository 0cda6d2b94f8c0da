"""The allocator's own account of a run on a CPU: torch.profiler's memory events, which know nothing of dispatch modes.

An event holds how much is allocated after it. Only what is allocated while the profiler is on is known to it, so that
models must be built inside. Phases are those of `record_function` ranges with a prefix; the innermost one counts.
"""

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
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield found
    events, ranges = [], []
    stack = list(profiler.profiler.kineto_results.experimental_event_tree())
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            if event.extra_fields.device.type == "cpu":
                events.append((event.start_time_ns, event.extra_fields.total_allocated))
        elif event.name.startswith(PREFIX):
            ranges.append((event.start_time_ns, event.end_time_ns, event.name.removeprefix(PREFIX)))
    events.sort()
    edges = sorted([(start, 1, name) for start, _, name in ranges] + [(end, 0, name) for _, end, name in ranges])
    open_ranges, alive, i = [], 0, 0
    for time, total in [*events, (float("inf"), None)]:
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
        alive = total
        found.peak_bytes = max(found.peak_bytes, alive)
        if open_ranges:
            found.phase_peaks[open_ranges[-1]] = max(found.phase_peaks[open_ranges[-1]], alive)
