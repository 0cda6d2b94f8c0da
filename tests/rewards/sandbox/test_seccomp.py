"""The system call filter of both machines, run by an interpreter of its own: aarch64 is not at hand here."""

import errno
import re
from pathlib import Path

import pytest

from trl_grpo_plus.rewards.sandbox.inside import seccomp
from trl_grpo_plus.rewards.sandbox.inside.syscalls import AUDIT_ARCH, CHANGES, TABLES

PID = 4242
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}


def run_filter(code, arch, number, arguments=()):
    """Interprets classic BPF from its manual (linux/filter.h) on a struct seccomp_data; returns the action."""
    data = [number & 0xFFFFFFFF, AUDIT_ARCH.get(arch, arch), 0, 0]
    for argument in (*arguments, 0, 0, 0, 0, 0, 0)[:6]:
        data += [argument & 0xFFFFFFFF, argument >> 32 & 0xFFFFFFFF]
    accumulator, position = 0, 0
    while True:
        operation, yes, no, k = code[position]
        position += 1
        if operation == 0x20:  # BPF_LD | BPF_W | BPF_ABS
            accumulator = data[k // 4]
        elif operation == 0x54:  # BPF_ALU | BPF_AND | BPF_K
            accumulator &= k
        elif operation in (0x15, 0x35, 0x45):  # BPF_JMP | BPF_JEQ, BPF_JGE, BPF_JSET
            truth = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: accumulator & k != 0}[operation]
            position += yes if truth else no
        elif operation == 0x06:  # BPF_RET | BPF_K
            return k
        else:
            raise AssertionError(hex(operation))


def outcome(arch, name, *arguments, files="landlock"):
    action = run_filter(seccomp.program(arch, PID, files), arch, TABLES[arch][name], arguments)
    if action == 0x7FFF0000:
        return "allow"
    return errno.errorcode[action & 0xFFFF] if action & 0xFFFF0000 == 0x50000 else "kill"


@pytest.mark.parametrize("arch", TABLES)
def test_the_numbers_are_those_of_the_kernels_headers(arch):
    if not HEADERS[arch].exists():
        pytest.skip(f"no {HEADERS[arch]}")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)\b", HEADERS[arch].read_text()))
    found |= {"newfstatat": found["fstatat"]} if arch == "aarch64" else {}
    for name, number in TABLES[arch].items():
        if name == "fchmodat2" and name not in found:  # newer than the headers
            assert number == 452
        else:
            assert int(found[name]) == number, name


@pytest.mark.parametrize("arch", TABLES)
def test_the_filter_fits_and_never_runs_off_its_end(arch):
    for files in ("private", "landlock", "none"):
        code = seccomp.program(arch, PID, files)
        assert len(code) < 4096 and all(0 <= jump < 256 for _, yes, no, _ in code for jump in (yes, no))
        for number in [*range(600), 0x40000000, 2**31 - 1, -1]:
            for flags in (0, 1, 2**31 - 1):
                assert run_filter(code, arch, number, (flags, flags, flags)) is not None
        assert len(seccomp.pack(code)) == 8 * len(code)


