"""A transformer written down as the tensors that its operations make and keep (see `ledger`).

Follows transformers' eager Llama, Qwen and Gemma 3 layers with SDPA, PEFT's LoRA layers, bitsandbytes' 4-bit layers
and autocast, line by line as far as tensors are concerned: a local variable there is a local variable here.

Names: T tokens of a forward, H hidden size, I intermediate size, Q query size, K key/value size, w bytes per element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .categories import Category
from .geometry import Geometry, Linear
from .ledger import Ledger, Tensor


@dataclass(frozen=True, kw_only=True)
class Style:
    """How the numbers of a model are kept.

    Args:
        base_width: Bytes of a weight that is not quantised, and of the residual stream.
        autocast: Matrix products are in two bytes.
        four_bit: The decoder layers' matrices are NF4 with double quantisation.
        trained: The weights require gradients; those of a reference do, though nobody asks for them.
        adapter_width: Bytes of an adapter's weight; `None` without an adapter.
        rank: Of the adapter.
        targets: Linear layers with an adapter; `None`: all.
        checkpointed: Layers run again in the backward.
        frozen: Category of the weights that are not trained.
        trainable: Category of the others.
    """

    base_width: int
    autocast: bool
    four_bit: bool = False
    trained: bool = False
    adapter_width: int | None = None
    rank: int = 16
    targets: tuple[str, ...] | None = None
    checkpointed: bool = False
    frozen: Category = Category.WEIGHTS_FROZEN
    trainable: Category = Category.WEIGHTS_TRAINABLE


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The tokens of one forward.

    Args:
        rows: Rows of the rectangle.
        columns: Tokens of a row.
        masked: Rows differ in length: there is a mask, or packed segments are padded in the attention.
        packed: Shared prompts: (prompts, prompt tokens, rows, tokens of a row's own segment), or `None`.
    """

    rows: int
    columns: int
    masked: bool = False
    packed: tuple[int, int, int, int] | None = None

    @property
    def tokens(self) -> int:
        return self.rows * self.columns


@dataclass
class _Weight:
    """A linear layer's parameters."""

    linear: Linear
    weight: Tensor
    bias: Tensor | None = None
    adapter: tuple[Tensor, Tensor] | None = None


@dataclass
class _Layer:
    linears: dict[str, _Weight]
    norms: list[Tensor]
    head_norms: list[Tensor] = field(default_factory=list)


# Bytes per element of a NF4 weight with double quantisation: half a byte, one byte per block of 64, and a float32 per
# 256 blocks. (bitsandbytes: blocksize 64, nested blocksize 256.)
NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
# Per quantised matrix: two code tables (16 and 256 floats) and an offset.
NF4_CONSTANTS = 4 * (16 + 256 + 1)


