"""Tensors without contents: bytes that come and go as PyTorch's would, with autograd's bookkeeping and nothing else.

A `Tensor` here is a number of elements, their width, and a block of bytes. A block is freed when the last reference to
it goes, by CPython's reference count exactly as in eager PyTorch: locals of a function, what autograd saved, gradients
on their way. So a layer is written down operation by operation (`layers`), and the peak of a step falls out, with what
was alive at it, in milliseconds and without torch.

What an operation must say: how large its result is, what it saves for the backward, and what scratch it takes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from .categories import Category


class Block:
    """Bytes of one category, alive as long as somebody holds it."""

    __slots__ = ("category", "ledger", "size")

    def __init__(self, ledger: Ledger, size: int, category: Category) -> None:
        self.ledger = ledger
        self.size = size
        self.category = category
        ledger.count(category, size)

    def __del__(self) -> None:
        self.ledger.count(self.category, -self.size)

    def move(self, category: Category) -> None:
        """Puts the bytes under another category."""
        self.ledger.live[self.category] -= self.size
        self.ledger.live[category] += self.size
        self.category = category


class Node:
    """The backward of an operation: what it saved, and where the gradients of its inputs go."""

    __slots__ = ("category", "order", "passes", "rerun", "saved", "scratch", "targets")

    def __init__(
        self,
        order: int,
        inputs: Sequence[Tensor],
        saved: list[Block],
        category: Category,
        scratch: int = 0,
        passes: bool = False,
    ) -> None:
        self.order = order
        self.category = category
        self.targets = [(x.node or x, x.bytes) for x in inputs if x.needs_grad]
        self.saved = saved
        self.scratch = scratch
        self.passes = passes
        self.rerun: tuple[Callable[[Tensor], Tensor], int, int] | None = None  # a layer; its input's elements, width


class Tensor:
    """Elements of a width on a block, which views share. One with `needs_grad` and without a node is a leaf."""

    __slots__ = ("block", "elements", "grad", "needs_grad", "node", "width")

    def __init__(self, elements: int, width: int, block: Block, needs_grad: bool = False) -> None:
        self.elements = elements
        self.width = width
        self.block = block
        self.needs_grad = needs_grad
        self.node: Node | None = None
        self.grad: Block | None = None

    @property
    def bytes(self) -> int:
        return self.elements * self.width


class Ledger:
    """Counts live bytes by category, and keeps the peak of each moment that is marked."""

    def __init__(self) -> None:
        self.live: dict[Category, int] = dict.fromkeys(Category, 0)
        self.total = 0
        self.category = Category.OTHER
        self.moment = ""
        self.peaks: dict[str, dict[Category, int]] = {}
        self._tops: dict[str, int] = {}
        self.grad_mode = True
        self._order = 0

    def count(self, category: Category, size: int) -> None:
        """Adds to what is alive, or takes from it."""
        self.live[category] += size
        self.total += size
        if self.total > self._tops.get(self.moment, -1):
            self._tops[self.moment] = self.total
            self.peaks[self.moment] = dict(self.live)

    def mark(self, moment: str) -> None:
        """Lets peaks belong to this moment from now on."""
        self.moment = moment
        self.count(Category.OTHER, 0)

    @contextmanager
    def making(self, category: Category) -> Iterator[None]:
        """Gives new blocks within this category."""
        before, self.category = self.category, category
        try:
            yield
        finally:
            self.category = before

    @contextmanager
    def no_grad(self) -> Iterator[None]:
        """Lets operations within save nothing."""
        before, self.grad_mode = self.grad_mode, False
        try:
            yield
        finally:
            self.grad_mode = before

    def new(self, elements: int, width: int, category: Category | None = None, needs_grad: bool = False) -> Tensor:
        """Returns a tensor that no operation made; with `needs_grad` a leaf."""
        return Tensor(elements, width, Block(self, elements * width, category or self.category), needs_grad)

    def scratch(self, size: int, category: Category | None = None) -> None:
        """Takes bytes and gives them back at once."""
        if size > 0:
            Block(self, size, category or self.category)

    def op(
        self,
        inputs: Sequence[Tensor],
        elements: int,
        width: int,
        *,
        saves: Sequence[Tensor] = (),
        saves_result: bool = False,
        backward_scratch: int = 0,
        passes: bool = False,
        view: bool = False,
    ) -> Tensor:
        """Runs an operation.

        Args:
            inputs: What it reads and may send gradients to.
            elements: Of the result.
            width: Bytes of an element of the result.
            saves: What it keeps for the backward, if there is to be one.
            saves_result: It keeps its result as well.
            backward_scratch: Bytes that its backward takes beside the gradients that it makes.
            passes: Its backward hands the gradient on as it is, without a copy.
            view: Its result lies on the block of its first input.
        """
        block = inputs[0].block if view else Block(self, elements * width, self.category)
        needs_grad = self.grad_mode and any(x.needs_grad for x in inputs)
        out = Tensor(elements, width, block, needs_grad)
        if needs_grad:
            self._order += 1
            kept = [x.block for x in saves]
            if saves_result:
                kept.append(block)
            out.node = Node(self._order, inputs, kept, self.category, backward_scratch, passes or view)
        return out

    def checkpointed(self, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Runs `run(x)` keeping `x` only; the backward runs it again when it gets there."""
        if not (self.grad_mode and x.needs_grad):
            return run(x)
        with self.no_grad():
            out = run(x)
        self._order += 1
        out.needs_grad = True
        out.node = Node(self._order, [x], [x.block], self.category)
        out.node.rerun = (run, x.elements, x.width)
        return out

    def backward(self, loss: Tensor, on_node: Callable[[Node], None] | None = None) -> None:
        """Runs the graph of `loss` backwards, later operations first, as autograd's engine does.

        Args:
            loss: A result; it is left without its graph.
            on_node: Called with each node before it runs.
        """
        if loss.node is not None:
            node, loss.node = loss.node, None
            self._backward(node, Block(self, loss.bytes, self.category), on_node)

    def _backward(self, node: Node, gradient: Block, on_node: Callable[[Node], None] | None) -> None:
        pending: dict[int, tuple[Node, Block]] = {node.order: (node, gradient)}
        queue = [-node.order]
        del node, gradient
        while queue:
            node, gradient = pending.pop(-heapq.heappop(queue))
            if on_node is not None:
                on_node(node)
            if node.rerun is not None:
                arrived = [self._run_again(node, gradient, on_node)]
            else:
                arrived = [
                    (target, gradient if node.passes and size == gradient.size else Block(self, size, node.category))
                    for target, size in node.targets
                ]
                self.scratch(node.scratch, node.category)
            node.saved.clear()
            del node, gradient
            while arrived:
                target, block = arrived.pop()
                if isinstance(target, Tensor):
                    if target.grad is None:  # the first is kept, later ones are added to it in place
                        target.grad = block
                        block.move(Category.GRADIENTS)
                elif target.order not in pending:
                    pending[target.order] = (target, block)
                    heapq.heappush(queue, -target.order)
                del target, block

    def _run_again(
        self, node: Node, gradient: Block, on_node: Callable[[Node], None] | None
    ) -> tuple[Node | Tensor, Block]:
        """Runs a checkpointed layer once more, and then backwards; returns the gradient of its input."""
        assert node.rerun is not None
        run, elements, width = node.rerun
        again = Tensor(elements, width, node.saved[0], needs_grad=True)
        before, self.grad_mode = self.grad_mode, True
        try:
            inner = run(again).node
        finally:
            self.grad_mode = before
        assert inner is not None
        self._backward(inner, gradient, None)
        assert again.grad is not None
        again.grad.move(self.category)
        return node.targets[0][0], again.grad
