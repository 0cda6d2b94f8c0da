"""The exact plan: the real model code on tensors without memory.

transformers' model, PEFT's adapters, TRL's fused head, and this package's shared-prompt forward, critic and cache run
under `FakeTensorMode`, on the CPU, while `StorageTracker` counts what would be alive. No weights and no GPU are
needed, and a model of any size fits. Deep models run at two depths and are continued to their own: layers repeat, so
each phase's peak is affine in the number of layers.

What is not real: 4-bit layers (`fake4bit`); and for `device="cuda"` the places where CUDA's kernels hold less than the
CPU's (`on_cuda`), which are read from source and not measured.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import DynamicCache

from ..forward.layout import build_layout
from ..forward.packed import packed_logps_and_entropies
from ..ppo import clipped_surrogate, clipped_value_loss
from ..rollouts.kv_cache import rebuild
from .categories import Category, Phase
from .closed_form import Bytes, cache_room, training_shape
from .fake_models import Models, build_models
from .fake_tensors import fake_copy, faking, labelled_heads, masks_built, on_cuda
from .setting import Setting
from .tracker import StorageTracker

_DEPTHS = (2, 4)
_SHALLOW = 6  # models of up to so many layers run whole


def simulate(setting: Setting) -> dict[Phase, Bytes]:
    """Returns what is alive, by category, at the peak of each phase."""
    layers = setting.geometry.layers
    if layers <= _SHALLOW:
        return simulate_at(setting, layers)
    low, high = _DEPTHS
    at_low, at_high = (simulate_at(setting, depth) for depth in _DEPTHS)
    steps = (layers - low) / (high - low)
    peaks = {}
    for phase, alive in at_low.items():
        deeper = at_high[phase]
        continued = {c: round(alive.get(c, 0) + steps * (deeper.get(c, 0) - alive.get(c, 0))) for c in Category}
        peaks[phase] = {c: size for c, size in continued.items() if size > 0}
    return peaks


def simulate_at(setting: Setting, depth: int) -> dict[Phase, Bytes]:
    """The same for a model of `depth` layers."""
    tracker = StorageTracker(round_to_bytes=512 if setting.device == "cuda" else 1)
    with faking(setting) as fake:
        models = build_models(setting, depth, fake)
        with fake, labelled_heads(tracker), on_cuda(setting.device == "cuda"):
            _Simulation(setting, models, tracker, fake).run()
    found = {
        phase: {c: size for c, size in peak.by_category.items() if size}
        for phase, peak in tracker.phase_peaks.items()
        if phase is not Phase.OTHER
    }
    del models
    gc.collect()
    return {phase: found[phase] for phase in Phase if phase in found}


class _Simulation:
    """Runs the phases of a step, in order, in steady state: the optimizer's state is there from the start."""

    def __init__(self, setting: Setting, models: Models, tracker: StorageTracker, fake: FakeTensorMode) -> None:
        self.setting, self.models, self.tracker, self.fake = setting, models, tracker, fake
        self.dtype = torch.bfloat16 if setting.autocast else None

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast("cpu", dtype=self.dtype) if self.dtype else contextlib.nullcontext()

    def run(self) -> None:
        s, models, tracker = self.setting, self.models, self.tracker
        self.optimizer = models.optimizer()
        with tracker, tracker.region(Phase.OTHER, Category.OTHER):
            self._register()
            self.batch = self._micro_batch()
            self.ids = torch.zeros(s.rows, s.span * 3, dtype=torch.long)  # of a whole step, with masks
            with torch.no_grad():
                if s.generates:
                    self._rollout()
                if models.reward_model is not None:
                    with tracker.region(Phase.REWARD, Category.ACTIVATIONS):
                        self._reward(models.reward_model)
                if s.reference:
                    with tracker.region(Phase.REFERENCE, Category.ACTIVATIONS):
                        self._reference()
                if s.needs_old_logprobs:
                    with tracker.region(Phase.OLD_LOGPROBS, Category.ACTIVATIONS):
                        self._log_probs(models.policy)
                if models.critic is not None:
                    with tracker.region(Phase.CRITIC_VALUES, Category.ACTIVATIONS):
                        self._values(models.old_critic)
            if not s.trains:
                return
            for _ in range(min(s.steps, 2)):
                self._train()
            if s.steps > 1 and s.padding and self.batch[2] is not None:
                self.batch = self._micro_batch(padded=False)  # packed, one without padding has more tokens
                self._train()
            with tracker.region(Phase.OPTIMIZER, Category.ACTIVATIONS):
                torch.nn.utils.clip_grad_norm_(models.trained, 1.0)
                if s.optimizer == "adamw":
                    self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=True)

    def _register(self) -> None:
        tracker, models = self.tracker, self.models
        tracker.assign_model(models.policy, trainable=Category.WEIGHTS_TRAINABLE, frozen=Category.WEIGHTS_FROZEN)
        for model, category in models.others():
            tracker.assign_model(model, trainable=category, frozen=category)
        tracker.assign_optimizer(self.optimizer)
        tracker.watch_gradients(models.trained)

    # Inputs

    def _micro_batch(self, padded: bool = True) -> tuple[torch.Tensor, torch.Tensor, Any]:
        """Ids and mask of a micro-batch, and its layout where prompts are shared."""
        s = self.setting
        shape = training_shape(s)
        layout = None
        with torch.utils._python_dispatch._disable_current_modes():
            ids = torch.zeros(s.forward_rows, s.span, dtype=torch.long)
            for row in range(s.forward_rows):
                ids[row, : s.prompt] = row // s.rows_per_prompt
            mask = torch.ones_like(ids)
            if s.padding and padded:
                mask[1::4, -1] = 0
            if shape.packed:
                layout = build_layout(ids, mask, s.completion, max_tokens=s.max_tokens_per_forward)
        if layout is not None:
            layout = fake_copy(layout, self.fake)
        return fake_copy(ids, self.fake), fake_copy(mask, self.fake), layout

    def _masked(self, rows: int) -> contextlib.AbstractContextManager[None]:
        """Lets transformers build a mask, or leave it to SDPA, as it would on seeing the values of a real one."""
        return masks_built(self.setting.padding and rows > 1)

    # Phases

    def _rollout(self) -> None:
        s, tracker, policy = self.setting, self.tracker, self.models.causal_lm
        prompts = -(-s.rows // s.rows_per_prompt)
        # PEFT's `generate` goes around accelerate's autocast, which wraps the forward of its own model.
        context = self.autocast if s.mode == "full" else contextlib.nullcontext
        cache = DynamicCache(config=policy.config)
        policy.gradient_checkpointing_disable()
        with tracker.region(Phase.PREFILL, Category.ACTIVATIONS):
            ids = torch.zeros(prompts, s.prompt, dtype=torch.long)
            mask = torch.ones_like(ids)
            with context(), self._masked(prompts):
                logits = policy(input_ids=ids, attention_mask=mask, past_key_values=cache, logits_to_keep=1).logits
            tracker.assign((x for layer in cache.layers for x in (layer.keys, layer.values)), Category.KV_CACHE)
            self._sample(logits[:, -1])
            del logits, ids, mask
        with tracker.region(Phase.DECODE, Category.KV_CACHE):
            rows, filled = torch.zeros(s.rows, dtype=torch.long), s.prompt
            for room_to in cache_room(s.prompt, s.completion):
                rebuild(cache, rows, room_to - filled)
                rows, filled = torch.arange(s.rows), room_to
                for layer in cache.layers:
                    _fill(layer, room_to, s)
            if filled == s.prompt:  # a single token
                rebuild(cache, rows, 1)
            for layer in cache.layers:
                _fill(layer, s.span - 2, s)
            with tracker.region(None, Category.ACTIVATIONS), context(), self._masked(prompts):
                ids = torch.zeros(s.rows, 1, dtype=torch.long)
                mask = torch.ones(s.rows, s.span - 1, dtype=torch.long)
                logits = policy(input_ids=ids, attention_mask=mask, past_key_values=cache, logits_to_keep=1).logits
                self._sample(logits[:, -1])
        if s.gradient_checkpointing and s.trains:
            self.models.checkpoint()

    def _sample(self, logits: torch.Tensor) -> None:
        with self.tracker.region(None, Category.LM_HEAD):
            scores = logits.to(copy=True, dtype=torch.float32)
            if len(scores) != self.setting.rows:
                scores = scores[torch.zeros(self.setting.rows, dtype=torch.long)]
            torch.multinomial(torch.softmax(scores, dim=-1), num_samples=1)

    def _reward(self, model: Any) -> None:
        s = self.setting
        ids = torch.zeros(s.rows, s.span, dtype=torch.long)
        mask = torch.ones_like(ids)
        with self.autocast(), self._masked(s.rows):
            hidden = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            model.score(hidden)

    def _reference(self) -> None:
        if self.models.reference is not None:
            self._log_probs(self.models.reference)
            return
        with self.models.policy.disable_adapter():
            self._log_probs(self.models.policy)

    def _log_probs(self, model: Any) -> torch.Tensor:
        """What the trainer's `_get_per_token_logps_and_entropies` does."""
        s, (ids, mask, layout) = self.setting, self.batch
        if layout is not None:
            return packed_logps_and_entropies(
                model,
                ids,
                mask,
                s.completion,
                compute_entropy=torch.is_grad_enabled(),
                layout=layout,
                autocast=self.autocast,
            )[0]
        labels = ids.masked_fill(mask == 0, -100)
        labels[:, : s.prompt] = -100
        with self.autocast(), self._masked(len(ids)):
            given = {"labels": labels} if s.device == "cpu" else {"shift_labels": labels[:, s.prompt :]}
            with _completion_only(model, s) if s.device == "cuda" else contextlib.nullcontext():
                outputs = model(input_ids=ids, attention_mask=mask, fused_lm_head=True, **given)
        logps: torch.Tensor = outputs.log_probs[:, -s.completion :]
        return logps

    def _values(self, critic: Any) -> torch.Tensor:
        ids, mask, _ = self.batch
        with self.autocast(), self._masked(len(ids)):
            values: torch.Tensor = critic(ids, mask, self.setting.completion)
        return values[:, :-1]

    def _train(self) -> None:
        if self.setting.rl:
            self._train_policy()
            return
        tracker = self.tracker
        with tracker.region(Phase.FORWARD, Category.ACTIVATIONS):
            loss = self._pairs() if self.setting.algorithm == "reward_model" else self._log_probs(self.models.policy)
            loss = -loss.sum()
        with tracker.region(Phase.BACKWARD, Category.ACTIVATIONS):
            loss.backward()  # type: ignore[no-untyped-call]

    def _pairs(self) -> torch.Tensor:
        """What TRL's `RewardTrainer` does (Bradley and Terry's model of pairs)."""
        ids, mask, _ = self.batch
        with self.autocast(), self._masked(len(ids)):
            scores = self.models.policy(input_ids=ids, attention_mask=mask, use_cache=False).logits
        chosen, rejected = torch.chunk(scores.squeeze(-1), chunks=2)
        return torch.nn.functional.logsigmoid(chosen - rejected)

    def _train_policy(self) -> None:
        s, tracker, models = self.setting, self.tracker, self.models
        advantages = torch.zeros(s.batch, s.completion)
        with tracker.region(Phase.FORWARD, Category.ACTIVATIONS):
            listening = models.critic.listening() if models.critic is not None else contextlib.nullcontext()
            with listening:
                logps = self._log_probs(models.policy)
        if models.critic is not None:
            with tracker.region(Phase.CRITIC, Category.ACTIVATIONS):
                values = self._values(models.critic)
        with tracker.region(Phase.FORWARD, Category.OTHER):
            loss, _ = clipped_surrogate(logps, logps.detach(), advantages, 0.2, 0.2)
            if s.reference and not s.ppo:
                loss = loss + 0.04 * (torch.exp(advantages - logps) - (advantages - logps) - 1)
            if models.critic is not None:
                loss = loss + 0.1 * clipped_value_loss(values, advantages, advantages, 0.2)[0]
                del values
            loss = (loss * advantages).sum()
            del logps
        with tracker.region(Phase.BACKWARD, Category.ACTIVATIONS):
            loss.backward()  # type: ignore[no-untyped-call]


def _fill(layer: Any, tokens: int, setting: Setting) -> None:
    """Sets a cache layer's length, as if so many tokens had been appended."""
    layer.filled = min(tokens, layer.key_buffer.shape[-2])
    window = getattr(layer, "sliding_window", None)
    if window is not None:
        layer.cumulative_length = tokens
        layer.keys, layer.values = layer._visible(window - 1)
    else:
        layer.keys, layer.values = layer._visible(layer.filled)


@contextlib.contextmanager
def _completion_only(model: Any, setting: Setting) -> Iterator[None]:
    """Lets the head see copies of the positions that score completion tokens, as it does on CUDA."""

    def cut(module: Any, args: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[:, -setting.completion - 1 : -1].clone()
        return output

    base = model.get_base_model() if hasattr(model, "peft_config") else model
    handle = base.base_model.register_forward_hook(cut)
    try:
        yield
    finally:
        handle.remove()
