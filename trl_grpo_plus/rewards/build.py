"""From the `rewards` option of a recipe, or of a trainer, to reward functions with their weights."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import UserError, did_you_mean
from .combine import Clip, Gate, Sum, number
from .function import Reward, RewardFunction
from .plugins import broken_plugins
from .registry import COMBINATORS, Entry, from_target, get, known, names
from .runtime import Runtime
from .together import Together


class Weighted(NamedTuple):
    """A reward function in TRL's form (a `Reward`, or any callable that TRL takes) and its weight."""

    function: Callable[..., Any]
    weight: float

    @property
    def name(self) -> str:
        """Name in metrics, as TRL derives it."""
        if isinstance(self.function, Reward):
            return self.function.__name__
        from trl.trainer.utils import get_callable_name

        return str(get_callable_name(self.function))

    @property
    def accuracy(self) -> bool:
        """Whether the mean reward is an accuracy."""
        return bool(getattr(self.function, "accuracy", "accuracy" in self.name))

    @property
    def columns(self) -> tuple[str, ...]:
        """Dataset columns that it is known to read."""
        return tuple(getattr(self.function, "columns", ()))


def build_rewards(spec: Any, runtime: Runtime | None = None) -> tuple[Weighted, ...]:
    """Returns the reward functions that a `rewards` option names, with their weights, in its order.

    Args:
        spec: `None`, one entry, or a list of: a name; `{name: weight}`; `{name: {weight: w, option: value, ...}}`; in
            Python also verifiers themselves (functions, classes, objects) and functions in TRL's form. A name is a
            registered verifier, a combinator (`gate`, `clip`, `sum`), a function of `trl.rewards`, or
            `module:attribute`.
        runtime: Workers, cache and limits that they share; by default those of the process.

    Raises:
        UserError: A name or an option is unknown, or the list has another form.
    """
    if spec is None:
        return ()
    if isinstance(spec, Mapping):
        spec = [{name: options} for name, options in spec.items()]
    if isinstance(spec, str) or callable(spec) or hasattr(spec, "verify"):
        spec = [spec]
    if not isinstance(spec, Sequence):
        raise UserError(f"`rewards` must be a list of names, found {type(spec).__name__}: {spec!r}")
    rewards = tuple(_build(item) for item in spec)
    twice = [name for name, n in Counter(r.name for r in rewards).items() if n > 1]
    if twice:
        raise UserError(f"`rewards` names `{twice[0]}` twice; give one of them another name with the option `name`")
    ours = [reward.function for reward in rewards if isinstance(reward.function, Reward)]
    together = Together(ours)
    run_names = frozenset().union(*(reward.names for reward in ours))
    for reward in ours:
        reward.together = together if len(ours) > 1 else None
        reward.run_names = run_names
        if runtime is not None:
            reward.bind(runtime)
    return rewards


def check_columns(rewards: Sequence[Weighted], columns: Sequence[str], where: str) -> None:
    """Raises where the dataset lacks a column that a reward reads.

    Args:
        rewards: The rewards.
        columns: The dataset's columns.
        where: What the dataset is, for the message.

    Raises:
        UserError: A column is missing; the message names it and those that were found.
    """
    for reward in rewards:
        for column in reward.columns:
            if column not in columns:
                raise UserError(
                    f"reward `{reward.name}` reads the column `{column}`, which {where} lacks"
                    f"{did_you_mean(column, columns)}; its columns: {', '.join(columns)}. Map one to it, or name "
                    f"another one with the reward's option `column`"
                )


def _build(item: Any) -> Weighted:
    if isinstance(item, Weighted):
        return item
    if isinstance(item, Reward):
        return Weighted(item, 1.0)
    name, options = _name_and_options(item)
    shown = name if isinstance(name, str) else getattr(name, "__name__", repr(name))
    weight = options.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise UserError(f"reward `{shown}`: weight must be a number, found {weight!r}")
    if name in COMBINATORS:
        return Weighted(_combine(name, options), float(weight))
    target = _resolve(name) if isinstance(name, str) else from_target(name) or name
    if not isinstance(target, Entry):
        return Weighted(_trl_function(shown, target, options), float(weight))
    return Weighted(RewardFunction.of_entry(target, options, options.pop("name", None)), float(weight))


