r"""`multiple_choice`: 1.0 where the chosen letter, or letters, are the gold ones.

The choice is what the text marks as its answer (the last `<answer>` tag, `\boxed{}`, "the answer is", 答案是), or a
letter that stands alone. The letters of ordinary words are no choices: the article in "A good idea", the pronoun in "I
computed", the initial of "Don't know". Alternatives ("B or C") choose nothing.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from .marks import final_mark
from .registry import Row, register
from .text import stated_part
from .verdict import Verdict

_LABELS = "ABCDEFGHIJ"
_AROUND = "()[]<>{} .:-•"  # a letter that stands alone
_MAX_CHARS = 20_000  # looked at, from the end
_WRAPPING = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mathit|mathsf|rm|bf|boxed)\b|\\[()\[\]]|[*_`${}~]+|\\[,;!{} ]")
_SAID = re.compile(
    r"(?:(?:\bans\.?|answer|choice|option|solution)\s*(?:is|are|:|=>?|->|→|\s[-–—](?=\s)|would be|should be|must be"
    r"|seems to be)"
    r"|\b(?:i|we)(?:\s+would|\s+will|'ll|'d)?\s+(?:choose|pick|select|go with)\b"
    r"|\b(?:it|that)(?:'s|\s+is|\s+must\s+be)\b"
    r"|【答案】|(?:答案|选项)\s*(?:是|为|:|应为|应该是)|(?<![不别非未能])(?:故选|选择|应选|应选择|选)\s*:?)\s*:?\s*",
    re.IGNORECASE,
)
_CORRECT = re.compile(
    r"(?<![\w'])\(?(?P<letter>[A-Z])\)?\s+(?:is|are)\s+(?:(?:clearly|definitely|therefore|thus|indeed)\s+)?"
    r"(?:(?:the\s+)?(?:only\s+)?(?:correct|right|best)\b|the\s+(?:final\s+)?(?:answer|choice)\b)"
    r"|(?:选项)?(?P<chinese>[A-Z])(?:选项)?(?:是|为)?(?:正确|对)的?(?!吗)"
)
_BEFORE = re.compile(
    r"(?:(?:the|option|choice|letter|answer|statement|likely|probably|clearly|definitely|both)\s+|:\s*"
    r"|not\s+(?:option\s+|choice\s+)?\(?[A-Z]\)?,?\s+but\s+(?:rather\s+)?)*",
    re.I,
)
_BETWEEN = re.compile(r"\s*(?:,\s*and\b|,|;|&|\+|/|\band\b|和|与|、)\s*|\s*(?=[(])")
_OR = re.compile(r"\s*(?:,?\s*\bor\b|或)\s*(?:option\s+|choice\s+)?\(?([A-Z])\)?(?![\w'])", re.IGNORECASE)
_NEGATION = re.compile(r"\bnot\b|n't\b|\bcannot\b|\bnever\b|\bneither\b|\bif\b|\bwrong\b", re.IGNORECASE)
_LAST_WORD = re.compile(
    r"\b(?:(?:is|be|say|with)|(?:[Tt]herefore|[Tt]hus|[Hh]ence|[Ss]o),?)\s+(?:option\s+|choice\s+)?\(?([A-Z])\)?\s*[.!]?\s*\Z"
)
_LABEL_WORDS = re.compile(
    r"(?:the\s+)?(?:final\s+|correct\s+)*(?:option|choice|answer)s?\b\s*(?P<is>is\b)?\s*(?P<colon>:)?\s*|both\s+",
    re.IGNORECASE,
)
_QUOTED = re.compile(r"(?<!\w)[\"'“‘\[]\s*\(?([A-Za-z0-9])\)?\s*[.]?\s*[\"'”’\]](?!\w)")
_INVISIBLE = re.compile(r"[\u200b-\u200f\u2060\ufeff\u00ad]")
# What may follow the article or the pronoun only if it is a letter after all.
_CLAUSE = re.compile(
    r"\s+(?:because|since|as|and|or|is|are|was|which|by|for|with|due|while|but|where|given|in|if|not)\b"
)


def _clean(text: str) -> str:
    text = _WRAPPING.sub(" ", unicodedata.normalize("NFKC", _INVISIBLE.sub("", text)))
    return _QUOTED.sub(r" \1 ", text).strip()


def _letter_at(text: str, at: int, labels: str) -> tuple[str, int] | None:
    """Returns (letter, end) of the label that stands alone at a position, in parentheses or not, or `None`."""
    match = re.compile(r"(\(\s*)?([A-Z0-9])(?(1)\s*\)|)(?![A-Za-z0-9'’])").match(text, at)
    if match is None or match[2] not in labels:
        return None
    if not match[1] and match[2] in "AI" and re.match(r"\s+[a-z]", text[match.end() : match.end() + 20]):
        return (match[2], match.end()) if _CLAUSE.match(text, match.end()) else None
    return match[2], match.end()


def _letters_at(text: str, at: int, labels: str) -> tuple[frozenset[str], int] | None:
    """Returns (letters, end) of the choice that begins at a position; no letters where it offers alternatives."""
    one = f"[{re.escape(labels)}]"
    together = re.compile(rf"{one}{{2,}}(?![^\W\u3000-\u9fff])|{one}(?: {one})+(?=\s*(?:[.!。]|\Z))")
    if run := together.match(text, at):  # `AC`, `A C`; letters in another order are a word
        joined = run.group().replace(" ", "")
        if list(joined) == sorted(set(joined)):
            return frozenset(joined), run.end()
    first = _letter_at(text, at, labels)
    if first is None:
        return None
    letters, at = {first[0]}, first[1]
    while between := _BETWEEN.match(text, at):
        following = _letter_at(text, between.end(), labels)
        if following is None:
            break
        letters.add(following[0])
        at = following[1]
    other = _OR.match(text, at)
    if other and other[1].upper() in labels:
        return frozenset(), other.end()
    return frozenset(letters), at


def chosen(text: str, labels: str, texts: Mapping[str, str]) -> frozenset[str] | None:
    """Returns the letters that a short answer chooses: `C`, `(C)`, `E: some text`, `A, C`, `AC`, an option's text.

    Args:
        text: The content of a box or a tag, a line, or a gold answer.
        labels: The letters there are.
        texts: The options' texts by letter, where known.

    Returns:
        The letters; none of them where alternatives are offered; `None` where nothing is chosen.
    """
    text = _clean(text)
    alone = text.strip(_AROUND)
    if len(alone) == 1 and alone.upper() in labels:
        return frozenset(alone.upper())
    if words := _LABEL_WORDS.match(text):
        text = text[words.end() :]
        alone = text.strip(_AROUND)
        if len(alone) == 1 and alone.upper() in labels and (words["colon"] or not words["is"]):  # `Answer: a`
            return frozenset(alone.upper())
    if len(text) == 1 and text in labels:  # in a sentence no lower case: "the answer is a"
        return frozenset(text)
    by_text = [label for label, option in texts.items() if _plain(option) == _plain(text)]
    if len(by_text) == 1:
        return frozenset(by_text)
    letters_only = text.replace(" ", "")
    if re.fullmatch(rf"[{re.escape(labels)}]{{2,}}", letters_only) and len(set(letters_only)) == len(letters_only):
        return frozenset(letters_only)
    found = _letters_at(text, 0, labels)
    if found is None:
        return None
    letters, end = found
    rest = text[end:].strip()
    if not rest.strip(".:)!。"):
        return letters
    goes_on = re.match(r"\s*[-–—.:)]\s|,?\s+(?:because|since)\b", text[end:] + " ")
    if len(letters) != 1 or not (goes_on or text[0] == "("):
        return None if letters else letters
    (letter,) = letters
    told = _plain(rest.lstrip(".:)-–— "))
    if any(_plain(option) == told for label, option in texts.items() if label != letter):
        return frozenset()  # the letter of one option with the text of another
    return letters


def _plain(text: str) -> str:
    return re.sub(r"[\s.,:;!]+", " ", _clean(str(text))).strip().casefold()


def _in_prose(text: str, labels: str) -> frozenset[str] | None:
    """Returns the letters of the last statement of the kind "the answer is C" or "C is correct"."""
    found: list[tuple[int, frozenset[str]]] = []
    for said in _SAID.finditer(text):
        before = _BEFORE.match(text, said.end())
        letters = _letters_at(text, before.end() if before else said.end(), labels)
        if letters is not None:
            found.append((said.start(), letters[0]))
    correct = ((m.start(), m["letter"] or m["chinese"]) for m in _CORRECT.finditer(text))
    found += [(start, frozenset(letter)) for start, letter in correct if letter in labels]
    last = None if found else _LAST_WORD.search(text)
    if last and last[1] in labels:
        concludes = re.match(r"so\b|thus|therefore|hence", last.group(), re.IGNORECASE)
        if concludes or not _NEGATION.search(re.split(r"[.!?\n]\s", text[: last.start()])[-1]):
            return frozenset(last[1])
    return max(found, key=lambda each: each[0])[1] if found else None


def _alone(text: str, labels: str, texts: Mapping[str, str]) -> frozenset[str] | None:
    """Returns the choice of a text that is one, begins with one (`B) ...`), or has a line with nothing but one."""
    if len(set(re.findall(rf"(?<![\w'])\(?([{re.escape(labels)}])[).:](?=\s)", text))) > 1:
        return None  # the options are repeated, or discussed one after the other
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) == 1:
        return chosen(lines[0], labels, texts)
    alone = {found for line in lines if len(line) < 12 and (found := chosen(line, labels, texts))}
    if len(alone) == 1:
        return alone.pop()
    return (
        chosen(lines[0], labels, texts) if lines and re.match(rf"\(?[{re.escape(labels)}][).:]\s", lines[0]) else None
    )


def _options(row: Row, options_column: str) -> tuple[str, dict[str, str]]:
    """Returns (letters, texts by letter) of a row's options: texts, `{letter: text}`, `{text: [], label: []}`."""
    options = row.get(options_column)
    if isinstance(options, str):
        return "".join(options.split()).upper(), {}
    if isinstance(options, Mapping):
        if isinstance(options.get("text"), Sequence) and isinstance(options.get("label"), Sequence):
            options = dict(zip(options["label"], options["text"], strict=False))
        texts = {str(label).strip().upper(): str(text) for label, text in options.items() if text is not None}
        return "".join(label for label in texts if len(label) == 1), texts
    if isinstance(options, Sequence) and options:
        texts = {label: str(text) for label, text in zip(_LABELS, options, strict=False)}
        return "".join(texts), ({} if all(label == text for label, text in texts.items()) else texts)
    return "", {}


