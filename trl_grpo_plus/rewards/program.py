"""From a completion to the program that it states: fences, prose, several blocks, or the body of a given signature.

Stage: rewards. A block that defines what the tests call is the answer, the last one where there are several: later
blocks that only show its use, or quote its lines, do not hide it, and an earlier draft is not graded in place of the
final word. Nothing here runs a program; what a model wrote is parsed, in bounded time and size, and never evaluated.
"""

from __future__ import annotations

import html
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence

from .fences import MAX_PARSED, Block, blocks, outside, parse, parse_where, without_tag
from .trees import acts, bound, calls, defined, missing

_MAX_ATTEMPTS = 80
_MAX_STARTS = 4  # lines of a prompt that may be where its code starts
_MAX_QUOTED = 8  # earlier blocks of which a block may repeat lines
_MAX_INDENTED = 8  # blocks by indentation that are looked at

_ONE_LINE = re.compile(r"```(?:python3?|py)?[ \t]+(\S.*?)```|`([^`\n]+)`", re.IGNORECASE)
_CODE_START = re.compile(r"^(?:async def|def|class|import|from|@|if|for|while|try|with|print\(|\w+(?:, ?\w+)* ?=[^=])")
_TAG = re.compile(r"<(/?)(answer|code|python|solution|pre)\b[^>\n]{0,80}>|\[(/?)(PYTHON)\]", re.IGNORECASE)
_MARKUP = frozenset(("code", "pre"))  # tags of HTML, where `<` is written `&lt;`
_FIRST_TOKEN = re.compile(r"\A\s*<\|\w{1,30}\|>")  # `<|python_tag|>` of Llama
_HEAD = re.compile(r"(?:async def|def|class) (\w+)")


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
    found = blocks(text)
    code = _from_blocks(found, names, signature, script)
    if code is not None:
        return code
    tagged = _tagged(text)
    parts = [without_tag(_FIRST_TOKEN.sub("", part)) for part in (*outside(text, found), *tagged)]
    for part in reversed(parts):
        if (code := _from_plain(part, names, signature, script)) is not None:
            return code
    if signature and not script:
        for part in (*reversed(parts[len(parts) - len(tagged) :]), parts[0]):
            if (code := _as_body(part, names, signature)) is not None:
                return code
    for match in reversed(list(_ONE_LINE.finditer(text)) if not found else []):
        tree = parse(inline := match[1] or match[2])
        if bound(tree).intersection(names) or (script and calls(tree)):
            return inline
    return None


def with_code_before(code: str, before: str) -> str:
    """Returns a program with other code before it; what it imports from `__future__` stays first."""
    if not before:
        return code
    lines = code.split("\n")
    futures = [line for line in lines if line.startswith("from __future__ import")]
    return "\n".join([*futures, before, *(line for line in lines if line not in futures)])


def prompt_code(prompt: str, names: Sequence[str]) -> str:
    """Returns the code in a prompt that ends in the head of one of `names`, an empty text where there is none.

    Args:
        prompt: The prompt's text: prose, fenced code, or the code itself, as in HumanEval.
        names: Names that the tests call.
    """
    prompt = prompt.replace("\r\n", "\n")
    for part in (*(block.code for block in reversed(blocks(prompt))), prompt):
        lines = part.split("\n")
        heads = [i for i, line in enumerate(lines) if (m := _HEAD.match(line)) and m[1] in names]
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
        if code and (parse(code) is not None or parse(_with_pass(code)) is not None):
            return code
    return None


def _with_pass(signature: str) -> str:
    return f"{signature}\n{_body_indent(signature)}pass"


def _body_indent(signature: str) -> str:
    """Returns the indentation of the body of a signature's last function, which may be a method."""
    heads = re.findall(r"^([ \t]*)(?:async def|def|class)\b", signature, re.MULTILINE)
    return (heads[-1] if heads else "") + "    "


# Blocks.


