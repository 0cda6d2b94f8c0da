"""How often completions reflect: the share with words like "wait" and "verify", and their number, as logged metrics.

DeepSeek-R1-Zero's completions grew longer and more reflective in training (arXiv 2501.12948; the words are those of
Extended Data Fig. 1a of its version in Nature, 10.1038/s41586-025-09422-z). A word is counted where it stands by
itself, in any case: "recheck" and "checked" are other words. Counts show style, not that reflecting helps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback

from .errors import UserError
from .rewards.text import completion_text

WORDS = ("wait", "mistake", "however", "but", "retry", "error", "verify", "wrong", "evaluate", "check")


def words_of(option: Any) -> tuple[str, ...]:
    """Returns the words that the option `reflection_words` asks for.

    Args:
        option: `None` for none, `default` for `WORDS`, or a list of words.

    Raises:
        UserError: It is something else.
    """
    if option is None or option == []:
        return ()
    if option in ("default", ["default"]):
        return WORDS
    if isinstance(option, Sequence) and not isinstance(option, str) and all(isinstance(w, str) and w for w in option):
        return tuple(option)
    raise UserError(f"reflection_words must be `default` or a list of words, found {option!r}")


class ReflectionWords(TrainerCallback):  # type: ignore[misc]
    """Adds `reflection/share` and `reflection/words` to what a GRPO trainer logs.

    Args:
        trainer: The trainer, whose completions of the last rollout are counted at the end of each step.
        words: The words.
    """

    def __init__(self, trainer: Any, words: Sequence[str] = WORDS) -> None:
        self.trainer = trainer
        self.pattern = re.compile(rf"\b(?:{'|'.join(re.escape(word) for word in words)})\b", re.IGNORECASE)

    def count(self, text: str) -> int:
        """Returns how many of the words a text has, repeats counted."""
        return len(self.pattern.findall(text))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Counts, before the step is logged."""
        counts = [self.count(completion_text(each)) for each in self.trainer._logs["completion"]]
        if counts:
            metrics = self.trainer._metrics["train"]
            metrics["reflection/share"].append(sum(n > 0 for n in counts) / len(counts))
            metrics["reflection/words"].append(sum(counts) / len(counts))