class Model:
    """The weights of a model, and its forward.

    Args:
        ledger: Where its bytes are counted.
        geometry: Its shape.
        style: How its numbers are kept.
        depth: Number of decoder layers that are written down.
        head: It has a language model head (a critic has none).
    """

    def __init__(self, ledger: Ledger, geometry: Geometry, style: Style, depth: int, head: bool = True) -> None:
        self.ledger, self.geometry, self.style, self.depth = ledger, geometry, style, depth
        self.adapter_on = style.adapter_width is not None
        self.boundaries: list[tuple[int, str]] = []  # where each part's operations begin, for `part_of`
        self._casts: dict[int, Tensor] = {}  # autocast's cache
        H, w = geometry.hidden, style.base_width
        self.embedding = self._parameter(geometry.embedding, w)
        self.head = None
        if head:
            self.head = self.embedding if geometry.tied else self._parameter(geometry.embedding, w)
        self.final_norm = self._parameter(H, w)
        self.layers = [self._layer() for _ in range(depth)]

    def _parameter(self, elements: int, width: int, trained: bool | None = None) -> Tensor:
        trained = self.style.trained if trained is None else trained
        category = self.style.trainable if trained else self.style.frozen
        return self.ledger.new(elements, width, category, needs_grad=trained)

    def _layer(self) -> _Layer:
        geometry, style, w = self.geometry, self.style, self.style.base_width
        linears = {}
        for linear in geometry.linears:
            if style.four_bit:
                size = int(linear.weights * NF4_BYTES) + NF4_CONSTANTS
                weight = self.ledger.new(size, 1, style.frozen)
            else:
                weight = self._parameter(linear.weights, w)
            linears[linear.name] = _Weight(linear, weight, self._parameter(linear.outputs, w) if linear.bias else None)
        norms = [self._parameter(geometry.hidden, w) for _ in range(4 if geometry.sandwich_norms else 2)]
        head_norms = [self._parameter(geometry.head_dim, w) for _ in range(2 if geometry.qk_norm else 0)]
        layer = _Layer(linears, norms, head_norms)
        if style.adapter_width is not None:
            for weight_ in linears.values():
                if style.targets is None or weight_.linear.name in style.targets:
                    weight_.adapter = self.new_adapter(weight_.linear)
        return layer

    def new_adapter(self, linear: Linear) -> tuple[Tensor, Tensor]:
        """Returns A and B of a LoRA."""
        width, rank = self.style.adapter_width or 4, self.style.rank
        A = self._parameter(rank * linear.inputs, width, trained=True)
        return A, self._parameter(rank * linear.outputs, width, trained=True)

    @property
    def parameters(self) -> list[Tensor]:
        """All tensors that have or may get a gradient."""
        found = [self.embedding, self.final_norm] if self.style.trained else []
        if self.style.trained and self.head is not None and self.head is not self.embedding:
            found.append(self.head)
        for layer in self.layers:
            if self.style.trained:
                found += [*layer.norms, *layer.head_norms]
            for weight in layer.linears.values():
                if self.style.trained:
                    found += [weight.weight, *([weight.bias] if weight.bias else [])]
                found += weight.adapter or ()
        return found

    # Forward

    def leave_autocast(self) -> None:
        """Drops the copies of weights that autocast kept, as the end of its context does."""
        self._casts.clear()

    def backbone(self, shape: Shape, enter: Callable[[str], None] | None = None) -> Tensor:
        """Returns the last hidden states.

        Args:
            shape: The tokens.
            enter: Called with "first", "last" or "middle" before a layer.
        """
        ledger, H, w, T = self.ledger, self.geometry.hidden, self.style.base_width, shape.tokens
        self.boundaries.append((ledger._order, "embedding"))
        x = ledger.op([self.embedding], T * H, w)
        if self.geometry.scaled_embedding:
            x = ledger.op([x], T * H, w)
        inputs_embeds = x  # a local variable there too, until the end
        if self.style.checkpointed and self.style.adapter_width is not None:
            x.needs_grad = ledger.grad_mode  # `enable_input_require_grads`
        positions = shape.tokens if shape.packed else shape.columns
        rope = ledger.new(2 * positions * self.geometry.head_dim, w, Category.ACTIVATIONS)
        masks = 2 if self.geometry.window else 1
        mask = None
        if shape.masked and not shape.packed:
            mask = ledger.new(masks * shape.rows * shape.columns**2, 1, Category.ACTIVATIONS)
        for i, layer in enumerate(self.layers):
            part = "first" if i == 0 else "last" if i == self.depth - 1 else "middle"
            if enter is not None:
                enter(part)
            self.boundaries.append((ledger._order, part))
            x = self._run_layer(layer, x, shape, rope, mask)
        if enter is not None:
            enter("head")
        self.boundaries.append((ledger._order, "head"))
        del mask
        out = self.norm(x, self.final_norm)
        del inputs_embeds
        return out

    def _run_layer(self, layer: _Layer, x: Tensor, shape: Shape, rope: Tensor, mask: Tensor | None) -> Tensor:
        if not self.style.checkpointed:
            return self._decoder_layer(layer, x, shape, rope, mask)

        def run(x: Tensor) -> Tensor:
            out = self._decoder_layer(layer, x, shape, rope, mask)
            if self.ledger.grad_mode:  # autocast is entered anew for the second run
                self.leave_autocast()
            return out

        return self.ledger.checkpointed(run, x)

    def _decoder_layer(self, layer: _Layer, x: Tensor, shape: Shape, rope: Tensor, mask: Tensor | None) -> Tensor:
        ledger, norms = self.ledger, list(layer.norms)
        h = self.norm(x, norms.pop(0))
        h = self.attention(layer, h, shape, rope, mask)
        if self.geometry.sandwich_norms:
            h = self.norm(h, norms.pop(0))
        h = ledger.op([x, h], x.elements, max(x.width, h.width), passes=True)
        x = h
        h = self.norm(h, norms.pop(0))
        h = self.mlp(layer, h)
        if self.geometry.sandwich_norms:
            h = self.norm(h, norms.pop(0))
        return ledger.op([x, h], x.elements, max(x.width, h.width), passes=True)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """RMS norm in float32: Llama's, and Gemma's whose product with the weight is in float32 as well."""
        ledger, n = self.ledger, x.elements
        few = n // weight.elements
        h = x if x.width == 4 else ledger.op([x], n, 4)
        square = ledger.op([h], n, 4, saves=[h], backward_scratch=4 * n)
        mean = ledger.op([square], few, 4)
        del square
        root = ledger.op([mean], few, 4, saves_result=True)
        del mean
        h = ledger.op([h, root], n, 4, saves=[h, root], backward_scratch=4 * n)
        del root
        if self.geometry.sandwich_norms:
            h = ledger.op([h, weight], n, 4, saves=[h] if weight.needs_grad else [weight])
            return h if x.width == 4 else ledger.op([h], n, x.width)
        h = h if x.width == 4 else ledger.op([h], n, x.width)
        width = max(x.width, weight.width)
        scratch = n * width if weight.needs_grad else 0
        return ledger.op(
            [h, weight], n, width, saves=[h, weight] if weight.needs_grad else [weight], backward_scratch=scratch
        )

    def attention(self, layer: _Layer, h: Tensor, shape: Shape, rope: Tensor, mask: Tensor | None) -> Tensor:
        """Projections, rotation, SDPA (or the shared-prompt attention), and the output projection."""
        q = self.linear(layer.linears["q_proj"], h)
        if layer.head_norms:
            q = self.norm(q, layer.head_norms[0])
        k = self.linear(layer.linears["k_proj"], h)
        if layer.head_norms:
            k = self.norm(k, layer.head_norms[1])
        v = self.linear(layer.linears["v_proj"], h)
        q, k = self._rotate(q, rope), self._rotate(k, rope)
        out = self._packed(q, k, v, shape) if shape.packed else self._sdpa(q, k, v, mask)
        return self.linear(layer.linears["o_proj"], out)

    def _rotate(self, x: Tensor, rope: Tensor) -> Tensor:
        ledger, n = self.ledger, x.elements
        width = max(x.width, rope.width)
        plain = ledger.op([x], n, width, saves=[rope])
        half = ledger.op([x], n // 2, x.width)
        turned = ledger.op([half, x], n, x.width, backward_scratch=n * x.width)
        del half
        turned = ledger.op([turned], n, width, saves=[rope])
        return ledger.op([plain, turned], n, width, passes=True)

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        ledger, heads = self.ledger, self.geometry.heads
        T = q.elements // self.geometry.q_size
        if mask is not None and self.geometry.kv_heads < heads:
            k, v = ledger.op([k], q.elements, k.width), ledger.op([v], q.elements, v.width)
        q, k, v = self.cast(q), self.cast(k), self.cast(v)
        bias = None
        if mask is not None:
            columns = mask.elements // (2 if self.geometry.window else 1)
            bias = ledger.new(columns, q.width)
        saves = [q, k, v, *([bias] if bias is not None else [])]
        lse = ledger.new(T * heads, 4)
        return ledger.op([q, k, v], q.elements, q.width, saves=[*saves, lse], saves_result=True)

    def _packed(self, q: Tensor, k: Tensor, v: Tensor, shape: Shape) -> Tensor:
        """`forward.kernels.MergedAttention`: own segments and prompt apart, merged by their log-sum-exp."""
        assert shape.packed is not None
        ledger, heads, Q, K = self.ledger, self.geometry.heads, self.geometry.q_size, self.geometry.kv_size
        prompts, P, rows, own = shape.packed
        q, k, v = self.cast(q), self.cast(k), self.cast(v)
        T, w = shape.tokens, q.width
        lse = ledger.new(T * heads, 4)
        own_tokens = rows * own
        group_tokens = own_tokens // prompts
        # Segments of different length are copied into a rectangle; those of one length are views.
        taken = own_tokens if shape.masked else 0
        put = taken * Q * w
        # Backward: gradients of q, k and v of the whole row, and those of the part that is at work.
        gradients = max(
            own_tokens * (Q + 2 * K) * w + taken * (3 * Q + 2 * K) * w + put,
            (group_tokens * Q + 2 * P * K + P * (Q + 2 * K)) * w,
        )
        out = ledger.op(
            [q, k, v], T * Q, w, saves=[q, k, v, lse], saves_result=True, backward_scratch=gradients + T * heads * 4
        )
        ledger.scratch(own_tokens * (Q * w + 4 * heads) + taken * (Q + 2 * K) * w + put)
        precise = 0 if w == 4 else 2 * group_tokens * Q * 4
        ledger.scratch(group_tokens * (Q * w + 4 * heads) + precise + group_tokens * Q * 4)
        return out

    def mlp(self, layer: _Layer, h: Tensor) -> Tensor:
        """down(act(gate(h)) * up(h))."""
        ledger, linears = self.ledger, layer.linears
        gate = self.linear(linears["gate_proj"], h)
        active = ledger.op([gate], gate.elements, gate.width, saves=[gate])
        del gate
        up = self.linear(linears["up_proj"], h)
        product = ledger.op([active, up], up.elements, max(active.width, up.width), saves=[active, up])
        del active, up
        return self.linear(linears["down_proj"], product)

    # Linear layers

    def linear(self, weight: _Weight, x: Tensor) -> Tensor:
        """A linear layer with its adapter."""
        base = self._base_linear(weight, x)
        if weight.adapter is None or not self.adapter_on:
            return base
        ledger, width, n = self.ledger, base.width, base.elements
        A, B = weight.adapter
        T = x.elements // weight.linear.inputs
        if self.style.four_bit:
            base = ledger.op([base], n, width)  # peft clones what bitsandbytes returns
            x = x if self.style.autocast else self._to(x, A.width)
        else:
            x = self._to(x, A.width)
        low = self.product(x, A, T * self.style.rank)
        high = self.product(low, B, n)
        del low
        high = ledger.op([high], n, high.width)  # times alpha / r
        out = ledger.op([base, high], n, max(base.width, high.width), passes=True)
        del base, high
        return self._to(out, width)

    def _base_linear(self, weight: _Weight, x: Tensor) -> Tensor:
        ledger, linear = self.ledger, weight.linear
        n = x.elements // linear.inputs * linear.outputs
        if not self.style.four_bit:
            return self.product(x, weight.weight, n, bias=weight.bias)
        dense = linear.weights * 2
        ledger.scratch(dense, Category.WEIGHT_CASTS)
        given = x.width
        x = self._to(x, 2)
        return self._to(ledger.op([x], n, 2, saves=[weight.weight], backward_scratch=dense), given)

    def product(self, x: Tensor, weight: Tensor, elements: int, bias: Tensor | None = None) -> Tensor:
        x, w = self.cast(x), self.cast_weight(weight)
        saves = [x] if w.needs_grad else []
        if x.needs_grad:
            saves.append(w)
        inputs = [x, w] if bias is None else [x, w, self.cast_weight(bias)]
        return self.ledger.op(inputs, elements, max(x.width, w.width), saves=saves)

    def _to(self, x: Tensor, width: int) -> Tensor:
        return x if x.width == width else self.ledger.op([x], x.elements, width)

    def cast(self, x: Tensor) -> Tensor:
        """What autocast does to an operand."""
        return self._to(x, 2) if self.style.autocast else x

    def cast_weight(self, weight: Tensor) -> Tensor:
        """The same for a weight: the copy of one that is trained is kept until autocast's context ends."""
        if not self.style.autocast or weight.width == 2:
            return weight
        with self.ledger.making(Category.WEIGHT_CASTS):
            if not weight.needs_grad:
                return self._to(weight, 2)
            copy = self._casts.get(id(weight))
            if copy is None or (self.ledger.grad_mode and copy.node is None):
                copy = self._casts[id(weight)] = self._to(weight, 2)
            return copy
