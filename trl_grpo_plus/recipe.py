"""From a recipe (a YAML file) and overrides to checked configurations.

A recipe is flat, as TRL's own YAML files are: every field of `GRPOConfig` (or of the configuration of another
`algorithm`) and of TRL's `ModelConfig`, and beside them `prompts`, `eval_prompts` and `rewards`. TRL's `dataset_name`
and `reward_funcs` are understood as well, so that a file written for `trl grpo` runs. An override is `--key value`;
`--prompts.size 100` reaches into a section, `--prompts.0.size 100` into the first entry of one that is a list.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from trl import ModelConfig, RewardConfig, ScriptArguments, SFTConfig, TrlParser

from .config import GRPOConfig
from .errors import UserError, did_you_mean
from .pipelines.sampling_config import SamplingConfig
from .ppo_config import PPOConfig
from .prompts import PromptSpec

_SECTIONS = ("prompts", "eval_prompts")
_ALGORITHMS: dict[str, type[Any]] = {
    "grpo": GRPOConfig,
    "ppo": PPOConfig,
    "sft": SFTConfig,
    "reward_model": RewardConfig,
    "rejection_sampling": SamplingConfig,
}
_WITH_REWARDS = ("grpo", "ppo", "rejection_sampling")


@dataclass
class DataArguments(ScriptArguments):  # type: ignore[misc]
    """What a recipe says beside the trainer's and the model's configuration.

    Args:
        algorithm: What the recipe runs, and so whose fields it knows: `grpo` (`GRPOConfig`), `ppo` (`PPOConfig`),
            `sft` (TRL's `SFTConfig`), `reward_model` (TRL's `RewardConfig`), `rejection_sampling` (`SamplingConfig`).
        prompts: The `prompts` section: see `PromptSpec`; of demonstrations or preferences where these are trained on.
        eval_prompts: Held-out prompts, evaluated before and after the training.
        reward_funcs: TRL's key: names of `trl.rewards`, or dotted paths.
    """

    algorithm: Literal["grpo", "ppo", "sft", "reward_model", "rejection_sampling"] = field(
        default="grpo", metadata={"help": "What runs: GRPO, PPO, SFT, a reward model's training, or sampling."}
    )
    prompts: str | None = field(
        default=None, metadata={"help": "Training prompts: a source, or the YAML of a section."}
    )
    eval_prompts: str | None = field(default=None, metadata={"help": "Held-out prompts: as `prompts`."})
    reward_funcs: list[str] | None = field(default=None, metadata={"help": "TRL reward functions, as in `trl grpo`."})


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe.

    Args:
        args: The trainer's configuration: a `GRPOConfig`, or that of another `algorithm`.
        model: TRL's model configuration (name, dtype, LoRA, quantisation).
        prompts: Training prompts.
        eval_prompts: Held-out prompts, if any.
        keys: What the file and the overrides say, merged; written back as a recipe, it runs the same.
        path: The recipe's file.
        algorithm: What it runs.
    """

    args: Any
    model: ModelConfig
    prompts: PromptSpec
    eval_prompts: PromptSpec | None
    keys: Mapping[str, Any]
    path: Path
    algorithm: str = "grpo"


