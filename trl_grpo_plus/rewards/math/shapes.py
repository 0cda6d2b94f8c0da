r"""The shape of an answer: a value, list, tuple, set, interval, relation, equation, matrix, ratio, or words.

Stage: rewards, `math`. In: normalised text. Out: a `Shape`, whose parts are shapes again. The shape decides what makes
two answers equal (`compare`): order matters in a tuple and not in a set, ends matter in an interval.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from .grammar import NotRead, Tree, read
from .normalise import normalise
from .units import Measured, measured

_MAX_ITEMS = 200
_OPENING, _CLOSING = "([{", ")]}"
_AND = re.compile(
    r"\s*(?:\\text\s*\{\s*,?\s*(?:and|or)\s*,?\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\u548c|\u6216|\u53ca|\u4e0e)\s*"
)
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)(?:\.\d+)?")
_RELATION = re.compile(r"\\le(?![a-z])|\\ge(?![a-z])|\\ne(?![a-z])|<=|>=|!=|<|>")
_PLUS_MINUS = re.compile(r"\\(pm|mp)(?![A-Za-z])")
_RELATIONS = {"\\le": "<=", "\\ge": ">=", "\\ne": "!="}
_MATRIX = re.compile(
    r"\\begin\s*\{((?:[pbBvV]|small)?matrix\*?|array)\}(?:\s*\{[clr| ]*\})?((?:(?!\\begin).)*?)\\end\s*\{\1\}",
    re.DOTALL,
)
_CLOCK = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?\s*(?:\\text\s*\{)?\s*(?:[ap]\.?\s*m\.?)?\s*\}?$", re.IGNORECASE)
_DATE = re.compile(r"[12]\d{3}-\d{2}-\d{2}|[12]\d{3}/\d{1,2}/\d{1,2}|\d{1,2}/\d{1,2}/[12]\d{3}")
_EXCEPT = re.compile(r"(?:\\text\s*\{\s*)?[Aa]ll real(?: numbers|s) except(?: for)?\s*\}?\s*(?:x\s*=\s*)?(?=\S)")
_POINT = re.compile(r"([A-Z])'?(?:_\{?\w\}?)?\s*(?:\\cdot\s*)?(\(.*\))")
_TO = re.compile(r"(\d+)\s*(?:\\text\s*\{\s*to\s*\}|(?<=\s)to(?=\s))\s*(\d+)")
_BASE = re.compile(
    r"(?:\\text\s*\{)?\(?([0-9][0-9A-Fa-f]*|[0-9A-F]+)\)?\}?_\s*(?:\{\s*(?:\\text\s*\{)?\s*\(?(\w+)\)?\s*\}?\s*\}|(\d))$"
)
_BASES = {
    "two": 2,
    "three": 3,
    "four": 4,
    "five": 5,
    "six": 6,
    "seven": 7,
    "eight": 8,
    "nine": 9,
    "ten": 10,
    "twelve": 12,
    "sixteen": 16,
}
_NAME = re.compile(r"[A-Za-z\\][\w\\{}^'*]*(?:\s*\([\w\\, ]+\))?$|\([A-Za-z\\]\w*(?:\s*,\s*[A-Za-z\\]\w*)+\)$")
_WORDS = re.compile(r"\\text(?:bf|it)?\s*\{([^{}]*)\}")


@dataclass(frozen=True)
class Shape:
    """An answer, or a part of one.

    Args:
        kind: `value`, `list` (bare, by commas or "and"), `seq` (in brackets), `set`, `union`, `minus`, `relation`,
            `equation`, `matrix`, `ratio`, `clock`, `base`, `reals`, `empty`, `words`.
        text: Canonical text: equal texts are equal answers.
        parts: Parts; of a `relation` and an `equation` its sides, of a `matrix` its rows.
        tree: Of a `value`: its expression.
        detail: Brackets of a `seq` (`[)`), operators of a `relation`, base of a `base`.
        measured: Of a `value`: its unit.
    """

    kind: str
    text: str
    parts: tuple[Shape, ...] = ()
    tree: Tree | None = None
    detail: Any = None
    measured: Measured | None = None


def canonical(text: str) -> str:
    """Returns a text in which spaces and braces around single tokens no longer differ."""
    if "^" in text or "_" in text:
        text = re.sub(r"([\^_])\s*\{\s*([A-Za-z0-9])\s*\}(?!\s*[A-Za-z0-9])", r"\1\2", text)
    else:
        text = re.sub(r"\{\s*([A-Za-z0-9])\s*\}(?!\s*\d)", r"\1", text)
    text = re.sub(r"(?<=\d)\s+(?=\d)", "\x00", text)  # `1 1/4` is not `11/4`
    return re.sub(r"\s+", "", text)


def words(text: str) -> str:
    """Returns the words of an answer for comparison as words: lower case, without markup and punctuation."""
    text = _WORDS.sub(r" \1 ", text)
    return " ".join(re.findall(r"[^\W_]+|[-+<>=]", text.casefold()))


def split_top(text: str, separators: str) -> list[str] | None:
    """Splits at separators outside all brackets; `None` where the brackets do not match."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        character = text[i]
        if character == "\\" and i + 1 < len(text):
            if text[i + 1] in "{}":
                depth += 1 if text[i + 1] == "{" else -1
            elif text.startswith("\\langle", i) or text.startswith("\\rangle", i):
                depth += 1 if text[i + 1] == "l" else -1
            i += 2
            continue
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
            if depth < 0:
                return None
        elif depth == 0 and character in separators:
            parts.append(text[start:i].strip())
            start = i + 1
        i += 1
    if depth != 0:
        return None
    parts.append(text[start:].strip())
    return parts