THREAD = 0x3D0F00  # what glibc asks of clone for a thread
CASES = [
    ("read", (), "allow"),
    ("clone", (THREAD,), "allow"),
    ("clone", (THREAD | 0x400000,), "allow"),  # musl
    ("clone", (17,), "EPERM"),
    ("clone", (0x100 | 17,), "EPERM"),
    ("clone", (THREAD & ~0x10000,), "EPERM"),
    ("clone", (THREAD & ~0x100,), "EPERM"),
    *(("clone", (THREAD | flag,), "EPERM") for flag in (0x10000000, 0x20000000, 0x40000000, 0x20000, 0x2000, 0x8000)),
    ("clone3", (), "ENOSYS"),
    ("openat2", (), "ENOSYS"),
    ("socketpair", (1, 1), "allow"),
    ("socketpair", (1, 1 | 0x80000 | 0x800), "allow"),
    ("socketpair", (1, 2), "EPERM"),
    ("socketpair", (1, 5), "EPERM"),
    ("socketpair", (2, 1), "EPERM"),
    ("sendto", (3, 0, 1, 0, 0), "allow"),
    ("sendto", (3, 0, 1, 0, 0x7F00), "EPERM"),
    ("sendto", (3, 0, 1, 0, 0x7F00_0000_0000), "EPERM"),
    ("kill", (PID, 9), "allow"),
    ("kill", (PID + 1, 9), "EPERM"),
    ("kill", (0, 9), "EPERM"),
    ("kill", (2**64 - 1, 9), "EPERM"),
    ("tgkill", (PID, 1, 9), "allow"),
    ("tgkill", (1, 1, 9), "EPERM"),
    ("prctl", (15,), "allow"),
    ("prctl", (1,), "EPERM"),
    ("prctl", (22,), "EPERM"),
    ("prlimit64", (0,), "allow"),
    ("prlimit64", (1,), "EPERM"),
    ("fcntl", (0, 4), "allow"),
    ("fcntl", (0, 8), "EPERM"),  # F_SETOWN
    ("fcntl", (0, 10), "EPERM"),  # F_SETSIG
    ("fcntl", (0, 15), "EPERM"),  # F_SETOWN_EX
    ("ioctl", (0, 0x5401), "allow"),
    ("ioctl", (0, 0x5412), "ENOTTY"),  # TIOCSTI
    ("ioctl", (0, 0x8901), "ENOTTY"),  # FIOSETOWN
    ("openat", (0, 0, 0o1), "allow"),
    ("openat", (0, 0, 0o1000), "EACCES"),  # O_RDONLY | O_TRUNC
]


@pytest.mark.parametrize("arch", TABLES)
@pytest.mark.parametrize(("name", "arguments", "expected"), CASES)
def test_arguments(arch, name, arguments, expected):
    assert outcome(arch, name, *arguments) == expected


@pytest.mark.parametrize("arch", TABLES)
def test_what_may_be_written_depends_on_what_else_holds_it(arch):
    for name in CHANGES:  # early versions of Landlock do not cover truncate, none covers chmod
        if name in TABLES[arch]:
            found = [outcome(arch, name, files=files) for files in ("private", "landlock", "none")]
            assert found == ["allow", "EPERM", "EPERM"], name
    for flags in (0o1, 0o2, 0o101, 0o20200000 | 0o2):
        assert outcome(arch, "openat", 0, 0, flags, files="none") == "EACCES"
    assert outcome(arch, "openat", 0, 0, 0o2000000, files="none") == "allow"


# The names of what no program may call, with their numbers on both machines (Linux headers).
FORBIDDEN = {
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200), "sendmsg": (46, 211), "execve": (59, 221),
    "execveat": (322, 281), "ptrace": (101, 117), "process_vm_readv": (310, 270), "memfd_create": (319, 279),
    "io_uring_setup": (425, 425), "bpf": (321, 280), "unshare": (272, 97), "setns": (308, 268), "mount": (165, 40),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "rt_sigqueueinfo": (129, 138), "tkill": (200, 130),
    "keyctl": (250, 219), "userfaultfd": (323, 282), "shmget": (29, 194), "mq_open": (240, 180), "setsid": (112, 157),
    "chown": (260, 54), "setxattr": (188, 5), "mknodat": (259, 33), "pivot_root": (155, 41), "landlock": (446, 446),
}  # fmt: skip


@pytest.mark.parametrize("column", [0, 1])
def test_what_is_not_listed_is_forbidden(column):
    arch = ("x86_64", "aarch64")[column]
    code = seccomp.program(arch, PID, "private")
    for name, numbers in FORBIDDEN.items():
        assert run_filter(code, arch, numbers[column]) == 0x50000 | errno.EPERM, name
    if arch == "x86_64":
        for number in (57, 58, 62 + 0x40000000):  # fork, vfork; x32
            assert run_filter(code, arch, number) in (0x50000 | errno.EPERM, 0x80000000)
    assert run_filter(code, 0x40000003, 20) == 0x80000000  # i386
    assert run_filter(code, AUDIT_ARCH[("aarch64", "x86_64")[column]], 0) == 0x80000000
    assert run_filter(code, arch, 463) == 0x50000 | errno.ENOSYS
