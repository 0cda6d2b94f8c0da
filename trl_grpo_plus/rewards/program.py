"""From a completion to the program that it states: fences, prose, several blocks, or the body of a given signature.

Stage: rewards. A block that defines what the tests call is the answer, the last one where there are several: later
blocks that only show its use do not hide it, and an earlier draft is not graded in place of the final word. Nothing
here runs a program; what a model wrote is parsed, in bounded time and size, and never evaluated.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

_MAX_PARSED = 50_000  # characters; what is longer is run as it stands
_MAX_ATTEMPTS = 80
_MAX_STARTS = 4  # lines of a prompt that may be where its code starts

_FENCE = re.compile(r"^([ \t>]*)(`{3,}|~{3,})[ \t]*(.*?)[ \t]*$")
_ONE_LINE = re.compile(r"```(?:python3?|py)?[ \t]+(\S.*?)```|`([^`\n]+)`", re.IGNORECASE)
_LANGUAGE = re.compile(r"^\{?\.?([A-Za-z][\w+#.-]*)\}?(?:[ \t]+.*|\{.*|:.*)?$")
_CODE_START = re.compile(r"^(?:async def|def|class|import|from|@|if|for|while|try|with|print\(|\w+(?:, ?\w+)* ?=[^=])")
_PYTHON = frozenset(("python", "python3", "python2", "py", "py3", "py2", "sage", "ipython", "ipython3", "cpython"))
_NO_LANGUAGE = frozenset(("text", "txt", "plaintext", "plain", "code"))
_FENCE_CODE = re.compile(r"^(?:async def|def|class|import|from|for|while|print\(|@)[\s\w(]")
_TAGS = re.compile(r"<(answer|code|python|solution)>(.*?)</\1>|\[PYTHON\](.*?)\[/PYTHON\]", re.DOTALL | re.IGNORECASE)
_BUILTIN_NAMES = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}


@dataclass(frozen=True)
class _Block:
    language: str  # in lower case, empty where none is given
    code: str
    start: int  # line of the text where its code starts, and where it ends
    end: int


def extract(text: str, names: Sequence[str] = (), signature: str = "", script: bool = False) -> str | None:
    """Returns the program that a completion states, `None` where it states none.

    Args:
        text: What follows the reasoning.
        names: What the tests call: functions and classes that the program must define.
        signature: Code of the prompt that the completion goes on from, or repeats: imports, helpers, and the head of
            the function that is asked for. Empty where there is none.
        script: Whether the program is run with stdin instead of being called.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    blocks = _blocks(text)
    code = _from_blocks(blocks, names, signature, script)
    if code is None:
        tagged = [m[2] or m[3] or "" for m in _TAGS.finditer(text)]
        plain = text if not blocks else text.split("```")[0].split("~~~")[0]
        for part in (*reversed(tagged), plain):
            code = _from_plain(part, names, signature, script)
            if code is not None:
                break
    if code is None and not blocks:
        for match in reversed(list(_ONE_LINE.finditer(text))):
            inline = match[1] or match[2]
            if _defines(_parse(inline), names) or (script and _does_something(_parse(inline))):
                return inline
    return code


def prompt_code(prompt: str, names: Sequence[str]) -> str:
    """Returns the code in a prompt that ends in the head of a function of `names`, an empty text where there is none.

    Args:
        prompt: The prompt's text: prose, fenced code, or the code itself, as in HumanEval.
        names: Names that the tests call.
    """
    prompt = prompt.replace("\r\n", "\n")
    for part in (*(block.code for block in reversed(_blocks(prompt))), prompt):
        lines = part.split("\n")
        heads = [i for i, line in enumerate(lines) if (m := re.match(r"(?:async )?def (\w+)", line)) and m[1] in names]
        if not heads:
            continue
        starts = [i for i, line in enumerate(lines[: heads[-1] + 1]) if _CODE_START.match(line)]
        for start in (*starts[:_MAX_STARTS], heads[-1]):
            if (code := _complete_head(lines[start:])) is not None:
                return code
    return ""


