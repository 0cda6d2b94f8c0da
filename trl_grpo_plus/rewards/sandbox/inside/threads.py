"""How many threads the programs of a server may have. The kernel counts them per user (RLIMIT_NPROC), never root's.

Memory alone holds few: a thread that shares the stack of others costs a program nothing, and the kernel much.
"""

from __future__ import annotations

import os
import re

AT_ONCE = 512
_UNUSED = 1_900_000_000  # systemd's table of user ids: nobody's from 1879048192 to 2147483647
_COUNTED_PER_NAMESPACE = (5, 14)  # Linux


def count_apart(level: str) -> bool:
    """Has the kernel count this process and what it starts apart from all else of its user, if it can.

    Root becomes a user of its own for that, by its real id alone: what may be read goes by the effective one. To be
    called before the server moves into a user namespace, which knows of no other id.

    Args:
        level: The server's level.

    Returns:
        Whether it does; a user who is not root is counted apart in a user namespace alone.
    """
    if os.geteuid() == 0:
        try:
            os.setresuid(_UNUSED + os.getpid(), -1, -1)
            return True
        except OSError:  # root of a container is, to the kernel, a user with few ids
            pass
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    kernel = (int(version[1]), int(version[2])) if version else (0, 0)
    return level == "namespaces" and kernel >= _COUNTED_PER_NAMESPACE


def limit(apart: bool) -> int | None:
    """Returns what RLIMIT_NPROC is to be, `None` where the machine does not say how many threads it has.

    Args:
        apart: What `count_apart` returned. If not, whatever else the user runs counts, and stays possible.
    """
    if apart:
        return AT_ONCE
    try:
        with open("/proc/loadavg") as file:  # "0.20 0.18 0.12 1/80 11206": one of 80 threads runs
            return int(file.read().split()[3].partition("/")[2]) + AT_ONCE
    except (OSError, ValueError, IndexError):
        return None
