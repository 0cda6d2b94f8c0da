"""Attacks on the machine: each program prints BREACH where it gets through; it must print something else."""

# ruff: noqa: E501  (programs as texts)

import os
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from trl_grpo_plus.rewards.sandbox import Limits, judge_script
from trl_grpo_plus.rewards.sandbox.attacks import leftovers
from trl_grpo_plus.rewards.sandbox.inside import threads

C = "import ctypes, os, sys\nlibc = ctypes.CDLL(None, use_errno=True)\n"

ATTACKS = {
    "datagrams by address from a socketpair": """
import socket
try:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    a.sendto(b"x", "\\0{abstract}")
    print("BREACH")
except OSError: print("blocked")
""",
    "a signal through a descriptor's owner": """
import fcntl, os, socket
a, b = socket.socketpair()
try:
    fcntl.fcntl(a, fcntl.F_SETOWN, {pid}); print("BREACH")
except OSError: print("blocked")
""",
    "another signal through a descriptor": """
import fcntl, socket
a, b = socket.socketpair()
try:
    fcntl.fcntl(a, 10, 9); print("BREACH")
except OSError: print("blocked")
""",
    "signals by other calls": C
    + """
calls = [libc.kill({pid}, 0), libc.syscall(200, {pid}, 0), libc.syscall(234, {pid}, {pid}, 0), libc.kill(0, 0),
         libc.syscall(129, {pid}, 0, ctypes.create_string_buffer(128)), libc.syscall(424, 0, 0, None, 0),
         libc.syscall(434, {pid}, 0), libc.kill(-1, 0)]
print("BREACH" if any(c >= 0 for c in calls) else "blocked")
""",
    "looking into other processes": C
    + """
buffer = ctypes.create_string_buffer(64)
bad = libc.ptrace(16, {pid}, 0, 0) >= 0 or libc.syscall(310, {pid}, buffer, 1, buffer, 1, 0) >= 0
for path in ("/proc/{pid}/mem", "/proc/{pid}/environ", "/proc/self/environ", "/proc/self/fd", "/proc/1/root"):
    try: os.open(path, os.O_RDONLY); bad = True
    except OSError: pass
print("BREACH" if bad else "blocked")
""",
    "processes by raw calls": C
    + """
made = [libc.syscall(57), libc.syscall(58), libc.syscall(56, 17, 0, 0, 0, 0), libc.syscall(435, b"\\0" * 88, 88),
        libc.syscall(56, 0x100, 0, 0, 0, 0), libc.syscall(56, 0x10000000 | 0x10f00, 0, 0, 0, 0)]
print("BREACH" if any(m >= 0 for m in made) else "blocked", flush=True)
os._exit(0)
""",
    "executing": """
import os
for path in ("/bin/echo", "/lib64/ld-linux-x86-64.so.2"):
    try: os.execv(path, [path, "BREACH"])
    except OSError: pass
import subprocess
try: print(subprocess.run(["/bin/echo", "BREACH"], capture_output=True, text=True).stdout)
except OSError: print("blocked")
""",
    "32-bit calls": C
    + """
import mmap
page = mmap.mmap(-1, 4096, prot=7)
page.write(bytes.fromhex("b814000000cd80c3"))          # mov eax, 20 (getpid); int 0x80; ret
call = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
call(); print("BREACH")
""",
    "x32 calls": C + "print('BREACH' if libc.syscall(0x40000000 | 41, 1, 1, 0) >= 0 else 'blocked')\n",
    "kernel doors": C
    + """
z = ctypes.create_string_buffer(256)
calls = {{"memfd_create": (319, b"x", 0), "io_uring": (425, 4, z), "bpf": (321, 0, z, 128), "perf": (298, z, 0, -1, -1, 0),
    "userfaultfd": (323, 0), "keyctl": (250, 0, 0), "add_key": (248, b"user", b"a", b"b", 1, -1), "unshare": (272, 0x10000000),
    "setns": (308, 3, 0), "mount": (165, b"a", b"/", b"tmpfs", 0, 0), "shmget": (29, 0, 4096, 0o1600), "mq_open": (240, b"/x", 0o102, 0o600, 0),
    "personality": (135, 0x0040000), "fanotify": (300, 0, 0), "inotify": (253,), "open_by_handle": (304, 0, z, 0), "syslog": (103, 3, z, 10),
    "sched_setscheduler": (144, 0, 0, z), "chroot": (161, b"/"), "pidfd_open": (434, os.getppid(), 0), "setsid": (112,), "seccomp": (317, 0, 0, 0)}}
through = [name for name, call in calls.items() if libc.syscall(*call) >= 0]
print("BREACH" if through else "blocked", through)
""",
    "sockets of every family": """
import socket
through = []
for family in range(1, 46):
    for kind in (1, 2, 3, 5):
        try: socket.socket(family, kind); through.append((family, kind))
        except (OSError, ValueError): pass
print("BREACH" if through else "blocked", through[:3])
""",
    "writing where others read": """
import os, sys
through = []
for path in (os.path.dirname(os.__file__) + "/sbx.py", "/dev/shm/sbx", "/tmp/sbx", "/var/tmp/sbx", "/usr/lib/sbx", "{directory}/sbx",
             os.path.dirname(os.__file__) + "/__pycache__/sbx"):
    try: open(path, "w"); through.append(path)
    except OSError: pass
    try: os.mkdir(path + "d"); through.append(path)
    except OSError: pass
print("BREACH" if through else "blocked", through)
""",
    "changing what is there": """
import os
through = []
for name, attempt in dict(
    truncate=lambda p: os.truncate(p, 0), opened=lambda p: os.open(p, os.O_RDONLY | os.O_TRUNC), chmod=lambda p: os.chmod(p, 0o777),
    utime=lambda p: os.utime(p), unlink=os.unlink, rename=lambda p: os.rename(p, p + "2"), link=lambda p: os.link(p, "linked"),
    xattr=lambda p: os.setxattr(p, "user.x", b"1"), append=lambda p: open(p, "a"), chown=lambda p: os.chown(p, os.getuid(), -1)).items():
    for path in ("{canary}", os.__file__):
        try: attempt(path); through.append(name)
        except OSError: pass
print("BREACH" if through else "blocked", through)
""",
    "reading by another name": """
import os
through = []
for path in ("{canary}", "../../../../{canary}", "/proc/self/root{canary}", "/proc/{pid}/root{canary}", "/proc/{pid}/cwd/x"):
    try: through.append(open(path).read())
    except OSError: pass
try: os.symlink("{canary}", "s"); through.append(open("s").read())
except OSError: pass
try: through.append(os.open("{canary}", os.O_PATH)) if os.read(os.open("{canary}", os.O_PATH), 1) else 0
except OSError: pass
print("BREACH" if through else "blocked", through)
""",
    "descriptors left open": """
import os
through = []
for fd in range(3, 1024):
    try: os.fstat(fd); through.append(fd)
    except OSError: pass
print("BREACH" if through else "blocked", through)
""",
    "raising limits": """
import resource
through = []
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        soft, hard = resource.getrlimit(getattr(resource, name))
        if hard != resource.RLIM_INFINITY:
            try: resource.setrlimit(getattr(resource, name), (hard + 1, hard + 1)); through.append(name)
            except (OSError, ValueError): pass
print("BREACH" if through else "blocked", through)
""",
    "the environment": """
import os
print("BREACH" if set(os.environ) - {{"PATH", "LANG", "HOME", "MALLOC_ARENA_MAX", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LC_CTYPE",
    "LD_LIBRARY_PATH"}} else "blocked", sorted(os.environ))
""",
    "frames and memory of the server": """
import gc, sys
texts, frame = [], sys._getframe()
while frame:
    texts += [repr(frame.f_locals), repr(frame.f_code.co_consts)]; frame = frame.f_back
for o in gc.get_objects(): texts += [v for v in gc.get_referents(o) if type(v) in (str, bytes)] if type(o) in (dict, list, tuple) else []
print("BREACH" if any("{marker}"[::-1] in (t if type(t) is str else t.decode("latin1")) for t in texts) else "blocked")
""",
}


