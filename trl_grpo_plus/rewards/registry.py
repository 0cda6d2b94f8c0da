"""The registry of verifiers: name -> verifier, its arguments, the row columns it needs, and how it runs.

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
from typing import Any, Literal

from ..errors import UserError, did_you_mean
from .arguments import converted
from .verdict import Verdict

Row = Mapping[str, Any]
Verify = Callable[[str, Row], Verdict]
Same = Callable[[str, str], bool]

# pool:   pure computation; in a worker process, killed when its time is up
# inline: so quick on any input that a process would cost more than it; in the caller's process
# thread: waits for something outside (a sandbox, an HTTP server) and has timeouts of its own; many at once
# batch:  wants all completions at once, on the trainer's device (a reward model); `verify_batch(completions, rows)`
Runs = Literal["pool", "inline", "thread", "batch"]
RUNS = ("pool", "inline", "thread", "batch")
# Names that mean rewards made of rewards; see `combine`.
COMBINATORS = ("gate", "clip", "sum")


def same_text(a: str, b: str) -> bool:
    """Returns whether two answers are equal as text, white space around them aside."""
    return a.strip() == b.strip()


@dataclass(frozen=True)
class Entry:
    """One registered verifier.

    Args:
        name: Name in recipes and metrics.
        target: The function `(completion, row, **options)` or the class with `verify(completion, row)`, or with
            `verify_batch(completions, rows)` where it runs as a batch.
        description: One line for tables.
        columns: Row columns that the verifier needs. A column may be renamed with the option `column` where the
            verifier reads exactly one.
        optional: Row columns that it reads where they are there; `prompt` and `completion_ids` among them. A verifier
            is shown the columns it names here and above, and all of them where it names none.
        aliases: Other names that mean the same.
        accuracy: Whether the mean value is an accuracy: the share of right answers.
        version: To be raised when the same input gets another verdict, so that cached ones are not used.
        runs: Where it runs; see `Runs`.
        same: Whether two extracted answers are equal, for votes; as text by default.
        cache: Whether verdicts may be served from the cache; by default those of `pool` and `thread`.
        imports: Modules that it imports when it first runs, and `module:function` to be called once; done in advance
            where it runs in a pool, so that the first completion's time is its own.
        options: The target's options, by name.
    """

    name: str
    target: Any
    description: str
    columns: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    accuracy: bool = False
    version: int = 1
    runs: Runs = "pool"
    same: Same = same_text
    cache: bool = True
    imports: tuple[str, ...] = ()
    options: Mapping[str, inspect.Parameter] = field(default_factory=dict)

    def check(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns `options` with each value in the type that the target asks for.

        Raises:
            UserError: An option is unknown, missing, or has another type; the message names it and the closest one.
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
        return converted(self.name, self.target, options)

    def make(self, **options: Any) -> Any:
        """Returns the verifier with `options` set: an instance of the class, or the function with its options.

        Raises:
            UserError: An option is unknown, missing, has another type, or a value that the verifier refuses.
        """
        options = self.check(options)
        if inspect.isclass(self.target):
            try:
                return self.target(**options)
            except UserError:
                raise
            except (ValueError, TypeError) as error:
                raise UserError(f"reward `{self.name}`: {error}") from error
        target = self.target
        if hasattr(target, "verify") or hasattr(target, "verify_batch"):
            return target  # an object, made by the user

        def bound(completion: str, row: Row) -> Verdict:
            verdict: Verdict = target(completion, row, **options)
            return verdict

        return bound

    def build(self, **options: Any) -> Verify:
        """Returns `verify(completion, row) -> Verdict` with `options` set.

        Raises:
            UserError: As `make`.
        """
        made = self.make(**options)
        return as_verify(made)


def as_verify(made: Any) -> Verify:
    """Returns `verify(completion, row)` of a verifier in any of its forms: function, or object."""
    if hasattr(made, "verify_batch") and not hasattr(made, "verify"):

        def one(completion: str, row: Row) -> Verdict:
            verdict: Verdict = made.verify_batch([completion], [row])[0]
            return verdict

        return one
    verify: Verify = made.verify if hasattr(made, "verify") else made
    return verify


_ENTRIES: dict[str, Entry] = {}
_NAMES: dict[str, str] = {}


def register(
    name: str,
    *,
    description: str,
    columns: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    accuracy: bool = False,
    version: int = 1,
    runs: Runs = "pool",
    same: Same | None = None,
    cache: bool | None = None,
    imports: tuple[str, ...] = (),
) -> Callable[[Any], Any]:
    """Registers a verifier function or class under `name`; use as a decorator.

    Args:
        name: Name in recipes; letters, digits and underscores.
        description: One line: what it pays for.
        columns: Row columns it needs.
        optional: Row columns it reads where they are there. It is shown no other columns than these and `columns`,
            unless it names none at all.
        aliases: Other names for it.
        accuracy: Whether the mean value is an accuracy: the share of right answers.
        version: To be raised when the same input gets another verdict.
        runs: `pool` (a worker process, killed when its time is up), `inline` (quick on any input), `thread` (waits
            for something outside; has its own timeouts) or `batch` (a class with `verify_batch(completions, rows) ->
            list[Verdict]`, in the trainer's process; `to(device)` is called where it has it).
        same: `(a, b) -> bool`, whether two extracted answers are equal; as text by default.
        cache: Whether verdicts may be cached; by default those of `pool` and `thread` are.
        imports: Modules it imports when it first runs, and `module:function` to warm it up, both done before any clock
            runs.

    Raises:
        ValueError: A name or alias is taken, or `runs` is none of the above.
    """
    if runs not in RUNS:
        raise ValueError(f"reward `{name}`: runs must be one of {', '.join(RUNS)}, found {runs!r}")

    def decorate(target: Any) -> Any:
        entry = Entry(
            name,
            target,
            description,
            tuple(columns),
            tuple(optional),
            tuple(aliases),
            accuracy,
            version,
            runs,
            same or same_text,
            runs in ("pool", "thread") if cache is None else cache,
            tuple(imports),
            _options_of(target),
        )
        for each in (name, *aliases):
            if each in COMBINATORS:
                raise ValueError(f"`{each}` is a combinator: a reward cannot have its name")
            if each in _NAMES:
                raise ValueError(f"a reward named `{each}` is registered already: {_ENTRIES[_NAMES[each]].target!r}")
        _ENTRIES[name] = entry
        _NAMES.update(dict.fromkeys((name, *aliases), name))
        return target

    return decorate


def _options_of(target: Any) -> dict[str, inspect.Parameter]:
    parameters = list(inspect.signature(target).parameters.values())
    if not inspect.isclass(target):
        parameters = parameters[2:]
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {p.name: p for p in parameters if p.kind not in kinds}


def get(name: str) -> Entry:
    """Returns the verifier registered under a name or an alias.

    Raises:
        UserError: No such name; the message names the closest one.
    """
    if not known(name):
        raise UserError(f"unknown reward `{name}`{did_you_mean(name, _NAMES)}; known: {', '.join(sorted(_NAMES))}")
    return _ENTRIES[_NAMES[name]]


def known(name: str) -> bool:
    """Returns whether a verifier goes by a name, other packages' included."""
    if name not in _NAMES:
        _load_plugins()
    return name in _NAMES


def names() -> list[str]:
    """Returns all names and aliases, other packages' included."""
    _load_plugins()
    return list(_NAMES)


def entries() -> list[Entry]:
    """Returns all registered verifiers, other packages' included, sorted by name."""
    _load_plugins()
    return registered()


def registered() -> list[Entry]:
    """Returns the verifiers that are registered so far, sorted by name."""
    return [_ENTRIES[name] for name in sorted(_ENTRIES)]


def _load_plugins() -> None:
    from .plugins import load_plugins

    load_plugins()


def is_registered(target: Any) -> bool:
    """Returns whether a function or class has registered itself."""
    return any(entry.target is target for entry in _ENTRIES.values())


def from_target(target: Any) -> Entry | None:
    """Returns the entry of a verifier given as an object: registered or not, in the form that `register` takes.

    Returns `None` where `target` is no verifier (a reward function in TRL's form, say).
    """
    for entry in _ENTRIES.values():
        if entry.target is target:
            return entry
    if inspect.isclass(target):
        if callable(getattr(target, "verify_batch", None)):
            return Entry(target.__name__, target, "", runs="batch", cache=False, options=_options_of(target))
        if callable(getattr(target, "verify", None)):
            return Entry(target.__name__, target, "", options=_options_of(target))
        return None
    name = getattr(target, "__name__", type(target).__name__)
    if callable(getattr(target, "verify_batch", None)):
        return Entry(name, target, "", runs="batch", cache=False)
    if callable(getattr(target, "verify", None)):
        return Entry(name, target, "")
    if not callable(target) or list(inspect.signature(target).parameters)[:2] != ["completion", "row"]:
        return None
    return Entry(name, target, "", options=_options_of(target))
