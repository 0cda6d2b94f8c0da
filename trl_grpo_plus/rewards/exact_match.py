"""`exact_match`: 1.0 where the answer is the gold answer, character for character."""

from __future__ import annotations

from .registry import Row, register
from .text import without_reasoning
from .verdict import Verdict


@register(
    "exact_match",
    description="1.0 where the answer equals the gold answer as text, inside exactly one <answer> tag by default",
    columns=("answer",),
    accuracy=True,
    version=2,
    runs="inline",
)
def exact_match(
    completion: str, row: Row, *, column: str = "answer", tag: str | None = "answer", ignore_case: bool = False
) -> Verdict:
    """Scores 1.0 where the stated answer equals the gold answer, 0.0 elsewhere; white space around both is ignored.

    Args:
        completion: The completion's text.
        row: The row; its gold answer is compared as text.
        column: Column of the gold answer.
        tag: The answer is what stands inside exactly one `<tag>...</tag>` after the reasoning; several are a hedge and
            score 0.0. `None` takes all that follows the reasoning.
        ignore_case: Compare without regard to case.
    """
    if row.get(column) is None:
        return Verdict.unscored(f"the row has no `{column}`")
    gold = str(row[column]).strip()
    stated = without_reasoning(completion)
    if stated is None:
        return Verdict(0.0, None, "the reasoning is not closed")
    if tag is not None:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if stated.count(opening) != 1 or stated.count(closing) != 1:
            return Verdict(0.0, None, f"needs exactly one {opening}...{closing}, found {stated.count(opening)}")
        stated = stated.split(opening, 1)[1]
        if closing not in stated:
            return Verdict(0.0, None, f"{closing} stands before {opening}")
        stated = stated.split(closing, 1)[0]
    answer = stated.strip()
    same = answer.casefold() == gold.casefold() if ignore_case else answer == gold
    return Verdict(1.0 if same else 0.0, answer, "equal" if same else f"gold is {gold!r}")
