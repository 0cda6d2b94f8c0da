"""Programs per second in the sandbox, against a plain interpreter per program, and a soak that looks for leaks.

Every way runs on two workers, and the ways are interleaved: a round is one batch of each, so that a change of the
machine's load meets all of them. `python -I -S` has no confinement at all and is given the exit code as its verdict;
bubblewrap is measured where it is installed.

    python benchmarks/bench_sandbox.py [--rounds 15] [--batch 40] [--soak 5000] [--out benchmarks/results/sandbox.json]
"""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trl_grpo_plus.report import environment
from trl_grpo_plus.rewards.sandbox import Limits, NoLevel, Sandbox, judge_script, judge_tests, plan
from trl_grpo_plus.rewards.sandbox.attacks import leftovers

WORKERS = 2
LIMITS = Limits(cpu_s=5.0)
SCRIPT, OUTPUT = "print(sum(range(10)))", "45\n"
FUNCTION = "def add(a, b):\n    return a + b\n"
ASSERTS = "assert add(1, 2) == 3\nassert add(-5, 5) == 0\nassert add(10, 32) == 42\n"
OTHER_ASSERTS = "three = 3\nassert add(1, 2) == three\nassert add(-5, 5) == 0\nassert add(10, 32) == 42\n"
NUMPY = "import numpy as np\nprint(int(np.arange(10).sum()))"


def plain(
    source: str, expected: str | None, prefix: tuple[str, ...] = (), flags: tuple[str, ...] = ("-I", "-S")
) -> bool:
    """One interpreter per program: stdout where it is expected, else the exit code."""
    command = [*prefix, sys.executable, *flags, "-c", source]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}
    )
    return done.returncode == 0 and (expected is None or done.stdout == expected)


BUBBLEWRAP = ("bwrap", "--unshare-all", "--die-with-parent", "--clearenv", "--ro-bind", "/", "/", "--dev", "/dev")


def bubblewrap() -> str | None:
    """Returns bubblewrap's name and version, or `None` where it is not installed or does not work."""
    if shutil.which("bwrap") is None or not plain(SCRIPT, OUTPUT, BUBBLEWRAP):
        return None
    return subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True).stdout.strip()


def ways(sandboxes: dict[str, Sandbox]) -> dict[str, dict[str, Callable[[], bool]]]:
    """Returns, for each workload, the ways to run one of its programs."""
    literal, other = plan(ASSERTS), plan(OTHER_ASSERTS)
    names = ("stdin/stdout", "literal asserts", "other tests", "numpy")
    made: dict[str, dict[str, Callable[[], bool]]] = {name: {} for name in names}
    made["stdin/stdout"]["python -I -S"] = lambda: plain(SCRIPT, OUTPUT)
    made["literal asserts"]["python -I -S"] = lambda: plain(FUNCTION + ASSERTS, None)
    made["other tests"]["python -I -S"] = lambda: plain(FUNCTION + OTHER_ASSERTS, None)
    made["numpy"]["python -I"] = lambda: plain(NUMPY, OUTPUT, flags=("-I",))
    if bubblewrap() is not None:
        made["stdin/stdout"]["bubblewrap"] = lambda: plain(SCRIPT, OUTPUT, BUBBLEWRAP)
        made["literal asserts"]["bubblewrap"] = lambda: plain(FUNCTION + ASSERTS, None, BUBBLEWRAP)
        made["other tests"]["bubblewrap"] = lambda: plain(FUNCTION + OTHER_ASSERTS, None, BUBBLEWRAP)
    for level, box in sandboxes.items():
        made["stdin/stdout"][level] = lambda box=box: judge_script(box, SCRIPT, [("", OUTPUT)], LIMITS).all
        made["literal asserts"][level] = lambda box=box: judge_tests(box, FUNCTION, literal, LIMITS).all
        made["other tests"][level] = lambda box=box: judge_tests(box, FUNCTION, other, LIMITS).all
        made["numpy"][level] = lambda box=box: judge_script(box, NUMPY, [("", OUTPUT)], LIMITS).all
    return made