@pytest.fixture
def surroundings(tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("secret")
    canary.chmod(0o600)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.bind("")
        abstract.setblocking(False)
        victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        yield {
            "abstract": abstract.getsockname()[1:].decode(),
            "pid": victim.pid,
            "directory": str(tmp_path),
            "canary": str(canary),
            "marker": "detcepxe ton si siht",
        }
        assert victim.poll() is None, "a signal got through"
        victim.kill()
        victim.wait()
        with pytest.raises(BlockingIOError):
            abstract.recv(10)
    assert canary.read_text() == "secret" and canary.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["canary"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the numbers of system calls in the attacks are x86_64's")
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_blocked(sandbox, limits, surroundings, name):
    source = ATTACKS[name].format(**surroundings)
    score = judge_script(sandbox, source, [("", "BREACH")], limits)
    assert not score.all and b"BREACH" not in score.output, score
    if name not in ("32-bit calls", "x32 calls"):  # which end the process
        assert b"blocked" in score.output, (score.reason, score.output)


USING_UP = {
    "memory beside the heap": """
import mmap, os
kept, size = [], 0
try:
    while size < 4096: kept.append(mmap.mmap(-1, 16 << 20)); kept[-1][::4096] = b"x" * 4096; size += 16
except (OSError, MemoryError): pass
print("BREACH" if size >= 512 else "blocked")
""",
    "memory in pipes and sockets": """
import os, socket
kept, n = [], 0
try:
    while n < 2000:
        r, w = os.pipe(); os.set_blocking(w, False); kept += [r, w]
        n += 1
        while os.write(w, b"x" * 65536): pass
except OSError: pass
print("BREACH" if n >= 100 else "blocked")
""",
    "files in the scratch directory": """
import os
n = size = 0
try:
    while n < 100_000: open(f"f{n}", "w").write("x" * 1000); n += 1
except OSError: pass
for i in range(200):
    try: size += open(f"g{i}", "wb").write(b"x" * 900_000)
    except OSError: pass
print("BREACH" if n > 1100 or size > 70 << 20 else "blocked")
""",
    "one big file": """
try:
    with open("big", "wb") as f:
        for _ in range(64): f.write(b"x" * (1 << 20))
    print("BREACH")
except OSError: print("blocked")
""",
    "growing its standard streams": """
import os
bad = []
for fd in (0, 1, 2):
    try: os.ftruncate(fd, 1 << 30); bad.append(fd)
    except OSError: pass
try: os.write(0, b"x"); bad.append("stdin")
except OSError: pass
print("BREACH" if bad else "blocked")
""",
    "CPU in threads of C code": """
import hashlib, threading
def burn():
    while True: hashlib.pbkdf2_hmac("sha256", b"a", b"b", 5_000_000)
for _ in range(8): threading.Thread(target=burn, daemon=True).start()
burn()
""",
    "a destructor at the end": "class D:\n    def __del__(self):\n        while True: pass\nd = D()\nimport atexit\natexit.register(d.__del__)\n",
    "a destructor of what is left": "class D:\n    def __del__(self):\n        while True: pass\nd = D()\nprint('BREACH')\n",
    "a thread that outlives it": "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,)).start()\nprint('BREACH')\n",
    "stopping itself": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('BREACH')\n",
    "deep recursion in C": "x = []\nfor _ in range(10**6): x = [x]\nprint('BREACH' if repr(x) else '')\n",
    "a huge integer": "x = 1 << (1 << 36)\nprint('BREACH')\n",
    "text of a huge integer": "import sys\nsys.set_int_max_str_digits(0)\nstr(7 ** 10_000_000)\nprint('BREACH')\n",
    "compiling": "compile('(' * 10**6, 'x', 'exec')\nprint('BREACH')\n",
}


@pytest.mark.parametrize("name", USING_UP)
def test_using_up_the_machine_is_bounded(sandbox, name):
    limits = Limits(cpu_s=1.0, memory_mib=512)
    started = time.monotonic()
    score = judge_script(sandbox, USING_UP[name], [("", "BREACH")], limits)
    assert not score.all, score
    assert time.monotonic() - started < 3.0 + limits.wall
    assert score.peak_kib < 512 * 1024
    assert len(score.output) <= limits.output_bytes
    assert not leftovers(sandbox)
    assert judge_script(sandbox, "print(input())", [("x", "x")], limits).all, "an honest program after it fails"


MANY_THREADS = """
import threading, time
threading.stack_size(32768)
n = 0
try:
    while n < 20_000: threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1
except BaseException: pass
"""
# Without a stack of their own, so that memory holds none: clone and pause in machine code.
MANY_CLONES = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
code, stack = libc.mmap(None, 4096, 7, 0x22, -1, 0), libc.mmap(None, 65536, 3, 0x22, -1, 0)
start = b"\\xb8\\x38\\0\\0\\0\\xbf" + (0x10f00).to_bytes(4, "little") + b"\\x48\\xbe" + (stack + 65472).to_bytes(8, "little")
start += b"\\x31\\xd2\\x4d\\x31\\xd2\\x4d\\x31\\xc0\\x0f\\x05\\x85\\xc0\\x74\\x01\\xc3\\xb8\\x22\\0\\0\\0\\x0f\\x05\\xeb\\xf7"
ctypes.memmove(code, start, len(start))
clone, n = ctypes.CFUNCTYPE(ctypes.c_long)(code), 0
while n < 20_000 and clone() > 0: n += 1
"""


@pytest.mark.parametrize("source", [MANY_THREADS, MANY_CLONES], ids=["threads", "clones"])
def test_threads_are_bounded(sandbox, limits, source):
    if source is MANY_CLONES and os.uname().machine != "x86_64":
        pytest.skip("machine code of x86_64")
    score = judge_script(sandbox, source + "import os\nprint(n, flush=True)\nos._exit(0)", [("", "")], limits)
    apart = sandbox.level == "namespaces" or os.getuid() == 0
    tasks = 0 if apart else int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    assert 400 < int(score.output) < 512 + 1.5 * tasks, score
    assert not leftovers(sandbox)


def test_without_an_id_to_spare_threads_are_counted_with_the_user_s(monkeypatch):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "setresuid", refuse)
    tasks = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    assert not threads.count_apart("landlock")
    assert threads.limit(apart=False) == pytest.approx(tasks + threads.AT_ONCE, abs=200)
    for release, apart in (("5.13.0-generic", False), ("5.14.0", True), ("6.1", True), ("unknown", False)):
        monkeypatch.setattr(os, "uname", lambda release=release: types.SimpleNamespace(release=release))
        assert threads.count_apart("namespaces") is apart


def test_waiting_is_bounded_over_all_cases_together(any_sandbox):
    limits = Limits(cpu_s=1.0, wall_s=2.0)
    started = time.monotonic()
    waits = judge_script(any_sandbox, "import time\ntime.sleep(0.9)\nprint(input())", [("1", "1")] * 5, limits)
    assert not waits.all and "longer than" in waits.reason and waits.passed == 2
    assert time.monotonic() - started < 4.0
    works = "import time\nwhile time.process_time() < 0.6: pass\nprint(input())"
    assert judge_script(any_sandbox, works, [("1", "1")] * 4, Limits(cpu_s=1.0)).all


def test_a_flood_of_output_is_a_failure_and_not_a_cut(sandbox, limits):
    source = "import sys\ntry:\n    while True: sys.stdout.write('7\\n' * 1000)\nexcept OSError: pass\n"
    score = judge_script(sandbox, source, [("", "7\n" * (limits.output_bytes // 2))], limits)
    assert not score.all and "printed" in score.reason
    below = judge_script(sandbox, "print('7' * 500_000)", [("", "7" * 500_000)], limits)
    assert below.all


def test_nothing_of_a_program_is_there_for_the_next(sandbox, limits):
    first = "import builtins, math, sys, os\nmath.pi = 3\nbuiltins.left = 1\nsys.setrecursionlimit(60)\nos.environ['X'] = '1'\ntry:\n    open('left', 'w').write('x'); os.mkdir('d', 0); os.umask(0o777)\nexcept OSError: pass\nprint(1)"
    then = "import builtins, math, os\nprint(math.pi > 3.1, hasattr(builtins, 'left'), os.path.exists('left'), os.path.exists('d'), 'X' in os.environ)"
    assert judge_script(sandbox, first, [("", "1")], limits).all
    assert judge_script(sandbox, then, [("", "True False False False False")], limits).all


def test_a_program_may_use_its_scratch_directory(any_sandbox, limits):
    if any_sandbox.level != "namespaces":
        pytest.skip("there is a scratch directory at level namespaces alone")
    source = """
import os, tempfile, shutil, sqlite3
open("a", "w").write("hello"); shutil.copy("a", "b"); os.rename("b", "c"); os.makedirs("d/e")
with tempfile.TemporaryDirectory() as t: open(os.path.join(t, "x"), "w").write("y")
db = sqlite3.connect("db"); db.execute("create table t (x)"); db.execute("insert into t values (1)"); db.commit()
print(open("c").read(), sorted(os.listdir(".")), db.execute("select * from t").fetchall())
"""
    assert judge_script(any_sandbox, source, [("", "hello ['a', 'c', 'd', 'db'] [(1,)]")], limits).all


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("while True: pass", "more than 0.5 CPU seconds"),
        ("import time\ntime.sleep(100)", "longer than 2.5 s"),
        ("import os\nos.abort()", "signal 6"),
        ("raise ValueError('boom')", "exit status 1 (ValueError: boom)"),
        ("import sys\nsys.exit(3)", "exit status 3"),
        ("x = bytearray(10**10)", "MemoryError"),
        ("import pandas", "No module named 'pandas'"),
    ],
)
def test_reasons(any_sandbox, source, why):
    wall_s = 2.5 if "sleep" in source else 60.0
    assert why in judge_script(any_sandbox, source, [("", "x")], Limits(cpu_s=0.5, wall_s=wall_s)).reason


def test_many_threads_of_the_trainer_at_once(any_sandbox):
    wrong = []

    def work(k):
        for i in range(5):
            score = judge_script(
                any_sandbox, "print(int(input()) * 2)", [(f"{k * 100 + i}", f"{2 * (k * 100 + i)}")], Limits()
            )
            if not score.all:
                wrong.append(score)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
