r"""Answers in sentences: what follows "the answer is", and the conclusion of a text that marks nothing.

Stage: rewards, `math`. A number that is only mentioned is no answer: a text without a mark states one where it is
nothing but an answer, or where its last sentence concludes ("Therefore x = 5.").
"""

from __future__ import annotations

import re

from .shapes import shape_of

_MATHS = re.compile(
    r"\$\$(.+?)\$\$|(?<!\\)\$(?!\s*\d[\d,.]*\s+[a-z])(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL
)
_CUT = re.compile(
    r"\s*(?:,\s*(?:which|because|since|so|as|where|and we|and so|not)\b"
    r"|\s(?:because|since|which|where|so that)\b).*$",
    re.DOTALL,
)
_NOT_BUT = re.compile(r"not\s+.{1,40}?,?\s+but\s+(?:rather\s+)?", re.IGNORECASE)
_CONCLUSION = re.compile(
    r"^(?:(?:so|thus|therefore|hence|consequently|in conclusion|we get|we have|we find|this gives|it follows that)\b"
    r"|\u6240\u4ee5|\u56e0\u6b64|\u7efc\u4e0a|\u6545)"
    r".*?(?:\bis\b|\bare\b|\bequals?\b|=|\bget\b|\bhave\b|:|\u662f|\u4e3a)\s*(?P<answer>[^=]{1,200})$",
    re.IGNORECASE | re.DOTALL,
)
_SENTENCES = re.compile(r"(?<=[.!?\u3002])\s+(?=\S)|\n+")
_MAX_BARE = 200


def _readable(text: str) -> bool:
    return shape_of(text).kind != "words"


def spoken(content: str) -> str:
    """Returns the answer in what follows "the answer is", up to the end of its sentence."""
    content = content.strip()
    if negated := _NOT_BUT.match(content):
        content = content[negated.end() :]
    spans = [next(group for group in match.groups() if group) for match in _MATHS.finditer(content)]
    if spans and content.lstrip("*_ :").startswith(("$", "\\(", "\\[")):
        rest = _MATHS.sub("", content).strip(" .,*_:")
        if len(spans) == 1 or not re.search(r"\b(?:and|or|but|maybe|might|perhaps)\b|,", rest):
            unit = re.match(r"[A-Za-z ^/\u00b20-9]{1,20}$", rest)
            return f"{spans[0]} {rest}" if len(spans) == 1 and unit and _readable(f"{spans[0]} {rest}") else spans[0]
    cut = _CUT.sub("", content)
    if cut and cut != content and _readable(cut):
        return cut
    if _readable(content):
        return content
    return spans[0] if len(spans) == 1 else content


def conclusion(text: str) -> str | None:
    """Returns the answer of a text that marks none, or `None` where it states none."""
    text = text.strip()
    if not text:
        return None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1].strip()
    sentences = [sentence for sentence in _SENTENCES.split(text[-2000:]) if sentence.strip()]
    match = _CONCLUSION.match(sentences[-1].strip().strip("*").rstrip(".!*\u3002 "))
    if match is not None:
        answers = (spoken(text.strip()) for text in (match["answer"], match["answer"].replace("$", " ")))
        return next((answer for answer in answers if _readable(answer)), None)
    if len(lines) == 1 and len(text) <= _MAX_BARE and _bare(text):
        return text
    if (
        len(last) <= _MAX_BARE
        and re.fullmatch(r"(?:\$\$?|\\\[|\\\(|\*\*).+(?:\$\$?|\\\]|\\\)|\*\*)\.?", last)
        and _bare(last)
    ):
        return last
    if last in ("\\]", "$$") and len(lines) > 1 and _bare(lines[-2]):
        return lines[-2]
    return None


def _bare(text: str) -> bool:
    """Whether a text is nothing but an answer: mathematics, or one or two words."""
    shape = shape_of(text)
    return shape.kind != "words" or len(str(shape.detail).split()) <= 2
