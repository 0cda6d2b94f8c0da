"""From a completion as a trainer holds it to the text that a verifier reads, and to the part that states the answer.

Stage: rewards. A completion is a string or a list of chat messages; its reasoning part (`<think>...</think>`) is kept
in the text, and cut off before an answer is looked for: a number met while thinking is not an answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")  # names used by the chat templates that TRL parses
_ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)


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


def without_reasoning(text: str) -> str | None:
    """Returns what follows the reasoning, or `None` where the reasoning was opened and never closed."""
    head, tag, tail = text.rpartition("</think>")
    if tag:
        return tail
    return None if "<think>" in text else text


def last_answer_tag(text: str) -> str | None:
    """Returns the content of the last `<answer>...</answer>`, or `None` where there is none."""
    found = _ANSWER_TAG.findall(text)
    return found[-1].strip() if found else None


def marked_answer(text: str) -> tuple[str, str] | None:
    r"""Returns (kind of mark, content) of what the text marks as its final answer, or `None` where nothing is marked.

    Args:
        text: A solution without its reasoning. The mark is the first of these that occurs: the last `<answer>` tag,
            the last `\boxed{}`, the line after the last `####` (the form of GSM8K, arXiv 2110.14168).
    """
    if (tagged := last_answer_tag(text)) is not None:
        return "<answer>", tagged
    if (boxed := last_boxed(text)) is not None:
        return r"\boxed", boxed
    _, hashes, after = text.rpartition("####")
    return ("####", after.strip().split("\n", 1)[0]) if hashes else None


def last_boxed(text: str) -> str | None:
    r"""Returns the content of the last complete `\boxed{...}` or `\fbox{...}`, braces balanced, or `None`."""
    for match in reversed(list(re.finditer(r"\\(?:boxed|fbox)\s*\{", text))):
        depth = 1
        for i in range(match.end(), len(text)):
            if text[i] in "{}" and text[i - 1] != "\\":
                depth += 1 if text[i] == "{" else -1
            if depth == 0:
                return text[match.end() : i].strip()
    return None
