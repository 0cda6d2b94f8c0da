"""What one program may use. CPU seconds decide; wall time is the backstop for those that wait instead of working."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ...errors import UserError

_WALL_PER_CPU = 2.5  # a machine may be that much busier than its cores before honest programs run out of wall time


@dataclass(frozen=True)
class Limits:
    """Limits of one run of a program (of each case, where it reads stdin).

    Args:
        cpu_s: CPU seconds, all threads together; more is "too slow", whatever the load of the machine.
        wall_s: Seconds on the clock; `None` takes 2.5 times `cpu_s`.
        memory_mib: Address space, the interpreter's own (about 30 MiB, with numpy 150 MiB) included.
        output_kib: What it may print, or answer to all calls together; more is a failure, not a cut.
        file_kib: Largest file that it may make in its scratch directory, at level `namespaces`.

    Raises:
        UserError: A limit is not a positive number.
    """

    cpu_s: float = 5.0
    wall_s: float | None = None
    memory_mib: int = 1024
    output_kib: int = 1024
    file_kib: int = 1024

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "wall_s" and value is None:
                continue
            number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
            if not number or value <= 0:
                raise UserError(f"{field.name} must be a positive number, found {value!r}")
        if self.memory_mib < 64:
            raise UserError(f"memory_mib must be at least 64, for the interpreter itself, found {self.memory_mib}")

    @property
    def wall(self) -> float:
        """Seconds on the clock after which a program is killed."""
        return self.wall_s if self.wall_s is not None else _WALL_PER_CPU * self.cpu_s

    @property
    def output_bytes(self) -> int:
        """Bytes of output or of answers; as many or more are a failure."""
        return int(self.output_kib * 1024)

    def request(self) -> dict[str, float]:
        """Returns the limits in the form of the server's requests."""
        return {
            "cpu_s": self.cpu_s,
            "wall_s": self.wall,
            "memory": int(self.memory_mib * 2**20),
            "file": max(self.output_bytes, int(self.file_kib * 1024)),
        }
