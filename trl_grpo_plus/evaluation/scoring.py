"""From samples to verdicts, and from verdicts to what the estimates count: right, answer, vote.

Stage: evaluation. In: samples, the problems' rows, rewards by name. Out: one `Scored` per sample. Knows nothing of
models: rejection sampling scores its samples here as well.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..rewards import Reward, Verdict, Weighted, build_rewards, entries
from ..rewards.registry import same_text
from .sampling import Sample

_FULL_MARK = 1.0 - 1e-6


@dataclass(frozen=True, slots=True)
class Scored:
    """One sample with its verdicts.

    Args:
        sample: The sample.
        verdicts: Verdict of each reward, by its name.
        reward: Weighted sum of the values, over the rewards that scored it, as TRL does; `None` where none did.
        value: Value of the verdict that says whether the answer is right, in [0, 1]; `None` where none could.
        right: Whether that value is 1; `None` where there is none.
        answer: The extracted answer, `None` where there is none.
        vote: Number of its class of equal answers within the problem, `None` where it abstains.
    """

    sample: Sample
    verdicts: Mapping[str, Verdict]
    reward: float | None
    value: float | None
    right: bool | None
    answer: str | None
    vote: int | None


def score_samples(
    samples: Sequence[Sample],
    rows: Sequence[Mapping[str, Any]] | Any,
    rewards: Any,
    *,
    correct: str | None = None,
    votes: bool = True,
    device: Any = None,
) -> list[Scored]:
    """Returns the samples with verdicts, in their order.

    Whether a sample is right is said by the first reward that scored it among those whose value is an accuracy: it is
    right where the value is 1. Data of several kinds can so have a verifier each.

    Args:
        samples: The samples; `sample.problem` is an index into `rows`.
        rows: The problems: a dataset or a sequence of mappings, with `prompt` and the columns that the rewards read.
        rewards: As the `rewards` option of a recipe, or what `build_rewards` made of it.
        correct: Name of the reward that says what is right, instead.
        votes: Whether to group equal answers, which asks the verifier about pairs of answers.
        device: Where rewards that are models compute; `None` leaves them where they are.

    Raises:
        UserError: No reward says what is right, or `correct` names none of them.
    """
    weighted = build_rewards(rewards)
    judges = judges_of(weighted, correct)
    for each in weighted:
        if device is not None and isinstance(each.function, Reward):
            each.function.to(device)
    rows_of = [dict(rows[i]) for i in range(len(rows))]
    per_reward = {each.name: _verdicts(each, samples, rows_of) for each in weighted}

    decided = []
    for i in range(len(samples)):
        judge = next((j for j in judges if per_reward[j.name][i].value is not None), None)
        decided.append((judge, per_reward[judge.name][i] if judge else None))
    classes = _classes(samples, decided) if votes else [None] * len(samples)

    scored = []
    for i, sample in enumerate(samples):
        verdict = decided[i][1]
        value = verdict.value if verdict else None
        values = [(r.weight, per_reward[r.name][i].value) for r in weighted]
        paid = [weight * each for weight, each in values if each is not None]
        scored.append(
            Scored(
                sample,
                {name: verdicts[i] for name, verdicts in per_reward.items()},
                math.fsum(paid) if paid else None,
                value,
                None if value is None else value >= _FULL_MARK,
                verdict.answer if verdict else None,
                classes[i],
            )
        )
    return scored


def judges_of(rewards: Sequence[Weighted], correct: str | None = None) -> list[Weighted]:
    """Returns the rewards that say what is right, in the order in which they are asked.

    Args:
        rewards: All rewards.
        correct: Name of the one that says it, instead of all that are accuracies.

    Raises:
        UserError: There is none.
    """
    names = [r.name for r in rewards]
    if correct is not None:
        if correct not in names:
            raise UserError(f"correct: no reward is named `{correct}`; the rewards are {', '.join(names) or 'none'}")
        return [r for r in rewards if r.name == correct]
    judges = [r for r in rewards if r.accuracy]
    if not judges:
        known = ", ".join(entry.name for entry in entries() if entry.accuracy)
        raise UserError(
            f"rewards: none of {', '.join(names) or '(none)'} says which answers are right. Name one that does "
            f"({known}), or say which of them decides with `correct`"
        )
    return judges


def _verdicts(reward: Weighted, samples: Sequence[Sample], rows: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Returns the verdict of one reward on each sample."""
    columns = [{**rows[s.problem], "completion_ids": list(s.ids)} for s in samples]
    function: Any = reward.function
    if isinstance(function, Reward):
        return function.verdicts([s.text for s in samples], columns)
    # A function in TRL's form: lists in, numbers out; completions are messages where the prompts are.
    prompts = [row["prompt"] for row in columns]
    completions: list[Any] = [
        s.text if isinstance(prompt, str) else [{"role": "assistant", "content": s.text}]
        for s, prompt in zip(samples, prompts, strict=True)
    ]
    extra = {k: [row.get(k) for row in columns] for k in (columns[0] if columns else {}) if k != "prompt"}
    values = function(prompts=prompts, completions=completions, **extra)
    if inspect.isawaitable(values):
        values = asyncio.run(_await(values))
    return [
        Verdict(float(v)) if v is not None and math.isfinite(v) else Verdict.unscored(f"returned {v}") for v in values
    ]


async def _await(values: Any) -> Any:
    return await values


def _classes(samples: Sequence[Sample], decided: Sequence[tuple[Weighted | None, Verdict | None]]) -> list[int | None]:
    """Returns for each sample the number of its class of equal answers within its problem.

    Equality is the verifier's (`same`), asked once for each pair of a new answer and a class's first one.
    """
    found: list[int | None] = []
    firsts: dict[int, list[tuple[str, str]]] = {}  # problem -> (judge, first answer) of each class
    known: dict[tuple[int, str, str], int] = {}  # (problem, judge, answer) -> class
    for sample, (judge, verdict) in zip(samples, decided, strict=True):
        if judge is None or verdict is None or verdict.answer is None:
            found.append(None)
            continue
        key = (sample.problem, judge.name, verdict.answer)
        if key not in known:
            classes = firsts.setdefault(sample.problem, [])
            same = _same(judge)
            for number, (name, first) in enumerate(classes):
                if name == judge.name and same(first, verdict.answer):
                    known[key] = number
                    break
            else:
                known[key] = len(classes)
                classes.append((judge.name, verdict.answer))
        found.append(known[key])
    return found


def _same(judge: Weighted) -> Callable[[str, str], bool]:
    function: Any = judge.function
    own = function.same if isinstance(function, Reward) else same_text

    def same(a: str, b: str) -> bool:
        try:
            return same_text(a, b) or bool(own(a, b))
        except Exception:  # a verifier that cannot compare two answers has not found them equal
            return False

    return same
