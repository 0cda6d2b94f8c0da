"""`reward_model`: the score of a sequence-classification model, for preferences that no program can check.

The model reads prompt and completion as TRL's own reward models do: through the chat template where the prompt is
messages, one after the other where it is text. It runs on the trainer's device, in batches of similar length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import UserError
from .registry import Row, register
from .verdict import Verdict


@register(
    "reward_model",
    description="The score of a sequence-classification model (a directory or a hub id)",
    optional=("prompt",),
    runs="batch",
)
class RewardModel:
    """Scores completions with a model that has one output.

    Args:
        model: Directory or hub id of a sequence-classification model with its tokenizer.
        batch_size: Sequences that run at once.
        max_tokens: Longest sequence; a longer one loses its beginning. `None` does not cut.
        dtype: `float32`, `bfloat16`, `float16`, or `auto` for that of the files.
        sigmoid: Squeeze scores into (0, 1), the probability of being preferred over a score of 0 (Bradley-Terry).
        revision: Revision of a hub model.
        device: Where it runs until the trainer says otherwise.

    Raises:
        UserError: There is no such model, or it has not exactly one output.
    """

    def __init__(
        self,
        model: str,
        batch_size: int = 8,
        max_tokens: int | None = None,
        dtype: str = "auto",
        sigmoid: bool = False,
        revision: str | None = None,
        device: str = "cpu",
    ) -> None:
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        if batch_size < 1:
            raise UserError(f"reward `reward_model`: batch_size must be positive, found {batch_size}")
        if dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise UserError(
                f"reward `reward_model`: dtype must be auto, float32, bfloat16 or float16, found {dtype!r}"
            )
        self.batch_size, self.max_tokens, self.sigmoid = batch_size, max_tokens, sigmoid
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(model, revision=revision)
            self.model: Any = AutoModelForSequenceClassification.from_pretrained(
                model, revision=revision, dtype="auto" if dtype == "auto" else getattr(torch, dtype)
            )
        except (OSError, ValueError) as error:
            raise UserError(f"reward `reward_model`: {model} cannot be loaded: {str(error)[:300]}") from error
        if self.model.config.num_labels != 1:
            raise UserError(
                f"reward `reward_model`: {model} has {self.model.config.num_labels} outputs, a reward model has one"
            )
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        if self.model.config.pad_token_id is None:  # the head reads the last token that is no padding
            self.model.config.pad_token_id = self.tokenizer.pad_token_id
        self.model.eval().requires_grad_(False)
        self.model.to(device)

    def to(self, device: Any) -> RewardModel:
        """Moves the model to a device."""
        self.model.to(device)
        return self

    def _text(self, completion: str, row: Row) -> str:
        prompt = row.get("prompt") or ""
        if isinstance(prompt, str):
            return prompt + completion
        messages = [*prompt, {"role": "assistant", "content": completion}]
        if not all(isinstance(message, Mapping) for message in messages):
            raise TypeError("a prompt must be a text or messages")
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False))

    def verify_batch(self, completions: Sequence[str], rows: Sequence[Row]) -> list[Verdict]:
        """Returns the verdict on each completion, in order."""
        import torch

        texts = [self._text(completion, row) for completion, row in zip(completions, rows, strict=True)]
        ids = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        if self.max_tokens is not None:
            ids = [each[-self.max_tokens :] for each in ids]
        scores: dict[int, float] = {}
        filled = [i for i in range(len(ids)) if ids[i]]
        by_length = sorted(filled, key=lambda i: len(ids[i]))  # little padding in each batch
        for start in range(0, len(by_length), self.batch_size):
            chosen = by_length[start : start + self.batch_size]
            batch = self.tokenizer.pad(
                {"input_ids": [ids[i] for i in chosen]}, padding_side="right", return_tensors="pt"
            ).to(self.model.device)
            with torch.inference_mode():
                logits = self.model(**batch).logits[:, 0].float()
            values = torch.sigmoid(logits) if self.sigmoid else logits
            scores.update(zip(chosen, values.tolist(), strict=True))
        return [
            Verdict(scores[i], None, "score of the model") if i in scores else Verdict.unscored("an empty text")
            for i in range(len(texts))
        ]
