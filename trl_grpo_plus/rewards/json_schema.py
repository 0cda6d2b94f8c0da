"""`json_schema`: 1.0 where the completion's JSON is valid under a JSON Schema (by `jsonschema`).

What is checked is JSON as the standard has it: single quotes, trailing commas, comments, `NaN` and repeated keys are
errors. The answer is found in what people really write: the whole text, a fence, or an object amid prose. A value that
is broken or cut off is never mended, and nothing inside it is taken for the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import UserError
from .registry import Row, register
from .text import last_answer_tag, without_reasoning
from .verdict import Verdict

_FENCE = re.compile(
    r"^[ \t]*+(`{3,8}|~{3,8})[ \t]*+([\w+-]{0,20})[^\n]*+\n(.*?)(?:(?<![`~])\1[ \t]*+$|\Z)", re.MULTILINE | re.DOTALL
)
_BRACKET = re.compile(r"[{\[]")
_CUT_OFF = re.compile(r"[{\[]\s*[\"'{\[\d]")  # an opening bracket as JSON has it
_CITATION = re.compile(r"\[\s*\d+\s*\]\Z")
_MAX_CHARS = 200_000
_MAX_STARTS = 1000  # brackets in the prose at which JSON is looked for


class _NotJson(ValueError):
    """The text is no JSON; the message says why."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _NotJson("a key occurs twice")
    return value


def _no_constant(name: str) -> Any:
    raise _NotJson(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)


def _decode(text: str, start: int = 0) -> tuple[Any, int]:
    """Returns (value, end) of the JSON that begins at `start`.

    Raises:
        _NotJson: There is none.
    """
    try:
        return _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:  # ValueError: also integers beyond Python's limit of digits
        raise _NotJson(getattr(error, "msg", None) or str(error) or type(error).__name__) from None


def _whole(text: str) -> Any:
    text = text.strip().lstrip("\ufeff")
    value, end = _decode(text)
    if text[end:].strip():
        raise _NotJson("text follows the JSON")
    return value


def _closing(text: str) -> dict[int, int]:
    """Returns the position of the closing bracket of each opening one that has one, by counting (blind to strings)."""
    stack, closes = [], {}
    for match in re.finditer(r"[{}\[\]]", text):
        if match.group() in "{[":
            stack.append(match.start())
        elif stack:
            closes[stack.pop()] = match.start()
    return closes


def _in_prose(text: str) -> Iterator[tuple[Any, str]]:
    """Yields (value, as written) of each object and array amid prose, outermost ones only."""
    closes = _closing(text)
    at = 0
    for _ in range(_MAX_STARTS):
        found = _BRACKET.search(text, at)
        if found is None:
            return
        start = found.start()
        try:
            value, at = _decode(text, start)
            yield value, text[start:at]
        except _NotJson:
            if start in closes:  # no JSON (`ls {a,b}`), or broken: what stands in it is no answer of its own
                at = closes[start] + 1
            elif _CUT_OFF.match(text, start):
                return  # cut off
            else:
                at = start + 1


def find_json(text: str) -> Any:
    """Returns the value of the JSON that a text states as its answer.

    Args:
        text: A completion without its reasoning. The whole text if it is JSON; else the last fence that holds JSON,
            where a fence marked `json` must; else the last object amid the prose, or the last array where there is no
            object and it is no citation (`[1]`).

    Raises:
        ValueError: There is none, or it is broken; the message says why.
    """
    tagged = last_answer_tag(text)
    text = text if tagged is None else tagged
    if len(text) > _MAX_CHARS:
        raise _NotJson(f"the text has {len(text)} characters")
    try:
        return _whole(text)
    except _NotJson as error:
        if text.lstrip()[:1] in ("{", "[", '"') and text.rstrip()[-1:] in ("}", "]", '"', ""):
            why: _NotJson | None = error
        else:
            why = None
    for fence in reversed(list(_FENCE.finditer(text))):
        label, content = fence[2].lower(), fence[3]
        try:
            return _whole(content)
        except _NotJson:
            if label.startswith("json"):
                raise
    found = list(_in_prose(text))
    objects = [value for value, _ in found if isinstance(value, Mapping)]
    arrays = [value for value, written in found if not _CITATION.match(written)]
    if objects or arrays:
        return (objects or arrays)[-1]
    raise why or _NotJson("no JSON found")


def _load(schema: Any, where: str) -> Any:
    """Returns a validator of a schema (a mapping, a boolean, or JSON text of one).

    Raises:
        UserError: It is no JSON Schema.
    """
    from jsonschema import exceptions, validators
    from referencing import Registry

    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise UserError(f"{where} is not JSON: {error}") from error
    if not isinstance(schema, (Mapping, bool)):
        raise UserError(f"{where} must be a JSON Schema (a mapping), found {type(schema).__name__}")
    kind = validators.validator_for(schema, default=validators.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except exceptions.SchemaError as error:
        raise UserError(f"{where} is no valid JSON Schema: {error.message[:200]}") from error
    return kind(schema, registry=Registry())  # a registry of its own: `$ref` never reaches for the network


@register(
    "json_schema",
    description="1.0 where the JSON in the completion is valid under a JSON Schema (`{const: ...}` asks for a value)",
    version=2,
    imports=("jsonschema",),
)
class JsonSchema:
    """Scores 1.0 where the completion states JSON that its schema accepts, 0.0 elsewhere.

    Args:
        schema: The schema for all rows, a mapping or JSON text; `None` takes each row's own.
        column: Column of the row's schema, a mapping or JSON text; read where `schema` is `None`.

    Raises:
        UserError: `schema` is no JSON Schema.
    """

    def __init__(self, schema: Mapping[str, Any] | str | None = None, column: str = "schema") -> None:
        self.column = column
        self._validator = None if schema is None else _load(schema, "reward `json_schema`: schema")

    def verify(self, completion: str, row: Row) -> Verdict:
        """Returns the verdict on one completion."""
        from jsonschema import exceptions

        validator = self._validator
        if validator is None:
            if row.get(self.column) is None:
                return Verdict.unscored(f"the row has no `{self.column}`")
            try:
                validator = _load(row[self.column], f"the row's `{self.column}`")
            except UserError as error:
                return Verdict.unscored(str(error))
        stated = without_reasoning(completion)
        if stated is None:
            return Verdict(0.0, None, "the reasoning is not closed")
        try:
            value = find_json(stated)
        except ValueError as error:
            return Verdict(0.0, None, str(error)[:200])
        try:
            wrong = exceptions.best_match(validator.iter_errors(value))
        except RecursionError:
            return Verdict(0.0, None, "nested too deeply")
        written = json.dumps(value, ensure_ascii=False)[:500]
        return Verdict(1.0, written, "valid") if wrong is None else Verdict(0.0, written, wrong.message[:200])
