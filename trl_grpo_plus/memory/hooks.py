"""Where the phases of a step begin and end in a TRL trainer, found from outside: no method is overridden or copied.

    what is wrapped or hooked                       phase                           in
    _generate_single_turn                           rollout.decode                  trainers that sample
      the policy's forward, more than one token     rollout.prefill
    _calculate_rewards, reward models               reward                          GRPO, PPO, RLOO
    ref_model, the policy without its adapter       reference                       GRPO, PPO, DPO
    the policy's forward without gradients          old_logprobs                    trainers that sample
    critic                                          critic, critic_values           PPO
    compute_loss, the policy's forward              forward                         all
    accelerator.backward                            backward                        all
    _clip_grad_norm, optimizer.step                 optimizer                       all
    _save_checkpoint, save_model                    checkpoint                      all

Methods are replaced on the instance and put back afterwards. Categories finer than a phase come from patches that hold
as long: TRL's fused heads and the model's own (`lm_head`), and `Cache.update` of transformers (`kv_cache`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from .categories import Category, Phase
from .recorders import Recorder, TrackerRecorder

_FUSED_HEADS = (
    ("trl.kernels.chunked_logprob", "ChunkedLogProbFunction"),
    ("trl.kernels.chunked_divergence", "ChunkedDivergenceFunction"),
    ("trl.kernels.logprob_entropy", "_LogProbEntropyFunction"),
)
# Attributes of trainers that hold further models.
_MODELS = {
    "ref_model": Category.REFERENCE,
    "teacher_model": Category.REFERENCE,
    "critic_module": Category.CRITIC,
    "frozen_critic": Category.CRITIC,
    "value_model": Category.CRITIC,
    "reward_model": Category.REWARD_MODEL,
}
_WATCHED = ("training_step", "prediction_step", "_clip_grad_norm", "_save_checkpoint", "save_model")
_REGIONS: dict[str, tuple[Phase, Category]] = {
    "_calculate_rewards": (Phase.REWARD, Category.OTHER),
    "compute_loss": (Phase.FORWARD, Category.ACTIVATIONS),
    "_clip_grad_norm": (Phase.OPTIMIZER, Category.OTHER),
    "_save_checkpoint": (Phase.CHECKPOINT, Category.OTHER),
    "save_model": (Phase.CHECKPOINT, Category.OTHER),
}
Context = Callable[..., AbstractContextManager[Any]]


def models_of(trainer: Any) -> list[tuple[nn.Module, Category]]:
    """Returns the models that a trainer holds besides the policy, unwrapped, each with its category."""
    found = [(getattr(trainer, name, None), category) for name, category in _MODELS.items()]
    found += [(each, Category.REWARD_MODEL) for each in getattr(trainer, "reward_funcs", None) or []]
    unwrap = trainer.accelerator.unwrap_model
    models = [(unwrap(model), category) for model, category in found if isinstance(model, nn.Module)]
    policy = unwrap(trainer.model)
    known = {id(policy), id(causal_lm_of(policy)), *(id(model) for model, _ in models)}
    for model, category in list(models):  # a frozen copy that an adapter critic sits on is not a submodule of it
        models += [(base, category) for base in getattr(model, "_frozen", ()) if id(base) not in known]
    return models


def causal_lm_of(model: Any) -> Any:
    """Returns the model inside PEFT's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class Hooks:
    """Tells a recorder of the phases of a trainer, from `attach` to `detach`."""

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        self.trainer = trainer
        self.recorder = recorder
        self.policy = trainer.accelerator.unwrap_model(trainer.model)
        self._undo = ExitStack()
        self._generating = 0
        self._samples = hasattr(trainer, "_generate_single_turn")
        self._optimizer: Any = None

    def attach(self) -> None:
        """Wraps and hooks everything; what fails half-way is undone."""
        try:
            self._attach()
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Puts everything back as it was."""
        self._undo.close()
        self._optimizer = None

    def _attach(self) -> None:
        trainer = self.trainer
        for name, (phase, category) in _REGIONS.items():
            self._wrap(trainer, name, functools.partial(self._region, phase, category))
        self._wrap(trainer, "_generate_single_turn", lambda *a, **k: self._rollout())
        self._wrap(trainer.accelerator, "backward", functools.partial(self._region, Phase.BACKWARD, None))
        for name in _WATCHED:  # outermost
            self._wrap(trainer, name, functools.partial(self._watch, name))
        own = {id(module): module for module in (self.policy, causal_lm_of(self.policy))}
        for module in own.values():  # PEFT's wrapper does not call the model inside, and generation only calls that
            self._hook(module, self._policy_region)
        for module, category in models_of(trainer):
            if id(module) not in own:
                self._hook(module, functools.partial(self._model_region, category))
        self._label_heads()
        if isinstance(self.recorder, TrackerRecorder):
            self._label_weights(self.recorder)
            self._label_cache(self.recorder)

    # The contexts

    @contextmanager
    def _watch(self, name: str, *args: Any, **kwargs: Any) -> Iterator[None]:
        self._wrap_optimizer()
        with self.recorder.active():
            if name in ("training_step", "prediction_step") and isinstance(self.recorder, TrackerRecorder):
                leaves = tree_leaves((args[1:], kwargs))
                made_before = [leaf for leaf in leaves if type(leaf) is torch.Tensor]
                self.recorder.tracker.assign(made_before, Category.OTHER)
            yield

    def _region(self, phase: Phase, category: Category | None, *args: Any, **kwargs: Any) -> Any:
        return self.recorder.region(phase, category or Category.ACTIVATIONS)

    @contextmanager
    def _rollout(self) -> Iterator[None]:
        self._generating += 1
        try:
            with self.recorder.region(Phase.DECODE, Category.OTHER):
                yield
        finally:
            self._generating -= 1

    def _policy_region(self, args: Any, kwargs: Any) -> Any:
        phase = self._phase_of_forward(args, kwargs)
        return self.recorder.region(phase if phase is not self.recorder.phase else None, Category.ACTIVATIONS)

    def _phase_of_forward(self, args: Any, kwargs: Any) -> Phase:
        if self._generating:
            ids = kwargs.get("input_ids", args[0] if args else None)
            ids = kwargs.get("inputs_embeds") if ids is None else ids
            return Phase.PREFILL if ids is not None and ids.size(1) > 1 else Phase.DECODE
        if torch.is_grad_enabled():
            return Phase.FORWARD
        if _without_adapter(self.policy):
            return Phase.REFERENCE
        if self.recorder.phase is not Phase.OTHER:
            return self.recorder.phase  # a forward inside of another phase: an evaluation's loss, a check
        return Phase.OLD_LOGPROBS if self._samples else Phase.FORWARD

    def _model_region(self, category: Category, args: Any, kwargs: Any) -> Any:
        phase = {Category.REFERENCE: Phase.REFERENCE, Category.REWARD_MODEL: Phase.REWARD}.get(category)
        if phase is None:
            phase = Phase.CRITIC if torch.is_grad_enabled() else Phase.CRITIC_VALUES
        return self.recorder.region(phase if phase is not self.recorder.phase else None, Category.ACTIVATIONS)

    # Wrapping

    def _wrap(self, owner: Any, name: str, context: Context) -> None:
        """Replaces a method of an object by one that runs in a context made from the same arguments."""
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with context(*args, **kwargs):
                return original(*args, **kwargs)

        self._replace(owner, name, inside)

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        missing = object()
        before = vars(owner).get(name, missing)
        setattr(owner, name, value)
        if before is missing:
            self._undo.callback(delattr, owner, name)
        else:
            self._undo.callback(setattr, owner, name, before)

    def _hook(self, module: nn.Module, context: Callable[[Any, Any], AbstractContextManager[Any]]) -> None:
        """Runs a module's calls in a context made from their arguments."""
        entered: list[AbstractContextManager[Any]] = []

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            region = context(args, kwargs)
            region.__enter__()
            entered.append(region)

        def after(module: nn.Module, args: Any, output: Any) -> None:
            if entered:
                entered.pop().__exit__(None, None, None)

        self._undo.callback(module.register_forward_pre_hook(before, with_kwargs=True, prepend=True).remove)
        self._undo.callback(module.register_forward_hook(after, always_call=True).remove)

    def _wrap_optimizer(self) -> None:
        """The optimizer is made when the training starts; its state, when it first steps."""
        optimizer = getattr(self.trainer, "optimizer", None)
        if optimizer is None or optimizer is self._optimizer:
            return
        self._optimizer = optimizer

        @contextmanager
        def stepping(*args: Any, **kwargs: Any) -> Iterator[None]:
            recorder = self.recorder
            with recorder.active(), recorder.region(Phase.OPTIMIZER, Category.OPTIMIZER):
                yield
                if isinstance(recorder, TrackerRecorder):
                    recorder.tracker.assign_optimizer(optimizer)

        self._wrap(optimizer, "step", stepping)
        if isinstance(self.recorder, TrackerRecorder):  # loaded from a checkpoint
            self.recorder.tracker.assign_optimizer(optimizer)

    # Categories

    def _label_heads(self) -> None:
        def within(*args: Any, **kwargs: Any) -> Any:
            return self.recorder.region(None, Category.LM_HEAD)

        for module, name in _FUSED_HEADS:
            function = getattr(sys.modules.get(module), name, None)  # some need Triton
            for direction in ("forward", "backward") if function is not None else ():
                original = getattr(function, direction)

                @functools.wraps(original)
                def inside(*args: Any, original: Any = original, **kwargs: Any) -> Any:
                    with within():
                        return original(*args, **kwargs)

                self._replace(function, direction, staticmethod(inside))
        head = getattr(causal_lm_of(self.policy), "get_output_embeddings", lambda: None)()
        if isinstance(head, nn.Module):
            self._hook(head, within)

    def _label_weights(self, recorder: TrackerRecorder) -> None:
        tracker = recorder.tracker
        tracker.assign_model(self.policy, trainable=Category.WEIGHTS_TRAINABLE, frozen=Category.WEIGHTS_FROZEN)
        trained = list(self.policy.parameters())
        for model, category in models_of(self.trainer):
            tracker.assign_model(model, trainable=category, frozen=category)
            trained += list(model.parameters())
        for handle in tracker.watch_gradients({id(p): p for p in trained}.values()):
            self._undo.callback(handle.remove)

    def _label_cache(self, recorder: TrackerRecorder) -> None:
        from transformers.cache_utils import Cache

        update = Cache.update

        @functools.wraps(update)
        def labelled(*args: Any, **kwargs: Any) -> Any:
            keys_and_values = update(*args, **kwargs)
            if self._generating:
                recorder.tracker.assign(keys_and_values, Category.KV_CACHE)
            return keys_and_values

        self._replace(Cache, "update", labelled)


def _without_adapter(model: nn.Module) -> bool:
    """Returns whether a PEFT model runs as its reference now: with its adapters off, or with the one named `ref`."""
    if not hasattr(model, "peft_config"):
        return False
    from peft.tuners.tuners_utils import BaseTunerLayer

    layer = next((module for module in model.modules() if isinstance(module, BaseTunerLayer)), None)
    return layer is not None and (layer.disable_adapters or layer.active_adapters == ["ref"])
