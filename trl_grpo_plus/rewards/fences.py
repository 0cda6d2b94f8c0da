"""The fenced blocks of a completion, as models write them rather than as Markdown defines them.

Stage: rewards. Fences stand in list items and quotations, open in the middle of a line, are closed at the end of a
line of code, are forgotten, or are part of a text of the program; blocks of Markdown hold blocks. What a model wrote
is parsed, in bounded time and size, and never evaluated.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

MAX_PARSED = 50_000  # characters; what is longer is run as it stands
_MAX_ATTEMPTS = 40  # parses on the way to where blocks end
_MAX_ENDS = 8  # fences tried as the end of a block of which a text holds fences
_MAX_NESTED = 2

_PREFIX = r"((?:[ \t>]|[-*+][ \t]|\d{1,3}[.)][ \t])*)"  # of list items and quotations
_OPENING = re.compile(_PREFIX + r"(`{3,}|~{3,})[ \t]*(.*?)[ \t]*$")
_CLOSING = re.compile(r"[ \t>]*(`{3,}|~{3,})[ \t]*(.*?)[ \t]*$")
_LANGUAGE = re.compile(r"^\{?\.?([A-Za-z][\w+#.-]*)\}?(?:[ \t]+.*|\{.*|:.*)?$")
_CODE = re.compile(r"^(?:async def|def|class|import|from|for|while|print\(|@)[\s\w(]")
_NAMED_PYTHON = re.compile(r"(?:python|py|ipython|cpython)[23]?(?:\.\d+)?|sage")
_NO_LANGUAGE = frozenset(("text", "txt", "plaintext", "plain", "code"))
_OF_BLOCKS = frozenset(("", "markdown", "md", "mdx", "quote"))  # may hold blocks


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        language: In lower case, `python` for all its names, empty where none is given.
        code: What it holds.
        closed: Whether its end is marked; otherwise the completion may have been cut off.
        start: Line of the text where it starts, its fence included, or where the block starts that holds it.
        end: Line after it.
    """

    language: str
    code: str
    closed: bool
    start: int = 0
    end: int = 0


@dataclass(frozen=True)
class _Opening:
    fence: str
    indent: str
    language: str
    first: str  # code on the line of the fence


def is_python(word: str) -> bool:
    """Returns whether a word names Python as the language of a block."""
    return _NAMED_PYTHON.fullmatch(word.lower()) is not None


def blocks(text: str, depth: int = 0) -> list[Block]:
    """Returns the fenced blocks of a text, in order; a fence that is never closed holds the rest.

    Args:
        text: The text, with line feeds as the only line ends.
        depth: In how many blocks the text stands.
    """
    lines, attempts = text.split("\n"), [_MAX_ATTEMPTS]
    found: list[Block] = []
    number = 0
    while number < len(lines):
        opening = _opening(lines[number])
        number += 1
        if opening is None:
            continue
        start = number - 1
        block, number = _read(lines, number, opening, attempts)
        if not block.code.strip():
            continue
        holds_blocks = block.language in _OF_BLOCKS and ("```" in block.code or "~~~" in block.code)
        inner = blocks(block.code, depth + 1) if holds_blocks and depth < _MAX_NESTED and not parse(block.code) else []
        found += (replace(each, start=start, end=number) for each in inner or [block])
    return found


def outside(text: str, found: Sequence[Block]) -> list[str]:
    """Returns the parts of a text around its blocks, in order."""
    lines, parts, begin = text.split("\n"), list[str](), 0
    for block in found:
        if block.start >= begin:
            parts.append("\n".join(lines[begin : block.start]))
            begin = block.end
    return [*parts, "\n".join(lines[begin:])]


def _opening(line: str) -> _Opening | None:
    match = _OPENING.match(line)
    if match and not ("`" in match[3] and match[2][0] == "`"):
        language, first = _information(match[3])
        return _Opening(match[2], re.sub(r"[^\s>]", " ", match[1]), language, first)
    before, fence, after = line.partition("```")
    word = after.lstrip("`").strip()
    return _Opening(fence, "", "python", "") if before and is_python(word) else None


