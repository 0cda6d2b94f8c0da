"""`GRPOTrainer`: TRL's trainer with this package's stages wired into its small methods.

There is no mathematics here and no copy of a TRL method: every override is listed in `_trl_seams.py` and calls
`super()`. With every added option off, the loss log is TRL's, bit for bit.

    _generate_single_turn     rollouts/   each prompt prefilled once, finished rows dropped
    evaluate                  evaluation/ pass@k and maj@k by `eval_rewards`, or TRL's
    _prepare_inputs           forward/    micro-batches regrouped by prompt and cut to their own longest row
    _compute_loss             forward/    rows of zero advantage marked as skipped
    _get_per_token_logps...   forward/    the shared-prompt forward, or TRL's
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import trl
from accelerate.logging import get_logger
from trl.extras.profiling import profiling_context
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import get_config_model_id

from . import __version__
from .config import SWITCHES, GRPOConfig
from .errors import UserError
from .evaluation.training import PolicyEvaluation
from .forward import Gate, composition_reason, inspect_model, optimizer_steps, regroup, score_rows, trim
from .quantized import keep_trainable, refuse_vllm
from .rewards import Reward, RewardSettings, Runtime, Weighted, build_rewards, check_columns
from .rollouts import generate_groups, why_not, why_not_prefill_once
from .work import Work

if TYPE_CHECKING:
    from .memory.modes import ModeChoice

logger = get_logger(__name__)

_DEFAULTS = {f.name: f.default for f in dataclasses.fields(GRPOConfig)}


class GRPOTrainer(trl.GRPOTrainer):  # type: ignore[misc]
    """Group Relative Policy Optimization (DeepSeekMath, arXiv 2402.03300), with verifiable rewards by name.

    Takes the arguments of `trl.GRPOTrainer` in the same order, and:

    Args:
        model: As in TRL: a model id, a directory, or a model.
        reward_funcs: As in TRL; used together with `rewards`.
        args: A `GRPOConfig`; a plain `trl.GRPOConfig` works too. `None` builds a default one.
        *trl_args: TRL's further positional arguments.
        rewards: Verifiable rewards by name, as in `GRPOConfig.rewards`, which this replaces; verifiers themselves
            (functions, classes, objects, `RewardFunction`s) are taken as well. Their weights follow
            `args.reward_weights`, which weigh `reward_funcs`.
        **trl_kwargs: TRL's further keyword arguments.

    Raises:
        UserError: A reward is unknown, has an option that it does not know, or reads a column that the dataset lacks;
            or an option is set to true that is not exact on this model; or the model's 4-bit weights cannot be
            trained any more (see `quantized.py`).
    """

    _tag_names = [*trl.GRPOTrainer._tag_names, "trl-grpo-plus"]

    control: Any  # TRL's

    # Every attribute added to TRL's trainer has its default here: TRL's tests build trainers with `object.__new__`.
    verifiers: tuple[Weighted, ...] = ()
    gate: Gate | None = None
    work: Work | None = None
    evaluation: PolicyEvaluation | None = None
    _skip: tuple[torch.Tensor, torch.Tensor | None] | None = None
    _in_window = 0  # micro-batches run since the last optimizer step
    _said: frozenset[str] = frozenset()
    memory_choice: ModeChoice | None = None  # what the memory mode came to
    _offloading: AbstractContextManager[Any] | None = None

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
        runtime = Runtime(RewardSettings.of(args), args.output_dir)
        verifiers = build_rewards(rewards if rewards is not None else getattr(args, "rewards", None), runtime)
        if verifiers:
            given = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs] if reward_funcs else []
            weights = args.reward_weights if args.reward_weights is not None else [1.0] * len(given)
            reward_funcs = [*given, *(verifier.function for verifier in verifiers)]
            args = copy.copy(args)  # the caller's object may configure another trainer
            args.reward_weights = [*weights, *(verifier.weight for verifier in verifiers)]
        self.verifiers = verifiers
        args, trl_args, trl_kwargs = self._take_memory_mode(model, args, trl_args, trl_kwargs)
        super().__init__(model, reward_funcs, args, *trl_args, **trl_kwargs)
        self.evaluation = PolicyEvaluation.of(args, runtime)
        if self.evaluation is not None and self.tools:
            raise UserError("eval_rewards does not run tools: leave one of the two out")
        keep_trainable(self.model)
        self._set_up_memory()
        if self._option("reflection_words"):
            from .reflection import ReflectionWords

            self.add_callback(ReflectionWords(self, self.args.reflection_words))
        columns = getattr(self.train_dataset, "column_names", None)
        if columns is not None:
            check_columns(verifiers, columns, "the training dataset")
        for verifier in verifiers:
            if isinstance(verifier.function, Reward):
                verifier.function.to(self.accelerator.device)
                verifier.function.start()
        if self._option("max_tokens_per_forward") is None and not any(self._option(name) for name in SWITCHES):
            return  # nothing is switched on: the stages stay away, and their metrics with them
        self.gate = Gate(
            self._option("share_prompt"),
            inspect_model(self.model, aux_loss=self.aux_loss_enabled),
            self._option("max_tokens_per_forward"),
            self._say_once,
        )
        self.work = Work()
        for name, reason in self._why_off().items():
            if self._option(name) is True and reason is not None:
                raise UserError(f"{name}=True is not exact here: {reason}. Set it to auto or false")

    def _take_memory_mode(
        self, model: Any, args: Any, trl_args: tuple[Any, ...], trl_kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments of TRL's constructor with what the memory mode sets; as they are without one."""
        if getattr(args, "memory_mode", None) is not None and self.memory_choice is None:
            from .memory.modes import apply_mode

            args, trl_kwargs, self.memory_choice = apply_mode(model, args, trl_args, trl_kwargs)
            trl_args = ()
        if args.use_vllm:
            refuse_vllm(model, args, (*trl_args, *trl_kwargs.values()))
        return args, trl_args, trl_kwargs

    def _set_up_memory(self) -> None:
        """Says and saves what the memory mode set, and turns on the profiler and the offloading of activations."""
        if self.memory_choice is not None:
            self._say_once(self.memory_choice.describe())
            if self.is_world_process_zero():
                file = Path(self.args.output_dir) / "memory_mode.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(json.dumps(self.memory_choice.to_json(), indent=2) + "\n")
        if self._option("activation_offloading"):
            from .memory.offload import activation_offloading

            self._offloading = activation_offloading(self.model, self.args.device)
        if self._option("profile_memory"):
            from .memory.profiler import MemoryProfilerCallback

            self.add_callback(MemoryProfilerCallback(self))

    def _option(self, name: str) -> Any:
        """Returns an option of `GRPOConfig`, its default where `args` is TRL's own."""
        return getattr(self.args, name, _DEFAULTS[name])

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said = self._said | {message}
            logger.warning(message)

    # What is on, and why not.

    def _why_off(self) -> dict[str, str | None]:
        """Returns, for each option that saves work, why it is not exact here, or `None`."""
        generation = self._why_not_generate()
        return {
            "share_prompt": self.gate.reason if self.gate else "no gate",
            "trim_padding": self.gate.exactness.trim_reason if self.gate else None,
            "skip_zero_advantage": self._why_not_skip(),
            "prefill_once": generation or why_not_prefill_once(self.model),
            "drop_finished": generation,
        }

    def savings(self) -> dict[str, str]:
        """Returns, for each option that saves work, "on" or "off" with the reason, for a run's header."""
        found = {}
        for name, reason in self._why_off().items():
            if self._option(name) is False:
                reason = "switched off"
            found[name] = "on" if reason is None else f"off: {reason}"
        return found

    def _why_not_generate(self) -> str | None:
        if self.use_vllm:
            return "vLLM generates"
        if self.use_transformers_continuous_batching:
            return "transformers' continuous batching generates"
        if self._is_vlm:
            return "the model takes images"
        return why_not(self.accelerator.unwrap_model(self.model), self.generation_config)

    def _why_not_skip(self) -> str | None:
        if self.beta != 0.0:
            return f"beta={self.beta:g}: the KL term of such rows has a gradient"
        if self._entropy_bonus_enabled:
            return "the entropy bonus of such rows has a gradient"
        if self.aux_loss_enabled:
            return "the load-balancing loss of such rows has a gradient"
        if self.top_entropy_quantile < 1.0:
            return "top_entropy_quantile takes its threshold from all rows"
        return None

    # The stages, in the order of a step.

    def _generate_single_turn(
        self,
        prompt_ids: Any,
        images: Any,
        multimodal_fields: Any,
        num_generations: int,
        has_tool_images: bool = False,
    ) -> Any:
        switches = {} if self.work is None else {k: self._option(k) for k in ("prefill_once", "drop_finished")}
        ours = any(switches.values()) and not images and not multimodal_fields and self._why_not_generate() is None
        if not ours or self.work is None:
            generated = super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, has_tool_images=has_tool_images
            )
            if not (self.use_vllm or self.use_transformers_continuous_batching) and prompt_ids:
                # `generate` runs the padded rectangle; its last token is sampled and not run
                width = max(map(len, prompt_ids)) + max(map(len, generated[0])) - 1
                self._count(len(prompt_ids) * width, len(prompt_ids) * width)
            return generated
        with (
            profiling_context(self, "transformers.generate"),
            unwrap_model_for_generation(
                self.model_wrapped,
                self.accelerator,
                gather_deepspeed3_params=self.args.ds3_gather_for_generation,
                generation_kwargs=self.generation_kwargs,
                gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
            ) as model,
        ):
            completion_ids, stats = generate_groups(
                model,
                prompt_ids,
                self.generation_config,
                pad_token_id=self._tokenizer.pad_token_id,
                eos_token_ids=self.eos_token_ids,
                device=self.accelerator.device,
                chunk=self._option("decode_chunk"),
                pad_to_multiple_of=self.pad_to_multiple_of,
                **switches,
            )
        self._count(stats.tokens, stats.stock_tokens)
        return completion_ids, None  # TRL takes no log-probabilities from generation without vLLM

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        before = getattr(self, "_buffered_inputs", None)
        inputs = super()._prepare_inputs(generation_batch)
        batches: Any = getattr(self, "_buffered_inputs", None)
        if self.work is None or not self.model.training:
            return inputs
        if batches is not before:
            self._buffered_inputs = batches = self._arrange(batches)
        inputs = batches[self._step % self.args.steps_per_generation]
        self._count(0, int(inputs["tokens_cut"]))
        return inputs

    def _arrange(self, batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the micro-batches of a generation batch, regrouped and cut, as far as each is exact."""
        if len(batches) > 1 and self.gate is not None and self.gate.open and self._why_not_regroup() is None:
            steps = optimizer_steps(
                len(batches), self.args.gradient_accumulation_steps, self.num_iterations, self._in_window
            )
            batches = regroup(batches, steps)
        arranged = []
        for batch in batches:
            cut = trim(batch) if self._trims() else dict(batch)
            tokens = [b["prompt_ids"].numel() + b["completion_ids"].numel() for b in (batch, cut)]
            cut["tokens_cut"] = torch.tensor(tokens[0] - tokens[1])  # what TRL would run beyond what is left
            arranged.append(cut)
        return arranged

    def _why_not_regroup(self) -> str | None:
        return composition_reason(
            self.loss_type,
            top_entropy_quantile=self.top_entropy_quantile,
            entropy_bonus=self._entropy_bonus_enabled,
            aux_loss=self.aux_loss_enabled,
        )

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        training = self.work is not None and self.model.training
        if training and self._option("skip_zero_advantage") is not False and self._why_not_skip() is None:
            skip_B = (inputs["advantages"].view(len(inputs["advantages"]), -1) == 0).all(dim=1)
            self._skip = (skip_B, inputs.get("old_per_token_logps"))
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self._skip = None

    def evaluate(self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval") -> Any:
        """Evaluates as TRL does, or by `eval_rewards`: pass@k and maj@k of samples, instead of mean rewards."""
        if self.evaluation is None:
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(rows, dict):  # each of them comes back here by itself
            return super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        if isinstance(rows, str):
            rows = self.eval_dataset[rows]
        if rows is None:
            raise UserError("eval_rewards needs held-out prompts: give an eval_dataset (eval_prompts in a recipe)")
        metrics = self.evaluation.metrics(self, rows, metric_key_prefix)
        self.model.eval()  # as after TRL's evaluation: the log then belongs to it
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Any:
        """Runs one micro-batch as TRL does, and logs the work of an optimizer step at its end."""
        with self._offloading or nullcontext():
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self.work is not None:
            ends_step = self.accelerator.sync_gradients
            self._in_window = 0 if ends_step else self._in_window + 1
            if ends_step:
                for key, value in self.work.flush(self.accelerator).items():
                    self._metrics["train"][key].append(value)
        return loss

    def _count(self, run: int, stock: int) -> None:
        if self.work is not None and self.model.training:  # an evaluation's work is no step's
            self.work.add(run, stock)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        compute_aux_loss: bool = False,
        **vision: Any,
    ) -> Any:
        plain = functools.partial(super()._get_per_token_logps_and_entropies, model, compute_entropy=compute_entropy)
        gate = self.gate
        given = any(value is not None for value in vision.values())
        if gate is None or given or compute_aux_loss or not (gate.open or self._skip or self._trims()):
            self._count(input_ids.numel(), input_ids.numel())
            return plain(
                input_ids,
                attention_mask,
                logits_to_keep,
                batch_size=batch_size,
                compute_aux_loss=compute_aux_loss,
                **vision,
            )
        skip_B, fill_logps = self._skip or (None, None)
        size = batch_size or len(input_ids)
        parts = []
        for start in range(0, len(input_ids), size):
            rows = slice(start, start + size)
            logps, entropies, run = score_rows(
                gate,
                model,
                input_ids[rows],
                attention_mask[rows],
                logits_to_keep,
                lambda *rectangle: plain(*rectangle)[:2],
                compute_entropy=compute_entropy,
                skip_B=None if skip_B is None else skip_B[rows],
                fill_logps_BC=None if fill_logps is None else fill_logps[rows],
                trims=self._trims(),
                autocast=self.accelerator.autocast,
            )
            self._count(run, input_ids[rows].numel())
            parts.append((logps, entropies))
        all_logps, all_entropies = zip(*parts, strict=True)
        return torch.cat(all_logps), torch.cat(all_entropies) if compute_entropy else None, None

    def _trims(self) -> bool:
        exactness = self.gate.exactness if self.gate else None
        return self._option("trim_padding") is not False and exactness is not None and exactness.trim_reason is None

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
