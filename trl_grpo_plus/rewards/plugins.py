"""Rewards of other packages, through the entry-point group `trl_grpo_plus.rewards`.

    [project.entry-points."trl_grpo_plus.rewards"]      # in the other package's pyproject.toml
    brevity = "my_package.rewards"                      # a module that registers, or `module:verifier`

Plugins are looked for when a name is not one of ours, and for lists. One that cannot be loaded is named, with its
reason, and leaves the others alone.
"""

from __future__ import annotations

import logging
import threading
from importlib.metadata import EntryPoint, entry_points

from . import registry

logger = logging.getLogger(__name__)

GROUP = "trl_grpo_plus.rewards"
_LOCK = threading.RLock()
_BROKEN: dict[str, str] = {}
_ORIGIN: dict[str, str] = {}  # reward -> the package that brought it
_loaded = False


def load_plugins() -> None:
    """Loads the rewards of all installed packages, once; never raises."""
    global _loaded
    with _LOCK:
        if _loaded:
            return
        _loaded = True
        for point in entry_points(group=GROUP):
            package = point.dist.name if point.dist is not None else point.value
            before = {entry.name for entry in registry.registered()}
            try:
                _load(point)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                _BROKEN[f"{point.name} of {package}"] = f"{type(error).__name__}: {error}"
                logger.warning(
                    "reward plugin `%s` of %s cannot be used: %s: %s", point.name, package, type(error).__name__, error
                )
            for entry in registry.registered():
                if entry.name not in before:
                    _ORIGIN[entry.name] = package


def _load(point: EntryPoint) -> None:
    """Loads one entry point: a module registers what it has; a verifier that does not register itself is named after
    the entry point.
    """
    target = point.load()
    if ":" not in point.value:
        return
    entry = registry.from_target(target)
    if entry is None:
        raise TypeError(f"{point.value} is no verifier: neither (completion, row, ...) nor a class with `verify`")
    if not registry.is_registered(target):
        doc = (target.__doc__ or "").strip().partition("\n")[0]
        registry.register(point.name, description=doc or f"{point.value}, unregistered", runs=entry.runs)(target)


def broken_plugins() -> dict[str, str]:
    """Returns why, for each plugin that cannot be used, by its name and package."""
    load_plugins()
    return dict(_BROKEN)


def plugin_of(name: str) -> str | None:
    """Returns the package that a reward came from, `None` for ours."""
    return _ORIGIN.get(name)