def _split_words(text: str) -> list[str]:
    """Splits at "and" and "or" outside brackets."""
    if not _AND.search(text):
        return [text]
    parts = split_top(_AND.sub(" \x00 ", text), "\x00") or [text]
    return [part.replace("\x00", "and") for part in parts] if len(parts) > 1 else [text]


def _matching(text: str) -> int | None:
    """Returns the position of the bracket that closes the one the text begins with, of whatever kind."""
    depth, i = 0, 0
    while i < len(text):
        two = text[i : i + 2]
        if two in (r"\{", r"\}") or text[i] in _OPENING or text[i] in _CLOSING:
            opening = two == r"\{" or (two != r"\}" and text[i] in _OPENING)
            depth += 1 if opening else -1
            width = 2 if two in (r"\{", r"\}") else 1
            if depth == 0:
                return i + width - 1
            i += width
            continue
        i += 1
    return None


@functools.lru_cache(maxsize=4096)
def shape_of(text: str) -> Shape:
    """Returns the shape of an answer given as people write it."""
    return _shape(normalise(text))


def as_list(shape: Shape) -> Shape:
    """Returns `1,234` as a list of two, where it was read as a number."""
    parts = split_top(shape.text, ",") or []
    return Shape("list", shape.text, tuple(_shape(part) for part in parts)) if len(parts) > 1 else shape


def _shape(text: str, depth: int = 0) -> Shape:
    text = text.strip()
    plain = canonical(text)
    if depth > 20:
        return Shape("words", plain, detail=words(text))
    inner = re.fullmatch(r"\\text\s*\{([^{}]*)\}\.?", text)
    if inner and (re.search(r"\d", inner[1]) or re.fullmatch(r"\s*\(?\s*[A-Za-z]\s*\)?\s*", inner[1])):
        return _shape(inner[1], depth + 1)
    for reader in (_fixed, _matrix, _membership, _several, _regions, _relation, _equation, _bracketed, _ratio):
        shape = reader(text, plain, depth)
        if shape is not None:
            return shape
    return _value(text, plain)


