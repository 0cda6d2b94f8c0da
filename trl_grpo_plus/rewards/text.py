"""From a completion as a trainer holds it to the text that a verifier reads, and to the part that states the answer.

Stage: rewards. A completion is a string or a list of chat messages; its reasoning part (`<think>...</think>`) is kept
in the text, and cut off before an answer is looked for: a number met while thinking is not an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")  # names used by the chat templates that TRL parses
_ANSWER_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)

# Tokens that end a turn, left over at the end: of ChatML, Llama 2 and 3, Gemma, Phi, GPT-OSS, DeepSeek.
_MAX_TURN_ENDS = 10
_TURN_ENDS = (
    *(f"<|{name}|>" for name in ("im_end", "endoftext", "end_of_text", "eot_id", "eom_id", "end", "return", "pad")),
    *("</s>", "<eos>", "<pad>", "<end_of_turn>", "<｜end▁of▁sentence｜>"),
)


def completion_text(completion: Any) -> str:
    """Returns the text of a completion: the string itself, or the last assistant message with its reasoning put back.

    Args:
        completion: A string, `None` (an empty text), or messages `{"role", "content"}` as TRL passes them; `content`
            may be a list of `{"type": "text", "text": ...}` parts.

    Raises:
        TypeError: It is none of these.
    """
    if completion is None:
        return ""
    if isinstance(completion, str):
        return completion
    if isinstance(completion, Mapping):
        completion = [completion]
    if not isinstance(completion, Sequence) or not all(isinstance(m, Mapping) for m in completion):
        raise TypeError(f"a completion must be a string or a list of messages, not {type(completion).__name__}")
    spoken = [m for m in completion if m.get("role", "assistant") == "assistant"]
    if not spoken:
        return ""
    message = spoken[-1]
    reasoning = next((message[key] for key in _REASONING_KEYS if message.get(key)), None)
    content = _content_text(message.get("content"))
    return f"<think>\n{reasoning}\n</think>\n{content}" if reasoning else content


def _content_text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content if isinstance(part, Mapping))


def without_turn_end(text: str) -> str:
    """Returns a completion without the tokens that end a turn (`<|im_end|>`, `</s>`)."""
    stripped = text.rstrip()
    for _ in range(_MAX_TURN_ENDS):
        if not stripped.endswith(_TURN_ENDS):
            break
        text = stripped = stripped[: stripped.rindex("<")].rstrip()
    return text


def without_reasoning(text: str) -> str | None:
    """Returns what follows the reasoning, or `None` where it was opened, or opened again, and never closed.

    Tokens that end a turn are cut off.
    """
    stated = text.rpartition("</think>")[2]
    return None if "<think>" in stated else without_turn_end(stated)


def last_answer_tag(text: str) -> str | None:
    """Returns the content of the last `<answer>...</answer>`, or `None` where there is none."""
    content = opened = None
    for tag in _ANSWER_TAG.finditer(text):
        if not tag[1]:
            opened = tag.end()
        elif opened is not None:
            content, opened = text[opened : tag.start()], None
    return None if content is None else content.strip()


def opens_reasoning(row: Mapping[str, Any]) -> bool:
    """Returns whether the row's prompt ends with `<think>`, so that the completion begins inside the reasoning."""
    prompt = row.get("prompt")
    return isinstance(prompt, str) and prompt.rstrip().endswith("<think>")


def stated_part(completion: str, row: Mapping[str, Any]) -> str | None:
    """Returns what a completion states after its reasoning, `None` where the reasoning is never closed."""
    if opens_reasoning(row) and "</think>" not in completion:
        return None
    stated = without_reasoning(completion)
    return None if stated is None else stated.rstrip()
