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

from .estimators import maj_at_k, pass_at_k
from .intervals import Difference, Estimate, estimate_means, paired_difference
from .models import load_model, load_tokenizer
from .result import METRICS, EvalResult, summarize
from .run import evaluate
from .sampling import Sample, Sampling, draw_samples
from .scoring import Scored, score_samples

__all__ = [
    "METRICS",
    "Difference",
    "EvalResult",
    "Estimate",
    "Sample",
    "Sampling",
    "Scored",
    "draw_samples",
    "estimate_means",
    "evaluate",
    "load_model",
    "load_tokenizer",
    "maj_at_k",
    "paired_difference",
    "pass_at_k",
    "score_samples",
    "summarize",
]
