"""Servers die, are shared, and leak nothing; programs of several trainers take turns; anybody may run them."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path

import pytest

from tests.rewards.sandbox.conftest import start
from trl_grpo_plus.rewards.sandbox import Limits, Sandbox, SandboxError, judge_script, judge_tests, plan
from trl_grpo_plus.rewards.sandbox.attacks import leftovers
from trl_grpo_plus.rewards.sandbox.client import Server, ServerGone, memory_files
from trl_grpo_plus.rewards.sandbox.slots import Slots

ROOT = Path(__file__).parents[3]


def test_a_killed_server_costs_one_retry_and_no_verdict(any_sandbox):
    sandbox = Sandbox(any_sandbox.level, workers=1)
    source = "import time\ntime.sleep(1.0)\nprint(int(input()) + 1)"
    (server,) = sandbox.server_pids()

    def kill() -> None:
        while sandbox.server_pids():  # other processes may hold all of the machine's slots
            time.sleep(0.01)
        time.sleep(0.3)
        os.kill(server, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    score = judge_script(sandbox, source, [("1", "2")], Limits())
    assert score.all and sandbox.restarts == 1, (score, sandbox.restarts)
    assert not judge_script(sandbox, source, [("1", "3")], Limits()).all and sandbox.restarts == 1
    (server,) = sandbox.server_pids()
    os.kill(server, signal.SIGKILL)  # while it has nothing to do: not even a retry
    time.sleep(0.2)
    assert judge_script(sandbox, source, [("1", "2")], Limits()).all and sandbox.restarts == 1
    sandbox.close()


def test_a_server_that_dies_twice_is_no_verdict(any_sandbox, monkeypatch):
    sandbox = Sandbox(any_sandbox.level, workers=1)

    def gone(*_):
        raise ServerGone("gone")

    monkeypatch.setattr(Server, "run", gone)
    sandbox.close()
    monkeypatch.setattr(Server, "_self_test", lambda self: None)
    with pytest.raises(SandboxError, match="gone"):
        judge_script(sandbox, "print(1)", [("", "1")], Limits())
    assert sandbox.restarts == 1  # one retry, then no verdict


def test_a_server_ends_with_its_trainer_and_takes_its_programs_along(any_sandbox):
    code = (
        "import os, threading, time\n"
        "from trl_grpo_plus.rewards.sandbox import *\n"
        f"s = Sandbox({any_sandbox.level!r})\n"
        "threading.Thread(target=lambda: judge_script(s, 'import time; time.sleep(500)', [('', '')], Limits(cpu_s=100.0, wall_s=400.0)), daemon=True).start()\n"  # noqa: E501
        "time.sleep(1.5)\nprint('ready', flush=True)\ntime.sleep(500)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)
    assert trainer.stdout.readline() == b"ready\n"
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True).stdout.split()
    parents = dict(zip(map(int, listed[::2]), map(int, listed[1::2]), strict=True))
    family = {trainer.pid}
    for _ in range(4):
        family |= {pid for pid, parent in parents.items() if parent in family}
    family -= {trainer.pid}
    assert len(family) >= 2
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and any(alive(pid) for pid in family):
        time.sleep(0.05)
    assert not [pid for pid in family if alive(pid)]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_server_survives_the_thread_that_started_it(any_sandbox):
    made = []
    thread = threading.Thread(target=lambda: made.append(Server(any_sandbox.level)))
    thread.start()
    thread.join()
    time.sleep(0.3)
    with memory_files(b"print(1)", b"", None, None) as files:
        assert made[0].run("script", files, Limits())["program"].exit == 0
    made[0].close()


def hold(slot_count, held, most, seconds):
    slots = Slots(slot_count)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with slots.one():
            with held.get_lock():
                held.value += 1
                most.value = max(most.value, held.value)
            time.sleep(0.005)
            with held.get_lock():
                held.value -= 1


def test_processes_on_one_machine_share_its_slots(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    context = multiprocessing.get_context("fork")
    held, most, counts = context.Value("i", 0), context.Value("i", 0), []
    processes = [context.Process(target=hold, args=(2, held, most, 1.0)) for _ in range(5)]
    for process in processes:
        process.start()
    time.sleep(0.3)
    processes[0].kill()  # a slot of the dead is free again, at worst one count is lost
    for process in processes:
        process.join()
    assert 1 <= most.value <= 3
    counts.append(held.value)
    slots = Slots(2)
    with slots.one(), slots.one():
        pass


HOSTILE = [
    "while True: pass",
    "import os\nos.kill(os.getppid(), 9)\nos._exit(0)",
    "x = [bytearray(1 << 20) for _ in range(100000)]",
    "import threading, time\nfor _ in range(999): threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "import sys\nwhile True: sys.stdout.write('x' * 100000)",
    "import ctypes\nctypes.string_at(0)",
    "import os\nfor i in range(2000): open(f'f{i}', 'w')",
    "import os\nfor fd in range(64): os.close(fd)",
]


def soak(sandbox, count):
    """Runs honest programs, one in ten hostile, and returns verdicts that are wrong."""
    wrong = []
    limits = Limits(cpu_s=0.3, wall_s=20.0, memory_mib=256)
    kinds = [
        lambda i: judge_script(sandbox, "print(int(input()) * 3)", [(str(i), str(3 * i))], limits),
        lambda i: judge_tests(sandbox, "def f(x): return x * 3", plan(f"assert f({i}) == {3 * i}"), limits),
        lambda i: judge_tests(sandbox, "def f(x): return x * 3", plan(f"y = {3 * i}\nassert f({i}) == y"), limits),
    ]
    for i in range(count):
        if i % 10 == 9:
            good = not judge_script(sandbox, HOSTILE[i // 10 % len(HOSTILE)], [("", "x")], limits).all
        else:
            good = kinds[i % 3](i).all
        if not good:
            wrong.append(i)
    return wrong


def resources(server_pids):
    """Returns (descriptors of this process, descriptors and resident KiB of the servers)."""
    family = set(server_pids)
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True).stdout.split()
    for pid, parent in zip(map(int, listed[::2]), map(int, listed[1::2]), strict=True):
        if parent in family:
            family.add(pid)
    resident = 0
    for pid in family:
        resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4
    return len(os.listdir("/proc/self/fd")), resident


def test_nothing_leaks(any_sandbox):
    sandbox = Sandbox(any_sandbox.level, workers=1)
    assert not soak(sandbox, 20)
    descriptors, resident = resources(sandbox.server_pids())
    servers = sandbox.server_pids()
    assert not soak(sandbox, 100)
    after, grown = resources(sandbox.server_pids())
    assert sandbox.server_pids() == servers and sandbox.restarts == 0
    assert after == descriptors and grown - resident < 4096, (descriptors, after, resident, grown)
    assert not leftovers(sandbox)
    sandbox.close()
    assert not any(alive(pid) for pid in servers)


@pytest.fixture(scope="module")
def other_python(tmp_path_factory):
    """A Python that any user can run: this one may live below a home directory."""
    directory = Path("/tmp") / f"grpo-plus-test-python-{os.getpid()}"
    directory.mkdir(mode=0o755)
    binary = Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
    stdlib = Path(sysconfig.get_path("stdlib"))
    try:
        (directory / "bin").mkdir(mode=0o755)
        shutil.copy2(binary, directory / "bin/python")
        left_out = shutil.ignore_patterns("site-packages", "test", "tests", "idlelib", "tkinter", "__pycache__", "*.a")
        shutil.copytree(stdlib, directory / "lib" / stdlib.name, ignore=left_out, symlinks=True)
        for library in (Path(sys.base_prefix) / "lib").glob("libpython*.so*"):
            shutil.copy2(library, directory / "lib")
        for path in directory.rglob("*"):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o755 if path.is_dir() else 0o444))
        yield directory / "bin/python"
    finally:
        shutil.rmtree(directory, ignore_errors=True)


AS_NOBODY = """
import importlib.util, json, os, sys, types
os.setgroups([]); os.setgid(65534); os.setuid(65534); os.chdir('/')
root = sys.argv[1]
for name, path in (("trl_grpo_plus", root), ("trl_grpo_plus.rewards", root + "/rewards")):
    package = types.ModuleType(name)
    package.__path__ = [path]
    sys.modules[name] = package
