"""TRL's fused language model head as the tensors that it makes: tiles of 4,096 tokens by 32,768 words.

On CUDA a Triton kernel works in the tile, and only positions that score a completion token reach the head. Elsewhere
the same is done by PyTorch's operations on copies of the tile, in float32, for every position of the rectangle, and
the tile is allocated 32,768 wide even for a small vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

from .categories import Category
from .layers import Model, Shape
from .ledger import Ledger, Tensor

TOKENS, WORDS = 4096, 32768


@dataclass(frozen=True, kw_only=True)
class Scored:
    """Positions that reach the head.

    Args:
        positions: How many.
        gathered: Their hidden states are copied out of the backbone's.
    """

    positions: int
    gathered: bool


def scored_positions(shape: Shape, completion: int, on_cuda: bool) -> Scored:
    """Returns which positions of a forward reach the head: for completions of C tokens."""
    if shape.packed:
        _, _, rows, own = shape.packed
        return Scored(positions=rows * own, gathered=on_cuda)
    if on_cuda:
        return Scored(positions=shape.rows * completion, gathered=True)
    return Scored(positions=shape.rows * (shape.columns - 1), gathered=shape.rows > 1)


def log_probs(model: Model, hidden: Tensor, scored: Scored, *, on_cuda: bool, entropy: bool = True) -> Tensor:
    """Returns the log-probabilities of the scored positions, (N,) in float32."""
    ledger, geometry = model.ledger, model.geometry
    assert model.head is not None
    weight, N, H = model.head, scored.positions, geometry.hidden
    compute = 2 if model.style.autocast else hidden.width
    with ledger.making(Category.LM_HEAD):
        # The cut to the scored positions; its backward is as large as all of them.
        cut = ledger.op([hidden], hidden.elements, hidden.width, view=True)
        cut = ledger.op([cut], N * H, hidden.width, view=not scored.gathered)
        tile = _tile(N, compute)
        statistics = ledger.new(7 * N, 4)
        buffer = ledger.new(tile, 1)
        casts = _casts(model, N, compute, hidden.width, weight.width)
        ledger.scratch(casts + (0 if on_cuda else 3 * _fold(N, geometry.vocab)))
        del buffer
        # Gradients are summed in float32, and returned in the dtype of what they belong to.
        sums = rounded = 0
        for gets, size in ((hidden.needs_grad, N * H), (weight.needs_grad, weight.elements)):
            width = weight.width if size == weight.elements else hidden.width
            sums += size * 4 if gets and width != 4 else 0
            rounded += size * width if gets and width != 4 else 0
        fold = casts if on_cuda else casts + _backward_fold(N, geometry.vocab, H, compute)
        backward = tile + sums + max(fold - rounded, 0)
        out = ledger.op(
            [cut, weight], N, 4, saves=[cut, statistics] if model.ledger.grad_mode else [], backward_scratch=backward
        )
        del statistics, cut
        return out


def _tile(N: int, compute: int) -> int:
    return min(N, TOKENS) * WORDS * compute


def _fold(N: int, vocab: int) -> int:
    """Bytes of a float32 copy of the filled part of a tile."""
    return min(N, TOKENS) * min(vocab, WORDS) * 4


def _casts(model: Model, N: int, compute: int, hidden_width: int, weight_width: int) -> int:
    H = model.geometry.hidden
    tokens = min(N, TOKENS) * H * compute if hidden_width != compute else 0
    return tokens + (min(model.geometry.vocab, WORDS) * H * compute if weight_width != compute else 0)


def _backward_fold(N: int, vocab: int, H: int, compute: int) -> int:
    """Bytes of copies of a tile in the backward: seven in float32 and a boolean one; then those of the products."""
    fold = _fold(N, vocab)
    products = 0 if compute == 4 else fold + max(min(vocab, WORDS), min(N, TOKENS)) * H * 4
    return max(7 * fold + fold // 4, products)


def loss_tensors(ledger: Ledger, positions: int) -> Tensor:
    """The loss on log-probabilities: ratio, clipped ratio, both products, minimum, KL; a dozen tensors of (B, C)."""
    return ledger.new(12 * positions, 4, Category.OTHER)
