"""When a completion is set aside and when its time is up."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from trl_grpo_plus.rewards.pool import cores
from trl_grpo_plus.rewards.pool.clocks import STARTUP_S, Clocks
from trl_grpo_plus.rewards.pool.work import Batch, Task, Worker


def worker(elapsed_s, cpu_s=0.0, asleep=False, fresh=False, building=False, aside=False, timeout_s=5.0, spec=0):
    return SimpleNamespace(
        given=[SimpleNamespace(spec=spec, timeout_s=timeout_s)],
        fresh=fresh,
        building=building,
        aside=aside,
        elapsed_s=lambda: elapsed_s,
        used_cpu_s=lambda: cpu_s,
        is_asleep=lambda: asleep,
    )


def clocks(*verdicts_s):
    made = Clocks()
    for seconds in verdicts_s:
        made.verdict(0, seconds)
    return made


def test_slow_is_what_uses_the_processor_for_long_or_sleeps_for_long():
    c = clocks(0.001)
    assert not c.is_slow(worker(0.02, cpu_s=0.02))  # below the least
    assert c.is_slow(worker(0.03, cpu_s=0.03))
    assert not c.is_slow(worker(10.0, cpu_s=0.001))  # it waits for a busy processor
    assert not c.is_slow(worker(0.09, asleep=True)) and c.is_slow(worker(0.11, asleep=True))


def test_slow_is_relative_to_other_verdicts():
    c = clocks(*[0.02] * 200)
    assert not c.is_slow(worker(0.1, cpu_s=0.1)) and c.is_slow(worker(0.13, cpu_s=0.13))
    c = clocks(*[10.0] * 200)
    assert c.is_slow(worker(0.3, cpu_s=0.3))  # in bounds


def test_the_first_verdicts_have_more_time():
    c = clocks(0.001)
    assert not c.is_slow(worker(0.2, cpu_s=0.2, fresh=True)) and c.is_slow(worker(0.3, cpu_s=0.3, fresh=True))
    assert not c.is_slow(worker(4.9, cpu_s=4.9, fresh=True, spec=1))  # a verifier that has not given any yet


def test_limits():
    c = clocks(0.001)
    assert c.limit_s(worker(0)) == 5.0 and c.limit_s(worker(0, building=True)) == STARTUP_S
    c.set_aside(0.3)
    assert c.limit_s(worker(0)) == 5.0 and c.limit_s(worker(0, aside=True)) == pytest.approx(4.7)
    c.set_aside(100.0)
    assert c.limit_s(worker(0, aside=True)) == pytest.approx(4.0)
    c.rest()
    assert c.limit_s(worker(0, aside=True)) == 5.0


def test_a_worker_knows_what_it_used_and_whether_it_sleeps():
    made = Worker(None)
    made.pid, made.since = os.getpid(), time.monotonic()  # the main thread of this process
    before = made.used_cpu_s()
    seen = {}

    def look():
        time.sleep(0.1)
        seen["busy"] = made.is_asleep()

    thread = threading.Thread(target=look)
    thread.start()
    while thread.is_alive():
        sum(range(1000))
    assert made.used_cpu_s() > before + 0.01 and seen["busy"] is False
    made.stopped_at = time.monotonic()
    stood = made.elapsed_s()
    time.sleep(0.05)
    assert made.elapsed_s() == pytest.approx(stood, abs=0.01) and made.stood_still_s() > 0.04


def test_a_verdict_counts_once():
    batch = Batch(2)
    tasks = [Task(i, batch, i, 0, b"", 1.0) for i in range(2)]
    tasks[0].finish("first")
    tasks[0].finish("second")
    assert batch.verdicts[0] == "first" and not batch.done.is_set()
    tasks[1].finish("third")
    assert batch.done.is_set()


def test_processes_on_one_machine_share_its_cores(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert cores() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(10 * cores()))
    assert cores() == 1
