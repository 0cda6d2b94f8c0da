"""Content hashes of what a stage depends on: the files and directories that its configuration names.

A stage is done again exactly where its configuration or the content of an input differs, never for a time stamp or a
path: a copied run goes on where the original would.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_CHUNK_BYTES = 1 << 22


def of_json(value: Any) -> str:
    """Returns the hash of a JSON value, the same for any order of keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def of_path(path: Path, known: dict[str, str] | None = None) -> str:
    """Returns the hash of a file's content, or of a directory's: names and contents of all files under it.

    Args:
        path: The file or directory.
        known: Hashes of files by path, size and time of change, read and added to: weights are hashed once.
    """
    if path.is_file():
        return _of_file(path, {} if known is None else known)
    files = sorted(each for each in path.rglob("*") if each.is_file())
    known = {} if known is None else known
    return of_json([[each.relative_to(path).as_posix(), _of_file(each, known)] for each in files])


def _of_file(path: Path, known: dict[str, str]) -> str:
    status = path.stat()
    key = f"{path.resolve()}|{status.st_size}|{status.st_mtime_ns}"
    if key not in known:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
        known[key] = digest.hexdigest()
    return known[key]


def paths_in(value: Any) -> Iterator[str]:
    """Yields the texts in a configuration that name an existing file or directory by a path, each once.

    A bare word is no path: a reward called `math` does not depend on a directory of that name.
    """
    seen: set[str] = set()
    for text in texts_in(value):
        if text not in seen and os.sep in text and len(text) < 4096 and "\n" not in text and Path(text).exists():
            seen.add(text)
            yield text


def texts_in(value: Any) -> Iterator[str]:
    """Yields all texts among the values of a JSON-like value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from texts_in(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from texts_in(each)


def changes(old: Any, new: Any, name: str = "") -> list[str]:
    """Returns what differs between two configurations, one line per key: `grpo.max_steps: 60 -> 80`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        lines = []
        for key in [*old, *(k for k in new if k not in old)]:
            inner = f"{name}.{key}" if name else str(key)
            if key not in new:
                lines.append(f"{inner}: {_short(old[key])} -> absent")
            elif key not in old:
                lines.append(f"{inner}: absent -> {_short(new[key])}")
            else:
                lines += changes(old[key], new[key], inner)
        return lines
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [line for i, (a, b) in enumerate(zip(old, new, strict=True)) for line in changes(a, b, f"{name}[{i}]")]
    return [] if old == new else [f"{name}: {_short(old)} -> {_short(new)}"]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
