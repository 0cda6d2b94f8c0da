"""The pool of workers: nothing that a verifier does reaches the trainer, costs another completion, or lasts."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import psutil
import pytest

from tests.rewards.pool.hostile import Picky, lazy, obey
from trl_grpo_plus.rewards import Verdict
from trl_grpo_plus.rewards.pool import Pool, shared_pool, spec_of

TIMEOUT_S = 1.5
SPEC = spec_of("obey", obey, {})


@pytest.fixture(scope="module")
def pool():
    pool = Pool(2, memory_mib=512)
    pool.run(SPEC, [("ready", {})], 30.0)
    yield pool
    pool.close()


def ask(pool, *completions, timeout_s=TIMEOUT_S):
    return pool.run(SPEC, [(completion, {}) for completion in completions], timeout_s)


def gone(pid, within_s=5.0):
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False


def test_verdicts_come_in_order_from_several_workers(pool):
    verdicts = ask(pool, *(f"say {i}" for i in range(500)))
    assert [v.answer for v in verdicts] == [f"say {i}" for i in range(500)]
    pids = {v.answer for v in ask(pool, *["pid"] * 200)}
    assert str(os.getpid()) not in pids and len(pids) <= 2


@pytest.mark.parametrize(
    ("completion", "failure", "reason"),
    [
        ("raise bad text", "error", "ValueError: bad text"),
        ("quit", "error", "SystemExit: 3"),
        ("nan", "error", "the verifier returned nan"),
        ("text", "error", "could not convert string to float"),
        ("none", None, "returned None"),
        ("leave", "crash", "its process ended with status 3"),
        ("crash", "crash", "SIGSEGV"),
        ("spin", "timeout", "the timeout is 1.5 s"),
        ("sleep 60", "timeout", "the timeout is 1.5 s"),
        ("deaf", "timeout", "the timeout is 1.5 s"),
    ],
)
def test_what_goes_wrong_costs_its_own_completion_only(pool, completion, failure, reason):
    began = time.monotonic()
    verdicts = ask(pool, *["a"] * 20, completion, *["b"] * 20)
    assert [v.answer for v in verdicts] == ["a"] * 20 + [None] + ["b"] * 20
    assert verdicts[20].failure == failure and reason in verdicts[20].reason
    assert time.monotonic() - began < TIMEOUT_S + 2.0


def test_memory_is_bounded(pool):
    (verdict,) = ask(pool, "eat", timeout_s=20.0)
    assert verdict.reason.startswith("MemoryError") and verdict.failure == "error"


def test_hanging_completions_hang_side_by_side(pool):
    hanging = {7, 20, 33, 34, 60, 85, 99}
    completions = [("spin" if i % 2 else "sleep 60") if i in hanging else f"say {i}" for i in range(100)]
    began = time.monotonic()
    verdicts = ask(pool, *completions)
    took = time.monotonic() - began
    assert {i for i, v in enumerate(verdicts) if v.failure == "timeout"} == hanging
    assert all(verdicts[i].answer == f"say {i}" for i in range(100) if i not in hanging)
    assert took < 1.5 * TIMEOUT_S, took  # four timeouts if they queued for two workers


def test_slow_completions_are_right_though_others_overtake_them(pool):
    verdicts = ask(pool, *["sleep 0.7" if i % 10 == 0 else "a" for i in range(60)], timeout_s=10.0)
    assert all(v.value == 1.0 for v in verdicts)


def test_a_killed_worker_loses_no_verdict(pool):
    results = []
    thread = threading.Thread(target=lambda: results.extend(ask(pool, *["sleep 0.02"] * 100, timeout_s=10.0)))
    thread.start()
    killed = set()
    while thread.is_alive():
        time.sleep(0.2)
        for pid in pool.pids[:1]:
            if len(killed) < 3:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
    assert len(killed) == 3 and len(results) == 100 and all(v.value == 1.0 for v in results)


def test_a_death_is_blamed_on_a_completion_only_when_it_happens_twice(pool, tmp_path):
    once, always = ask(pool, f"once {tmp_path / 'died'}", "crash")
    assert once.value == 1.0 and always.failure == "crash"


def test_the_zygote_is_replaced(pool):
    os.kill(pool.zygote_pid, signal.SIGKILL)
    assert all(v.value == 1.0 for v in ask(pool, *["a"] * 50))


def test_a_worker_takes_its_children_along(pool, tmp_path):
    file = tmp_path / "pid"
    (verdict,) = ask(pool, f"spawn {file}")
    assert verdict.failure == "timeout" and gone(int(file.read_text()))


def test_from_several_threads_at_once(pool):
    results = {}

    def work(name):
        results[name] = [v.answer for v in ask(pool, *[f"{name} {i}" for i in range(100)])]

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {f"t{n}": [f"t{n} {i}" for i in range(100)] for n in range(8)}


def test_large_completions_and_hostile_text(pool):
    completions = ["x" * 1_000_000, "\ud800 half a pair", "\x00\x1b[2J", "spin", *["y" * 1_000_000] * 8]
    verdicts = ask(pool, *completions)
    assert [v.value for v in verdicts] == [1.0] * 3 + [None] + [1.0] * 8
    assert verdicts[1].answer == completions[1] and len(verdicts[0].answer) < 3000


def test_rows_and_verifiers_that_cannot_be_sent_or_made(pool):
    assert "cannot be sent" in pool.run(SPEC, [("a", {"x": threading.Lock()})], 1.0)[0].reason
    made_here = spec_of("picky", Picky, {"maker": os.getpid()})
    (verdict,) = pool.run(made_here, [("a", {})], 5.0)
    assert verdict == Verdict.failed("the worker cannot load it: RuntimeError: not here")


def test_verifiers_by_value_keep_what_they_close_over(pool):
    bonus = 0.25

    def local(completion, row):
        return Verdict(bonus * len(completion))

    assert [v.value for v in pool.run(spec_of("local", local, {}), [("ab", {}), ("a", {})], 5.0)] == [0.5, 0.25]


def test_what_a_verifier_imports_late_is_imported_once_for_all_workers(pool):
    spec = spec_of("lazy", lazy, {})
    assert all(v.value == 1.0 for v in pool.run(spec, [("a", {})] * 20, TIMEOUT_S))
    for pid in pool.pids:
        os.kill(pid, signal.SIGKILL)
    (verdict,) = pool.run(spec, [("a", {})], TIMEOUT_S)
    assert verdict.answer == str(pool.zygote_pid) != verdict.reason  # imported there, used in a fresh worker


def test_what_ends_all_workers_at_once_loses_no_verdict(pool):
    for others in ([], ["sleep 0.3"]):
        while len(pool.pids) < 2:  # the second worker may be on its way yet
            ask(pool, *["sleep 0.01"] * 8)
        doomed = " ".join(["doomed", *map(str, pool.pids)])  # each would die of it, a fresh one would not
        assert [v.failure for v in ask(pool, *others, doomed)] == [None] * (len(others) + 1)


def test_workers_see_no_gpu_and_no_trainer(pool):
    (verdict,) = ask(pool, "main")
    assert verdict.answer == "None" and verdict.reason == "False"  # no `__main__` of the user's, no torch


SCRIPT = """
import os, sys, threading, time
print("body", flush=True)
from trl_grpo_plus.rewards import Verdict, build_rewards, default_runtime

