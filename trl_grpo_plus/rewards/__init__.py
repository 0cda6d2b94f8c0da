"""Verifiable rewards by name: the registry, its verifiers, and what turns them into reward functions for a trainer.

rewards:                                    # in a recipe
  - gsm8k                                   # weight 1
  - think_format: 0.1                       # weight 0.1
  - exact_match: {weight: 1.0, tag: answer} # options of the verifier
  - my_module:my_reward: {weight: 0.5}      # any TRL reward function, or a verifier of your own

registry, arguments   name -> verifier, its typed options, the columns it reads, where it runs; `plugins` of packages
build                 the list above -> reward functions with weights; `combine` makes rewards of rewards
function, together    completions, rows -> verdicts, isolated and cached; `routing`, `runtime`, `cache`, `threads`
pool/                 worker processes with a hard time limit for each completion
check, audit, score   graders measured: on cases with known values, on what fools them, on a file
sandbox/              where programs run
The other files are verifiers, one each.
"""

from . import (  # noqa: F401  (importing registers them)
    code,
    exact_match,
    gsm8k,
    json_schema,
    judge,
    length,
    math,
    multiple_choice,
    reasoning_gym,
    regex,
    repetition,
    reward_model,
    think_format,
)
from .build import Weighted, build_rewards, check_columns
from .function import Reward, RewardFailure, RewardFunction, Scored
from .registry import Entry, Row, entries, get, register
from .runtime import RewardSettings, Runtime, default_runtime
from .verdict import Verdict

__all__ = [
    "Entry",
    "Reward",
    "RewardFailure",
    "RewardFunction",
    "RewardSettings",
    "Row",
    "Runtime",
    "Scored",
    "Verdict",
    "Weighted",
    "build_rewards",
    "check_columns",
    "default_runtime",
    "entries",
    "get",
    "register",
]
