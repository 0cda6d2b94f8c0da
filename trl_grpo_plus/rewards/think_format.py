"""`think_format`: 1.0 where the completion reasons once, in `<think>` tags, and then answers.

TRL's `think_format_reward` also pays where nothing follows `</think>`; this one does not.
"""

from __future__ import annotations

from .registry import Row, register
from .text import last_answer_tag, opens_reasoning, without_turn_end
from .verdict import Verdict


@register(
    "think_format",
    description="1.0 for one <think>...</think>, with something in it, and an answer after it",
    optional=("prompt",),
    version=3,
    runs="inline",
)
def think_format(completion: str, row: Row, *, answer_tag: bool = False, opened: bool | None = None) -> Verdict:
    """Scores 1.0 for exactly one non-empty `<think>...</think>` at the start and a non-empty answer after it.

    Args:
        completion: The completion's text.
        row: The row; its prompt tells whether the chat template has opened the tag already.
        answer_tag: The answer must stand in exactly one `<answer>...</answer>`, and nothing else follow the reasoning.
        opened: Whether the prompt already ends with `<think>`, so that the completion need not repeat it; `None` takes
            it so where the row's prompt is a text that ends with it.
    """
    if opened is None:
        opened = opens_reasoning(row)
    text = without_turn_end(completion).strip()
    if opened:  # a completion that opens the tag again has it twice
        text = f"<think>{text}"
    if text.count("<think>") != 1 or text.count("</think>") != 1:
        return Verdict(0.0, None, "needs exactly one <think> and one </think>")
    if not text.startswith("<think>"):
        return Verdict(0.0, None, "does not start with <think>")
    reasoning, answer = text[len("<think>") :].split("</think>", 1)
    if not reasoning.strip():
        return Verdict(0.0, None, "the reasoning is empty")
    answer = answer.strip()
    if answer_tag:
        inner = last_answer_tag(answer)
        whole = answer.startswith("<answer>") and answer.endswith("</answer>") and answer.count("<answer>") == 1
        if not whole or answer.count("</answer>") != 1 or not inner:
            return Verdict(0.0, None, "needs one non-empty <answer>...</answer> after the reasoning, and no more")
        answer = inner
    if not answer:
        return Verdict(0.0, None, "nothing follows the reasoning")
    return Verdict(1.0, answer, "well formed")
