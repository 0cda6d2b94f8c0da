"""The bytes between the dispatcher and a worker: frames of a length and a pickle.

To a worker: `("spec", number, spec, None)`, and tasks `(number of the spec, task id, completion, row)`, pickled one by
one by whoever asks for verdicts. From a worker, one frame for each: `(task id, value, answer, reason, failure,
processor time used so far)`, and the marks below. The dispatcher never blocks on a worker, and a worker knows nothing
but to read the next frame.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any, BinaryIO

_LENGTH = struct.Struct("<Q")
_MAX_CHARS = 2000  # of an answer or a reason

BORN = "born"  # with the worker's process id: the first thing it says
BUILDING = "building"  # a verifier is imported and built, which is no completion's time; with the processor time
BUILT = "built"
IMPORTED = "imported"  # modules that a verifier imported when it ran
BYE = "bye"  # the worker ends by its own will; what it was given and did not begin is undone


def frame(message: Any) -> bytes:
    """Returns a message as a frame; raises what pickling it raises."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


def read_frame(stream: BinaryIO) -> Any:
    """Returns the next message of a blocking stream.

    Raises:
        EOFError: The other side is gone.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (size,) = _LENGTH.unpack(head)
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return pickle.loads(data)


class Frames:
    """Collects bytes as they come and gives the messages that are complete."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Any]:
        """Returns the messages that `data` completes."""
        self._buffer += data
        messages, at = [], 0
        while len(self._buffer) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, at)
            end = at + _LENGTH.size + size
            if len(self._buffer) < end:
                break
            messages.append(pickle.loads(memoryview(self._buffer)[at + _LENGTH.size : end]))
            at = end
        del self._buffer[:at]
        return messages


def shortened(text: Any) -> str | None:
    """Returns a verifier's text, cut to a length that a log can hold."""
    if text is None:
        return None
    text = str(text)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}... ({len(text)} characters)"
