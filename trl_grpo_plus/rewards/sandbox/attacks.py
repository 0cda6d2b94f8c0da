"""A corpus of attacks against the sandbox: what is planted for them, and what must hold after each.

One JSON object a line: `id`, `category`, `code`, `tests` (`{"type": "stdio", "cases": [[stdin, stdout], ...]}` or
`{"type": "assert", "lines": [...]}`), `expected` reward, `must_hold`, `limits` (`timeout_s`, `memory_mb`,
`output_bytes`). Placeholders in the code stand for what is planted: a secret, a file that holds it, a listening port,
an abstract socket, a directory, this process. All conditions are checked after every entry, named or not.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import UserError
from .client import SandboxError
from .judge import Score, judge_script, judge_tests
from .limits import Limits
from .plan import Unusable, plan
from .pool import Sandbox

_MARK = "sbx_attack"  # in the names of all files that attacks make
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO, signal.SIGALRM, signal.SIGPWR)
KNOWN_CONDITIONS = frozenset(
    (
        "parent_alive",
        "wall<3x_timeout",
        "no_leftover_processes",
        "no_file_outside_created",
        "rss<memory_limit",
        "captured_output<=cap",
        "tests_source_not_reachable",  # its reward tells
        "loopback_listener_got_no_connection",
        "secret_not_readable",
        "sibling_tests_unaffected",
    )
)


@dataclass(frozen=True)
class Finding:
    """What became of one entry.

    Args:
        id: The entry's.
        category: The entry's.
        expected: The reward that it should get.
        reward: The reward that it got; `None` where it could not be scored.
        reason: Why.
        broken: Conditions that did not hold.
        seconds: How long it took, on the clock.
    """

    id: str
    category: str
    expected: float
    reward: float | None
    reason: str
    broken: tuple[str, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the reward is right and every condition held."""
        return self.reward == self.expected and not self.broken


def load(path: Path) -> list[dict[str, Any]]:
    """Returns the entries of a corpus.

    Raises:
        UserError: The file does not exist, or a line is no entry.
    """
    if not path.exists():
        raise UserError(f"no such file: {path}")
    entries = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            missing = {"id", "category", "code", "tests", "expected"} - set(entry)
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}:{number}: no JSON object: {error}") from None
        if missing:
            raise UserError(f"{path}:{number}: an entry needs {', '.join(sorted(missing))}")
        entries.append(entry)
    if not entries:
        raise UserError(f"{path} holds no entries")
    return entries


@dataclass
class Fixtures:
    """What is planted for attacks to find, and what has happened to it."""

    directory: Path
    listener: socket.socket
    abstract: socket.socket
    secret: str
    signals: list[int] = field(default_factory=list)

    @property
    def canary(self) -> Path:
        """A file of the user's that holds the secret."""
        return self.directory / "home" / ".netrc"

    def values(self) -> dict[str, str]:
        """Returns what the placeholders stand for."""
        name = self.abstract.getsockname()
        return {
            "LOOPBACK_PORT": str(self.listener.getsockname()[1]),
            "ABSTRACT_SOCK": (name if isinstance(name, bytes) else name.encode())[1:].decode(),
            "OUT_DIR": str(self.directory / "out"),
            "HOME": str(self.directory / "home"),
            "SECRET": self.secret,
            "CANARY_FILE": str(self.canary),
            "PARENT_PID": str(os.getpid()),
        }

    def plant(self) -> None:
        """Puts everything in its place, and takes away what is not in it."""
        for path in self.directory.iterdir():
            shutil.rmtree(path, ignore_errors=True)
        for name in ("home", "out"):
            (self.directory / name).mkdir(exist_ok=True)
        self.canary.write_text(self.secret)
        self.canary.chmod(0o600)

    def broken(self) -> list[str]:
        """Returns what has been touched, and mends it."""
        found = []
        if self.signals:
            found.append(f"this process got signal {self.signals[0]}")
            self.signals.clear()
        for name, server in (("port", self.listener), ("abstract socket", self.abstract)):
            with contextlib.suppress(BlockingIOError):
                server.accept()[0].close()
                found.append(f"the {name} got a connection")
        files = sorted(str(path.relative_to(self.directory)) for path in self.directory.rglob("*"))
        if files != ["home", "home/.netrc", "out"]:
            found.append(f"files of the user: {files}")
        elif self.canary.read_text() != self.secret or self.canary.stat().st_mode & 0o777 != 0o600:
            found.append("a file of the user was changed")
        marked = _marked_files()
        if marked:
            found.append(f"files were made: {marked[:3]}")
        if found:
            for path in marked:
                with contextlib.suppress(OSError):
                    os.unlink(path)
            self.plant()
        return found


