"""Every model of a pipeline on the same held-out problems: pass@1 and maj@k with intervals, each model once.

An evaluation is filed under the content of the model and the evaluation's own settings: the model after a stage is the
model before the next one, and is not sampled again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..prompts import PromptSpec, load_prompts
from .fingerprint import of_json, of_path
from .record import write_json
from .spec import EvaluationSpec, resolve

_ALL = "all"
Interval = tuple[float, float, float]  # mean, low, high


@dataclass(frozen=True)
class Evaluation:
    """How a model does on the held-out problems.

    Args:
        model: The model, as it was named.
        key: Under what it is filed.
        problems: Number of problems.
        samples: Samples per problem.
        metrics: Task (`all`, and each kind of problem where there are several) -> metric -> (mean, low, high), with
            95 % intervals over problems. A metric that no problem of the task has is absent.
        values: Metric -> value of each problem, `None` where it has none.
        seconds: Seconds it took.
    """

    model: str
    key: str
    problems: int
    samples: int
    metrics: Mapping[str, Mapping[str, Interval]]
    values: Mapping[str, list[float | None]]
    seconds: float


class Evaluator:
    """Evaluates models, and remembers.

    Args:
        spec: How.
        outputs: Output directories of the stages that its prompts refer to.
        directory: Where evaluations are filed.
        known: Hashes of files; see `fingerprint.of_path`.
        console: Where to print.
    """

    def __init__(
        self,
        spec: EvaluationSpec,
        outputs: Mapping[str, str],
        directory: Path,
        known: dict[str, str],
        console: Console,
    ) -> None:
        self.spec = spec
        self.prompts = PromptSpec.from_config(resolve(spec.prompts, outputs))
        self.rewards = resolve(spec.rewards, outputs)
        self.directory = directory
        self.known = known
        self.console = console
        inputs = [part.source for part in (self.prompts.parts or (self.prompts,))]
        self.settings = {
            **asdict(spec),
            "inputs": {i: of_path(Path(path), known) for i, path in enumerate(inputs) if Path(path).exists()},
        }

    def __call__(self, model: str) -> Evaluation:
        """Returns the evaluation of a model, a directory or an id; only done where it is not there."""
        content = of_path(Path(model), self.known) if Path(model).is_dir() else model
        key = of_json([content, self.settings])[:16]
        file = self.directory / f"{key}.json"
        if file.exists():
            return Evaluation(**json.loads(file.read_text()))
        found = self._evaluate(model, key)
        write_json(file, asdict(found))
        return found

    def _evaluate(self, model: str, key: str) -> Evaluation:
        from ..evaluation import Sampling, evaluate, load_tokenizer

        spec = self.spec
        ks = tuple(sorted({1, spec.majority}))
        tokenizer = load_tokenizer(model)
        rows = load_prompts(self.prompts, tokenizer)
        sampling = Sampling(
            n=spec.samples,
            max_new_tokens=spec.max_completion_length,
            temperature=spec.temperature,
            top_p=spec.top_p,
            seed=spec.seed,
            batch_size=spec.batch_size,
        )
        result = evaluate(
            model,
            rows,
            self.rewards,
            tokenizer=tokenizer,
            sampling=sampling,
            ks=ks,
            output_dir=self.directory / key,
            overwrite=True,  # the same content under another path: a copied run
            dtype=spec.dtype,
        )
        metrics = {_ALL: {n: (e.value, e.low, e.high) for n, e in result.metrics.items() if np.isfinite(e.value)}}
        metrics |= _by_task(result.values, task_of_rows(rows, self.prompts), spec.seed)
        wanted = ["pass@1", f"maj@{spec.majority}"]
        found = Evaluation(
            model,
            key,
            result.problems,
            spec.samples,
            metrics,
            {
                name: [float(v) if np.isfinite(v) else None for v in result.values[name]]
                for name in wanted
                if name in result.values
            },
            round(sum(result.details["seconds"].values()), 1),
        )
        self.console.print(f"evaluated {model}: {describe(found, wanted)}", highlight=False, markup=False)
        return found


def task_of_rows(rows: Any, prompts: PromptSpec) -> list[str]:
    """Returns the task of each row: the first reward that it is routed to, else its source."""
    if "reward" in rows.column_names:
        return [name if isinstance(name, str) else name[0] if name else prompts.source for name in rows["reward"]]
    return [prompts.source] * len(rows)


def _by_task(
    values: Mapping[str, Any], tasks: list[str], seed: int
) -> dict[str, dict[str, tuple[float, float, float]]]:
    from ..evaluation import estimate_means
    from ..evaluation.result import is_share

    kinds = list(dict.fromkeys(tasks))
    if len(kinds) < 2:
        return {}
    names = list(values)
    found = {}
    for kind in kinds:
        rows = np.array([task == kind for task in tasks])
        table = np.stack([values[name][rows] for name in names], axis=1)
        estimates = estimate_means(table, shares=[is_share(name) for name in names], seed=seed)
        found[kind] = {
            name: (e.value, e.low, e.high) for name, e in zip(names, estimates, strict=True) if np.isfinite(e.value)
        }
    return found


def describe(evaluation: Evaluation, names: list[str]) -> str:
    """Returns metrics with their intervals as a line of text."""
    metrics = evaluation.metrics[_ALL]
    return ", ".join(
        f"{name} {100 * metrics[name][0]:.1f} % ({100 * metrics[name][1]:.1f} to {100 * metrics[name][2]:.1f})"
        for name in names
        if name in metrics
    )
