"""PPO against GRPO in memory, measured: one recipe run as GRPO and as PPO in each layout, all else the same.

    layout             models alive in a step
    grpo               policy, reference
    grpo_no_kl         policy
    ppo_four_models    policy, reference, critic, reward model: the layout of the literature
    ppo                policy, reference, critic; verifiers instead of a reward model
    ppo_adapter        policy, reference, a critic of LoRA on the reference, or on the policy's frozen base
    ppo_shared         policy with a value head, reference

With LoRA and QLoRA the reference is the policy without its adapter. All arms see the same prompts and sample the same
number of completions from the same weights and seed; the first rollout is the same tokens. One pass over each rollout.
"""

from __future__ import annotations

import dataclasses
import gc
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..config import GRPOConfig
from ..errors import UserError
from ..ppo_config import _GRPO_ONLY, PPOConfig
from .profile import MemoryProfile

LAYOUTS: dict[str, dict[str, Any]] = {
    "grpo": {"algorithm": "grpo"},
    "grpo_no_kl": {"algorithm": "grpo", "beta": 0.0},
    "ppo_four_models": {"algorithm": "ppo", "critic": "separate", "reward_model": True},
    "ppo": {"algorithm": "ppo", "critic": "separate"},
    "ppo_adapter": {"algorithm": "ppo", "critic": "adapter"},
    "ppo_shared": {"algorithm": "ppo", "critic": "shared"},
}
_DECIDE_THE_MODE = ("use_peft", "load_in_4bit", "load_in_8bit")
_KL = 0.04  # the coefficient of arXiv 2402.03300, where the recipe has none


def arm(keys: Mapping[str, Any], layout: str, mode: str | None) -> dict[str, Any]:
    """Returns the keys of a recipe for one arm of the comparison.

    Args:
        keys: Those of the recipe, for GRPO or PPO.
        layout: One of `LAYOUTS`.
        mode: A memory mode, or `None` for what the recipe has.
    """
    ppo_only = set(PPOConfig.__dataclass_fields__) - set(GRPOConfig.__dataclass_fields__)
    kl = keys.get("beta") or keys.get("kl_coef") or _KL
    given_model = keys.get("reward_model")
    dropped = {*ppo_only, *_GRPO_ONLY, "beta", "num_iterations", "algorithm"}
    found = {key: value for key, value in keys.items() if key not in dropped}
    found.update(LAYOUTS[layout])
    found.setdefault("num_generations", _default(GRPOConfig, "num_generations"))
    if found["algorithm"] == "grpo":
        found.setdefault("beta", kl)
    else:
        found.update(kl_coef=kl, num_ppo_epochs=1)
        if found.get("reward_model") is True:  # any head serves: its memory is the same
            found["reward_model"] = given_model or found["model_name_or_path"]
    found["share_prompt"] = False  # the shared layout cannot, and it is a saving of its own
    if mode is not None:
        found = {key: value for key, value in found.items() if key not in _DECIDE_THE_MODE}
        found["memory_mode"] = mode
    return found


def compare(
    keys: Mapping[str, Any],
    output: Path,
    *,
    modes: Sequence[str | None] = (None,),
    layouts: Sequence[str] = tuple(LAYOUTS),
    steps: int = 2,
    say: Any = print,
) -> list[dict[str, Any]]:
    """Runs every arm for some steps and returns a record of each: layout, mode, and its profile as JSON.

    Args:
        keys: A recipe's keys.
        output: Directory for the arms' recipes and profiles; models are not saved.
        modes: Memory modes; `None` is the recipe's own.
        layouts: Names of `LAYOUTS`.
        steps: Optimizer steps; the second is the first with an optimizer state before the backward.
        say: Called with a line for each arm.

    Raises:
        UserError: An arm cannot run.
    """
    records = []
    for mode in modes:
        for layout in layouts:
            directory = output / "_".join(filter(None, (layout, mode)))
            directory.mkdir(parents=True, exist_ok=True)
            file = directory / "recipe.yaml"
            file.write_text(yaml.safe_dump(json.loads(json.dumps(arm(keys, layout, mode))), sort_keys=False))
            profile, tokens = profile_recipe(file, [], directory, steps)
            records.append({"layout": layout, "mode": mode, "tokens": tokens, "profile": profile.to_json()})
            say(f"{layout:16} {mode or '':6} {profile.peak_mib:9,.1f} MiB in {profile.peak_phase}")
    return records


def profile_recipe(
    path: str | Path, overrides: Sequence[str], output: Path, steps: int
) -> tuple[MemoryProfile, list[float]]:
    """Runs a recipe for some steps under the profiler; returns the profile and the tokens seen after each step.

    Nothing is saved but the profile: no checkpoints, no model.

    Args:
        path: A recipe for GRPO or PPO.
        overrides: `["--learning_rate", "1e-5"]`.
        output: Where the profile's files go.
        steps: Optimizer steps.

    Raises:
        UserError: The recipe cannot run, or is one for another algorithm.
    """
    from ..prompts import load_prompts
    from ..recipe import load_recipe
    from ..rewards import build_rewards, check_columns
    from ..train import build_trainer, load_tokenizer
    from .profiler import MemoryProfiler

    fixed = {
        "max_steps": steps,
        "save_strategy": "no",
        "eval_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "profile_memory": "false",
        "output_dir": str(output),
    }
    words = [word for name, value in fixed.items() for word in (f"--{name}", str(value))]
    recipe = load_recipe(path, [*overrides, *words])
    if not isinstance(recipe.args, GRPOConfig):
        raise UserError(
            f"{path}: profiles are of recipes for grpo and ppo, found `algorithm: {recipe.algorithm}`; in Python, "
            f"MemoryProfiler works with any TRL trainer"
        )
    tokenizer = load_tokenizer(recipe)
    prompts = load_prompts(recipe.prompts, tokenizer)
    check_columns(build_rewards(recipe.args.rewards), prompts.column_names, f"prompts.source {recipe.prompts.source}")
    trainer = build_trainer(recipe, prompts, None, tokenizer)
    try:
        with MemoryProfiler(trainer, output) as profiler:
            trainer.train()
        tokens = [log["num_tokens"] for log in trainer.state.log_history if "num_tokens" in log]
    finally:
        del trainer
        gc.collect()
    assert profiler.profile is not None
    return profiler.profile, tokens


def _default(config: type[Any], name: str) -> Any:
    return next(each.default for each in dataclasses.fields(config) if each.name == name)
