"""GRPO on one GPU, as a drop-in for Hugging Face TRL.

    from trl_grpo_plus import GRPOConfig, GRPOTrainer      # was: from trl import GRPOConfig, GRPOTrainer

The tree is the data flow of one optimizer step (B prompts, G completions per prompt, T tokens, F rewards):

    prompts/      dataset, file or task         ->  rows {prompt, answer, ...}             B rows, each G times
    rollouts/     rows                          ->  completion_ids (B*G, T), mask (B*G, T)
    rewards/      completions, rows             ->  verdicts -> rewards (B*G, F)
    advantages    rewards (B*G, F)              ->  advantages (B*G,)                      TRL's own
    forward/      prompt and completion ids     ->  log-probabilities (B*G, T)
    trainer       log-probabilities, advantages ->  loss ()                                TRL's own

`recipe`, `cli` and `report` run it from a YAML file; `evaluation/` measures a model by pass@k and maj@k, during it and
after it; `quickstart/` is a whole run on a laptop.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public names and where they live, imported on first use: importing the package costs nothing.
_PUBLIC = {
    "GRPOConfig": "config",
    "GRPOTrainer": "trainer",
    "PPOConfig": "ppo_config",
    "PPOTrainer": "ppo",
    "MemoryProfiler": "memory.profiler",
    "MemoryProfilerCallback": "memory.profiler",
    "PromptSpec": "prompts",
    "load_prompts": "prompts",
    "RewardFunction": "rewards",
    "Verdict": "rewards",
    "build_rewards": "rewards",
    "register": "rewards",
}

if TYPE_CHECKING:
    from .config import GRPOConfig as GRPOConfig
    from .memory.profiler import MemoryProfiler as MemoryProfiler
    from .memory.profiler import MemoryProfilerCallback as MemoryProfilerCallback
    from .ppo import PPOTrainer as PPOTrainer
    from .ppo_config import PPOConfig as PPOConfig
    from .prompts import PromptSpec as PromptSpec
    from .prompts import load_prompts as load_prompts
    from .rewards import RewardFunction as RewardFunction
    from .rewards import Verdict as Verdict
    from .rewards import build_rewards as build_rewards
    from .rewards import register as register
    from .trainer import GRPOTrainer as GRPOTrainer

__all__ = [*sorted(_PUBLIC), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
