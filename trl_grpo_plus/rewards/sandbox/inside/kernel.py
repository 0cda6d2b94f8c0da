"""Raw system calls through ctypes: errors become `OSError`, nothing else."""

from __future__ import annotations

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_NOATIME, MS_NODIRATIME = 1, 2, 4, 8, 32, 1024, 2048
MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 4096, 16384, 1 << 18, 1 << 21
MNT_DETACH = 2
_CAPABILITY_VERSION_3 = 0x20080522


def _failed(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def syscall(number: int, *arguments: int | bytes | None, what: str) -> int:
    """Makes a system call; integers are passed as 64-bit words, bytes as pointers.

    Raises:
        OSError: The call failed; the message starts with `what`.
    """
    words = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise _failed(what)
    return result


def prctl(option: int, *arguments: int) -> None:
    """Calls prctl with unsigned long arguments.

    Raises:
        OSError: The kernel refused.
    """
    words = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    if libc.prctl(ctypes.c_int(option), *words) < 0:
        raise _failed(f"prctl {option}")


def unshare(flags: int) -> None:
    """Moves the process (its future children, for pids) into new namespaces."""
    if libc.unshare(ctypes.c_int(flags)) < 0:
        raise _failed("unshare")


def mount(source: str | None, target: str, kind: str | None, flags: int, data: str = "") -> None:
    """Mounts, remounts or binds."""

    def text(value: str | None) -> bytes | None:
        return value.encode() if value else None

    if libc.mount(text(source), target.encode(), text(kind), ctypes.c_ulong(flags), text(data)) < 0:
        raise _failed(f"mount {target}")


def unmount(target: str) -> None:
    """Detaches what is mounted on `target`."""
    if libc.umount2(target.encode(), MNT_DETACH) < 0:
        raise _failed(f"unmount {target}")


def drop_capabilities() -> None:
    """Gives up every capability of the process, for good: it cannot exec and gains no new privileges."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) < 0:
        raise _failed("capset")
