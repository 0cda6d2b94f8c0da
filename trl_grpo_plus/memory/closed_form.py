"""The closed form: a training step in the ledger, phase by phase.

Layers repeat, so what is alive at a moment is affine in the number of layers. Two and three layers are written down,
and each moment (the first layer of a forward, the head, the last layer of a backward, ...) is continued to the model's
depth. That takes milliseconds for a model of any size.

    setting -> {moment: {category: bytes}};  a moment is "phase|part"
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from .categories import Category, Phase
from .layers import NF4_BYTES, Model, Shape, Style
from .ledger import Ledger, Node, Tensor
from .lm_head import log_probs, loss_tensors, scored_positions
from .setting import OPTIMIZERS, Setting

Bytes = dict[Category, int]
_PACKING_PAYS = 0.98  # of the rectangle's tokens, as `forward.layout.should_pack`
_LEAST_ROOM = 64  # of the key/value cache, as `rollouts.decoding`


def phase_peaks(setting: Setting) -> dict[Phase, Bytes]:
    """Returns what is alive, by category, at the peak of each phase."""
    if setting.geometry.weights_only:
        return {Phase.OPTIMIZER: weights_only(setting)}
    depth = setting.geometry.layers
    if depth <= 3:
        moments = step_moments(setting, depth)
    else:
        two, three = (step_moments(setting, layers) for layers in (2, 3))
        moments = {
            moment: {c: two[moment][c] + (depth - 2) * (three[moment][c] - two[moment][c]) for c in Category}
            for moment in two
        }
    peaks: dict[Phase, Bytes] = {}
    for moment, alive in moments.items():
        phase = Phase(moment.split("|")[0])
        if phase not in peaks or sum(alive.values()) > sum(peaks[phase].values()):
            peaks[phase] = alive
    return {phase: {c: n for c, n in peaks[phase].items() if n > 0} for phase in Phase if phase in peaks}


def weights_only(setting: Setting) -> Bytes:
    """Returns what a model whose layers are not known holds all the time, in the optimizer's update.

    Adapters are left out: they are a hundredth of the weights.
    """
    geometry, width = setting.geometry, setting.base_width
    quantized = geometry.backbone_parameters - geometry.embedding

    def model(parameters: int) -> int:
        if setting.mode != "qlora":
            return parameters * width
        return int(quantized * NF4_BYTES) + (parameters - quantized) * width

    policy, backbone = model(geometry.parameters), model(geometry.backbone_parameters)
    trained = geometry.parameters if setting.mode == "full" and setting.trains else 0
    found = {Category.WEIGHTS_TRAINABLE if trained else Category.WEIGHTS_FROZEN: policy}
    if setting.has_reference_model:
        found[Category.REFERENCE] = policy
    if setting.ppo and setting.critic == "separate":
        found[Category.CRITIC] = backbone * (2 if setting.frozen_critic_copy else 1)
        trained += geometry.backbone_parameters if setting.mode == "full" else 0
    if setting.reward_model:
        found[Category.REWARD_MODEL] = backbone
    found[Category.GRADIENTS] = trained * width
    found[Category.OPTIMIZER] = int(trained * OPTIMIZERS[setting.optimizer][width])
    return {category: size for category, size in found.items() if size}


def step_moments(setting: Setting, depth: int) -> dict[str, Bytes]:
    """Returns what is alive at each moment of an optimizer step of a model of `depth` layers."""
    return _Step(setting, depth).run()


def training_shape(setting: Setting) -> Shape:
    """Returns the tokens of one forward of the policy that is trained, or that scores log-probabilities.

    Packed, a prompt's last token heads each of its completions' segments, and their last tokens are not run.
    """
    G, B, P, C = setting.rows_per_prompt, setting.batch, setting.prompt, setting.completion
    masked = setting.padding and setting.forward_rows > 1
    packs = setting.rl and not (setting.ppo and setting.critic == "shared")  # whose value head reads that very forward
    if setting.share_prompt and packs:
        prompts = -(-B // G)
        tokens = prompts * (P - 1) + B * C
        budget = setting.max_tokens_per_forward
        if budget is not None and tokens > budget:
            rows = min(max((budget - (P - 1)) // C, 1), B, G)
            return Shape(rows=1, columns=P - 1 + rows * C, masked=masked, packed=(1, P - 1, rows, C))
        if budget is not None or tokens <= _PACKING_PAYS * B * setting.span:
            return Shape(rows=1, columns=tokens, masked=masked, packed=(prompts, P - 1, B, C))
    return Shape(rows=setting.forward_rows, columns=setting.span, masked=masked)


def forwards(setting: Setting) -> int:
    """Returns into how many forwards a token budget splits a micro-batch."""
    shape = training_shape(setting)
    return 1 if shape.packed is None else -(-setting.batch // shape.packed[2])


def cache_room(prompt: int, completion: int) -> Iterator[int]:
    """Yields the tokens that the key/value cache has room for after each time that it grows."""
    length, limit, filled = prompt + 1, prompt + completion, prompt
    while length < limit:
        room = min(limit - length, max(_LEAST_ROOM, length // 4))
        yield filled + room
        filled, length = filled + room, length + room


class _Step:
    """Runs the phases of a step, in order."""

    def __init__(self, setting: Setting, depth: int) -> None:
        self.setting, self.depth = setting, depth
        self.ledger = Ledger()
        self.on_cuda = setting.device == "cuda"
        self.forward_shape = training_shape(setting)
        self.scored = scored_positions(self.forward_shape, setting.completion, self.on_cuda)
        self._build()

    # What is there all the time

    def _build(self) -> None:
        s, ledger = self.setting, self.ledger
        adapter = None if s.mode == "full" else s.adapter_width
        policy = Style(
            base_width=s.base_width, autocast=s.autocast, four_bit=s.mode == "qlora",
            trained=s.mode == "full" and s.trains, adapter_width=adapter, rank=s.lora_rank, targets=s.lora_targets,
            checkpointed=s.gradient_checkpointing,
        )  # fmt: skip
        frozen = replace(policy, trained=False, adapter_width=None, checkpointed=False)
        # The weights of a model that was loaded require gradients, unless a critic's adapter was put into it.
        loaded = replace(frozen, trained=s.mode != "qlora" and not (s.ppo and s.critic == "adapter"))
        scores = s.algorithm == "reward_model"
        self.policy = Model(ledger, s.geometry, policy, self.depth, head=not scores)
        self.reference: Model | None = None
        self.critic: Model | None = None
        self.reward_model: Model | None = None
        self.held: list[Tensor] = []
        if s.has_reference_model:
            self.reference = self._model(replace(loaded, trainable=Category.REFERENCE, frozen=Category.REFERENCE))
        if s.ppo:
            self._build_critic(policy, frozen)
        if s.reward_model:
            style = replace(
                frozen, trained=s.mode != "qlora", trainable=Category.REWARD_MODEL, frozen=Category.REWARD_MODEL
            )
            self.reward_model = self._model(style, head=False)
        self.trained = [*self.policy.parameters, *(self.critic_parameters if s.ppo else [])]
        if scores:
            self.score = ledger.new(s.geometry.hidden, s.base_width, Category.WEIGHTS_TRAINABLE, needs_grad=True)
            self.trained.append(self.score)
        if not s.trains:
            self.trained = []
        for parameter in self.trained:
            per_parameter = OPTIMIZERS[s.optimizer][parameter.width]
            self.held.append(ledger.new(int(parameter.elements * per_parameter), 1, Category.OPTIMIZER))
        self.held.append(ledger.new(s.rows * s.span * 3, 8, Category.OTHER))  # ids and masks of the rollout

    def _model(self, style: Style, head: bool = True) -> Model:
        return Model(self.ledger, self.setting.geometry, style, self.depth, head)

    def _build_critic(self, policy: Style, frozen: Style) -> None:
        s, geometry, ledger = self.setting, self.setting.geometry, self.ledger
        self.value_head = ledger.new(geometry.hidden + 1, 4, Category.CRITIC, needs_grad=True)
        self.critic_parameters = [self.value_head]
        if s.critic == "separate":
            style = replace(policy, frozen=Category.CRITIC, trainable=Category.CRITIC)
            self.critic = self._model(style, head=False)
            self.critic_parameters += self.critic.parameters
            if s.frozen_critic_copy:
                copy = self._model(replace(style, trained=False, frozen=Category.CRITIC), head=False)
                self.held += copy.parameters
                self._frozen_copy = copy
        elif s.critic == "adapter":
            # A second adapter on the policy's frozen base; without LoRA on the reference, or on a frozen copy.
            width = 4 if s.mode == "full" else s.adapter_width
            base = self.policy if s.mode != "full" else self.reference
            if base is None:
                base = self._model(replace(frozen, frozen=Category.CRITIC))
            style = replace(
                policy, trained=False, adapter_width=width, trainable=Category.CRITIC, frozen=Category.CRITIC
            )
            self.critic = _second_adapter(base, style)
            self.critic_parameters += self.critic.parameters

    # The phases

    def run(self) -> dict[str, Bytes]:
        s, ledger = self.setting, self.ledger
        with ledger.making(Category.ACTIVATIONS):
            with ledger.no_grad():
                if s.generates:
                    self._rollout()
                if self.reward_model is not None:
                    shape = Shape(rows=s.rows, columns=s.span, masked=s.padding and s.rows > 1)
                    self._values(self.reward_model, shape, Phase.REWARD)
                if s.reference:
                    self._score(self.reference or self.policy, Phase.REFERENCE, entropy=False)
                if s.needs_old_logprobs:
                    self._score(self.policy, Phase.OLD_LOGPROBS, entropy=False)
                if s.ppo:
                    shape = Shape(rows=s.batch, columns=s.span, masked=s.padding and s.batch > 1)
                    self._values(self.critic or self.policy, shape, Phase.CRITIC_VALUES)
            if s.trains:
                for _ in range(min(s.steps * forwards(s), 2)):  # in the second, the gradients of the first are there
                    self._train()
        if s.trains:
            ledger.mark(f"{Phase.OPTIMIZER}|update")
        return {moment: peak for moment, peak in ledger.peaks.items() if moment and "|middle" not in moment}

    def _rollout(self) -> None:
        s, ledger, geometry = self.setting, self.ledger, self.setting.geometry
        prompts = -(-s.rows // s.rows_per_prompt)
        # accelerate's autocast wraps the model's own forward, which PEFT's `generate` goes around.
        autocast = s.autocast and s.mode == "full"
        with self._policy_autocast(autocast):
            width = 2 if autocast else s.base_width
            # Keys have been rotated, in the dtype of the residual stream; values come from a product.
            per_token = geometry.kv_size * (max(width, s.base_width) + width)
            cache = ledger.new(int(prompts * self._cached_tokens(s.prompt)) * per_token, 1, Category.KV_CACHE)
            hidden = self.policy.backbone(
                Shape(rows=prompts, columns=s.prompt, masked=s.padding and prompts > 1), self._enter(Phase.PREFILL)
            )
            self._sample(hidden, s.rows)
            self.policy.leave_autocast()
            del hidden, cache
            ledger.mark(f"{Phase.DECODE}|grow")
            per_layer = s.rows * per_token
            last = before = s.prompt
            for last in cache_room(s.prompt, s.completion):
                full = ledger.new(int(self._cached_tokens(last)) * per_layer, 1, Category.KV_CACHE)
                old = ledger.new(before * per_layer, 1, Category.KV_CACHE)
                del full, old
                before = last
            cache = ledger.new(int(self._cached_tokens(last)) * per_layer, 1, Category.KV_CACHE)
            hidden = self.policy.backbone(Shape(rows=s.rows, columns=1), self._enter(Phase.DECODE))
            self._sample(hidden, s.rows)
            self.policy.leave_autocast()
            del cache

    def _cached_tokens(self, tokens: int) -> float:
        """Tokens that all layers together keep of a row: those with a window no more than the window."""
        geometry = self.setting.geometry
        if geometry.window is None or geometry.full_attention_layers is None:
            return tokens * self.depth
        share = geometry.full_attention_layers / geometry.layers
        return self.depth * (share * tokens + (1 - share) * min(tokens, geometry.window))

    @contextmanager
    def _policy_autocast(self, on: bool) -> Iterator[None]:
        style = self.policy.style
        self.policy.style = replace(style, autocast=on, checkpointed=False)
        try:
            yield
        finally:
            self.policy.style = style

    def _sample(self, hidden: Tensor, rows: int) -> None:
        """The logits of the newest tokens, in their dtype, as float32, at a temperature, and as probabilities."""
        logits = rows * self.setting.geometry.vocab
        assert self.policy.head is not None
        head = self.policy.cast_weight(self.policy.head)
        self.ledger.scratch(logits * (hidden.width + 3 * 4), Category.LM_HEAD)
        del head

    def _score(self, model: Model, phase: Phase, entropy: bool) -> None:
        adapter, model.adapter_on = model.adapter_on, model.adapter_on and phase is not Phase.REFERENCE
        hidden = model.backbone(self.forward_shape, self._enter(phase))
        log_probs(model, hidden, self.scored, on_cuda=self.on_cuda, entropy=entropy)
        model.leave_autocast()
        model.adapter_on = adapter

    def _values(self, model: Model, shape: Shape, phase: Phase) -> Tensor:
        hidden = model.backbone(shape, self._enter(phase))
        s, H = self.setting, self.setting.geometry.hidden
        states = shape.rows * (s.completion + 1)
        if phase is Phase.REWARD:
            states = shape.tokens
        cut = self.ledger.op([hidden], states * H, hidden.width, view=True)
        head = [self.value_head] if s.ppo and phase is not Phase.REWARD else []
        if hidden.width != 4:
            cut = self.ledger.op([cut], states * H, 4)
        values = self.ledger.op([cut, *head], states, 4, saves=[cut])
        model.leave_autocast()
        return values

    def _train(self) -> None:
        s, ledger = self.setting, self.ledger
        del self.policy.boundaries[:]
        hidden = self.policy.backbone(self.forward_shape, self._enter(Phase.FORWARD))
        shared = s.ppo and s.critic == "shared" and self.forward_shape.packed is None
        if s.algorithm == "reward_model":  # a score at every position; the last one of each row counts
            scored = self.policy.product(hidden, self.score, hidden.elements // s.geometry.hidden)
        else:
            scored = log_probs(self.policy, hidden, self.scored, on_cuda=self.on_cuda)
        self.policy.leave_autocast()
        losses = [scored]
        parts = [(self.policy.boundaries, "policy")]
        if s.ppo:
            if self.critic is not None:
                del self.critic.boundaries[:]
                shape = Shape(rows=s.batch, columns=s.span, masked=s.padding and s.batch > 1)
                values = self._values(self.critic, shape, Phase.CRITIC)
                parts.append((self.critic.boundaries, "critic"))
            else:
                ledger.mark(f"{Phase.CRITIC}|head")
                states = s.batch * (s.completion + 1)
                wide = hidden if shared and hidden.width == 4 else ledger.op([hidden], states * s.geometry.hidden, 4)
                values = ledger.op([wide, self.value_head], states, 4, saves=[wide])
                del wide
            losses.append(values)
            del values
        del hidden, scored
        ledger.mark(f"{Phase.FORWARD}|loss")
        small = loss_tensors(ledger, s.forward_rows * (1 if s.algorithm == "reward_model" else s.completion))
        loss = ledger.op([*losses, small], 1, 4, saves=[small])
        del losses, small
        ledger.mark(f"{Phase.BACKWARD}|start")
        ledger.backward(loss, self._on_node(parts))

    # Moments

    def _enter(self, phase: Phase) -> Callable[[str], None]:
        self.ledger.mark(f"{phase}|embedding")
        return lambda part: self.ledger.mark(f"{phase}|{part}")

    def _on_node(self, parts: list[tuple[list[tuple[int, str]], str]]) -> Callable[[Node], None]:
        begins = sorted((order, f"{Phase.BACKWARD}|{part} {name}") for found, name in parts for order, part in found)
        orders = [order for order, _ in begins]

        def note(node: Node) -> None:
            i = bisect.bisect_left(orders, node.order) - 1
            self.ledger.mark(begins[i][1] if i >= 0 else f"{Phase.BACKWARD}|embedding policy")

        return note


def _second_adapter(base: Model, style: Style) -> Model:
    """Returns the critic as a second adapter in the layers of a model, whose weights it shares."""
    critic = object.__new__(Model)
    critic.__dict__.update(base.__dict__)
    critic.style, critic.boundaries, critic._casts, critic.adapter_on = style, [], {}, True
    critic.layers = []
    for layer in base.layers:
        linears = {
            name: replace(weight, adapter=critic.new_adapter(weight.linear) if _targeted(style, name) else None)
            for name, weight in layer.linears.items()
        }
        critic.layers.append(replace(layer, linears=linears))
    return critic


def _targeted(style: Style, name: str) -> bool:
    return style.targets is None or name in style.targets
