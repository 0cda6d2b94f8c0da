r"""`math-verify`, for what the grammar does not read: integrals, limits and their kind.

Stage: rewards, `math`. sympy evaluates these without a bound on its time, so they are asked for only where it can be
stopped: by signals in the main thread, where a worker process runs its verifiers, and by the worker's own limit.
"""

from __future__ import annotations

import re
import threading

from .normalise import normalise

_TIMEOUT_S = 3
_MAX_CHARS = 300
_BEYOND = re.compile(r"\\(?:int|iint|oint|lim|limsup|liminf)(?![A-Za-z])|\\frac\s*\{\s*(?:d|\\partial)\b")
_NUMBER_TOO_LARGE = re.compile(r"\d{7}|\^\s*\{?\s*\d{4}|\^\s*(?:\{[^}^]{0,40}|\w{1,40}\s*)\^|\^\s*\{\s*\{|!")


class NeedsMainThread(RuntimeError):
    """Outside the main thread nothing could stop the computation."""


def beyond_the_grammar(gold: str, answer: str) -> bool:
    """Returns whether one of two answers holds an integral, a limit or a derivative, and both are small."""
    if len(gold) > _MAX_CHARS or len(answer) > _MAX_CHARS:
        return False
    texts = [normalise(text) for text in (gold, answer)]
    return any(_BEYOND.search(text) for text in texts) and not any(_NUMBER_TOO_LARGE.search(text) for text in texts)


def equal_by_math_verify(gold: str, answer: str) -> bool | None:
    """Returns whether `math-verify` takes two answers for equal, `None` where it cannot tell.

    Raises:
        NeedsMainThread: Called in another thread, where its timeouts do not work.
    """
    if threading.current_thread() is not threading.main_thread():
        raise NeedsMainThread("an integral or limit: math-verify can only be stopped in the main thread")
    from math_verify import LatexExtractionConfig, parse, verify
    from math_verify.errors import TimeoutException

    try:
        sides = [
            parse(f"${normalise(text)}$", [LatexExtractionConfig()], parsing_timeout=_TIMEOUT_S, raise_on_error=True)
            for text in (gold, answer)
        ]
        if not all(len(side) == 2 for side in sides):  # an expression and its text; less where it does not parse
            return None
        return bool(verify(*sides, float_rounding=12, timeout_seconds=_TIMEOUT_S, raise_on_error=True))
    except TimeoutException:
        return None
    except Exception:  # whatever parsers and sympy raise on what they do not know
        return None
