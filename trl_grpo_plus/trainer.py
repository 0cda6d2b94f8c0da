"""`GRPOTrainer`: TRL's trainer with this package's stages wired into its small methods.

There is no mathematics here and no copy of a TRL method: every override is listed in `_trl_seams.py` and calls
`super()`. With every added option off, the loss log is TRL's, bit for bit.
"""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import trl
from trl.trainer.utils import get_config_model_id

from . import __version__
from .config import GRPOConfig
from .rewards import Weighted, build_rewards, check_columns


class GRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc]
    """Group Relative Policy Optimization (DeepSeekMath, arXiv 2402.03300), with verifiable rewards by name.

    Takes the arguments of `trl.GRPOTrainer` in the same order, and:

    Args:
        model: As in TRL: a model id, a directory, or a model.
        reward_funcs: As in TRL; used together with `rewards`.
        args: A `GRPOConfig`; a plain `trl.GRPOConfig` works too. `None` builds a default one.
        *trl_args: TRL's further positional arguments.
        rewards: Verifiable rewards by name, as in `GRPOConfig.rewards`, which this replaces; `RewardFunction`s are
            taken as well. Their weights follow `args.reward_weights`, which weigh `reward_funcs`.
        **trl_kwargs: TRL's further keyword arguments.

    Raises:
        UserError: A reward is unknown, has an option that it does not know, or reads a column that the dataset lacks.
    """

    _tag_names = [*trl.GRPOTrainer._tag_names, "trl-grpo-plus"]

    # Every attribute added to TRL's trainer has its default here: TRL's tests build trainers with `object.__new__`.
    verifiers: tuple[Weighted, ...] = ()

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: trl.GRPOConfig | None = None,
        *trl_args: Any,
        rewards: Any = None,
        **trl_kwargs: Any,
    ) -> None:
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = GRPOConfig(f"{name.split('/')[-1]}-GRPO")
        verifiers = build_rewards(rewards if rewards is not None else getattr(args, "rewards", None))
        if verifiers:
            given = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs] if reward_funcs else []
            weights = args.reward_weights if args.reward_weights is not None else [1.0] * len(given)
            reward_funcs = [*given, *(verifier.function for verifier in verifiers)]
            args = copy.copy(args)  # the caller's object may configure another trainer
            args.reward_weights = [*weights, *(verifier.weight for verifier in verifiers)]
        self.verifiers = verifiers
        super().__init__(model, reward_funcs, args, *trl_args, **trl_kwargs)
        columns = getattr(self.train_dataset, "column_names", None)
        if columns is not None:
            check_columns(verifiers, columns, "the training dataset")

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Writes TRL's model card, and which version of this package trained the model."""
        super().create_model_card(*args, **kwargs)
        card = Path(os.path.join(self.args.output_dir, "README.md"))
        if self.is_world_process_zero() and card.exists():
            line = f"- trl-grpo-plus: {__version__}\n"
            heading = "### Framework versions\n\n"
            text = card.read_text()
            text = text.replace(heading, heading + line, 1) if heading in text else f"{text}\n{heading}{line}"
            card.write_text(text)
