"""The timeline: short however long the run, and its highest points are kept."""

import torch

from trl_grpo_plus.memory.categories import Category, Phase
from trl_grpo_plus.memory.recorders import _MAX_SAMPLES, TrackerRecorder


def test_a_long_timeline_is_thinned_and_keeps_the_peak():
    recorder = TrackerRecorder()
    with recorder.active():
        for i in range(6000):
            phase = Phase.FORWARD if i % 2 else Phase.BACKWARD
            with recorder.region(phase, Category.ACTIVATIONS):
                held = torch.zeros(2000 if i != 4321 else 9000)
                del held
    assert len(recorder.samples) < _MAX_SAMPLES
    assert max(sample.total_bytes for sample in recorder.samples) == 36000
    times = [sample.time_s for sample in recorder.samples]
    assert times == sorted(times)
    assert recorder.take()[Phase.FORWARD].total_bytes == 36000
    assert recorder.take()[Phase.OTHER].total_bytes == 0  # nothing is alive any more


def test_time_belongs_to_the_innermost_phase():
    import time

    recorder = TrackerRecorder()
    started = time.perf_counter()
    with recorder.active(), recorder.region(Phase.FORWARD):
        time.sleep(0.02)
        with recorder.region(Phase.CRITIC):
            time.sleep(0.05)
    assert recorder.calls == {Phase.FORWARD: 1, Phase.CRITIC: 1}
    forward, critic = recorder.seconds[Phase.FORWARD], recorder.seconds[Phase.CRITIC]
    assert forward >= 0.02 and critic >= 0.05 and forward + critic <= time.perf_counter() - started
