"""The rewards of one trainer at the same time.

TRL calls reward functions one after the other. The first of ours that is asked for a batch starts the others on it as
well, in threads that wait for the workers; when TRL comes to them, their verdicts are there. A reward that computes on
the trainer's device or in this process anyway is left to its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from .function import Reward, Scored
from .registry import Row


class Together:
    """The rewards that are asked for the same batches.

    Args:
        rewards: The rewards.
    """

    def __init__(self, rewards: Sequence[Reward]) -> None:
        self.rewards = tuple(rewards)
        self._lock = threading.Lock()
        self._completions: Any = None  # the batch that is under way; kept, so that no other takes its identity
        self._under_way: dict[int, Future[Scored]] = {}

    def score(self, reward: Reward, completions: Sequence[Any], rows: Sequence[Row]) -> Scored:
        """Returns what `reward` says of a batch, and sees to it that the others are at it too.

        Args:
            reward: One of the rewards.
            completions: The batch; the same object for all of them.
            rows: Its rows, equal for all of them.
        """
        with self._lock:
            if self._completions is not completions:
                self._completions = completions
                self._under_way = {
                    id(other): _start(other, completions, rows)
                    for other in self.rewards
                    if other is not reward and not other.on_device and other.waits
                }
            mine = self._under_way.pop(id(reward), None)
            if not self._under_way:
                self._completions = None
        return reward.score(completions, rows) if mine is None else mine.result()


def _start(reward: Reward, completions: Sequence[Any], rows: Sequence[Row]) -> Future[Scored]:
    future: Future[Scored] = Future()

    def work() -> None:
        try:
            future.set_result(reward.score(completions, rows))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, name=f"reward-{reward.__name__}", daemon=True).start()
    return future
