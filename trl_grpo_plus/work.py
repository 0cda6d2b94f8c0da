"""The work of a step: token positions that ran through a model, and those that TRL would have run.

Counted are generation (prefill and decoding), old and reference log-probabilities, and the forward that is trained on;
a backward runs the same positions as its forward. Padding counts, since it is computed.
"""

from __future__ import annotations

from typing import Any

import torch


class Work:
    """Adds up the token positions of an optimizer step."""

    def __init__(self) -> None:
        self.run = 0
        self.stock = 0

    def add(self, run: int, stock: int) -> None:
        """Adds positions that ran, and those that TRL would have run in their place."""
        self.run += run
        self.stock += stock

    def flush(self, accelerator: Any) -> dict[str, float]:
        """Returns the metrics of the step, summed over processes, and starts the next one.

        `work/tokens_run` and `work/tokens_stock` are token positions, `work/saved` the share of TRL's that was saved.
        """
        local = torch.tensor([self.run, self.stock], dtype=torch.float64 if accelerator.device.type == "cpu" else None)
        run, stock = accelerator.reduce(local.to(accelerator.device), reduction="sum").tolist()
        self.run = self.stock = 0
        saved = 1 - run / stock if stock else 0.0
        return {"work/tokens_run": run, "work/tokens_stock": stock, "work/saved": saved}
