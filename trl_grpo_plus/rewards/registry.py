"""The registry of verifiers: name -> verifier, its arguments, the row columns it needs.

Stage: rewards. A verifier sees one completion (a string) and its row (the dataset's columns), never the trainer:

    @register("starts_with", columns=("answer",), description="1.0 where the completion starts with the answer")
    def starts_with(completion: str, row: Row, *, strip: bool = True) -> Verdict: ...

A function takes its options as keyword arguments after `(completion, row)`; a class takes them in `__init__` and has a
`verify(completion, row)` method. Options are therefore typed, have defaults, and are checked when the reward is named.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError, did_you_mean
from .verdict import Verdict

Row = Mapping[str, Any]
Verify = Callable[[str, Row], Verdict]


@dataclass(frozen=True)
class Entry:
    """One registered verifier.

    Args:
        name: Name in recipes and metrics.
        target: The function `(completion, row, **options)` or the class with `verify(completion, row)`.
        description: One line for tables.
        columns: Row columns that the verifier reads. A column may be renamed with the option `column` where the
            verifier reads exactly one.
        aliases: Other names that mean the same.
        accuracy: Whether the mean value is an accuracy: the share of right answers.
        options: The target's options, by name.
    """

    name: str
    target: Any
    description: str
    columns: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    accuracy: bool = False
    options: Mapping[str, inspect.Parameter] = field(default_factory=dict)

    def build(self, **options: Any) -> Verify:
        """Returns `verify(completion, row) -> Verdict` with `options` set.

        Raises:
            UserError: An option is unknown or missing; the message names the closest one.
        """
        for key in options:
            if key not in self.options:
                raise UserError(
                    f"reward `{self.name}` has no option `{key}`{did_you_mean(key, self.options)}; "
                    f"its options are: {', '.join(self.options) or 'none'}"
                )
        missing = [k for k, p in self.options.items() if p.default is inspect.Parameter.empty and k not in options]
        if missing:
            raise UserError(f"reward `{self.name}` needs the option(s) {', '.join(f'`{k}`' for k in missing)}")
        if inspect.isclass(self.target):
            verifier: Any = self.target(**options)
            verify: Verify = verifier.verify
            return verify
        target = self.target

        def bound(completion: str, row: Row) -> Verdict:
            verdict: Verdict = target(completion, row, **options)
            return verdict

        return bound


_ENTRIES: dict[str, Entry] = {}
_NAMES: dict[str, str] = {}


def register(
    name: str,
    *,
    description: str,
    columns: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    accuracy: bool = False,
) -> Callable[[Any], Any]:
    """Registers a verifier function or class under `name`; use as a decorator.

    Args:
        name: Name in recipes; letters, digits and underscores.
        description: One line: what it pays for.
        columns: Row columns it reads.
        aliases: Other names for it.
        accuracy: Whether the mean value is an accuracy: the share of right answers.

    Raises:
        ValueError: A name or alias is taken.
    """

    def decorate(target: Any) -> Any:
        parameters = list(inspect.signature(target).parameters.values())
        if not inspect.isclass(target):
            parameters = parameters[2:]
        entry = Entry(name, target, description, columns, aliases, accuracy, {p.name: p for p in parameters})
        for each in (name, *aliases):
            if each in _NAMES:
                raise ValueError(f"a reward named `{each}` is registered already: {_ENTRIES[_NAMES[each]].target!r}")
        _ENTRIES[name] = entry
        _NAMES.update(dict.fromkeys((name, *aliases), name))
        return target

    return decorate


def get(name: str) -> Entry:
    """Returns the verifier registered under a name or an alias.

    Raises:
        UserError: No such name; the message names the closest one.
    """
    if name not in _NAMES:
        raise UserError(f"unknown reward `{name}`{did_you_mean(name, _NAMES)}; known: {', '.join(sorted(_NAMES))}")
    return _ENTRIES[_NAMES[name]]


def names() -> list[str]:
    """Returns all names and aliases."""
    return list(_NAMES)


def entries() -> list[Entry]:
    """Returns all registered verifiers, sorted by name."""
    return [_ENTRIES[name] for name in sorted(_ENTRIES)]


def from_target(target: Any) -> Entry | None:
    """Returns the entry of a verifier given as an object: registered or not, in the form that `register` takes.

    Returns `None` where `target` is no verifier (a reward function in TRL's form, say).
    """
    for entry in _ENTRIES.values():
        if entry.target is target:
            return entry
    parameters = list(inspect.signature(target).parameters.values()) if callable(target) else []
    if inspect.isclass(target):
        if not callable(getattr(target, "verify", None)):
            return None
        return Entry(target.__name__, target, "", options={p.name: p for p in parameters})
    if [p.name for p in parameters[:2]] != ["completion", "row"]:
        return None
    return Entry(target.__name__, target, "", options={p.name: p for p in parameters[2:]})