from trl_grpo_plus.rewards.sandbox import *
try:
    sandbox = Sandbox(sys.argv[2], packages=())
except NoLevel as error:
    print(json.dumps({"skip": str(error)})); sys.exit()
sources = json.loads(sys.argv[3])
print(json.dumps({"uid": os.getuid(), "scores": [judge_script(sandbox, s, [("", "BREACH")], Limits(cpu_s=1.0, memory_mib=256)).output.decode() for s in sources]}))
"""  # noqa: E501


@pytest.mark.skipif(
    os.getuid() != 0, reason="only root can become somebody else; otherwise all tests run unprivileged"
)
@pytest.mark.parametrize("level", ["namespaces", "landlock"])
def test_an_unprivileged_user(other_python, level, tmp_path):
    import json

    if isinstance(start(level), str):
        pytest.skip(start(level))
    package = other_python.parents[1] / "package"
    if not package.exists():
        shutil.copytree(ROOT / "trl_grpo_plus", package, ignore=shutil.ignore_patterns("__pycache__"))
        for path in package.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
    sources = [
        "print('BREACH')",
        "import os\ntry: print(os.fork() and 'x' or 'x')\nexcept OSError: print('blocked')",
        "try: print(open('/etc/passwd').read() and 'through')\nexcept OSError: print('blocked')",
        "import os\ntry: print(os.kill(os.getppid(), 0) or 'through')\nexcept OSError: print('blocked')",
        "import socket\ntry: print(socket.socket() and 'through')\nexcept OSError: print('blocked')",
        "import threading, time\nthreading.stack_size(32768)\nn = 0\ntry:\n    while n < 4000: threading.Thread(target=time.sleep, args=(9,), daemon=True).start(); n += 1\nexcept BaseException: print('blocked', flush=True)\nelse: print('through', flush=True)\nimport os; os._exit(0)",  # noqa: E501
    ]
    command = [str(other_python), "-I", "-S", "-c", AS_NOBODY, str(package), level, json.dumps(sources)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={})
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    if "skip" in found:
        pytest.skip(found["skip"])
    assert found["uid"] == 65534
    assert [text.strip() for text in found["scores"][:5]] == ["BREACH", "blocked", "blocked", "blocked", "blocked"]
    if level == "namespaces":  # where the kernel counts threads per user namespace
        assert found["scores"][5].strip() == "blocked"
