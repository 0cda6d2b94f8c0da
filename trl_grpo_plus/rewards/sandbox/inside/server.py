"""The fork server: waits for a job, forks one fresh confined process per program, keeps the time, reports the end.

It is exec'd from the trainer with an empty environment, runs one job at a time, and holds nothing of any: programs,
inputs and tests travel as memory files that only the forked process reads. It never runs a line of a program itself.

    request   {"kind", "cpu_s", "wall_s", "memory", "file"} and descriptors      one packet each
    reply     {"ended": {role: how its process ended}} or {"failed": why}
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from . import jobs, kernel, landlock, namespaces, threads
from .confine import Confinement

# Imported once here, so that no program pays for them; a bigger server makes dearer forks.
_PRELOAD = (
    "abc array ast bisect calendar cmath codecs collections contextlib copy dataclasses datetime decimal enum "
    "fractions functools heapq io itertools json linecache math operator queue random re statistics string struct "
    "textwrap threading time tokenize traceback types typing encodings.ascii encodings.idna encodings.latin_1"
)
_MAX_DESCRIPTORS = 8
_GRACE_S = 0.25  # for the program to end by itself after the tester has; what it has said by then counts all the same


def main(control_fd: int, configuration: str) -> None:
    """Runs the server until the trainer closes its end of the control socket; does not return."""
    control = socket.socket(fileno=control_fd)
    try:
        confinement, control = _start(control, json.loads(configuration))
    except (OSError, ImportError, KeyError) as error:
        control.sendall(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
        os._exit(1)
    control.sendall(json.dumps({"ready": {"landlock_abi": confinement.landlock_abi}}).encode())
    notes = jobs.Notes()
    while True:
        message, descriptors = _receive(control)
        if not message:
            os._exit(0)
        reply = _run(control, confinement, notes, json.loads(message), descriptors)
        control.sendall(json.dumps(reply).encode())


def _start(control: socket.socket, configuration: dict[str, Any]) -> tuple[Confinement, socket.socket]:
    level = configuration["level"]
    for name in _PRELOAD.split():
        try:
            importlib.import_module(name)
        except ImportError:
            continue
    before = list(sys.path)
    sys.path += configuration["packages"]
    for name in configuration["preload"]:
        importlib.import_module(name)
    sys.path[:] = before  # what stands beside the packages is not there for programs
    sys.path_importer_cache.clear()
    try:
        with open("/proc/self/oom_score_adj", "w") as file:  # short of memory, the kernel takes this first
            file.write("900")
    except OSError:
        pass
    readable = tuple(dict.fromkeys(configuration["readable"]))
    devices = tuple(configuration["devices"])
    scratch = "/"
    counted_apart = level != "rlimits" and threads.count_apart(level)
    if level == "namespaces":
        namespaces.enter(control)
        namespaces.build_root(readable, devices)
        scratch = namespaces.SCRATCH
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    version = landlock.abi() if level in ("namespaces", "landlock") else 0
    if level == "landlock" and not version:
        raise OSError("the kernel has no Landlock, or it is switched off")
    writable = ("/dev/null", *((scratch,) if level == "namespaces" else ()))
    gc.collect()
    gc.freeze()
    machine = os.uname().machine
    return Confinement(level, machine, version, (*readable, *devices), writable, scratch, counted_apart), control


def _receive(control: socket.socket) -> tuple[bytes, list[int]]:
    try:
        message, descriptors, _, _ = socket.recv_fds(control, 65536, _MAX_DESCRIPTORS)
    except OSError:
        return b"", []
    return message, descriptors


@dataclass
class _Process:
    pid: int
    pidfd: int
    started: float
    deadline: float
    why: str = ""
    needed: bool = True


def _run(
    control: socket.socket,
    confinement: Confinement,
    notes: jobs.Notes,
    request: dict[str, Any],
    descriptors: list[int],
) -> dict[str, Any]:
    started: dict[str, _Process] = {}
    notes.clear()
    try:
        roles, made = jobs.roles(request["kind"], descriptors)
        descriptors = [*descriptors, *made]
        for slot, (role, given) in enumerate(roles.items()):
            started[role] = _fork(confinement, notes, request, role, slot, given)
    except OSError as error:
        for process in started.values():
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
            os.close(process.pidfd)
        return {"failed": f"fork: {error}"}
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    ended = _supervise(control, confinement, request, started)
    if confinement.level == "namespaces" and namespaces.empty_scratch():
        confinement.renew()
    for slot, role in enumerate(started):
        failure = notes.failure(slot)
        if failure is not None:
            return {"failed": f"the {role} could not be confined: {failure}"}
    return {"ended": ended}


def _fork(
    confinement: Confinement,
    notes: jobs.Notes,
    request: dict[str, Any],
    role: str,
    slot: int,
    descriptors: list[int],
) -> _Process:
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            jobs.run(role, slot, notes, confinement, server, request, descriptors)
        finally:
            os._exit(125)
    now = time.monotonic()
    return _Process(pid, os.pidfd_open(pid), now, now + float(request["wall_s"]))


def _cpu_s(pid: int) -> float:
    """Returns the CPU seconds that a process has used; its CPU clock has an id made of its process id."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def _supervise(
    control: socket.socket, confinement: Confinement, request: dict[str, Any], processes: dict[str, _Process]
) -> dict[str, Any]:
    """Waits until all processes have ended, killing what exceeds its CPU seconds or its deadline."""
    cpu_s = float(request["cpu_s"])
    ended: dict[str, Any] = {}
    poll = select.poll()
    poll.register(control, 0)  # a hang-up alone: the trainer is gone
    alive = {process.pidfd: role for role, process in processes.items()}
    for pidfd in alive:
        poll.register(pidfd, select.POLLIN)
    while alive:
        wait_s = 3600.0
        for role in alive.values():
            process = processes[role]
            if process.why:
                continue
            left_s = cpu_s - _cpu_s(process.pid)
            wall_s = process.deadline - time.monotonic()
            if left_s <= 0 or wall_s <= 0:
                process.why = "cpu" if left_s <= 0 else "wall" if process.needed else "idle"
                signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
            else:
                wait_s = min(wait_s, max(left_s, 0.002), wall_s)
        for fd, _ in poll.poll(max(1.0, wait_s * 1000)):
            if fd == control.fileno():
                for role in alive.values():
                    os.kill(processes[role].pid, signal.SIGKILL)
                os._exit(0)
            role = alive.pop(fd)
            poll.unregister(fd)
            ended[role] = _reap(confinement, processes[role])
            if role == "tester" and "program" in alive.values():
                program = processes["program"]
                program.deadline = min(program.deadline, time.monotonic() + _GRACE_S)
                program.needed = False
    return ended


def _reap(confinement: Confinement, process: _Process) -> dict[str, Any]:
    if confinement.level == "rlimits":
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started; above this level it cannot start anything
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - process.started
    os.close(process.pidfd)
    return {
        "exit": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        "killed": process.why,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "wall_s": wall_s,
        "peak_kib": usage.ru_maxrss,
    }
