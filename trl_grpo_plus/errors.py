"""The one error type that means "the user's input is at fault": the command line prints it without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input: the message names the option or file, what was found, and what to do."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns " (did you mean `x`?)" with the closest of `known`, or an empty string where none is close."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean `{match[0]}`?)" if match else ""
