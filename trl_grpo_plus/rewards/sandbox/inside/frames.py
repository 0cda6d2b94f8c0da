"""Messages between a program's process and its tester: a length of four bytes, then JSON."""

from __future__ import annotations

import os
import struct
from typing import Any

from . import codec

MAX_FRAME = 16 << 20


class HungUp(BaseException):
    """The other process is gone; no handler of a program or a test is to mistake it for an error of its own."""


def send(descriptor: int, message: Any) -> None:
    """Writes one message.

    Raises:
        ValueError: It is longer than `MAX_FRAME`.
        HungUp: The other side is gone.
    """
    data = codec.dumps(message)
    if len(data) > MAX_FRAME:
        raise ValueError("the message is too long")
    view = memoryview(struct.pack(">I", len(data)) + data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError as error:
        raise HungUp from error


def receive(descriptor: int) -> Any:
    """Reads one message.

    Raises:
        HungUp: The other side is gone.
        ValueError: The message is too long, or is not JSON.
    """
    (length,) = struct.unpack(">I", _exactly(descriptor, 4))
    if length > MAX_FRAME:
        raise ValueError("the message is too long")
    return codec.loads(_exactly(descriptor, length))


def _exactly(descriptor: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            block = os.read(descriptor, min(count - len(data), 1 << 20))
        except OSError as error:
            raise HungUp from error
        if not block:
            raise HungUp
        data += block
    return bytes(data)