def throughput(rounds: int, batch: int, sandboxes: dict[str, Sandbox]) -> list[dict]:
    """Returns programs per second: medians over rounds, and the ratios to the plain interpreter, round by round."""
    workloads = ways(sandboxes)
    rates: dict[tuple[str, str], list[float]] = {}
    with ThreadPoolExecutor(WORKERS) as pool:
        for number in range(rounds + 1):  # the first warms everything up
            for workload, each in workloads.items():
                order = list(each.items())
                random.Random(number).shuffle(order)
                for name, run in order:
                    began = time.perf_counter()
                    right = list(pool.map(lambda _, run=run: run(), range(batch)))
                    seconds = time.perf_counter() - began
                    assert all(right), (workload, name)
                    if number:
                        rates.setdefault((workload, name), []).append(batch / seconds)
    results = []
    for workload, each in workloads.items():
        base = next(name for name in each if name.startswith("python"))
        for name in each:
            ratios = [a / b for a, b in zip(rates[workload, name], rates[workload, base], strict=True)]
            row = {"workload": workload, "way": name, "per_s": statistics.median(rates[workload, name])}
            row |= {"against": base, "ratio": statistics.median(ratios), "ratios": [min(ratios), max(ratios)]}
            results.append(row)
            print(f"{workload:16} {name:14} {row['per_s']:7.1f}/s  {row['ratio']:.2f}x", flush=True)
    return results


HOSTILE = (
    "while True: pass",
    "import os\nos.kill(os.getppid(), 9)\nos._exit(0)",
    "x = [bytearray(1 << 20) for _ in range(100000)]",
    "import threading, time\nfor _ in range(999): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "import sys\nwhile True: sys.stdout.write('x' * 100000)",
    "import ctypes\nctypes.string_at(0)",
    "import os\nfor i in range(2000): open(f'f{i}', 'w')",
    "import os\nfor fd in range(64): os.close(fd)",
    "import os\nwhile True: os.fork()",
    "def f(x): return [f]\nimport sys\nsys.setrecursionlimit(10**8)\ndef g(): g()\ng()",
)


def resident_kib(pids: set[int]) -> int:
    """Returns the resident size of processes and their children."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,rss="], capture_output=True, text=True, check=True).stdout
    rows = [tuple(map(int, line.split())) for line in listed.splitlines()]
    family = set(pids)
    for pid, parent, _ in rows:
        if parent in family:
            family.add(pid)
    return sum(rss for pid, _, rss in rows if pid in family)


def soak(level: str, count: int) -> dict:
    """Runs programs, one in ten hostile; kills the servers in the middle; returns what was wrong or grew."""
    box = Sandbox(level, workers=WORKERS)
    limits = Limits(cpu_s=0.5, wall_s=60.0, memory_mib=256)
    rng = random.Random(0)
    wrong: list[int] = []

    def one(i: int) -> None:
        x = rng.randrange(1000)
        if i % 10 == 9:
            right = not judge_script(box, HOSTILE[i // 10 % len(HOSTILE)], [("", "45\n")], limits).all
        elif i % 3 == 0:
            right = judge_script(box, "print(int(input()) * 3)", [(str(x), str(3 * x))], limits).all
        elif i % 3 == 1:
            right = judge_tests(box, "def f(x): return x * 3", plan(f"assert f({x}) == {3 * x}"), limits).all
        else:
            right = judge_tests(box, "def f(x): return x * 3", plan(f"y = {x}\nassert f(y) == {3 * x}"), limits).all
        if not right:
            wrong.append(i)

    def measure() -> dict:
        return {"descriptors": len(os.listdir("/proc/self/fd")), "server_kib": resident_kib(box.server_pids())}

    with ThreadPoolExecutor(WORKERS) as pool:
        list(pool.map(one, range(100)))
        before, servers = measure(), box.server_pids()
        began = time.perf_counter()
        list(pool.map(one, range(count // 2)))
        middle = measure()
        killer = threading.Timer(0.2, lambda: [os.kill(pid, signal.SIGKILL) for pid in servers])
        killer.start()
        list(pool.map(one, range(count // 2, count)))
        seconds = time.perf_counter() - began
    left = leftovers(box)
    after = measure()
    result = {
        "level": level,
        "programs": count,
        "hostile": count // 10,
        "wrong": len(wrong),
        "leftover_processes": len(left),
        "servers_killed": len(servers),
        "retries": box.restarts,
        "before": before,
        "before_the_kill": middle,
        "after": after,
        "seconds": seconds,
    }
    box.close()
    print(json.dumps(result), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--soak", type=int, default=5000, help="programs per level; 0 leaves the soak out")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/sandbox.json"))
    options = parser.parse_args()
    sandboxes = {}
    for level in ("namespaces", "landlock"):
        try:
            sandboxes[level] = Sandbox(level, workers=WORKERS)
        except NoLevel as error:
            print(error)
    record = {"command": " ".join(["python", *sys.argv]), "environment": environment(), "workers": WORKERS}
    record |= {"rounds": options.rounds, "batch": options.batch, "bubblewrap": bubblewrap()}
    record["throughput"] = throughput(options.rounds, options.batch, sandboxes)
    for box in sandboxes.values():
        box.close()
    record["soak"] = [soak(level, options.soak) for level in sandboxes] if options.soak else []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
