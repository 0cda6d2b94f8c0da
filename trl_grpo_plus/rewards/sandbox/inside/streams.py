"""The standard streams of a program, as an interpreter of its own would have made them."""

from __future__ import annotations

import builtins
import io
import os
import sys
from typing import Any

_KEPT_BYTES = 1 << 20
_NAMES = ("stdin", "stdout", "stderr")
_DIRECTORIES = ("/dev/fd/", "/proc/self/fd/")


def make() -> None:
    """Puts files on the descriptors 0, 1 and 2 in place of the interpreter's streams.

    One difference is meant: line ends of Windows in stdin are read as line feeds.
    """
    for number, name in enumerate(_NAMES):
        mode = "w" if number else "r"
        errors = "backslashreplace" if name == "stderr" else "surrogateescape"
        stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
        stream.buffer.raw.name = f"<{name}>"  # type: ignore[attr-defined]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stderr.reconfigure(line_buffering=True)  # type: ignore[union-attr]


class Kept(io.TextIOWrapper):
    """A stdout whose text goes to the tests, as one more claim, with the next answer."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="replace", newline="", write_through=True)

    def take(self) -> str:
        """Returns what was printed since the last time, cut off at a length."""
        kept = self.buffer
        assert isinstance(kept, io.BytesIO)
        text = kept.getvalue()[:_KEPT_BYTES].decode("utf-8", "replace")
        kept.seek(0)
        kept.truncate()
        return text


def name_as_files(source: str) -> None:
    """Lets a program open its streams by name, `/dev/stdin`, where the files of that name are out of its reach.

    Args:
        source: The program; nothing is changed for one that names none of them.
    """
    by_path = {f"/dev/{name}": number for number, name in enumerate(_NAMES)}
    by_path |= {f"{directory}{number}": number for directory in _DIRECTORIES for number in range(len(_NAMES))}
    if not any(path in source for path in ("/dev/std", *_DIRECTORIES)):
        return
    plain = io.open

    def opened(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        path = os.fspath(file) if isinstance(file, os.PathLike) else file
        if isinstance(path, str) and path in by_path and "opener" not in named:
            named["opener"] = lambda _path, _flags: os.dup(by_path[path])
        return plain(file, mode, *rest, **named)

    opened.__name__ = opened.__qualname__ = "open"
    builtins.open = io.open = opened
