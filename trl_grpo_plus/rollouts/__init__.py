"""Rollouts: prompts in, completions out. Knows models and generation configs, nothing of the trainer."""

from .decoding import GenerationStats
from .generation import generate_groups, generate_plain
from .support import why_not, why_not_prefill_once

__all__ = ["GenerationStats", "generate_groups", "generate_plain", "why_not", "why_not_prefill_once"]