@contextlib.contextmanager
def planted() -> Iterator[Fixtures]:
    """Yields the fixtures, in the environment as well, and records signals while they stand."""
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.socket() as listener,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        fixtures = Fixtures(Path(directory), listener, abstract, secrets.token_hex(16))
        fixtures.plant()
        listener.bind(("127.0.0.1", 0))
        abstract.bind("")
        for server in (listener, abstract):
            server.listen()
            server.setblocking(False)
        environment = {
            "HF_TOKEN": fixtures.secret,
            "API_KEY": fixtures.secret,
            "HOME": str(fixtures.directory / "home"),
        }
        before = {name: os.environ.get(name) for name in environment}
        handlers = {number: signal.signal(number, lambda got, _: fixtures.signals.append(got)) for number in _SIGNALS}
        os.environ.update(environment)
        try:
            yield fixtures
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _marked_files() -> list[str]:
    """Returns files of attacks in the places where they try to make them."""
    home = os.path.expanduser(f"~{_user_name()}")
    places = ["/", "/tmp", "/var/tmp", "/dev/shm", "/run", os.getcwd(), home, *sys.path]
    found = []
    for place in dict.fromkeys(places):
        with contextlib.suppress(OSError):
            found += [os.path.join(place, name) for name in os.listdir(place) if _MARK in name]
    return found


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""


def leftovers(sandbox: Sandbox, within_s: float = 1.0) -> list[int]:
    """Returns processes that a sandbox's programs have left behind: descendants of ours that are none of its servers.

    Args:
        sandbox: The sandbox, with no program running.
        within_s: How long to wait for them to go.
    """
    deadline = time.monotonic() + within_s
    while True:
        parents = _parents()
        servers = sandbox.server_pids()
        if sandbox.level == "namespaces":  # the keeper's child is the server proper
            servers |= {pid for pid, parent in parents.items() if parent in servers}
        found = [pid for pid in parents if pid not in servers and _descends(pid, servers, parents)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


def _parents() -> dict[int, int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = Path(f"/proc/{name}/stat").read_text()
                parents[int(name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def _descends(pid: int, roots: set[int], parents: Mapping[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid in roots:
            return True
    return False


def run_entry(sandbox: Sandbox, entry: Mapping[str, Any], fixtures: Fixtures) -> Finding:
    """Runs one entry and checks every condition.

    Raises:
        UserError: The entry's tests have an unknown form.
    """
    given = entry.get("limits", {})
    limits = Limits(
        cpu_s=float(given.get("timeout_s", 2)),
        memory_mib=int(given.get("memory_mb", 512)),
        output_kib=given.get("output_bytes", 1 << 20) / 1024,
    )
    code = _filled(entry["code"], fixtures)
    tests = json.loads(_filled(json.dumps(entry["tests"]), fixtures))
    started = time.monotonic()
    reward: float | None = None
    score: Score | None = None
    try:
        if tests.get("type") == "stdio":
            score = judge_script(sandbox, code, [(case[0], case[1]) for case in tests["cases"]], limits)
        elif tests.get("type") == "assert":
            score = judge_tests(sandbox, code, plan("\n".join(tests["lines"])), limits)
        else:
            raise UserError(f"entry {entry['id']}: tests of type {tests.get('type')!r}, known: stdio, assert")
        reward, reason = float(score.all), score.reason
    except (SandboxError, Unusable) as error:
        reason = str(error)
    seconds = time.monotonic() - started
    broken = fixtures.broken()
    if seconds >= 3 * limits.cpu_s:
        broken.append(f"took {seconds:.1f} s")
    if left := leftovers(sandbox):
        broken.append(f"left {len(left)} processes")
    if score is not None and score.peak_kib >= limits.memory_mib * 1024:
        broken.append(f"used {score.peak_kib // 1024} MiB")
    if score is not None and len(score.output) > limits.output_bytes:
        broken.append(f"{len(score.output)} bytes of output kept")
    if score is not None and fixtures.secret.encode() in score.output:
        broken.append("the secret was printed")
    if not _honest_still_pays(sandbox):
        broken.append("an honest program run after it fails")
    expected = float(entry["expected"])
    return Finding(entry["id"], entry["category"], expected, reward, reason, tuple(broken), seconds)


def _filled(text: str, fixtures: Fixtures) -> str:
    for name, value in fixtures.values().items():
        text = text.replace("{{" + name + "}}", value)
    return text


_HONEST = "import math\ndef root(x):\n    return int(math.sqrt(x)) + len(str(x))\n"


def _honest_still_pays(sandbox: Sandbox) -> bool:
    try:
        return judge_tests(sandbox, _HONEST, plan("assert root(49) == 9"), Limits()).all
    except SandboxError:
        return False


def unknown_conditions(entries: list[dict[str, Any]]) -> list[str]:
    """Returns conditions that entries name and that are not checked by that name."""
    return sorted({name for entry in entries for name in entry.get("must_hold", ())} - KNOWN_CONDITIONS)
