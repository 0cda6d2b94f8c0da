"""Landlock: which files a process may read, and which few it may write, whoever it runs as.

It holds for what is opened from now on. Version (ABI) 1 covers files, 3 truncation, 4 TCP, 6 signals and abstract unix
sockets; what a kernel's version lacks is held by the system call filter alone. No version covers chmod, utime and
stat: the filter forbids the first two, and the names, sizes and times of files stay visible at this level.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence

from . import kernel
from .syscalls import LANDLOCK_ADD_RULE, LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_TCP_BIND_CONNECT = 3
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3


def abi() -> int:
    """Returns the kernel's version of Landlock, 0 where there is none."""
    try:
        return kernel.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1, what="landlock")
    except OSError:
        return 0


def ruleset(version: int, readable: Sequence[str], writable: Sequence[str]) -> int:
    """Returns a descriptor of rules, which any process may put upon itself with `restrict`.

    Args:
        version: What `abi()` returned, at least 1.
        readable: Files, and directories with all below them, that may be read; those that do not exist are left out.
        writable: Files that may be read and written, and directories in which files may be made.

    Raises:
        OSError: The kernel refused.
    """
    files = (1 << 13) - 1
    files |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
    files |= _IOCTL_DEVICE if version >= 5 else 0
    network = _TCP_BIND_CONNECT if version >= 4 else 0
    scope = _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if version >= 6 else 0
    size = 8 if version < 4 else 16 if version < 6 else 24
    attributes = struct.pack("=QQQ", files, network, scope)[:size]
    rules = kernel.syscall(LANDLOCK_CREATE_RULESET, attributes, size, 0, what="landlock_create_ruleset")
    read = _READ_FILE | _READ_DIR
    write_file = _READ_FILE | _WRITE_FILE | (_TRUNCATE & files)
    write = read | write_file | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | (_REFER & files)
    for paths, in_directory, on_file in ((readable, read, _READ_FILE), (writable, write, write_file)):
        for path in paths:
            try:
                descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            rule = struct.pack("=QI", in_directory if directory else on_file, descriptor)
            kernel.syscall(LANDLOCK_ADD_RULE, rules, 1, rule, 0, what=f"landlock_add_rule {path}")
            os.close(descriptor)
    return rules


def restrict(rules: int) -> None:
    """Restricts the calling thread to the rules, for good, and closes them.

    Raises:
        OSError: The kernel refused.
    """
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.syscall(LANDLOCK_RESTRICT_SELF, rules, 0, what="landlock_restrict_self")
    os.close(rules)
