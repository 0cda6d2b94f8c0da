"""The quickstart's rewards: the registered `exact_match` and `think_format`, and the control's coin flip.

Stage: rewards. `REWARDS` is what a recipe would say; the evaluation asks the same verifier what a right answer is.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from ..rewards import get

# The answer must stand in exactly one `<answer>`; the whole form is worth a tenth of a right answer.
CORRECT: dict[str, Any] = {"exact_match": {"weight": 1.0}}
WELL_FORMED: dict[str, Any] = {"think_format": {"weight": 0.1, "answer_tag": True}}
REWARDS = [CORRECT, WELL_FORMED]

_exact_match = get("exact_match").build()


def is_correct(text: str, answer: str) -> bool:
    """Returns whether a completion is worth the full reward for its answer."""
    return _exact_match(text, {"answer": answer}).value == 1.0


def is_worked(text: str) -> bool:
    """Returns whether the `<think>` part of `text` writes at least one equation, right or wrong."""
    return "=" in text.partition("<think>")[2].partition("</think>")[0]


def coin_flip(seed: int, chance: float) -> Callable[..., list[float]]:
    """Returns the control's reward, called `random`: 1.0 with probability `chance` whatever the completion says.

    Args:
        seed: Fixes the flips; they do not touch the global random state.
        chance: In [0, 1]; set to the accuracy before training, so that only the meaning of the reward is taken away.
    """
    rng = random.Random(f"coin-{seed}")

    def random_reward(completions: Sequence[Any], **_: Any) -> list[float]:
        return [float(rng.random() < chance) for _ in completions]

    random_reward.__name__ = "random"
    return random_reward