def _from_blocks(found: Sequence[Block], names: Sequence[str], signature: str, script: bool) -> str | None:
    python = [block for block in found if block.language in ("python", "")]
    codes = [block.code for block in python]
    if script:
        for group in ([block for block in python if block.language], python):
            if (chosen := _script(group)) is not None:
                return _with_helpers([block.code for block in group], chosen, ())
        return None
    chosen = _definition(python, names)
    if chosen is not None:
        return _with_preamble(_with_helpers(codes, chosen, names), signature)
    if signature and python:
        return _as_body(codes[-1], names, signature)
    if not names and python:
        return codes[-1]
    return None


def _script(group: Sequence[Block]) -> int | None:
    """Returns which block is a program that runs by itself, the last one; one that only defines where none does."""
    trees = [parse(block.code) for block in group]
    acting = [i for i, tree in enumerate(trees) if acts(tree)]
    for i in range(len(group) - 1, -1, -1):
        broken = trees[i] is None and group[i].language and _seems_a_program(group[i].code) and not _is_head(group[i])
        if (i in acting or broken) and not _quotes_any(group, i, acting):
            return i
    return next((i for i in range(len(group) - 1, -1, -1) if calls(trees[i])), None)


def _definition(python: Sequence[Block], names: Sequence[str]) -> int | None:
    """Returns which block defines one of `names`: the last; a stub, an import or a plain value if no other does."""
    wanted, second = set(names), None
    trees = [parse(block.code) for block in python]
    given = [defined(tree) & wanted for tree in trees]
    defining = [i for i, mine in enumerate(given) if mine]
    for i in range(len(python) - 1, -1, -1):
        code = python[i].code
        if trees[i] is None:
            binds = _seems_to_define(code, names)
            defines = binds and not _is_head(python[i])
        else:
            stubs = (bound(trees[i]) & wanted) - given[i]
            binds = bool(given[i] or stubs)
            defines = bool(given[i]) and not any(stubs & earlier for earlier in given[:i])
        if defines and not _quotes_any(python, i, defining):
            return i
        if binds and second is None:
            second = i
    return second


def _is_head(block: Block) -> bool:
    """Whether a block shows the head of a function or a loop without its body."""
    last = block.code.rstrip().rpartition("\n")[2]
    bodies = (_with_pass(block.code), f"{block.code.rstrip()}\n{last[: len(last) - len(last.lstrip())]}    pass")
    return block.closed and any(parse(body) is not None for body in bodies)


def _quotes_any(found: Sequence[Block], i: int, among: Sequence[int]) -> bool:
    """Whether block `i` repeats lines of an earlier one of those `among` them; not where it may have been cut off."""
    earlier = [j for j in among if j < i][-_MAX_QUOTED:]
    return found[i].closed and any(_quotes(found[i].code, found[j].code) for j in earlier)


def _quotes(code: str, earlier: str) -> bool:
    """Whether code only repeats some lines of an earlier block, to explain them, and not all."""
    mine, theirs = (
        [line.strip() for line in text.split("\n") if line.strip() and not line.strip().startswith("#")]
        for text in (code, earlier)
    )
    return len(mine) < len(theirs) and any(mine == theirs[k : k + len(mine)] for k in range(len(theirs)))


def _with_helpers(codes: Sequence[str], chosen: int, names: Sequence[str]) -> str:
    """Returns a code, after those that define names which it, or the tests, miss: earlier ones, or else later ones."""
    parts = [codes[chosen]]
    tree = parse(parts[0])
    wanted = (missing(parts[0]) | set(names)) - bound(tree) if tree is not None else set()
    for code in reversed(codes[:chosen]):
        if wanted & (found := bound(parse(code))):
            parts.insert(0, code)
            wanted = (wanted | missing(code)) - found
    for code in codes[chosen + 1 :]:
        if wanted & (found := defined(parse(code))):
            parts.insert(0, code)
            wanted -= found
    return "\n\n".join(parts)


# Without fences.


def _tagged(text: str) -> list[str]:
    """Returns what stands between tags that models put around code, in the order of their ends."""
    found, opened = list[str](), dict[str, int]()
    for tag in _TAG.finditer(text):
        name = (tag[2] or tag[4]).lower()
        if not (tag[1] or tag[3]):
            opened[name] = tag.end()
        elif name in opened:
            part = text[opened.pop(name) : tag.start()]
            found.append(html.unescape(part) if name in _MARKUP else part)
    return found


