"""A private view of the machine for the server and all its programs: own users, processes, network and files.

Made once per server, since a network namespace costs milliseconds: the server becomes process 1 of a new pid
namespace, and its root a small read-only tree of the Python runtime, with one scratch directory that is emptied
between programs.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
from collections.abc import Sequence

from . import kernel
from .syscalls import PIVOT_ROOT

NOBODY = 65534
SCRATCH = "/scratch"
_BASE = "/proc"  # mounted over in the new file tree; it exists everywhere, and nothing that a program reads lies in it
_SCRATCH_MODE = 0o700
_SCRATCH_OPTIONS = f"size=64m,nr_inodes=1024,mode={_SCRATCH_MODE:o}"
_LOCKED = (
    (os.ST_NOEXEC, kernel.MS_NOEXEC),
    (os.ST_NODEV, kernel.MS_NODEV),
    (os.ST_NOATIME, kernel.MS_NOATIME),
    (os.ST_NODIRATIME, kernel.MS_NODIRATIME),
    (os.ST_RELATIME, kernel.MS_RELATIME),
)


def enter(control: socket.socket) -> None:
    """Moves into new namespaces; the caller goes on as process 1 of them, its parent only waits for it.

    Raises:
        OSError: The kernel, or a policy on it, forbids it.
    """
    uid, gid = os.geteuid(), os.getegid()
    others = kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNS
    kernel.unshare(kernel.CLONE_NEWUSER | others)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {uid} 1"),
        ("gid_map", f"{NOBODY} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    pid = os.fork()
    if pid:
        control.close()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: os._exit(1))
        os.waitpid(pid, 0)
        os._exit(0)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    socket.sethostname("sandbox")


def build_root(readable: Sequence[str], devices: Sequence[str]) -> None:
    """Replaces the file tree by one that holds only `readable` and `devices`, read-only, and the scratch directory.

    Raises:
        OSError: A mount was refused; nothing is left writable silently.
    """
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", _BASE, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    for path in (*readable, *devices):
        if os.path.exists(path):
            _bind(path)
    for name in ("/tmp", "/.old", SCRATCH):
        os.makedirs(_BASE + name, exist_ok=True)
    os.chdir(_BASE)
    machine = os.uname().machine
    kernel.syscall(PIVOT_ROOT[machine], b".", b".old", what="pivot_root")
    os.chdir("/")
    kernel.unmount("/.old")
    os.rmdir("/.old")
    kernel.mount("tmpfs", SCRATCH, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, _SCRATCH_OPTIONS)
    kernel.mount(None, "/", None, kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV)


def _bind(path: str) -> None:
    target = _BASE + path
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        if not os.path.lexists(target):
            os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        with open(target, "w"):
            pass
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)
    found = os.statvfs(path).f_flag
    kept = sum(theirs for ours, theirs in _LOCKED if found & ours)  # the kernel refuses to drop them
    kernel.mount(None, target, None, kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kept)


def empty_scratch() -> bool:
    """Leaves nothing of a program behind: a new file system where it has touched the old one; whether it had."""
    if not os.listdir(SCRATCH) and stat.S_IMODE(os.stat(SCRATCH).st_mode) == _SCRATCH_MODE:
        return False
    kernel.unmount(SCRATCH)
    kernel.mount("tmpfs", SCRATCH, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, _SCRATCH_OPTIONS)
    return True
