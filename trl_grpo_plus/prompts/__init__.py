"""Prompts: where rows come from (a file, the Hub, a procedural task) and how they are put to a model.

prompts:                                    # in a recipe
  source: openai/gsm8k                      # or data.jsonl, a directory of splits, arithmetic, reasoning_gym:<name>
  columns: {prompt: question, answer: answer}
  template: think_answer

A list of such mixes them; `reward: <name>` in each says which of the recipe's rewards scores its rows.
"""

from .demonstrations import load_demonstrations, load_preferences
from .loaders import load_problems, load_prompts
from .overlap import Overlap, find_overlap
from .spec import TEMPLATES, PromptSpec

__all__ = [
    "TEMPLATES",
    "Overlap",
    "PromptSpec",
    "find_overlap",
    "load_demonstrations",
    "load_preferences",
    "load_problems",
    "load_prompts",
]
