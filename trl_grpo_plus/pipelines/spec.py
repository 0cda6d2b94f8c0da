"""`Pipeline`: a pipeline's file, checked: stages in order, what they take from each other, how models are evaluated.

    output_dir: runs/r1
    evaluation: {prompts: [...], rewards: [...], samples: 8}
    stages:
      - cold_start: 1_cold_start.yaml                 # a recipe, as `grpo-plus train` takes it
      - inputs: {call: my_module:make, options: {}}   # or a function of yours: make(output, **options)

In a recipe of a stage, `${cold_start}` stands for what that stage left: a model directory, or a directory of rows
(`train.jsonl`). References go backwards only, so the order of the file is an order that works.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean
from ..recipe import parse_overrides, read_yaml, set_inner
from .fingerprint import texts_in

_REFERENCE = re.compile(r"\$\{(\w+)\}")
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_KEYS = ("output_dir", "evaluation", "stages")
_STAGE_KEYS = ("recipe", "call", "options")


@dataclass(frozen=True)
class StageSpec:
    """One stage.

    Args:
        name: Its name: a directory, and what others refer to.
        keys: The keys of its recipe, with references; empty for a call.
        file: The recipe's file; the pipeline's for a call.
        call: `module:function`, for a stage that is no recipe.
        options: Its keyword arguments.
    """

    name: str
    keys: Mapping[str, Any]
    file: Path
    call: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def algorithm(self) -> str:
        """What it runs: an algorithm of a recipe, or `call`."""
        return "call" if self.call else str(self.keys.get("algorithm", "grpo"))

    @property
    def config(self) -> dict[str, Any]:
        """What it runs with, references unresolved."""
        return {"call": self.call, **self.options} if self.call else dict(self.keys)

    @property
    def uses(self) -> frozenset[str]:
        """The stages that it refers to."""
        return references(self.config)


@dataclass(frozen=True)
class EvaluationSpec:
    """How every model of a pipeline is evaluated.

    Args:
        prompts: Held-out prompts: as a recipe's `prompts`, with references.
        rewards: As a recipe's `rewards`; those whose mean is an accuracy say what is right.
        samples: Samples per problem, n.
        majority: k of maj@k, at most `samples`.
        max_completion_length: Longest completion, in tokens.
        temperature: Of sampling.
        top_p: Of sampling.
        batch_size: Completions generated at once.
        seed: Of sampling.
        dtype: Of the models.

    Raises:
        UserError: A value cannot work.
    """

    prompts: Any
    rewards: Any
    samples: int = 8
    majority: int = 8
    max_completion_length: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    batch_size: int = 64
    seed: int = 0
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if not 1 <= self.majority <= self.samples:
            raise UserError(f"evaluation.majority must be in 1..samples={self.samples}, found {self.majority}")
        if self.samples > 1 and not self.temperature > 0:
            raise UserError("evaluation.temperature must be positive where there are several samples per problem")


@dataclass(frozen=True)
class Pipeline:
    """A pipeline.

    Args:
        path: Its file.
        output_dir: Where everything goes: a directory per stage, evaluations, the summary.
        stages: In order.
        evaluation: How models are evaluated; `None` does not.
    """

    path: Path
    output_dir: Path
    stages: tuple[StageSpec, ...]
    evaluation: EvaluationSpec | None

    def after(self, names: Sequence[str]) -> list[str]:
        """Returns the stages named and all that use them, directly or through others, in order.

        Raises:
            UserError: There is no such stage.
        """
        known = [stage.name for stage in self.stages]
        for name in names:
            if name not in known:
                raise UserError(f"no stage `{name}`{did_you_mean(name, known)}; the stages are {', '.join(known)}")
        found = set(names)
        for stage in self.stages:
            if stage.uses & found:
                found.add(stage.name)
        return [name for name in known if name in found]


def references(value: Any) -> frozenset[str]:
    """Returns the names that `${...}` refers to anywhere in a configuration."""
    return frozenset(name for text in texts_in(value) for name in _REFERENCE.findall(text))


def resolve(value: Any, outputs: Mapping[str, str]) -> Any:
    """Returns a configuration with every `${name}` replaced by that stage's output directory."""
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: outputs[match[1]], value)
    if isinstance(value, Mapping):
        return {key: resolve(each, outputs) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [resolve(each, outputs) for each in value]
    return value


def load_pipeline(path: str | Path, overrides: Sequence[str] = ()) -> Pipeline:
    """Returns the pipeline of a file.

    Args:
        path: The YAML file; recipes are named relative to it.
        overrides: `["--output_dir", "runs/x", "--cold_start.max_steps", "10", "--evaluation.samples", "4"]`.

    Raises:
        UserError: A file is missing or a key unknown, a name is taken twice, or a reference leads nowhere.
    """
    path = Path(path)
    keys = read_yaml(path, f"no such pipeline: {path}")
    for key in keys:
        if key not in _KEYS:
            raise UserError(f"{path}: unknown key `{key}`{did_you_mean(key, _KEYS)}; known: {', '.join(_KEYS)}")
    if not isinstance(keys.get("stages"), list) or not keys["stages"]:
        raise UserError(f"{path}: `stages` must be a list of `name: recipe.yaml`")
    stages = [_stage(entry, path) for entry in keys["stages"]]
    for key, value in parse_overrides(overrides):
        name, _, inner = key.partition(".")
        if key == "output_dir":
            keys["output_dir"] = value
        elif name == "evaluation" and inner:
            keys["evaluation"] = set_inner(keys.get("evaluation"), inner.split("."), value, key)
        else:
            stages = _override(stages, name, inner, value)
    evaluation = _evaluation(keys.get("evaluation"), path)
    _check_references(stages, evaluation, path)
    return Pipeline(path, Path(str(keys.get("output_dir", f"runs/{path.parent.name}"))), tuple(stages), evaluation)


def _stage(entry: Any, path: Path) -> StageSpec:
    if not isinstance(entry, Mapping) or len(entry) != 1:
        raise UserError(f"{path}: each entry of `stages` is `name: recipe.yaml`, found {entry!r}")
    ((name, what),) = entry.items()
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise UserError(f"{path}: a stage's name has small letters, digits and underscores, found {name!r}")
    what = {"recipe": what} if isinstance(what, str) else what
    if not isinstance(what, Mapping) or ("recipe" in what) == ("call" in what):
        raise UserError(f"{path}: stage `{name}` needs a recipe, or `call: module:function`, found {what!r}")
    for key in what:
        if key not in _STAGE_KEYS:
            raise UserError(f"{path}: stage `{name}` has no key `{key}`{did_you_mean(key, _STAGE_KEYS)}")
    if "call" in what:
        return StageSpec(name, {}, path, str(what["call"]), dict(what.get("options") or {}))
    file = path.parent / str(what["recipe"])
    keys = read_yaml(file, f"no such recipe of stage `{name}`: {file}")
    if "output_dir" in keys:
        raise UserError(f"{file}: a stage's `output_dir` is the pipeline's to say: leave it out")
    return StageSpec(name, keys, file)


def _override(stages: list[StageSpec], name: str, inner: str, value: Any) -> list[StageSpec]:
    names = [stage.name for stage in stages]
    if name not in names or not inner:
        known = ["output_dir", "evaluation", *names]
        raise UserError(
            f"unknown option `--{name}{'.' if inner else ''}{inner}`{did_you_mean(name, known)}: write "
            f"`--output_dir`, `--evaluation.<key>` or `--<stage>.<key>`; the stages are {', '.join(names)}"
        )
    changed = []
    for stage in stages:
        if stage.name == name:
            config = stage.options if stage.call else stage.keys
            config = set_inner(config, inner.split("."), value, f"{name}.{inner}")
            stage = (
                StageSpec(name, {}, stage.file, stage.call, config)
                if stage.call
                else StageSpec(name, config, stage.file)
            )
        changed.append(stage)
    return changed


def _evaluation(section: Any, path: Path) -> EvaluationSpec | None:
    if section is None:
        return None
    known = list(EvaluationSpec.__dataclass_fields__)
    if not isinstance(section, Mapping):
        raise UserError(f"{path}: `evaluation` must be a mapping, found {section!r}")
    for key in section:
        if key not in known:
            raise UserError(f"{path}: unknown key `evaluation.{key}`{did_you_mean(key, known)}")
    for key in ("prompts", "rewards"):
        if not section.get(key):
            raise UserError(f"{path}: `evaluation` needs `{key}`")
    return EvaluationSpec(**section)


def _check_references(stages: Sequence[StageSpec], evaluation: EvaluationSpec | None, path: Path) -> None:
    before: list[str] = []
    for stage in stages:
        if stage.name in before:
            raise UserError(f"{path}: two stages are named `{stage.name}`")
        for name in sorted(stage.uses):
            if name not in before:
                raise UserError(
                    f"{stage.file}: `${{{name}}}` in stage `{stage.name}` names no stage before it"
                    f"{did_you_mean(name, before)}; those are {', '.join(before) or 'none'}"
                )
        before.append(stage.name)
    used = references([evaluation.prompts, evaluation.rewards]) if evaluation else frozenset()
    first_model = next((i for i, stage in enumerate(stages) if not stage.call), len(stages))
    for name in sorted(used):
        if name not in [stage.name for stage in stages[:first_model]]:
            raise UserError(
                f"{path}: `${{{name}}}` in `evaluation` must name a stage before the first one with a model: all "
                f"models are evaluated on the same problems"
            )
