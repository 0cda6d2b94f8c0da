"""Accuracy on held-out problems, as sampled: pass@1 at temperature 1, with an interval over problems.

Stage: evaluation. In: a model and rows of `{prompt, answer}`. Out: an `Evaluation`. Greedy decoding is reported
beside it, but a policy trained at temperature 1 is judged by its samples: between two habits of about equal weight,
the greedy answer flips from seed to seed.

The interval is a percentile bootstrap over problems (all samples of a problem move together, since they are not
independent). It covers the choice of problems and the sampling of answers, not the choice of training seed.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from .rewards import is_correct, is_worked


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion.

    Args:
        text: Decoded without special tokens.
        length: Generated tokens, the end token included.
    """

    text: str
    length: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out accuracy of one model.

    Args:
        problems: Number of problems.
        samples: Samples per problem.
        pass1: Mean over problems and samples of "correct", in [0, 1].
        interval: 95 % interval of `pass1`, bootstrap over problems.
        greedy: Share of problems whose greedy completion is correct.
        worked_share: Share of samples that write at least one equation.
        given_worked: Share of correct samples among those; `None` when there are none.
        mean_length: Mean tokens per sample, the end token included.
        per_problem: Share of correct samples of every problem, in the order of the rows.
        wall_s: Seconds it took.
    """

    problems: int
    samples: int
    pass1: float
    interval: tuple[float, float]
    greedy: float
    worked_share: float
    given_worked: float | None
    mean_length: float
    per_problem: tuple[float, ...]
    wall_s: float

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON, without `per_problem`."""
        fields = asdict(self)
        fields.pop("per_problem")
        return fields


def interval_over_problems(values: Sequence[float], *, draws: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Returns the 95 % percentile-bootstrap interval of the mean of `values`, one value per problem.

    Args:
        values: One number per problem, such as its share of correct samples, or a difference of two.
        draws: Bootstrap resamples.
        seed: Fixes the resamples.
    """
    array = np.asarray(values, dtype=np.float64)
    picks = np.random.default_rng(seed).integers(0, len(array), size=(draws, len(array)))
    low, high = np.percentile(array[picks].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def generate(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    *,
    samples: int = 1,
    greedy: bool = False,
    max_new_tokens: int = 40,
    seed: int = 0,
    batch_size: int = 512,
) -> list[list[Completion]]:
    """Samples completions at temperature 1 from the plain distribution, or greedily.

    The global random state is left as it was, so evaluating does not change the training around it.

    Args:
        model: Anything with `generate`; put into evaluation mode meanwhile.
        tokenizer: Pads on the left and has a chat template.
        prompts: Chat messages, one list per problem.
        samples: Completions per prompt.
        greedy: Takes the likeliest token; `samples` is then 1.
        max_new_tokens: Longest completion, in tokens.
        seed: Fixes the samples.
        batch_size: Rows generated at once.

    Returns:
        Per prompt, its completions.
    """
    samples = 1 if greedy else samples
    options = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    rows = [prompt for prompt in prompts for _ in range(samples)]
    done: list[Completion] = []
    was_training = model.training
    model.eval()
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        for start in range(0, len(rows), batch_size):
            encoded = tokenizer.apply_chat_template(
                rows[start : start + batch_size],
                add_generation_prompt=True,
                padding=True,
                return_dict=True,
                return_tensors="pt",
            ).to(model.device)
            output = model.generate(**encoded, max_new_tokens=max_new_tokens, **options)
            ids = output[:, encoded["input_ids"].shape[1] :]
            ended = (ids == tokenizer.eos_token_id).cumsum(dim=1)
            # Up to and including the first end token; a completion cut off at `max_new_tokens` has none.
            lengths = ((ended - (ids == tokenizer.eos_token_id).long()) == 0).sum(dim=1).tolist()
            texts = tokenizer.batch_decode(
                [row[:n] for row, n in zip(ids.tolist(), lengths, strict=True)], skip_special_tokens=True
            )
            done.extend(Completion(text, n) for text, n in zip(texts, lengths, strict=True))
    model.train(was_training)
    return [done[i : i + samples] for i in range(0, len(done), samples)]


def sampled_accuracy(model: Any, tokenizer: Any, rows: Any, *, seed: int = 0, max_new_tokens: int = 40) -> float:
    """Returns the share of `rows` answered correctly with one sample each: the cold start's cheap stopping signal."""
    drawn = generate(model, tokenizer, list(rows["prompt"]), seed=seed, max_new_tokens=max_new_tokens)
    return sum(is_correct(each[0].text, gold) for each, gold in zip(drawn, rows["answer"], strict=True)) / len(drawn)


def evaluate(
    model: Any, tokenizer: Any, rows: Any, *, samples: int = 4, seed: int = 0, max_new_tokens: int = 40
) -> tuple[Evaluation, list[list[Completion]]]:
    """Returns the accuracy of `model` on `rows`, and the sampled completions per problem.

    Args:
        model: See `generate`.
        tokenizer: See `generate`.
        rows: Dataset with `prompt` and `answer`.
        samples: Samples per problem.
        seed: Fixes the samples and the bootstrap.
        max_new_tokens: Longest completion, in tokens; longer ones are cut and so usually wrong.
    """
    started = time.perf_counter()
    prompts, answers = list(rows["prompt"]), list(rows["answer"])
    drawn = generate(model, tokenizer, prompts, samples=samples, seed=seed, max_new_tokens=max_new_tokens)
    greedy = generate(model, tokenizer, prompts, greedy=True, max_new_tokens=max_new_tokens)

    right = [[is_correct(c.text, gold) for c in each] for each, gold in zip(drawn, answers, strict=True)]
    worked = [hit for each, hits in zip(drawn, right, strict=True) for c, hit in zip(each, hits, strict=True)
              if is_worked(c.text)]  # fmt: skip
    per_problem = tuple(sum(hits) / samples for hits in right)
    lengths = [c.length for each in drawn for c in each]
    return Evaluation(
        problems=len(prompts),
        samples=samples,
        pass1=sum(per_problem) / len(prompts),
        interval=interval_over_problems(per_problem, seed=seed),
        greedy=sum(is_correct(each[0].text, gold) for each, gold in zip(greedy, answers, strict=True)) / len(prompts),
        worked_share=len(worked) / len(lengths),
        given_worked=sum(worked) / len(worked) if worked else None,
        mean_length=sum(lengths) / len(lengths),
        per_problem=per_problem,
        wall_s=time.perf_counter() - started,
    ), drawn
