"""The system call filter: an allow-list as a classic BPF program (seccomp, mode 2), for x86_64 and aarch64.

A program may compute, use memory, threads, the descriptors that it has, and open files as far as the other layers let
it. It may not make processes, sockets (but a stream `socketpair`, which asyncio needs), signal anything but itself, or
reach anything of the kernel that is not on the list.

    program(arch, pid, files=...)   -> list of BPF instructions       pure; the tests interpret it for both machines
    install(instructions)           -> None                           for the calling process, for good
"""

from __future__ import annotations

import ctypes
import errno
import struct
from typing import Literal

from . import kernel
from .syscalls import AUDIT_ARCH, CHANGES, LAST_KNOWN, MISSING, PLAIN, TABLES

Files = Literal["private", "landlock", "none"]  # what holds writing: a private file tree, Landlock, or this filter

ALLOW, KILL = 0x7FFF0000, 0x80000000
_LOAD, _EQUAL, _GREATER_EQUAL, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NUMBER, _ARCH = 0, 4  # offsets in struct seccomp_data

_O_WRONLY, _O_RDWR, _O_CREAT, _O_TRUNC, _TMPFILE_BIT = 0o1, 0o2, 0o100, 0o1000, 0o20000000
# VM | FS | FILES | SIGHAND | THREAD must be there, and nothing that is not part of making a thread.
_THREAD = 0x100 | 0x200 | 0x400 | 0x800 | 0x10000
_THREAD_EXTRAS = 0x40000 | 0x80000 | 0x100000 | 0x200000 | 0x400000 | 0x1000000
_IOCTL = (0x5401, 0x541B, 0x5451, 0x5450, 0x5421, 0x5413)  # TCGETS FIONREAD FIOCLEX FIONCLEX FIONBIO TIOCGWINSZ
# Descriptors, flags and locks; not F_SETOWN and F_SETSIG, which send signals to others, nor leases and pipe sizes.
_FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
_PRCTL = (15, 16)  # the thread's name

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def _errno(number: int) -> int:
    return 0x00050000 | number


def _argument(index: int, high: bool = False) -> Instruction:
    return (_LOAD, 0, 0, 16 + 8 * index + (4 if high else 0))


def _answer(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)


def _only(index: int, values: tuple[int, ...], otherwise: int) -> list[Instruction]:
    """Allows where an argument's low word is one of `values`."""
    body = [_argument(index)]
    for value in values:
        body += [(_EQUAL, 0, 1, value), _answer(ALLOW)]
    return [*body, _answer(_errno(otherwise))]


def _special(pid: int, files: Files) -> dict[str, list[Instruction]]:
    """Returns the calls that depend on their arguments."""
    refused = _answer(_errno(errno.EPERM))
    rules: dict[str, list[Instruction]] = {
        "clone": [
            _argument(0),
            (_ANY_BIT, 0, 1, ~(_THREAD | _THREAD_EXTRAS) & 0xFFFFFFFF),
            refused,
            (_AND, 0, 0, _THREAD),
            (_EQUAL, 0, 1, _THREAD),
            _answer(ALLOW),
            refused,
        ],
        # A datagram socket could be sent from to any other by its address, so: AF_UNIX, SOCK_STREAM, its flags.
        "socketpair": [
            _argument(0),
            (_EQUAL, 1, 0, 1),
            refused,
            _argument(1),
            (_AND, 0, 0, 0xF),
            (_EQUAL, 0, 1, 1),
            _answer(ALLOW),
            refused,
        ],
        "sendto": [
            _argument(4),
            (_EQUAL, 1, 0, 0),
            refused,
            _argument(4, high=True),
            (_EQUAL, 0, 1, 0),
            _answer(ALLOW),
            refused,
        ],
        "ioctl": _only(1, _IOCTL, errno.ENOTTY),
        "fcntl": _only(1, _FCNTL, errno.EPERM),
        "kill": _only(0, (pid,), errno.EPERM),
        "tgkill": _only(0, (pid,), errno.EPERM),
        "prctl": _only(0, _PRCTL, errno.EPERM),
        "prlimit64": _only(0, (0,), errno.EPERM),
    }
    for name, index in (("open", 1), ("openat", 2)):
        flags = _argument(index)
        if files == "none":
            writing = _O_WRONLY | _O_RDWR | _O_CREAT | _O_TRUNC | _TMPFILE_BIT
            rules[name] = [flags, (_ANY_BIT, 0, 1, writing), _answer(_errno(errno.EACCES)), _answer(ALLOW)]
        else:
            # Truncating what is opened for reading: early versions of Landlock look at the access mode alone.
            rules[name] = [
                flags,
                (_ANY_BIT, 2, 0, _O_WRONLY | _O_RDWR),
                (_ANY_BIT, 0, 1, _O_TRUNC),
                _answer(_errno(errno.EACCES)),
                _answer(ALLOW),
            ]
    return rules


def program(arch: str, pid: int, files: Files) -> list[Instruction]:
    """Returns the filter.

    Args:
        arch: `x86_64` or `aarch64`.
        pid: The process that it is for, the only one that it may signal.
        files: What holds writing: a private file tree (`private`), Landlock (`landlock`) or this filter (`none`).
    """
    table = TABLES[arch]
    code: list[Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, AUDIT_ARCH[arch]),  # 32-bit calls have other numbers
        _answer(KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if arch == "x86_64":
        code += [(_GREATER_EQUAL, 0, 1, 0x40000000), _answer(KILL)]  # x32
    allowed = [*PLAIN, *(CHANGES if files == "private" else ())]
    for name in allowed:
        if name in table:
            code += [(_EQUAL, 0, 1, table[name]), _answer(ALLOW)]
    for name, body in _special(pid, files).items():
        if name in table:
            code += [(_EQUAL, 0, len(body), table[name]), *body]
    for name in MISSING:
        code += [(_EQUAL, 0, 1, table[name]), _answer(_errno(errno.ENOSYS))]
    code += [(_GREATER_EQUAL, 0, 1, LAST_KNOWN + 1), _answer(_errno(errno.ENOSYS))]
    return [*code, _answer(_errno(errno.EPERM))]


def pack(code: list[Instruction]) -> bytes:
    """Returns the instructions as an array of struct sock_filter."""
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


class Filter:
    """A filter that is made once and for all processes but for the pid in it.

    Args:
        machine: `os.uname().machine`; another than the tables' has no filter.
        files: See `program`.
    """

    def __init__(self, machine: str, files: Files) -> None:
        marked = [program(machine, pid, files) if machine in TABLES else [] for pid in (0, 1)]
        self._packed = bytearray(pack(marked[0]))
        pairs = enumerate(zip(*marked, strict=True))
        self._pid_at = [8 * i + 4 for i, (one, other) in pairs if one != other]

    def packed(self, pid: int) -> bytes:
        """Returns the filter of a process."""
        for offset in self._pid_at:
            struct.pack_into("=I", self._packed, offset, pid)
        return bytes(self._packed)


def install(packed: bytes) -> None:
    """Puts a filter on the calling thread, and on what it starts, for good.

    Raises:
        OSError: The kernel has no seccomp filters, or forbids them.
    """

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    buffer = ctypes.create_string_buffer(packed, len(packed))
    argument = Program(len(packed) // 8, ctypes.addressof(buffer))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.addressof(argument))
