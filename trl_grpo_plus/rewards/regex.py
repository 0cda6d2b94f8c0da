"""`regex`: 1.0 where the completion matches a regular expression.

A pattern can take time exponential in the length of the text (`(a+)+$`); that is stopped from outside, by the time
limit of the worker that runs it.
"""

from __future__ import annotations

import re

from ..errors import UserError
from .registry import Row, register
from .text import without_reasoning
from .verdict import Verdict


@register("regex", description="1.0 where a regular expression matches what follows the reasoning", version=2)
class Regex:
    r"""Scores 1.0 where the pattern occurs, 0.0 elsewhere.

    Args:
        pattern: The pattern for all rows, as Python's `re` reads it (`(?i)` at its start ignores case); `None` takes
            each row's own.
        column: Column of the row's pattern; read where `pattern` is `None`.
        whole: The whole text must match (white space around it aside), not a part of it.
        reasoning: Look at the whole completion, the reasoning too.

    Raises:
        UserError: `pattern` is no regular expression.
    """

    def __init__(
        self, pattern: str | None = None, column: str = "pattern", whole: bool = False, reasoning: bool = False
    ) -> None:
        self.column, self.whole, self.reasoning = column, whole, reasoning
        self._pattern: re.Pattern[str] | None = None
        if pattern is not None:
            try:
                self._pattern = re.compile(pattern)
            except (re.error, TypeError) as error:
                raise UserError(f"reward `regex`: pattern {pattern!r} does not compile: {error}") from error

    def verify(self, completion: str, row: Row) -> Verdict:
        """Returns the verdict on one completion."""
        pattern = self._pattern
        if pattern is None:
            if not isinstance(row.get(self.column), str):
                return Verdict.unscored(f"the row has no `{self.column}`")
            try:
                pattern = re.compile(row[self.column])
            except re.error as error:
                return Verdict.unscored(f"the row's `{self.column}` does not compile: {error}")
        stated = completion if self.reasoning else without_reasoning(completion)
        if stated is None:
            return Verdict(0.0, None, "the reasoning is not closed")
        found = pattern.fullmatch(stated.strip()) if self.whole else pattern.search(stated)
        if found is None:
            return Verdict(0.0, None, "no match")
        return Verdict(1.0, found.group()[:500], "matches")
