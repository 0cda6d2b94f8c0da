"""The evaluation during a training: the policy on held-out prompts, every so many steps, by pass@k and maj@k.

Stage: evaluation. In: a trainer, at a step, and held-out rows. Out: metrics for its log, `eval_pass@1` and so on, with
the ends of their intervals as `.../low` and `.../high`; `metric_for_best_model: eval_pass@1` then keeps the best
checkpoint. Two ways to it:

- `GRPOConfig(eval_rewards=["math"], eval_k=[1, 8], num_generations_eval=8, eval_strategy="steps", eval_steps=50)`: the
  trainers of this package then evaluate like this instead of as TRL does, which has the mean reward only.
- `EvaluationCallback` for any other trainer of TRL, an SFT one say: it adds its metrics to those of each evaluation.

Samples have the same seed every time: two evaluations differ by the policy, and by nothing else that could be kept.
Several processes share the problems. With vLLM, or transformers' continuous batching, the trainer's own generation
draws (its seed is not ours to set).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transformers import TrainerCallback

from ..errors import UserError
from ..rewards import Weighted, build_rewards, check_columns
from .result import EvalResult, check_k, summarize
from .sampling import Generate, Sampling, draw_samples, encode, model_generator
from .scoring import judges_of, score_samples


class PolicyEvaluation:
    """Evaluates the model of a trainer.

    Args:
        rewards: As the `rewards` option of a recipe; at least one must say which answers are right.
        sampling: How samples are drawn.
        ks: Sizes k of pass@k and maj@k, at most `sampling.n`.
        runtime: What the rewards share with those of the training.

    Raises:
        UserError: A reward is unknown, none says what is right, or a k is too large.
    """

    def __init__(self, rewards: Any, sampling: Sampling, ks: Sequence[int] = (1,), runtime: Any = None) -> None:
        self.rewards: tuple[Weighted, ...] = build_rewards(rewards, runtime)
        self.sampling = sampling
        self.ks = check_k(ks, sampling.n)
        judges_of(self.rewards)

    @classmethod
    def of(cls, args: Any, runtime: Any = None) -> PolicyEvaluation | None:
        """Returns the evaluation that a `GRPOConfig` asks for, or `None`: samples as in training, its own rewards.

        Raises:
            UserError: As the constructor; the message names the option.
        """
        rewards = getattr(args, "eval_rewards", None)
        if rewards is None:
            return None
        sampling = Sampling(
            n=args.num_generations_eval or args.num_generations,
            max_new_tokens=args.max_completion_length,
            temperature=args.temperature,
            top_p=args.top_p,
            top_k=args.top_k or 0,
            seed=args.seed,
            batch_size=args.per_device_eval_batch_size,
        )
        try:
            return cls(rewards, sampling, args.eval_k or (1,), runtime)
        except UserError as error:
            raise UserError(f"eval_rewards, eval_k, num_generations_eval: {error}") from error

    def result(self, trainer: Any, rows: Any) -> EvalResult:
        """Returns what the policy is worth on `rows`, the same in every process.

        Args:
            trainer: A trainer of TRL.
            rows: Dataset with `prompt` and the columns that the rewards read.

        Raises:
            UserError: A column is missing, or the weights are sharded over processes.
        """
        from accelerate.utils import gather_object
        from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
        from trl.models import unwrap_model_for_generation

        accelerator = trainer.accelerator
        check_columns(self.rewards, rows.column_names, "the evaluation's data")
        if is_deepspeed_zero3_enabled() or trainer.is_fsdp_enabled:
            raise UserError("eval_rewards: the weights are sharded over processes (ZeRO-3, FSDP); leave it out there")
        mine = range(accelerator.process_index, len(rows), accelerator.num_processes)
        shard = rows.select(mine)
        tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
        prompt_ids = encode(list(shard["prompt"]), tokenizer, **(getattr(trainer, "chat_template_kwargs", None) or {}))
        with unwrap_model_for_generation(trainer.model_wrapped, accelerator) as model:
            samples = draw_samples(
                prompt_ids,
                self.sampling,
                _trainers_generation(trainer) or model_generator(model, tokenizer, self.sampling),
                decode=lambda ids: list(tokenizer.batch_decode(ids, skip_special_tokens=True)),
            )
        scored = score_samples(samples, shard, self.rewards, votes=self.sampling.n > 1, device=accelerator.device)
        # To where the problems stand among all rows.
        scored = [replace(s, sample=replace(s.sample, problem=mine[s.sample.problem])) for s in scored]
        if accelerator.num_processes > 1:
            scored = gather_object(scored)
        return summarize(scored, len(rows), self.ks, seed=self.sampling.seed)

    def metrics(self, trainer: Any, rows: Any, prefix: str = "eval") -> dict[str, float]:
        """Returns the metrics of `result` for a trainer's log, and `<prefix>_runtime` in seconds.

        Args:
            trainer: A trainer of TRL.
            rows: See `result`.
            prefix: Put before each name, with `_`.
        """
        started = time.perf_counter()
        found = self.result(trainer, rows).flat(f"{prefix}_")
        return {**found, f"{prefix}_runtime": round(time.perf_counter() - started, 3)}


def _trainers_generation(trainer: Any) -> Generate | None:
    """Returns the generation of a trainer that does not sample from the model itself, or `None`."""
    engines = ("use_vllm", "use_transformers_continuous_batching")
    if not any(getattr(trainer, name, False) for name in engines):
        return None

    def generate(prompt_ids: list[list[int]], seed: int) -> list[tuple[list[int], bool]]:
        completion_ids = trainer._generate_single_turn(prompt_ids, None, {}, 1)[0]
        return [(list(ids), not ids or ids[-1] not in trainer.eos_token_ids) for ids in completion_ids]

    return generate


class EvaluationCallback(TrainerCallback):  # type: ignore[misc]
    """Adds pass@k, maj@k, rewards and lengths of the model's samples to every evaluation of a trainer.

        trainer.add_callback(EvaluationCallback(trainer, rows, ["gsm8k"], Sampling(n=4, max_new_tokens=256)))

    The metrics reach the log and what `metric_for_best_model` chooses from.

    Args:
        trainer: The trainer.
        rows: Held-out rows with `prompt` and the columns that the rewards read.
        rewards: See `PolicyEvaluation`.
        sampling: How samples are drawn.
        ks: Sizes k of pass@k and maj@k.
    """

    def __init__(
        self, trainer: Any, rows: Any, rewards: Any, sampling: Sampling | None = None, ks: Sequence[int] = (1,)
    ) -> None:
        self.trainer = trainer
        self.rows = rows
        self.evaluation = PolicyEvaluation(rewards, sampling or Sampling(), ks)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Evaluates, logs, and adds to `metrics`."""
        found = self.evaluation.metrics(self.trainer, self.rows)
        found.pop("eval_runtime")  # the trainer's own
        self.trainer.log(dict(found))
        if metrics is not None:
            metrics.update(found)
