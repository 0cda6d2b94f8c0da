"""The shared-prompt forward: every distinct prompt of a micro-batch runs once, the numbers stay TRL's."""

from .attention import NotExactError
from .exactness import Exactness, inspect_model
from .gate import Gate
from .layout import Layout, LayoutError, build_layout, should_pack
from .packed import ForwardStats, packed_logps_and_entropies
from .regroup import composition_reason, grouped_permutation, optimizer_steps, regroup
from .score import score_rows
from .trim import trim
from .verify import Verification, verify

__all__ = [
    "Exactness",
    "ForwardStats",
    "Gate",
    "Layout",
    "LayoutError",
    "NotExactError",
    "Verification",
    "build_layout",
    "composition_reason",
    "grouped_permutation",
    "inspect_model",
    "optimizer_steps",
    "packed_logps_and_entropies",
    "regroup",
    "score_rows",
    "should_pack",
    "trim",
    "verify",
]