OFFSET = 2.0

def mine(completion, row):
    while completion == "spin":
        pass
    return Verdict(OFFSET + len(completion), str(os.getpid()))

(reward,) = build_rewards([mine])
verdict = reward.function.verdict("abc", {})
print(verdict.value, int(verdict.answer) != os.getpid(), flush=True)
if "linger" in sys.argv:
    threading.Thread(target=reward.function.verdicts, args=(["spin"] * 2, [{}] * 2), daemon=True).start()
    time.sleep(1)
pool = default_runtime().pool
print(pool.zygote_pid, *pool.pids, flush=True)
if "linger" in sys.argv:
    time.sleep(60)
"""


def run_script(tmp_path, *arguments):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    return subprocess.Popen([sys.executable, str(script), *arguments], stdout=subprocess.PIPE, text=True)


def test_a_script_without_a_guard_runs_once_and_its_verifier_in_a_worker(tmp_path):
    process = run_script(tmp_path)
    out, _ = process.communicate(timeout=120)
    lines = out.splitlines()
    assert lines[:2] == ["body", "5.0 True"] and len(lines) == 3 and process.returncode == 0
    assert all(gone(int(pid)) for pid in lines[2].split())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_die_with_the_trainer(tmp_path, number):
    process = run_script(tmp_path, "linger")
    lines = [process.stdout.readline() for _ in range(3)]
    pids = [int(pid) for pid in lines[2].split()]
    assert len(pids) >= 2 and all(psutil.pid_exists(pid) for pid in pids)
    process.send_signal(number)
    process.wait(timeout=20)
    assert all(gone(pid) for pid in pids)


def test_ctrl_c_reaches_the_trainer_only(pool):
    ask(pool, "a", "b")
    for pid in [pool.zygote_pid, *pool.pids]:
        os.kill(pid, signal.SIGINT)
    assert all(v.value == 1.0 for v in ask(pool, *["a"] * 20))


def test_a_fork_of_the_trainer_leaves_its_pool_alone():
    mine = shared_pool(1)
    assert ask(mine, "a")[0].value == 1.0
    child = os.fork()
    if child == 0:  # as a data loader's worker is
        code = 1
        with contextlib.suppress(BaseException):
            code = 0 if shared_pool(1) is not mine and ask(shared_pool(1), "a")[0].value == 1.0 else 2
            shared_pool(1).close()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert ask(mine, *["a"] * 10)[9].value == 1.0
    mine.close()


def test_a_closed_pool_says_so():
    closed = Pool(1)
    closed.close()
    with pytest.raises(RuntimeError, match="closed"):
        ask(closed, "a")
