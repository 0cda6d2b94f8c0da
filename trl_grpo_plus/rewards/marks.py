r"""Where a text marks its final answer: `<answer>` tags, `\boxed{}`, `####`, "the answer is".

Stage: rewards. Used by the verifiers that compare answers. One text states one answer: the mark that comes last. A
revised answer is therefore the revision; boxes that follow each other with nothing but "and" or a comma between them
are one answer of several parts, which a guess that lists candidates never gets past; an answer cut off is none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ANSWER_TAG = re.compile(r"<answer>", re.IGNORECASE)
_ANSWER_END = re.compile(r"</answer>", re.IGNORECASE)
# Also where a JSON or Python string ate the backslash: "\b" is a backspace.
_BOX = re.compile(r"(?:\\|\x08|(?<![A-Za-z]))(?:boxed|(?<=\x08)oxed|fbox|framebox)\s*(\{|(?<=\s)-?[\d.,]*\d|\d)")
_BACKSPACE_BOX = "\x08oxed"
_BETWEEN_BOXES = re.compile(
    r"(?:[\s$,;.:&、，；*]|\\[()\[\],;! ]|\\(?:quad|qquad)\b|\\text\s*\{\s*(?:and|or)?,?\s*\}"
    r"|\b(?:and|or|maybe|perhaps|possibly|also)\b|和|或|及"
    r"|\(?\b[a-e]\)|[A-Za-z](?:_\{?\w\}?)?\s*=)*"
)
_MAX_BETWEEN = 100  # characters between boxes of one answer
_HASHES = re.compile(r"^[ \t>*]*####[ \t]*(?!#)(.*)$|####[ \t]*(?!#)([-+$€£\\*\d(].*)$", re.MULTILINE)
_HEADING = re.compile(r"[*_\s]*[A-Za-z]{3,}")  # `#### Step 2` is a heading of Markdown
_SAID = re.compile(
    r"(?:\banswers?\**\s*(?:is|are|:|=|\s[-\u2013\u2014](?=\s)|would be|should be|must be|comes? (?:out )?to)\s*:?"
    r"|\bfinal (?:answer|result)\**\s*(?:is|:|=)?\s*:?|\bans\b\.?\s*[:=]|^[ \t]*[#*_]+[ \t]*answers?[ \t*_]*$"
    r"|(?:答案|结果)\s*(?:是|为|：|:|应为|应该是|等于)\s*[：:]?)",
    re.IGNORECASE | re.MULTILINE,
)
_SAID_START = re.compile(
    r"[\s*_]*(?:\\boxed|[$\\(\[{|−–+\-.\d√π∞±≈~½⅓¼¾０-９£€¥<>≤≥]|[A-Za-z]\w{0,2}\b(?!\s+[a-z]{2,}))"
)
_SUPPOSED = re.compile(
    r"\b(?:assum(?:e|ing)|suppos(?:e|ing)|if|whether|unless|guess)\s+(?:that\s+)?(?:the\s+|my\s+)?\Z", re.I
)
_SENTENCE_END = re.compile(r"\n|(?<!\d)\.(?=\s|$)|\.(?=\s+[A-Z]|\s*$)|。|[!?](?=\s+[A-Z]|\s*$)")


@dataclass(frozen=True, slots=True)
class Mark:
    r"""A marked answer.

    Args:
        kind: `<answer>`, `\boxed`, `####` or `answer is`.
        content: What is marked, empty where it is cut off.
        start: Where it begins in the text.
        end: Where it ends.
        cut_off: Whether the text ends before the mark is closed.
    """

    kind: str
    content: str
    start: int
    end: int
    cut_off: bool = False


def closing_brace(text: str, start: int) -> int | None:
    r"""Returns the position of the `}` that closes a group whose content begins at `start`; `\}` does not count."""
    depth = 1
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        if match.group() == "{":
            depth += 1
        elif match.group() == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return None


def boxes(text: str) -> list[Mark]:
    r"""Returns the outermost `\boxed{...}` of a text, in order; one that is never closed is the last, and cut off."""
    text = text.replace(_BACKSPACE_BOX, "\\boxed")  # longer by one: positions after it are those of the mended text
    found: list[Mark] = []
    at = 0
    while match := _BOX.search(text, at):
        if match[1] != "{":
            found.append(Mark(r"\boxed", match[1].rstrip(".,"), match.start(), match.end()))
            at = match.end()
            continue
        end = closing_brace(text, match.end())
        if end is None:
            found.append(Mark(r"\boxed", "", match.start(), len(text), cut_off=True))
            break
        content = text[match.end() : end].strip()
        if content:  # an empty box is the instruction, repeated
            found.append(Mark(r"\boxed", content, match.start(), end + 1))
        at = end + 1
    return found


def last_box(text: str) -> Mark | None:
    """Returns the last box, joined as a list with those before it that only a comma or an "and" stands between."""
    every = boxes(text)
    if not every:
        return None
    last = every[-1]
    if last.cut_off:
        return last
    parts, start = [last.content], last.start
    for box in reversed(every[:-1]):
        if start - box.end > _MAX_BETWEEN or not _BETWEEN_BOXES.fullmatch(text, box.end, start):
            break
        parts.insert(0, box.content)
        start = box.start
    return Mark(last.kind, ", ".join(dict.fromkeys(parts)), start, last.end)


def _last_tag(text: str) -> Mark | None:
    opened = list(_ANSWER_TAG.finditer(text))
    if not opened:
        return None
    last = opened[-1]
    closed = _ANSWER_END.search(text, last.end())
    if closed is None:
        return Mark("<answer>", "", last.start(), len(text), cut_off=True)
    return Mark("<answer>", text[last.end() : closed.start()].strip(), last.start(), closed.end())


def _last_hashes(text: str) -> Mark | None:
    for match in reversed(list(_HASHES.finditer(text))):
        content = (match[1] if match[1] is not None else match[2]).strip()
        if content and not _HEADING.match(content):
            return Mark("####", content, match.start(), match.end())
    return None


def _last_said(text: str) -> Mark | None:
    r"""Returns what follows the last "the answer is", up to the end of its sentence or of the line after it."""
    for match in reversed(list(_SAID.finditer(text))[-50:]):
        rest = re.compile(r"[\s:*_]*").match(text, match.end())
        at = rest.end() if rest else match.end()
        if not _SAID_START.match(text, at) or _SUPPOSED.search(text, max(match.start() - 40, 0), match.start()):
            continue
        end = _SENTENCE_END.search(text, at)
        stop = end.start() if end else len(text)
        content = text[at:stop].strip().strip("*_ ").rstrip(":;,!.。")
        if content and re.search(r"[\w∞√½⅓¼¾]", content):
            return Mark("answer is", content, match.start(), stop)
    return None


def final_mark(text: str, said: bool = True) -> Mark | None:
    r"""Returns the mark of a text's final answer, the one that comes last, or `None` where nothing is marked.

    Args:
        text: A completion without its reasoning, or a gold solution.
        said: Whether "the answer is" is a mark.

    Returns:
        Of `<answer>\boxed{x}</answer>` and `#### \boxed{x}` the box.
    """
    text = text.replace(_BACKSPACE_BOX, "\\boxed")
    box = last_box(text)
    marks = [mark for mark in (_last_tag(text), box, _last_hashes(text)) if mark is not None]
    spoken = _last_said(text) if said else None
    if spoken is not None and not (box is not None and box.start <= spoken.start < box.end):  # \boxed{Answer: 72}
        marks.append(spoken)
    if not marks:
        return None
    last = max(marks, key=lambda mark: mark.start)
    tag = next((mark for mark in marks if mark.kind == "<answer>" and mark.start <= last.start < mark.end), None)
    if tag is not None and tag.cut_off and last.kind == r"\boxed" and not last.cut_off:
        return last  # the box is whole, and only the end of the tag is missing
    if tag is not None and tag is not last:  # what the tag holds is read by itself
        inner = final_mark(tag.content, said) if "<answer>" not in tag.content.lower() else None
        return inner or tag
    if last.kind == r"\boxed" or last.cut_off:
        return last
    box = last_box(last.content)  # of `#### \boxed{72}`
    return Mark(box.kind, box.content, last.start, last.end, box.cut_off) if box is not None else last
