"""Files of cases: completions with the value that they are worth, and what a grader of this package says of them.

One JSON object a line: `id`, `kind`, `completion` (a text, messages or null), `gold` (the answer, or what the kind
asks for), `expected` (a number, or a sentence where there is no value to give), `why`. Optional: `ambiguous`
(reasonable graders differ), `choices`, `option_texts`, `prompt`, `must_return_within_s`, `in_thread` (must also hold
off the main thread) and `danger` (run only under hard limits).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError

# kind -> the verifier that grades it
VERIFIERS = {
    "math": "math",
    "numeric": "gsm8k",
    "choice": "multiple_choice",
    "format": "think_format",
    "json": "json_schema",
    "code": "code",
    "length": "length",
    "repetition": "repetition",
}


@dataclass(frozen=True)
class Case:
    """One case, as a verifier is asked about it.

    Args:
        id: Its name.
        kind: A key of `VERIFIERS`.
        completion: The completion.
        row: The row that the verifier sees.
        options: The verifier's options.
        allowed: Values that are right; `None` among them where no verdict is.
        refused: The verifier must refuse to be built with these options.
        why: What the case is about.
        ambiguous: Reasonable graders differ.
        within_s: Seconds in which there must be a verdict, if it matters.
        in_thread: It must hold off the main thread too.
        danger: What it may do where nothing holds it back.
    """

    id: str
    kind: str
    completion: Any
    row: Mapping[str, Any]
    options: Mapping[str, Any]
    allowed: tuple[float | None, ...]
    refused: bool = False
    why: str = ""
    ambiguous: bool = False
    within_s: float | None = None
    in_thread: bool = False
    danger: str = ""
    source: str = field(default="", compare=False)

    def agrees(self, value: float | None) -> bool:
        """Returns whether a verdict's value is right."""
        return any(value is a if a is None or value is None else abs(value - a) < 1e-6 for a in self.allowed)

    @property
    def wanted(self) -> str:
        """What is right, in words."""
        return "an error" if self.refused else " or ".join("unscored" if a is None else f"{a:g}" for a in self.allowed)


def load_cases(path: str | Path) -> list[Case]:
    """Returns the cases of a file.

    Raises:
        UserError: There is no such file, or a line is no case; the message names the line.
    """
    file = Path(path)
    if not file.is_file():
        raise UserError(f"no such file of cases: {file}")
    cases = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            cases.append(parse_case(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file}, line {number} is no case: {type(error).__name__}: {error}") from error
    if not cases:
        raise UserError(f"{file} holds no cases")
    return cases


def parse_case(raw: Mapping[str, Any]) -> Case:
    """Returns a case from its JSON object.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: It has another form.
    """
    kind = raw["kind"]
    if kind not in VERIFIERS:
        raise UserError(f"unknown kind {kind!r}; known: {', '.join(VERIFIERS)}")
    options, columns = _KINDS[kind](raw)
    row = {"prompt": raw.get("prompt") or "", **columns}
    allowed, refused = expectation(raw["expected"])
    return Case(
        str(raw["id"]),
        kind,
        raw["completion"],
        row,
        options,
        allowed,
        refused,
        raw.get("why", ""),
        bool(raw.get("ambiguous", False)),
        raw.get("must_return_within_s"),
        bool(raw.get("in_thread", False)),
        str(raw.get("danger") or ""),
        raw.get("source", ""),
    )


def expectation(expected: Any) -> tuple[tuple[float | None, ...], bool]:
    """Returns (the values that are right, whether the verifier must refuse to be built).

    Args:
        expected: A number, `None`, or a sentence: "skip (None) or 0.0; never 1.0", "ValueError when it is built".

    Raises:
        ValueError: The sentence says neither a value nor an error.
    """
    if expected is None:
        return (None,), False
    if isinstance(expected, (int, float)):
        return (float(expected),), False
    sentence = str(expected)
    right = sentence.partition(";")[0].partition("never")[0]  # what follows is what must not be
    if "Error" in right or "built" in right:
        return (), True
    numbers: list[float | None] = [float(n) for n in re.findall(r"(?<![\w.])-?\d+(?:\.\d+)?", right)]
    skips = "skip" in right.lower() or "None" in right or "unscored" in right.lower()
    allowed = ([None] if skips else []) + numbers
    if not allowed:
        raise ValueError(f"`expected` is not understood: {sentence!r}")
    return tuple(allowed), False


# Each kind: from the raw case to (the verifier's options, the row's columns).
_Call = tuple[dict[str, Any], dict[str, Any]]


def _answer(raw: Mapping[str, Any]) -> _Call:
    return {}, {"answer": raw["gold"]}


def _choice(raw: Mapping[str, Any]) -> _Call:
    return {}, {"answer": raw["gold"], "choices": raw.get("option_texts") or raw["choices"]}


def _format(raw: Mapping[str, Any]) -> _Call:
    gold = raw["gold"]
    return {"answer_tag": gold["spec"] == "think_answer", "opened": bool(gold.get("prefilled", False))}, {}


def _json(raw: Mapping[str, Any]) -> _Call:
    gold = raw["gold"]
    return {}, {"schema": gold["schema"] if "schema" in gold else {"const": gold["value"]}}


def _code(raw: Mapping[str, Any]) -> _Call:
    return {}, {"answer": raw["gold"]}


def _length(raw: Mapping[str, Any]) -> _Call:
    gold = raw["gold"]
    row: dict[str, Any] = {"completion_ids": [0] * gold["n_tokens"]}
    if gold["rule"] == "soft_overlong":
        return {"max_tokens": gold["max_len"], "cache_tokens": gold["cache"]}, row
    if "correct_answer" in gold:
        row["correct"] = gold["correct_answer"]
    options = {"rule": "cosine", "max_tokens": gold["max_len"], "correct": gold["correct"], "wrong": gold["wrong"]}
    return options, row


def _repetition(raw: Mapping[str, Any]) -> _Call:
    gold = raw["gold"]
    row = {"completion_ids": gold.get("completion_ids", [])}
    return {"ngram": gold["ngram"], "max_penalty": gold["max_penalty"]}, row


_KINDS = {
    "math": _answer,
    "numeric": _answer,
    "choice": _choice,
    "format": _format,
    "json": _json,
    "code": _code,
    "length": _length,
    "repetition": _repetition,
}
