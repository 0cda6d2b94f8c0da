"""What of this machine a program may read: the standard library, the system's shared libraries, chosen packages."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import UserError
from .inside.syscalls import TABLES

DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_SYSTEM = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/etc/ld.so.cache")


def readable() -> list[str]:
    """Returns the files and directories of the Python runtime."""
    prefixes = (sys.base_prefix, sys.base_exec_prefix)
    paths = [os.path.dirname(os.__file__), *(os.path.join(p, "lib") for p in prefixes), *_SYSTEM]
    found = [path for path in dict.fromkeys(paths) if os.path.exists(path)]
    below = [path for path in found if any(path.startswith(other + "/") for other in found)]
    return [path for path in found if path not in below or os.path.islink(path)]


def packages(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns (directories to import from, what is readable) for third-party packages.

    Raises:
        UserError: One of them is not installed, or no name of a package.
    """
    if isinstance(names, str):
        raise UserError(f"packages must be a list of names, found {names!r}")
    homes, paths = [], []
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise UserError(f"packages: {name!r} is no name of a package, as `import` takes it")
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin:
            raise UserError(f"packages: `{name}` is not installed here")
        module = Path(spec.origin)
        package, home = (
            (module.parent, module.parent.parent) if spec.submodule_search_locations else (module, module.parent)
        )
        homes.append(str(home))
        paths += [str(package), *(str(p) for p in home.glob(f"{name}.libs"))]
    return list(dict.fromkeys(homes)), paths


def check_platform(level: str) -> None:
    """Raises where a level cannot work, whatever the machine's policy.

    Raises:
        UserError: Another system or processor; the message names the choices.
    """
    choices = "use level `external` with a runner of your own, e.g. a container or a remote sandbox"
    if not sys.platform.startswith("linux"):
        raise UserError(f"the sandbox needs Linux, found {sys.platform}; {choices}")
    machine = platform.machine()
    if level != "rlimits" and machine not in TABLES:
        known = " and ".join(TABLES)
        raise UserError(f"the sandbox knows the system calls of {known}, not of {machine}; {choices}")
