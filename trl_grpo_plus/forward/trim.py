"""Cut a micro-batch to its own longest prompt and completion.

TRL pads to the longest row of the generation batch before micro-batches are cut, so most of them carry columns that
are padding in every row. Those columns are masked in the loss and in the attention; leaving them out shifts positions
by a constant, which relative positions do not see (`Exactness.trim_reason` tells where it is not so).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

# TRL's metrics read a tensor (B, 1) as one value per sequence, so two columns are kept where there were two.
_LEAST_COLUMNS = 2


def trim(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Cut prompts on the left and completions on the right, to the longest of the micro-batch.

    Args:
        inputs: TRL's micro-batch: `prompt_ids` and `prompt_mask` (B, P), `completion_ids` and `completion_mask`
            (B, C), any other tensors (B, C), and whatever else, which is passed on. A batch with image inputs is
            returned as it is: its other tensors may span prompt and completion, or neither.
    """
    if any(isinstance(key, str) and ("pixel" in key or "image" in key or "type_ids" in key) for key in inputs):
        return dict(inputs)
    (B, P), C = inputs["prompt_mask"].shape, inputs["completion_mask"].size(1)
    longest_prompt, longest_completion = torch.stack(
        [inputs["prompt_mask"].sum(1).max(), inputs["completion_mask"].sum(1).max()]
    ).tolist()
    prompt_columns = max(int(longest_prompt), 1)
    completion_columns = min(max(int(longest_completion), _LEAST_COLUMNS), C)

    def cut(key: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.ndim < 2 or value.size(0) != B:
            return value
        if key in ("prompt_ids", "prompt_mask"):
            return value[:, P - prompt_columns :]
        return value[:, :completion_columns] if value.size(1) == C else value

    return {key: cut(key, value) for key, value in inputs.items()}