def _fixed(text: str, plain: str, depth: int) -> Shape | None:
    if plain in (r"\emptyset", r"\{\}", "{}"):
        return Shape("empty", r"\emptyset")
    if plain in (r"\mathbb{R}", r"\mathbbR", "(-\\infty,\\infty)", "(-\\infty,+\\infty)"):
        return Shape("reals", r"\mathbb{R}")
    if words(text) in ("all real numbers", "all reals"):
        return Shape("reals", r"\mathbb{R}")
    if words(text) in ("empty set", "the empty set"):
        return Shape("empty", r"\emptyset")
    if all_but := _EXCEPT.match(text):
        return _shape(rf"\mathbb{{R}} \setminus \{{{text[all_but.end() :]}\}}", depth + 1)
    if _DATE.fullmatch(text):  # no subtraction, and no fraction of a fraction
        return Shape("words", plain, detail="-".join(str(int(part)) for part in re.findall(r"\d+", text)))
    if _CLOCK.match(text):
        return Shape(
            "clock", re.sub(r"[^0-9:apm]", "", words(text.replace(":", "c")).replace("c", ":").replace(" ", ""))
        )
    if base := _BASE.match(text):
        name = base[2] or base[3]
        number = int(name) if name.isdigit() and len(name) < 3 else _BASES.get(name.lower(), 0)
        if 2 <= number <= 36:
            return Shape("base", base[1].upper().lstrip("0") or "0", detail=number)
    return None


def _matrix(text: str, plain: str, depth: int) -> Shape | None:
    if text[:1] in ("(", "[") and text[-1:] in (")", "]") and text[1:-1].strip().startswith(r"\begin"):
        text = text[1:-1].strip()  # an array in brackets
    if (start := text.find(r"\begin")) > 0:
        return _scaled(text[:start], _matrix(text[start:], plain, depth))
    match = _MATRIX.fullmatch(text)
    if match is None or match[1] in ("vmatrix", "Vmatrix"):
        return None
    rows = [row.strip() for row in re.split(r"\\\\(?:\[[^\]]*\])?|\\cr", match[2])]
    rows = rows[:-1] if rows and not rows[-1] else rows
    cells = [tuple(_shape(cell, depth + 1) for cell in row.split("&")) for row in rows]
    if sum(map(len, cells)) > _MAX_ITEMS:
        return None
    return Shape("matrix", plain, tuple(Shape("row", "", row) for row in cells))


def _scaled(factor: str, matrix: Shape | None) -> Shape | None:
    """Returns a matrix times the number before it."""
    factor = re.sub(r"\s*\\cdot\s*$", "", factor).strip()
    if matrix is None:
        return None
    try:
        scale = read("-1" if factor == "-" else factor)
    except NotRead:
        return None
    rows = []
    for row in matrix.parts:
        if any(cell.tree is None for cell in row.parts):
            return None
        cells = (Shape("value", "", tree=("mul", scale, c.tree), measured=c.measured) for c in row.parts)
        rows.append(Shape("row", "", tuple(cells)))
    return Shape("matrix", matrix.text, tuple(rows))


def _membership(text: str, plain: str, depth: int) -> Shape | None:
    r"""`x \in [1, 2]` is the interval, `\{x | x > 3\}` the relation."""
    match = re.match(r"[A-Za-z](?:_\w)?\s*\\in(?![a-z])\s*", text)
    if match:
        return _shape(text[match.end() :], depth + 1)
    match = re.fullmatch(
        r"\\\{\s*([A-Za-z])\s*(?:\\in(?![a-z])\s*\\mathbb\s*\{?R\}?\s*)?(?:\||:)\s*(.*?)\s*\\\}", text, re.DOTALL
    )
    if match and split_top(match[2], "") is not None:
        inner = _shape(match[2], depth + 1)
        return inner if inner.kind in ("relation", "union", "list") else None
    return None


