"""The table of rewards: for the command line and the documentation."""

from __future__ import annotations

import inspect
from typing import Any

from .plugins import plugin_of
from .registry import entries

_COMBINATORS = {
    "gate": (
        "A reward that counts only where another one holds",
        {"if": "a reward", "then": "a reward", "at_least": "1.0", "otherwise": "0.0"},
    ),
    "clip": ("A reward held between two bounds", {"of": "a reward", "min": "none", "max": "none"}),
    "sum": ("The weighted sum of rewards, as one reward", {"of": "rewards"}),
}


def catalog() -> list[dict[str, Any]]:
    """Returns, for each registered reward: name, aliases, description, columns, optional columns, options, plugin.

    An option's text is its type and default; combinators come last.
    """
    rows = []
    for entry in entries():
        rows.append(
            {
                "name": entry.name,
                "aliases": list(entry.aliases),
                "description": entry.description,
                "columns": list(entry.columns),
                "optional": list(entry.optional),
                "options": {name: _option(parameter) for name, parameter in entry.options.items()},
                "runs": entry.runs,
                "plugin": plugin_of(entry.name),
            }
        )
    for name, (description, options) in _COMBINATORS.items():
        rows.append(
            {
                "name": name,
                "aliases": [],
                "description": description,
                "columns": [],
                "optional": [],
                "options": dict(options),
                "runs": "as its parts",
                "plugin": None,
            }
        )
    return rows


def _option(parameter: inspect.Parameter) -> str:
    hint = parameter.annotation
    kind = (
        ""
        if hint is inspect.Parameter.empty
        else hint
        if isinstance(hint, str)
        else getattr(hint, "__name__", str(hint))
    )
    if parameter.default is inspect.Parameter.empty:
        return f"{kind} (needed)".strip()
    return f"{kind} = {parameter.default!r}" if kind else repr(parameter.default)