def _from_plain(text: str, names: Sequence[str], signature: str, script: bool) -> str | None:
    """Returns the program in a text without fences: all of it, or its code lines."""
    if not text.strip():
        return None
    tree = parse(text)
    if tree is None and text[:1].isspace():  # all of it may be indented
        flush = textwrap.dedent(text).strip("\n")
        parsed = parse(flush)
        if parsed is not None and (script or bound(parsed).intersection(names)):
            text, tree = flush, parsed
    if script:
        return text if calls(tree) else _code_lines(text, (), True)
    if bound(tree).intersection(names):
        return _with_preamble(text, signature)
    for part in (text, *_indented(text)):
        if (found := _code_lines(part, names, False)) is not None:
            return _with_preamble(found, signature)
    return text if not names and not signature and calls(tree) else None


def _indented(text: str) -> Iterator[str]:
    """Yields the blocks that are code in Markdown by their indentation, after an empty line, the last one first."""
    found, run, free = list[list[str]](), list[str](), True
    for line in text.split("\n"):
        if line.startswith(("    ", "\t")) and (run or free):
            run.append(line)
        elif line.strip() or not run:
            found, run = ([*found, run] if run else found), []
        else:
            run.append("")
        free = not line.strip()
    for lines in reversed([*found, run][-_MAX_INDENTED:]):
        yield textwrap.dedent("\n".join(lines))


def _code_lines(text: str, names: Sequence[str], script: bool) -> str | None:
    """Returns the longest run of lines that is a program, prose around it left out."""
    if len(text) > MAX_PARSED:
        return None
    lines = text.split("\n")
    starts = [i for i, line in enumerate(lines) if _CODE_START.match(line)]
    attempts = 0
    for start in starts:
        end = len(lines)
        while end > start and attempts < _MAX_ATTEMPTS:
            attempts += 1
            code = "\n".join(lines[start:end])
            tree, failed_line = parse_where(code)
            if tree is not None:
                if calls(tree) if script else bound(tree).intersection(names):
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
    indent = _body_indent(signature)
    variants = [textwrap.indent(textwrap.dedent(text), indent), f"{indent}{first}\n{others}"]
    if text[0].isspace():
        variants.insert(0, text)
    for body in dict.fromkeys(variants):
        code = f"{signature.rstrip()}\n{body}\n"
        if _compiles(code) and bound(parse(code)).intersection(names):
            return code
    for body in dict.fromkeys(variants):  # a completion that went on, and was cut off
        lines = body.split("\n")
        for end in range(len(lines) - 1, max(0, len(lines) - _MAX_ATTEMPTS), -1):
            code = f"{signature.rstrip()}\n" + "\n".join(lines[:end]) + "\n"
            if any(line.strip() for line in lines[:end]) and _compiles(code):
                return code
    return None


def _with_preamble(code: str, signature: str) -> str:
    """Returns a program that repeats the prompt's last function, after the prompt's imports and helpers.

    Where it does not repeat that function, and the prompt has all of it, it is a helper, too.
    """
    if not signature or (given := parse(signature) or parse(_with_pass(signature))) is None:
        return code
    if (tree := parse(code)) is None:
        return code
    lines = signature.split("\n")
    last = given.body[-1]
    if getattr(last, "name", None) not in defined(parse(signature)) - bound(tree):
        lines = lines[: min([last.lineno, *(d.lineno for d in getattr(last, "decorator_list", []))]) - 1]
    preamble = "\n".join(lines).strip()
    if not preamble:
        return code
    return with_code_before(code, f"{preamble}\n")


def _compiles(code: str) -> bool:
    if len(code) > MAX_PARSED:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(code, "<program>", "exec", dont_inherit=True)
        return True
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _seems_to_define(code: str, names: Sequence[str]) -> bool:
    return any(re.search(rf"^(?:async def|def|class)\s+{re.escape(name)}\b", code, re.MULTILINE) for name in names)


def _seems_a_program(code: str) -> bool:
    return any(_CODE_START.match(line) for line in code.split("\n"))
