"""From names in a recipe to what a trainer calls: reward functions in TRL's form, with their weights.

Stage: rewards. In: the `rewards` option, and per step the completions and the dataset's columns. Out: one value or
`None` per completion. Each completion is verified by itself, and a verifier that raises costs only that completion.
"""

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

import trl.rewards
from trl.trainer.utils import get_callable_name

from ..errors import UserError, did_you_mean
from .registry import Entry, Row, Same, Verify, from_target, get, names, same_text
from .text import completion_text
from .verdict import Verdict, as_verdict


class RewardFunction:
    """A verifier as a reward function: called with lists by a trainer, verifies each completion by itself.

    Args:
        name: Name in metrics and in the completion log.
        verify: `(completion, row) -> Verdict`.
        columns: Dataset columns that `verify` reads.
        accuracy: Whether the value says how many answers are right, so that its mean is an accuracy.
        same: Whether two extracted answers are equal, for votes.
    """

    def __init__(
        self,
        name: str,
        verify: Verify,
        columns: Sequence[str] = (),
        accuracy: bool = False,
        same: Same = same_text,
    ) -> None:
        self.__name__ = name  # TRL names its metrics after this
        self.verify = verify
        self.columns = tuple(columns)
        self.accuracy = accuracy
        self.same = same

    def __repr__(self) -> str:
        return f"RewardFunction({self.__name__})"

    def verdict(self, completion: Any, row: Mapping[str, Any]) -> Verdict:
        """Returns the verdict on one completion (a string or messages); never raises.

        What the verifier raises, and values that are not finite numbers, come back as `None` with the reason.
        """
        try:
            return as_verdict(self.verify(completion_text(completion), row))
        except Exception as error:
            return Verdict.failed(f"{type(error).__name__}: {error}"[:200])

    def verdicts(self, completions: Sequence[Any], rows: Sequence[Row]) -> list[Verdict]:
        """Returns the verdict on each completion, in order; never raises for what a verifier does.

        Args:
            completions: Strings or messages.
            rows: The row of each completion: the dataset's columns and `prompt`; `completion_ids` where known.
        """
        return [self.verdict(completion, row) for completion, row in zip(completions, rows, strict=True)]

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        log_extra: Callable[[str, list[Any]], None] | None = None,
        log_metric: Callable[[str, float], None] | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Returns one value per completion, `None` where it could not be scored.

        Args:
            prompts: The prompt of each completion.
            completions: The completions, B*G of them.
            log_extra: TRL's hook for columns of the completion log.
            log_metric: TRL's hook for metrics.
            **columns: The dataset's columns, each a list with one entry per completion, and what else TRL passes.
        """
        per_row = {k: v for k, v in columns.items() if isinstance(v, list) and len(v) == len(completions)}
        rows = [{"prompt": p, **{k: v[i] for k, v in per_row.items()}} for i, p in enumerate(prompts)]
        verdicts = self.verdicts(completions, rows)
        unscored = Counter(v.reason for v in verdicts if v.value is None)
        if log_extra is not None:
            log_extra(f"{self.__name__}_answer", [v.answer for v in verdicts])
            log_extra(f"{self.__name__}_reason", [v.reason for v in verdicts])
        if log_metric is not None:
            log_metric(f"rewards/{self.__name__}/unscored", sum(unscored.values()) / len(verdicts))
        return [v.value for v in verdicts]


class Weighted(NamedTuple):
    """A reward function in TRL's form (a `RewardFunction`, or any callable that TRL takes) and its weight."""

    function: Callable[..., Any]
    weight: float

    @property
    def name(self) -> str:
        """Name in metrics, as TRL derives it."""
        return str(get_callable_name(self.function))

    @property
    def accuracy(self) -> bool:
        """Whether the mean reward is an accuracy."""
        return bool(getattr(self.function, "accuracy", "accuracy" in self.name))

    @property
    def columns(self) -> tuple[str, ...]:
        """Dataset columns that it is known to read."""
        return tuple(getattr(self.function, "columns", ()))


def build_rewards(spec: Any) -> tuple[Weighted, ...]:
    """Returns the reward functions that a `rewards` option names, with their weights, in its order.

    Args:
        spec: `None`, one name, or a list of: a name; `{name: weight}`; `{name: {weight: w, option: value, ...}}`; a
            `RewardFunction`. A name is a registered verifier, a function of `trl.rewards`, or `module:attribute`.

    Raises:
        UserError: A name or an option is unknown, or the list has another form.
    """
    if spec is None:
        return ()
    if isinstance(spec, Mapping):
        spec = [{name: options} for name, options in spec.items()]
    if isinstance(spec, (str, RewardFunction)):
        spec = [spec]
    if not isinstance(spec, Sequence):
        raise UserError(f"`rewards` must be a list of names, found {type(spec).__name__}: {spec!r}")
    rewards = tuple(_build(item) for item in spec)
    twice = [name for name, n in Counter(r.name for r in rewards).items() if n > 1]
    if twice:
        raise UserError(f"`rewards` names `{twice[0]}` twice; give one of them another name with the option `name`")
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
    if isinstance(item, RewardFunction):
        return Weighted(item, 1.0)
    name, options = _name_and_options(item)
    weight = options.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not math.isfinite(weight):
        raise UserError(f"reward `{name}`: weight must be a number, found {weight!r}")
    target = _resolve(name)
    if not isinstance(target, Entry):
        return Weighted(_trl_function(name, target, options), float(weight))
    shown = options.pop("name", target.name)
    verify = target.build(**options)
    columns = [options.get("column", column) for column in target.columns]
    return Weighted(RewardFunction(shown, verify, columns, target.accuracy, target.same), float(weight))


def _name_and_options(item: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(item, str):
        return item, {}
    if isinstance(item, Mapping) and len(item) == 1:
        ((name, value),) = item.items()
        if value is None:
            return str(name), {}
        if isinstance(value, Mapping):
            return str(name), dict(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(name), {"weight": value}
        raise UserError(f"reward `{name}`: write a weight or options after it, found {value!r}")
    raise UserError(f"each entry of `rewards` is `name`, `name: weight` or `name: {{options}}`, found {item!r}")


def _trl_names() -> list[str]:
    return [name for name in trl.rewards.__all__ if callable(getattr(trl.rewards, name))]


def _resolve(name: str) -> Any:
    """Returns the registered verifier, or the object that `name` points to."""
    if ":" not in name:
        if name in names():
            return get(name)
        if name in _trl_names():
            return getattr(trl.rewards, name)
        raise UserError(
            f"unknown reward `{name}`{did_you_mean(name, [*names(), *_trl_names()])}. Registered: "
            f"{', '.join(sorted(names()))}; from TRL: {', '.join(sorted(_trl_names()))}; your own: `module:function`"
        )
    module_name, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as TRL does for rewards given by their dotted path
    try:
        target = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise UserError(f"reward `{name}` cannot be loaded: {error}") from error
    return from_target(target) or target


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
