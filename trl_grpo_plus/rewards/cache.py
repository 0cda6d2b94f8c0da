"""The cache of verdicts, by content: what was verified once is not verified again, in this step, run or process.

The key is a digest of the verifier (name, version, options, source), the completion and the row columns that the
verifier reads. Verdicts of failures (a timeout, a crash, an exception) are not stored: another try may succeed. On
disk it is one SQLite file, which survives a kill and may be shared by processes; where it cannot be used, the run goes
on without it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .verdict import Verdict

logger = logging.getLogger(__name__)

_SCHEMA = "CREATE TABLE IF NOT EXISTS verdicts (key BLOB PRIMARY KEY, value REAL, answer BLOB, reason BLOB)"
_WAIT_S = 20.0  # for other processes that write
_IN_ONE_QUERY = 500


def verdict_key(verifier: bytes, completion: str, row: Mapping[str, Any]) -> bytes | None:
    """Returns the cache key of a completion, or `None` where the row holds what has no canonical text (an image).

    Args:
        verifier: Digest of the verifier and its options.
        completion: The completion's text.
        row: The columns that the verifier reads.
    """
    try:
        content = json.dumps([completion, dict(row)], sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        return None
    return hashlib.sha256(verifier + content.encode()).digest()


class VerdictCache:
    """Verdicts by key; safe to use from several threads, and one file from several processes.

    Args:
        path: The SQLite file; `None` keeps the verdicts in memory.
        max_rows: The oldest tenth is dropped where there are more.
    """

    def __init__(self, path: str | Path | None = None, max_rows: int = 1_000_000) -> None:
        self.path = None if path is None else Path(path)
        self.max_rows = max_rows
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._broken = False

    def get_many(self, keys: Sequence[bytes]) -> dict[bytes, Verdict]:
        """Returns the verdicts that are there."""
        found: dict[bytes, Verdict] = {}
        with self._lock:
            try:
                connection = self._open()
                if connection is None:
                    return found
                for start in range(0, len(keys), _IN_ONE_QUERY):
                    some = keys[start : start + _IN_ONE_QUERY]
                    marks = ",".join("?" * len(some))
                    rows = connection.execute(f"SELECT * FROM verdicts WHERE key IN ({marks})", some)
                    found.update(
                        (key, Verdict(value, _text(answer), _text(reason) or ""))
                        for key, value, answer, reason in rows
                    )
            except sqlite3.Error as error:
                self._give_up(error)
        return found

    def put_many(self, verdicts: Iterable[tuple[bytes, Verdict]]) -> None:
        """Stores verdicts; those of failures are left out."""
        rows = [(key, v.value, _bytes(v.answer), _bytes(v.reason)) for key, v in verdicts if v.failure is None]
        if not rows:
            return
        with self._lock:
            try:
                connection = self._open()
                if connection is None:
                    return
                with connection:
                    connection.executemany("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?, ?)", rows)
                    first, last = connection.execute("SELECT min(rowid), max(rowid) FROM verdicts").fetchone()
                    if last - first >= self.max_rows:
                        connection.execute(
                            "DELETE FROM verdicts WHERE rowid <= ?", (last - self.max_rows + self.max_rows // 10,)
                        )
            except sqlite3.Error as error:
                self._give_up(error)

    def close(self) -> None:
        """Closes the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _open(self) -> sqlite3.Connection | None:
        if self._connection is None and not self._broken:
            try:
                self._connection = self._connect()
            except sqlite3.DatabaseError as error:
                if self.path is None or not _is_damaged(error):
                    raise
                aside = self.path.with_suffix(self.path.suffix + ".damaged")
                self.path.replace(aside)
                logger.warning(
                    "reward_cache: %s is damaged (%s); moved to %s, a new one is made", self.path, error, aside
                )
                self._connection = self._connect()
        return self._connection

    def _connect(self) -> sqlite3.Connection:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path or ":memory:", timeout=_WAIT_S, check_same_thread=False)
        try:
            # A killed process loses nothing; a machine without power may lose the file, which is a cache.
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute(_SCHEMA)
            connection.commit()
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _give_up(self, error: sqlite3.Error) -> None:
        if not self._broken:
            logger.warning("reward_cache: %s cannot be used (%s); going on without it", self.path, error)
        self._broken = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _is_damaged(error: sqlite3.DatabaseError) -> bool:
    return not isinstance(error, sqlite3.OperationalError)  # "file is not a database", "disk image is malformed"


# Texts are stored as bytes: a completion may hold half a surrogate pair, which is no UTF-8.
def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "surrogatepass")