def _information(text: str) -> tuple[str, str]:
    """Returns (language, code) of what stands after an opening fence; code on that line is code."""
    head, _, rest = text.partition(" ")
    if is_python(head) and _CODE.match(rest):
        return "python", rest
    if _CODE.match(text):
        return "", text
    match = _LANGUAGE.match(text)
    language = match[1].lower() if match else ""
    return ("python" if is_python(language) else "" if language in _NO_LANGUAGE else language), ""


def _read(lines: Sequence[str], start: int, opening: _Opening, attempts: list[int]) -> tuple[Block, int]:
    """Returns a block, and the number of the line to go on from.

    Args:
        lines: All lines.
        start: Number of the line after the opening fence.
        opening: The opening fence.
        attempts: How many parses are left, in a list of one.
    """
    fence = opening.fence
    held = [opening.first] if opening.first else []
    quotes = _Quotes()

    def parses(more: Sequence[str]) -> bool:
        attempts[0] -= 1
        return attempts[0] >= 0 and parse(_code([*held, *more], opening.indent)) is not None

    def end_of_text(number: int) -> int | None:
        """Returns the line of the fence that closes the block, where this one is part of a text of the program."""
        ends = (i for i in range(number + 1, len(lines)) if _closes(lines[i], fence) == "")
        for _, end in zip(range(_MAX_ENDS), ends, strict=False):
            if parses(lines[number:end]):
                return end
        return None

    for number in range(start, len(lines)):
        line = lines[number]
        rest = _closes(line, fence)
        if rest is not None:
            in_text = quotes.open and not parses([])
            if in_text and rest == "" and (end := end_of_text(number)) is not None:
                held += lines[number:end]
                return _made(opening, held, True), end + 1
            if rest == "" or not in_text:
                opens_next = bool(rest) and (" " not in rest or is_python(rest.partition(" ")[0]))
                return _made(opening, held, True), number if opens_next else number + 1
        elif (line := line.rstrip()).endswith(fence):
            last = line.removesuffix(fence)
            if parses([last]):
                return _made(opening, [*held, last], True), number + 1
        held.append(lines[number])
        quotes.read(lines[number])
    while held and not held[-1].strip(" `~"):  # of a closing fence that was cut off
        held.pop()
    return _made(opening, held, False), len(lines)


class _Quotes:
    """Whether lines, read one by one, may have left a text in three quotes open."""

    def __init__(self) -> None:
        self._counts = [0, 0]

    def read(self, line: str) -> None:
        self._counts = [self._counts[0] + line.count('"""'), self._counts[1] + line.count("'''")]

    @property
    def open(self) -> bool:
        return any(count % 2 for count in self._counts)


def _closes(line: str, fence: str) -> str | None:
    """Returns what stands after a fence that ends a block, `None` where there is no such fence."""
    match = _CLOSING.match(line)
    if match is None or match[1][0] != fence[0] or len(match[1]) < len(fence) or "`" in match[2]:
        return None
    return match[2]


def _made(opening: _Opening, lines: Sequence[str], closed: bool) -> Block:
    language, code = opening.language, _code(lines, opening.indent)
    if not language:
        stripped = without_tag(code)
        language, code = ("python" if stripped != code else ""), stripped
    return Block(language, code, closed)


def without_tag(code: str) -> str:
    """Returns code without a first line that only names the language: `python`."""
    first, _, others = code.lstrip("\n").partition("\n")
    return others if others and is_python(first.strip()) else code


def _code(lines: Sequence[str], indent: str) -> str:
    if indent:
        lines = ["" if line == indent.rstrip() else line.removeprefix(indent) for line in lines]
    code = "\n".join(lines)
    return code if parse(code) is not None else textwrap.dedent(code) if parse(textwrap.dedent(code)) else code


def parse_where(code: str) -> tuple[ast.Module | None, int]:
    """Returns (tree, 0), or `None` and the line of the first error."""
    if len(code) > MAX_PARSED:
        return None, 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code), 0
    except SyntaxError as error:
        return None, max(1, error.lineno or 1)
    except (ValueError, RecursionError, MemoryError):
        return None, 1


def parse(code: str) -> ast.Module | None:
    """Returns the tree of a program, `None` where it does not parse or is very long."""
    return parse_where(code)[0]