def _gold(value: Any, labels: str, texts: Mapping[str, str]) -> frozenset[str] | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return frozenset(labels[value]) if 0 <= value < len(labels) else None
    if isinstance(value, Sequence) and not isinstance(value, str):
        each = [_gold(item, labels, texts) for item in value]
        return frozenset().union(*each) if each and all(each) else None  # type: ignore[arg-type]
    text = str(value).strip()
    if re.fullmatch(rf"[{re.escape(labels)}]{{2,}}", text):
        return frozenset(text)
    return chosen(text, labels, texts) or None


@register(
    "multiple_choice",
    description="1.0 where the chosen letter (or letters) of a multiple-choice question are the gold ones",
    columns=("answer",),
    optional=("prompt", "choices"),
    accuracy=True,
    version=2,
    runs="inline",
)
def multiple_choice(
    completion: str, row: Row, *, column: str = "answer", options_column: str = "choices", labels: str | None = None
) -> Verdict:
    """Scores 1.0 where the completion chooses exactly the gold letters, 0.0 elsewhere.

    Args:
        completion: The completion's text.
        row: The row.
        column: Column of the gold answer: a letter (`C`, `(C)`), letters (`AC`, `["A", "C"]`), a whole number (0 is
            A), or an option's text.
        options_column: Column of the options where there is one: their letters (`ABCD`), their texts, `{letter: text}`
            or `{"label": [...], "text": [...]}`. With the texts known, an option's text counts as its letter.
        labels: The letters there are; `None` takes those of the row's options, or A to J.
    """
    if row.get(column) is None:
        return Verdict.unscored(f"the row has no `{column}`")
    given, texts = _options(row, options_column)
    known = (labels or given or _LABELS).upper()
    gold = _gold(row[column], known, texts)
    if not gold:
        return Verdict.unscored(f"the row's `{column}` is none of {', '.join(known)}: {str(row[column])[:80]!r}")
    stated = stated_part(completion, row)
    if stated is None:
        return Verdict(0.0, None, "the reasoning is not closed")
    stated = stated[-_MAX_CHARS:]
    mark = final_mark(stated, said=False)
    if mark is not None and mark.cut_off:
        return Verdict(0.0, None, f"{mark.kind} is not closed")
    letters, where = _in_prose(_clean(stated[mark.end :] if mark else stated), known), "stated"
    if letters is None and mark is not None:
        letters, where = chosen(mark.content, known, texts), mark.kind
        letters = _in_prose(_clean(mark.content), known) if letters is None else letters
    elif letters is None:
        letters, where = _alone(_clean(stated), known, texts), "alone"
    if letters is None:
        return Verdict(0.0, None, "no choice found")
    answer = ", ".join(sorted(letters)) or "alternatives"
    return Verdict(
        1.0 if letters == gold else 0.0, answer, where if letters == gold else f"gold is {', '.join(sorted(gold))}"
    )
