"""Log-probabilities and entropies of the rows of one forward, packed or plain, rows of zero advantage left out.

input_ids, attention_mask (B, P + C)  ->  logps, entropies (B, C), and the token positions that ran
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from .attention import NotExactError
from .gate import Gate
from .packed import packed_logps_and_entropies
from .verify import Plain

_Scores = tuple[torch.Tensor, torch.Tensor | None]


def score_rows(
    gate: Gate,
    model: torch.nn.Module,
    input_ids_BT: torch.Tensor,
    attention_mask_BT: torch.Tensor,
    logits_to_keep: int,
    plain: Plain,
    *,
    compute_entropy: bool,
    skip_B: torch.Tensor | None,
    fill_logps_BC: torch.Tensor | None,
    trims: bool,
    autocast: Callable[[], AbstractContextManager[Any]],
) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """Scores the rows of one forward.

    Args:
        gate: Decides between the packed and the plain path.
        model: The model as the trainer holds it.
        input_ids_BT: Left-padded prompts and right-padded completions.
        attention_mask_BT: 1 on real tokens.
        logits_to_keep: C, the number of completion columns.
        plain: TRL's path: (input_ids, attention_mask, logits_to_keep) -> log-probabilities and entropies, (B, C) each.
        compute_entropy: Whether entropies are wanted.
        skip_B: True for rows that add nothing to the gradient, or `None`.
        fill_logps_BC: Log-probabilities of skipped rows, 0 without; a row that is skipped has no gradient either way.
        trims: Whether padding columns may be cut off on the plain path.
        autocast: Makes the context that the packed forward runs in.

    Returns:
        Log-probabilities (B, C), entropies (B, C) or `None`, and the token positions that ran.
    """
    C = logits_to_keep
    layout = gate.layout(input_ids_BT, attention_mask_BT, C, skip_B)
    if layout is not None and gate.check(
        model, input_ids_BT, attention_mask_BT, C, plain, compute_entropy=compute_entropy, autocast=autocast
    ):
        try:
            logps, entropies, stats = packed_logps_and_entropies(
                model,
                input_ids_BT,
                attention_mask_BT,
                C,
                compute_entropy=compute_entropy,
                fill_logps_BC=fill_logps_BC,
                layout=layout,
                autocast=autocast,
            )
            return logps, entropies, stats.tokens_run
        except NotExactError as error:
            gate.close(str(error))
    if skip_B is None or not bool(skip_B.any()):
        logps, entropies, run = _plain(input_ids_BT, attention_mask_BT, C, plain, trims)
        return logps, entropies, run
    return _plain_without(input_ids_BT, attention_mask_BT, C, plain, trims, skip_B, fill_logps_BC)


def _plain(
    input_ids_BT: torch.Tensor, attention_mask_BT: torch.Tensor, C: int, plain: Plain, trims: bool
) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """TRL's path on the rectangle, cut to the longest of its rows."""
    left = right = 0
    if trims:
        seen_T = attention_mask_BT.any(dim=0)
        P = seen_T.numel() - C
        prompt, completion = seen_T[:P].nonzero(), seen_T[P:].nonzero()
        left = int(prompt[0]) if len(prompt) else P - 1
        right = C - max(int(completion[-1]) + 1 if len(completion) else 0, 1)
    T = input_ids_BT.size(1)
    ids, mask = (x[:, left : T - right] for x in (input_ids_BT, attention_mask_BT))
    logps, entropies = plain(ids, mask, C - right)
    pad = torch.nn.functional.pad
    return pad(logps, (0, right)), None if entropies is None else pad(entropies, (0, right)), ids.numel()


def _plain_without(
    input_ids_BT: torch.Tensor,
    attention_mask_BT: torch.Tensor,
    C: int,
    plain: Plain,
    trims: bool,
    skip_B: torch.Tensor,
    fill_logps_BC: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None, int]:
    """The same on the rows that are not skipped, and the values of those that are."""
    kept = (~skip_B).nonzero()[:, 0]
    if len(kept) == 0:  # one row stays, the shortest: the loss must depend on the parameters
        kept = attention_mask_BT.sum(dim=1).argmin().reshape(1)
    ran, entropies_ran, run = _plain(input_ids_BT[kept], attention_mask_BT[kept], C, plain, trims)
    fill = torch.zeros_like(ran[:1]).detach().expand(len(skip_B), C)
    logps = (fill if fill_logps_BC is None else fill_logps_BC.detach().to(ran)).index_copy(0, kept, ran)
    if entropies_ran is None:
        return logps, None, run
    scored = attention_mask_BT[:, -C:] != 0
    mean = entropies_ran.detach()[scored[kept]].mean() if bool(scored[kept].any()) else entropies_ran.new_zeros(())
    entropies = torch.where(scored, mean, 0.0).to(entropies_ran).index_copy(0, kept, entropies_ran)
    return logps, entropies, run