def _several(text: str, plain: str, depth: int) -> Shape | None:
    r"""A list: by commas, semicolons, "and", "or", or a plus-minus sign."""
    if "," in text:
        text = _THOUSANDS.sub(lambda m: m.group().replace(",", ""), text)
    pieces: list[str] = []
    for piece in _split_words(text):
        parts = split_top(piece, ",;")
        if parts is None:
            return None
        pieces += [part for part in parts if part]
    if len(pieces) > _MAX_ITEMS:
        return Shape("words", plain, detail=words(text))
    if len(pieces) > 1:
        items = [_shape(piece, depth + 1) for piece in pieces]
        either = re.search(r"(?<![A-Za-z])or(?![A-Za-z])|\u6216", text)
        if either and all(item.kind in ("relation", "seq", "union", "reals") for item in items):
            return Shape("union", plain, tuple(items))
        if not either and _AND.search(text) and all(item.kind == "relation" for item in items):
            return Shape("meet", plain, tuple(items))
        if any(item.kind == "words" and not item.detail for item in items) and not all(_short(item) for item in items):
            return Shape("words", plain, detail=words(text))  # a sentence, with commas
        flat: list[Shape] = []
        for item in items:
            flat += item.parts if item.kind == "list" else [item]
        return Shape("list", plain, tuple(flat))
    if _PLUS_MINUS.search(text):
        upper = _PLUS_MINUS.sub(lambda m: "+" if m[1] == "pm" else "-", text)
        lower = _PLUS_MINUS.sub(lambda m: "-" if m[1] == "pm" else "+", text)
        return Shape("list", plain, tuple(_shape(one, depth + 1) for one in (upper, lower)))
    return None


def _short(item: Shape) -> bool:
    return item.kind != "words" or len(words(item.text).split()) <= 3


def _regions(text: str, plain: str, depth: int) -> Shape | None:
    r"""Unions of intervals, and sets without points."""
    marked = re.sub(r"\\cup(?![a-z])", "\x01", text)
    if "\x01" not in marked and re.search(r"[\])]\s*U\s*[\[(]", text):
        marked = re.sub(r"(?<=[\])])\s*U\s*(?=[\[(])", "\x01", text)
    if "\x01" in marked:
        parts = _split_regions(marked, "\x01")
        return Shape("union", plain, tuple(_shape(part, depth + 1) for part in parts)) if parts else None
    marked = re.sub(r"\\setminus(?![a-z])", "\x01", text)
    marked = re.sub(r"(\\mathbb\s*\{?R\}?)\s*[-/]\s*(?=\\\{)", "\\1\x01", marked)
    if "\x01" in marked:
        parts = _split_regions(marked, "\x01")
        if parts and len(parts) == 2:
            return Shape("minus", plain, tuple(_shape(part, depth + 1) for part in parts))
    return None


def _split_regions(text: str, separator: str) -> list[str] | None:
    """Splits at separators that stand between brackets, open or closed ones, matching or not: `[1,2)`."""
    parts = text.split(separator)
    return (
        [part.strip() for part in parts] if all(part.strip() for part in parts) and len(parts) <= _MAX_ITEMS else None
    )


def _relation(text: str, plain: str, depth: int) -> Shape | None:
    every = list(_RELATION.finditer(text))
    found = [m for m in every if _depth_at(text, m.start()) == 0] if len(every) < 20 else []
    if not found or len(found) > 2:
        return None
    sides, at = [], 0
    for match in found:
        sides.append(text[at : match.start()])
        at = match.end()
    sides.append(text[at:])
    if not all(side.strip() for side in sides):
        return None
    operators = tuple(_RELATIONS.get(m.group(), m.group()) for m in found)
    return Shape("relation", plain, tuple(_shape(side, depth + 1) for side in sides), detail=operators)


def _depth_at(text: str, position: int) -> int:
    return sum(text.count(c, 0, position) for c in "([{") - sum(text.count(c, 0, position) for c in ")]}")


def _equation(text: str, plain: str, depth: int) -> Shape | None:
    text = re.sub(r"\\(?:approx|equiv)(?![a-z])", "\x02", text)
    if text.startswith("\x02"):
        return _shape(text[1:], depth + 1)
    sides = split_top(text.replace("\x02", "=\x02"), "=")
    if sides is None or len(sides) < 2 or len(sides) > 12:
        return None
    if not all(side.strip("\x02 ") for side in sides):
        return None
    about = tuple(side.startswith("\x02") for side in sides)
    parts = tuple(_shape(side.strip("\x02 "), depth + 1) for side in sides)
    return Shape("equation", plain, parts, detail=about)


