"""The kinds of jobs and the roles of their processes: which descriptors each keeps, and what it runs.

kind     roles               descriptors of the request
script   program             source, stdin, stdout, stderr
calls    program             source and expressions, answers, stderr
tests    program + tester    source and names, tests, report, stderr
probe    probe               what to attempt, report
"""

from __future__ import annotations

import json
import mmap
import os
import socket
from typing import Any

from . import confine, probe, program, tester
from .confine import Confinement

_NOTE_BYTES = 256


class Notes:
    """A page shared with the forks, in which each notes that it is confined, before it lets go of the page.

    An exit status could not tell: once a program runs, it can end in any way. A process that has left no note never
    ran anything of a program.
    """

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)

    def clear(self) -> None:
        """Forgets the notes of the last job."""
        self._page[:] = bytes(len(self._page))

    def confined(self, slot: int) -> None:
        """Notes that the calling process is confined, and gives up the page."""
        self._page[slot * _NOTE_BYTES] = 1
        self._page.close()

    def failed(self, slot: int, error: BaseException) -> None:
        """Notes why the calling process could not start."""
        note = f"{type(error).__name__}: {error}".encode("utf-8", "replace")[: _NOTE_BYTES - 1]
        start = slot * _NOTE_BYTES + 1
        self._page[start : start + len(note)] = note

    def failure(self, slot: int) -> str | None:
        """Returns why the process of a slot could not start, or `None` where it could."""
        if self._page[slot * _NOTE_BYTES]:
            return None
        note = self._page[slot * _NOTE_BYTES + 1 : (slot + 1) * _NOTE_BYTES].rstrip(b"\0")
        return note.decode("utf-8", "replace") or "it was killed while it started"


def roles(kind: str, descriptors: list[int]) -> tuple[dict[str, list[int]], list[int]]:
    """Returns the descriptors of each role, its input first, and those that were opened here, to close after forking.

    The roles' further descriptors become 0, 1, 2, ... in their processes; -1 stands for the null device.
    """
    if kind == "script":
        return {"program": descriptors}, []
    if kind == "calls":
        task, answers, stderr = descriptors
        return {"program": [task, -1, -1, stderr, answers]}, []
    if kind == "probe":
        return {"probe": [descriptors[0], -1, -1, -1, descriptors[1]]}, []
    source, tests, report, stderr = descriptors
    theirs, ours = (end.detach() for end in socket.socketpair())
    made = [theirs, ours]
    return {"program": [source, -1, -1, stderr, theirs], "tester": [tests, -1, -1, -1, ours, report]}, made


def run(
    role: str,
    slot: int,
    notes: Notes,
    confinement: Confinement,
    server: int,
    request: dict[str, Any],
    descriptors: list[int],
) -> None:
    """Runs a role in a fresh fork: reads its input, is confined, notes it, and goes on; does not return normally."""
    try:
        text = _read_all(descriptors[0])
        null = os.open("/dev/null", os.O_RDWR)
        kept = [null if descriptor < 0 else descriptor for descriptor in descriptors[1:]]
        confine.confine(confinement, server, kept, request["cpu_s"], int(request["memory"]), int(request["file"]))
    except BaseException as error:
        notes.failed(slot, error)
        os._exit(1)
    notes.confined(slot)
    if request["kind"] == "script":
        program.script(text.decode("utf-8", "replace"))
    task = json.loads(text)
    if request["kind"] == "calls":
        program.calls(task["source"], task["candidate"], task["expressions"])
    elif role == "probe":
        probe.run(task)
    elif role == "program":
        program.serve(task["source"], task["names"], task["printed"])
    else:
        tester.run(task)


def _read_all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    data = bytearray()
    while len(data) < size:
        block = os.pread(descriptor, size - len(data), len(data))
        if not block:
            break
        data += block
    return bytes(data)