def load_recipe(path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """Returns the recipe of a file, with overrides from a command line.

    Args:
        path: The YAML file.
        overrides: `["--learning_rate", "1e-5", "--prompts.size", "100"]`.

    Raises:
        UserError: The file does not exist or is no mapping, a key is unknown, or a value cannot work.
    """
    path = Path(path)
    missing = f"no such recipe: {path} (the recipe comes first, then --key value)"
    return recipe_of(_merge(read_yaml(path, missing), overrides), path)


def recipe_of(keys: Mapping[str, Any], path: Path) -> Recipe:
    """Returns the recipe that keys make.

    Args:
        keys: What a recipe's file says.
        path: Where they are from, for messages.

    Raises:
        UserError: As `load_recipe`.
    """
    algorithm = keys.get("algorithm", "grpo")
    if algorithm not in _ALGORITHMS:
        raise UserError(f"{path}: `algorithm` must be one of {', '.join(_ALGORITHMS)}, found {algorithm!r}")
    parser = TrlParser((DataArguments, _ALGORITHMS[algorithm], ModelConfig), allow_abbrev=False)
    known = {action.dest for action in parser._actions} - {"help"}
    for key in keys:
        if key not in known and key != "env":
            others = [name for name, config in _ALGORITHMS.items() if key in config.__dataclass_fields__]
            hint = f" (a key of `algorithm: {others[0]}`)" if others else did_you_mean(key, known)
            raise UserError(f"{path}: unknown key `{key}`{hint}")
    for name, value in (keys.get("env") or {}).items():
        os.environ[name] = str(value)
    values = {k: v for k, v in keys.items() if k != "env"}
    values.setdefault("output_dir", f"runs/{path.stem}")
    if "logging_steps" in known:
        values.setdefault("logging_steps", 1)
    _check_types(parser, values, path)
    try:
        parser.set_defaults_with_config(**values)
        data, args, model = parser.parse_args_into_dataclasses(args=[], look_for_args_file=False)
    except UserError:
        raise
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: {error}") from error
    if model.model_name_or_path is None:
        raise UserError(f"{path}: `model_name_or_path` is missing: a model id or a directory")
    if algorithm in _WITH_REWARDS:
        if args.rewards is None and not data.reward_funcs and not getattr(args, "reward_model", None):
            raise UserError(f"{path}: `rewards` is missing: name at least one, such as `rewards: [gsm8k]`")
        args.rewards = [*(_trl_reward(name) for name in data.reward_funcs or []), *(args.rewards or [])]
    return Recipe(args, model, _train_prompts(data, path), _eval_prompts(data, args), keys, path, algorithm)


def read_yaml(path: Path, missing: str) -> dict[str, Any]:
    """Returns the keys of a YAML file.

    Args:
        path: The file.
        missing: What to say where there is none.

    Raises:
        UserError: There is no such file, or it holds no mapping.
    """
    if not path.is_file():
        raise UserError(missing)
    try:
        keys = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(keys, dict):
        raise UserError(f"{path} must hold `key: value` lines, found {type(keys).__name__}")
    return keys


def _merge(keys: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Returns the recipe's keys with `--key value` overrides set; a value is read as YAML."""
    merged = dict(keys)
    for key, value in parse_overrides(overrides):
        section, dot, inner = key.partition(".")
        if not dot:
            merged[section] = value
            continue
        if section not in _SECTIONS or not inner:
            raise UserError(f"unknown option `--{key}`: dots reach into {' and '.join(_SECTIONS)}")
        old = merged.get(section) or {}
        merged[section] = set_inner({"source": old} if isinstance(old, str) else old, inner.split("."), value, key)
    return merged


def parse_overrides(words: Sequence[str]) -> list[tuple[str, Any]]:
    """Returns the (key, value) pairs of `--key value`, `--key=value` and `--key`; values are read as YAML.

    Raises:
        UserError: A word stands where an option should.
    """
    found = []
    rest = list(words)
    while rest:
        option = rest.pop(0)
        if not option.startswith("--") or option == "--":
            raise UserError(f"expected `--key value`, found `{option}`")
        key, equals, value = option[2:].partition("=")
        values = [value] if equals else []
        while not equals and rest and not rest[0].startswith("--"):
            values.append(rest.pop(0))
        parsed = [_parse_value(word) for word in values]
        found.append((key.replace("-", "_"), True if not parsed else parsed[0] if len(parsed) == 1 else parsed))
    return found


def set_inner(old: Any, names: Sequence[str], value: Any, option: str) -> Any:
    """Returns a section with one inner value set; `0`, `1`, ... name the entries of a list.

    Args:
        old: The section: a mapping, a list or `None`.
        names: The way to the value.
        value: The value.
        option: The option, for messages.

    Raises:
        UserError: A list has no such entry.
    """
    if not names:
        return value
    name, *inner = names
    if isinstance(old, list):
        if not name.isdigit() or int(name) >= len(old):
            raise UserError(f"--{option}: the section is a list: name one of its entries, 0 to {len(old) - 1}")
        return [set_inner(entry, inner, value, option) if i == int(name) else entry for i, entry in enumerate(old)]
    mapping = dict(old or {})
    return {**mapping, name: set_inner(mapping.get(name), inner, value, option)}


def _parse_value(word: str) -> Any:
    try:
        value = yaml.safe_load(word)
    except yaml.YAMLError:
        return word
    if isinstance(value, str):  # YAML 1.1 takes `1e-5` for a text
        try:
            return float(value) if any(c.isdigit() for c in value) else value
        except ValueError:
            return value
    return value


def _check_types(parser: TrlParser, values: dict[str, Any], path: Path) -> None:
    """Gives each value the type of its field (argparse does so for texts only), or names the key where it cannot."""
    for action in parser._actions:
        if action.dest not in values or action.dest in (*_SECTIONS, "rewards"):
            continue
        value = values[action.dest]
        convert: Any = action.type
        if action.nargs == "+" and value is not None and not isinstance(value, list):
            values[action.dest] = [value]
            continue
        if convert is None or value is None or isinstance(value, (dict, list)):
            continue
        text = {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)  # YAML reads `no` as false
        try:
            typed = convert(text)
        except Exception as error:
            wanted = getattr(convert, "__name__", str(convert))
            raise UserError(f"{path}: `{action.dest}` cannot be {value!r}: expected {wanted}") from error
        if action.choices is not None and typed not in action.choices:
            raise UserError(
                f"{path}: `{action.dest}` must be one of {', '.join(map(str, action.choices))}, found {typed!r}"
            )
        values[action.dest] = typed


def _trl_reward(name: str) -> str:
    """Returns our form of a name in TRL's `reward_funcs`: a dotted path becomes `module:function`."""
    module, dot, function = name.rpartition(".")
    return f"{module}:{function}" if dot and ":" not in name else name


def _section(value: Any) -> Any:
    return yaml.safe_load(value) if isinstance(value, str) else value


def _train_prompts(data: DataArguments, path: Path) -> PromptSpec:
    if data.prompts is not None:
        return PromptSpec.from_config(_section(data.prompts))
    if data.dataset_name is not None:
        return PromptSpec(data.dataset_name, name=data.dataset_config, split=data.dataset_train_split)
    raise UserError(f"{path}: `prompts` is missing: a file, a dataset, `arithmetic` or `reasoning_gym:<name>`")


def _eval_prompts(data: DataArguments, args: Any) -> PromptSpec | None:
    if data.eval_prompts is not None:
        return PromptSpec.from_config(_section(data.eval_prompts))
    if data.dataset_name is not None and data.prompts is None and getattr(args, "eval_strategy", "no") != "no":
        return PromptSpec(data.dataset_name, name=data.dataset_config, split=data.dataset_test_split)
    return None


def dump_recipe(recipe: Recipe) -> str:
    """Returns the resolved recipe as YAML, which `grpo-plus train` takes."""
    keys = {**recipe.keys, "output_dir": recipe.args.output_dir}
    return yaml.safe_dump(json.loads(json.dumps(keys)), sort_keys=False, allow_unicode=True)