def _complete_head(lines: Sequence[str]) -> str | None:
    """Returns the longest beginning of `lines` that is code once the last function has a body."""
    for end in range(len(lines), max(0, len(lines) - _MAX_ATTEMPTS // _MAX_STARTS), -1):
        code = "\n".join(lines[:end]).rstrip()
        if code and (_parse(code) is not None or _parse(code + "\n    pass") is not None):
            return code
    return None


# Fences.


def _blocks(text: str) -> list[_Block]:
    """Returns the fenced blocks, those that a fence inside a text of the program has cut in two as one.

    A fence that is never closed holds the rest.
    """
    blocks = _fenced(text)
    lines, made, i = text.split("\n"), list[_Block](), 0
    while i < len(blocks):
        block = blocks[i]
        if _parse(block.code) is None and block.code.count('"""') + block.code.count("'''") == 1:
            for j in range(i + 1, min(i + 4, len(blocks))):
                joined = "\n".join(lines[block.start : blocks[j].end])
                if _parse(joined) is not None:
                    block, i = _Block(block.language, joined, block.start, blocks[j].end), j
                    break
        made.append(block)
        i += 1
    return made


def _fenced(text: str) -> list[_Block]:
    blocks: list[_Block] = []
    fence, language, lines, indent, start = "", "", [""], "", 0
    for number, line in enumerate(text.split("\n")):
        found = _FENCE.match(line)
        if not fence:
            if found and not ("`" in found[3] and found[2][0] == "`"):
                fence, indent, start = found[2], found[1], number + 1
                language, first = _information(found[3])
                lines = [first] if first else []
            continue
        if found and not found[3] and found[2][0] == fence[0] and len(found[2]) >= len(fence):
            blocks.append(_Block(language, _code(lines, indent), start, number))
            fence = ""
        else:
            lines.append(line)
    if fence and any(line.strip() for line in lines):
        blocks.append(_Block(language, _code(lines, indent), start, text.count("\n") + 1))
    return blocks


def _information(text: str) -> tuple[str, str]:
    """Returns (language, code) of what stands after an opening fence; code on that line is code."""
    head, _, rest = text.partition(" ")
    if head.lower() in _PYTHON and _FENCE_CODE.match(rest):
        return head.lower(), rest
    if _FENCE_CODE.match(text):
        return "", text
    match = _LANGUAGE.match(text)
    language = match[1].lower() if match else ""
    if re.fullmatch(r"python\d?(?:\.\d+)?", language):
        language = "python"
    return ("" if language in _NO_LANGUAGE else language), ""


def _code(lines: Sequence[str], indent: str) -> str:
    if indent:
        lines = [line.removeprefix(indent) for line in lines]
    code = "\n".join(lines)
    return code if _parse(code) is not None else textwrap.dedent(code) if _parse(textwrap.dedent(code)) else code


def _from_blocks(blocks: Sequence[_Block], names: Sequence[str], signature: str, script: bool) -> str | None:
    python = [block for block in blocks if block.language in _PYTHON or not block.language]
    if script:
        tagged = [block for block in python if block.language]
        for group in (tagged, python):
            for i in range(len(group) - 1, -1, -1):
                if _does_something(_parse(group[i].code)) or (group[i].language and _parse(group[i].code) is None):
                    return _with_helpers([block.code for block in group[: i + 1]], ())
        return None
    for i in range(len(python) - 1, -1, -1):
        code = python[i].code
        tree = _parse(code)
        if _defines(tree, names) or (tree is None and _seems_to_define(code, names)):
            return _with_preamble(_with_helpers([block.code for block in python[: i + 1]], names), signature)
    if signature and python:
        return _as_body(python[-1].code, names, signature)
    if not names and python:
        return python[-1].code
    return None


def _with_helpers(codes: Sequence[str], names: Sequence[str]) -> str:
    """Returns the last code, after those before it that define names which it, or the tests, miss."""
    chosen = [codes[-1]]
    tree = _parse(codes[-1])
    missing = (_used(tree) | set(names)) - _bound(tree) - _BUILTIN_NAMES if tree is not None else set()
    for code in reversed(codes[:-1]):
        earlier = _parse(code)
        if earlier is not None and missing & _bound(earlier):
            chosen.insert(0, code)
            missing = (missing | _used(earlier)) - _bound(earlier) - _BUILTIN_NAMES
    return "\n\n".join(chosen)


# Without fences.


def _from_plain(text: str, names: Sequence[str], signature: str, script: bool) -> str | None:
    """Returns the program in a text without fences: all of it, its code lines, or the body of the signature."""
    if not text.strip():
        return None
    tree = _parse(text)
    if tree is None and text[:1].isspace():  # all of it may be indented
        flush = textwrap.dedent(text).strip("\n")
        parsed = _parse(flush)
        if parsed is not None and (script or _defines(parsed, names)):
            text, tree = flush, parsed
    if script:
        return text if _does_something(tree) else _code_lines(text, (), True)
    if _defines(tree, names):
        return _with_preamble(text, signature)
    found = _code_lines(text, names, False)
    if found is not None:
        return _with_preamble(found, signature)
    if signature:
        return _as_body(text, names, signature)
    return text if not names and tree is not None and _does_something(tree) else None


def _code_lines(text: str, names: Sequence[str], script: bool) -> str | None:
    """Returns the longest run of lines that is a program, prose around it left out."""
    if len(text) > _MAX_PARSED:
        return None
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if _CODE_START.match(line)]
    attempts = 0
    for start in starts:
        end = len(lines)
        while end > start and attempts < _MAX_ATTEMPTS:
            attempts += 1
            code = "\n".join(lines[start:end])
            tree, failed_line = _parse_where(code)
            if tree is not None:
                if _does_something(tree) if script else _defines(tree, names):
                    return code
                break
            # Nothing from the line of the error on can be part of the program; at least one line less.
            end = min(end - 1, start + failed_line - 1)
            while end > start and not lines[end - 1].strip():
                end -= 1
    return None


def _as_body(text: str, names: Sequence[str], signature: str) -> str | None:
    """Returns the signature with a completion as its body, whatever has become of the body's indentation."""
    text = re.sub(r"\A(?:[ \t]*\n)+", "", text).rstrip()
    first, _, others = text.partition("\n")
    first = first.lstrip()
    if not first:
        return None
    variants = (text, f"    {first}\n{others}", textwrap.indent(textwrap.dedent(text), "    "))
    for body in dict.fromkeys(variants):
        code = f"{signature.rstrip()}\n{body}\n"
        if _compiles(code) and _defines(_parse(code), names):
            return code
    for body in dict.fromkeys(variants[:2]):  # a completion that went on, and was cut off
        lines = body.split("\n")
        for end in range(len(lines) - 1, max(0, len(lines) - _MAX_ATTEMPTS), -1):
            code = f"{signature.rstrip()}\n" + "\n".join(lines[:end]) + "\n"
            if any(line.strip() for line in lines[:end]) and _compiles(code):
                return code
    return None


def _with_preamble(code: str, signature: str) -> str:
    """Returns a program that repeats the prompt's function, after the prompt's imports and helpers."""
    if not signature or (given := _parse(signature) or _parse(signature + "\n    pass")) is None:
        return code
    if _parse(code) is None:
        return code
    lines = (signature + "\n    pass").split("\n")
    last = given.body[-1]
    start = min([last.lineno, *(d.lineno for d in getattr(last, "decorator_list", []))]) - 1
    preamble = "\n".join(lines[:start]).strip()
    if not preamble:
        return code
    futures = [line for line in code.split("\n") if line.startswith("from __future__ import")]
    if futures:  # they must come first
        code = "\n".join(line for line in code.split("\n") if line not in futures)
        preamble = "\n".join([*futures, preamble])
    return f"{preamble}\n\n{code}"


# Trees.


def _parse_where(code: str) -> tuple[ast.Module | None, int]:
    """Returns (tree, 0), or `None` and the line of the first error."""
    if len(code) > _MAX_PARSED:
        return None, 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code), 0
    except SyntaxError as error:
        return None, max(1, error.lineno or 1)
    except (ValueError, RecursionError, MemoryError):
        return None, 1


def _parse(code: str) -> ast.Module | None:
    return _parse_where(code)[0]


def _compiles(code: str) -> bool:
    if len(code) > _MAX_PARSED:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "<program>", "exec", dont_inherit=True)
        return True
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _bound(tree: ast.AST | None) -> set[str]:
    """Returns the names that a module binds at its top, in branches as well."""
    bound: set[str] = set()
    pending: list[ast.AST] = list(ast.iter_child_nodes(tree)) if tree is not None else []
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        if not isinstance(node, ast.Lambda):
            pending += ast.iter_child_nodes(node)
    return bound


def _used(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def _defines(tree: ast.AST | None, names: Sequence[str]) -> bool:
    return tree is not None and bool(_bound(tree) & set(names))


def _seems_to_define(code: str, names: Sequence[str]) -> bool:
    return any(re.search(rf"^(?:async def|def|class)\s+{re.escape(name)}\b", code, re.MULTILINE) for name in names)


def _does_something(tree: ast.AST | None) -> bool:
    """Whether a module runs anything: prose and numbers can be Python as well."""
    if not isinstance(tree, ast.Module):
        return False
    return any(isinstance(node, ast.Call) for node in ast.walk(tree))
