"""Evaluation as the papers report it: pass@k and maj@k with intervals over problems, resumable, comparable.

from trl_grpo_plus.evaluation import Sampling, evaluate
result = evaluate("runs/qwen", PromptSpec("openai/gsm8k", name="main", split="test"), ["gsm8k"],
sampling=Sampling(n=64), ks=(1, 8, 64), output_dir="runs/eval")
print(result.metrics["maj@64"])

sampling     prompts -> samples            batches with seeds of their own, on rollouts/
scoring      samples -> verdicts           right, answer, vote: by the rewards' verifiers
estimators   counts -> pass@k, maj@k       exact over all subsets
intervals    problems -> intervals         bootstrap over problems, paired test
store        everything -> parquet         goes on after a kill
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Public names and where they live, imported on first use: the command line imports this package to list its commands.
_PUBLIC = {
    "Comparison": "comparison",
    "compare": "comparison",
    "maj_at_k": "estimators",
    "pass_at_k": "estimators",
    "Difference": "intervals",
    "Estimate": "intervals",
    "estimate_means": "intervals",
    "paired_difference": "intervals",
    "load_model": "models",
    "load_tokenizer": "models",
    "METRICS": "result",
    "EvalResult": "result",
    "summarize": "result",
    "evaluate": "run",
    "Sample": "sampling",
    "Sampling": "sampling",
    "draw_samples": "sampling",
    "EvaluationCallback": "training",
    "Scored": "scoring",
    "score_samples": "scoring",
}

if TYPE_CHECKING:
    from .comparison import Comparison as Comparison
    from .comparison import compare as compare
    from .estimators import maj_at_k as maj_at_k
    from .estimators import pass_at_k as pass_at_k
    from .intervals import Difference as Difference
    from .intervals import Estimate as Estimate
    from .intervals import estimate_means as estimate_means
    from .intervals import paired_difference as paired_difference
    from .models import load_model as load_model
    from .models import load_tokenizer as load_tokenizer
    from .result import METRICS as METRICS
    from .result import EvalResult as EvalResult
    from .result import summarize as summarize
    from .run import evaluate as evaluate
    from .sampling import Sample as Sample
    from .sampling import Sampling as Sampling
    from .sampling import draw_samples as draw_samples
    from .scoring import Scored as Scored
    from .scoring import score_samples as score_samples
    from .training import EvaluationCallback as EvaluationCallback

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(f".{_PUBLIC[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
