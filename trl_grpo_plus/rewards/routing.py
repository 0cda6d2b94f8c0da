"""Which verifiers a row asks for: its optional column `reward`, a name or a list of names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COLUMN = "reward"


def wanted(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the names that a row's `reward` column lists; none where every reward applies.

    A column of that name that holds something else (numbers, say) is no routing.
    """
    value = row.get(COLUMN)
    if isinstance(value, str):
        return (value,) if value else ()
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value):
        return tuple(value)
    return ()


def routed_here(names: frozenset[str], row: Mapping[str, Any]) -> bool:
    """Returns whether a row asks for a reward that goes by these names."""
    asked = wanted(row)
    return not asked or not names.isdisjoint(asked)


def for_parts(name: str, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a row as the parts of a reward see it: one that asks for the whole by its name asks for all of them."""
    if name not in wanted(row):
        return row
    return {key: value for key, value in row.items() if key != COLUMN}