def _bracketed(text: str, plain: str, depth: int) -> Shape | None:
    """Tuples, intervals and sets: brackets around parts that commas part; points with their names."""
    if (point := _POINT.fullmatch(text)) and _matching(point[2]) == len(point[2]) - 1 and "," in point[2]:
        numbers = re.fullmatch(r"\(\s*(\d{1,6})\s*,\s*(\d{1,6})\s*\)", point[2])
        if point[1] == "C" and numbers and int(numbers[1]) >= int(numbers[2]):
            return _value(rf"\binom{{{numbers[1]}}}{{{numbers[2]}}}", plain)
        return _shape(point[2], depth + 1)
    if text.startswith(r"\langle") and text.endswith(r"\rangle"):
        opening, inner, closing = "(", text[len(r"\langle") : -len(r"\rangle")], ")"
    elif text.startswith(r"\{") and text.endswith(r"\}"):
        opening, inner, closing = "{", text[2:-2], "}"
    elif text[:1] in ("(", "[", "]") and text[-1:] in (")", "]", "["):
        opening, inner, closing = text[0], text[1:-1], text[-1]
    elif text[:1] == "{" and text[-1:] == "}" and _matching(text) == len(text) - 1:
        parts = split_top(text[1:-1], ",")
        if parts and len(parts) > 1:
            opening, inner, closing = "{", text[1:-1], "}"
        else:
            return _shape(text[1:-1], depth + 1)
    else:
        return None
    parts = split_top(_THOUSANDS.sub(lambda m: m.group().replace(",", ""), inner), ",;")
    if parts is None or not all(parts) or len(parts) > _MAX_ITEMS:
        return None
    if len(parts) == 1 and opening != "{":
        return _shape(inner, depth + 1) if opening == "(" and closing == ")" and _worded(inner) else None
    items = tuple(_shape(part, depth + 1) for part in parts)
    if opening == "{":
        flat: list[Shape] = []
        for item in items:
            flat += item.parts if item.kind == "list" else [item]
        return Shape("set", plain, tuple(flat))
    opening = {"]": "("}.get(opening, opening)
    closing = {"[": ")"}.get(closing, closing)
    return Shape("seq", plain, items, detail=opening + closing)


def _worded(text: str) -> bool:
    return re.fullmatch(r"\s*(?:\\text\s*\{\s*)?[A-Za-z]\s*\}?\s*", text) is not None


def _ratio(text: str, plain: str, depth: int) -> Shape | None:
    parts = list(to.groups()) if (to := _TO.fullmatch(text)) else split_top(text, ":")
    if parts is None or len(parts) < 2 or not all(parts) or len(parts) > 10:
        return None
    return Shape("ratio", plain, tuple(_shape(part, depth + 1) for part in parts))


_LETTERS = re.compile(r"[A-Z]{2,}|[Yy]es|[Nn]o|[Oo]dd")  # three letters at most would be read as a product
_NUMBERS_IN_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
_NUMBER_WORDS = tuple(_NUMBERS_IN_WORDS.split())


def _value(text: str, plain: str) -> Shape:
    if _LETTERS.fullmatch(text):
        return Shape("words", plain, detail=words(text))
    if words(text) == "infinity":
        text = r"\infty"
    if words(text) in _NUMBER_WORDS:
        text = str(_NUMBER_WORDS.index(words(text)))
    bare = _THOUSANDS.sub(lambda m: m.group().replace(",", ""), text)
    given = measured(bare)
    for attempt in (given, Measured(bare)) if given.core != bare else (given,):
        try:
            tree = read(attempt.core)
        except NotRead:
            continue
        return Shape("value", canonical(text), tree=tree, measured=attempt)
    return Shape("words", plain, detail=words(text))