def _name_and_options(item: Any) -> tuple[Any, dict[str, Any]]:
    """Returns (name, or the verifier itself; its options) of an entry of the list."""
    if isinstance(item, str) or callable(item) or hasattr(item, "verify"):
        return item, {}
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, value),) = item.items()
        if not isinstance(name, str) and not callable(name):
            name = str(name)
        if value is None:
            return name, {}
        if isinstance(value, Mapping):
            return name, dict(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return name, {"weight": value}
        raise UserError(f"reward `{name}`: write a weight or options after it, found {value!r}")
    raise UserError(f"each entry of `rewards` is `name`, `name: weight` or `name: {{options}}`, found {item!r}")


# Combinators.


def _combine(kind: str, options: dict[str, Any]) -> Reward:
    known = {
        "gate": ("if", "then", "at_least", "otherwise"),
        "clip": ("of", "min", "max"),
        "sum": ("of",),
    }[kind]
    name = options.pop("name", None)
    for key in options:
        if key not in known:
            raise UserError(
                f"`{kind}` has no option `{key}`{did_you_mean(key, known)}; it has {', '.join(known)}, name"
            )
    for key in {"gate": ("if", "then")}.get(kind, ("of",)):
        if options.get(key) is None:
            raise UserError(f"`{kind}` needs `{key}`: a reward, as in `rewards`")
    if kind == "gate":
        condition, inner = _inner(kind, "if", options["if"]), _inner(kind, "then", options["then"])
        at_least = number("`gate`: at_least", options.get("at_least", 1.0))
        otherwise = number("`gate`: otherwise", options.get("otherwise", 0.0))
        return Gate(name or f"{inner.__name__}_if_{condition.__name__}", condition, inner, at_least, otherwise)
    inner = _inner(kind, "of", options["of"], name)
    if kind == "sum":
        return inner
    least, most = (
        None if options.get(key) is None else number(f"`clip`: {key}", options[key]) for key in ("min", "max")
    )
    if (least is None and most is None) or (least is not None and most is not None and least > most):
        raise UserError(f"`clip` needs `min`, `max` or both, min no larger than max; found {least} and {most}")
    return Clip(name or f"{inner.__name__}_clipped", inner, least, most)


def _inner(kind: str, key: str, spec: Any, name: str | None = None) -> Reward:
    """Returns what stands inside a combinator: one reward, or several as their weighted sum."""
    several = [{k: v} for k, v in spec.items()] if isinstance(spec, Mapping) else spec
    parts = [_build(item) for item in ([several] if not isinstance(several, list) else several)]
    rewards = []
    for part in parts:
        if not isinstance(part.function, Reward):
            raise UserError(f"`{kind}`: {key} takes verifiers, and `{part.name}` is a function in TRL's form")
        rewards.append(part.function)
    if not rewards:
        raise UserError(f"`{kind}`: {key} is empty")
    if len(rewards) == 1 and parts[0].weight == 1.0 and name is None:
        return rewards[0]
    return Sum(name or "_and_".join(r.__name__ for r in rewards), rewards, [part.weight for part in parts])


# Names.


def _trl_names() -> list[str]:
    import trl.rewards

    return [name for name in trl.rewards.__all__ if callable(getattr(trl.rewards, name))]


def _resolve(name: str) -> Any:
    """Returns the entry of the verifier, or the function in TRL's form, that `name` points to."""
    if ":" in name:
        target = load_attribute(name)
        return from_target(target) or target
    if known(name):
        return get(name)
    if name in _trl_names():
        import trl.rewards

        return getattr(trl.rewards, name)
    ours, theirs = sorted(names()), sorted(_trl_names())
    broken = "".join(f". Plugin {plugin} cannot be used: {problem}" for plugin, problem in broken_plugins().items())
    raise UserError(
        f"unknown reward `{name}`{did_you_mean(name, [*ours, *COMBINATORS, *theirs])}. Registered: {', '.join(ours)}; "
        f"from TRL: {', '.join(theirs)}; your own: `module:function`{broken}"
    )


def load_attribute(name: str) -> Any:
    """Returns what `module:attribute` names; the current directory is looked in as well.

    Raises:
        UserError: There is no such module or attribute, or the module raises.
    """
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as TRL does for rewards given by their dotted path
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"reward `{name}` cannot be loaded: {error}") from error


def _trl_function(name: str, target: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """Returns `target` with its options bound, or what it makes of them where it is a factory (`get_...` in TRL)."""
    if not callable(target):
        raise UserError(f"reward `{name}` is not callable, found {type(target).__name__}")
    parameters = inspect.signature(target).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for key in options:
        if key not in parameters and not takes_any:
            raise UserError(f"reward `{name}` has no option `{key}`{did_you_mean(key, parameters)}")
    if takes_any or "completions" in parameters or "completion_ids" in parameters:
        return functools.partial(target, **options) if options else target
    try:
        made = target(**options)
    except TypeError as error:
        raise UserError(f"reward `{name}`: {error}") from error
    if not callable(made):
        raise UserError(f"reward `{name}` takes no completions and makes no function, it made {type(made).__name__}")
    return made  # type: ignore[no-any-return]
