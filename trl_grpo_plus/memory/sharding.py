"""Per-GPU figures where several GPUs share a model: FSDP's full sharding (ZeRO stage 3, arXiv 1910.02054).

Weights, gradients and optimizer state are cut into as many parts as there are GPUs; activations are each GPU's own.
While a decoder layer runs, it and the one fetched ahead are there in full, and so are the embedding and the head,
which FSDP's root unit keeps; in the backward their gradients are there in full until they are reduced. Autocast's
cache of all weights goes: FSDP gathers in the compute dtype. Arithmetic, not measured on several GPUs.
"""

from __future__ import annotations

from .categories import Category, Phase
from .setting import Setting

SHARDED = (
    Category.WEIGHTS_TRAINABLE,
    Category.WEIGHTS_FROZEN,
    Category.REFERENCE,
    Category.CRITIC,
    Category.REWARD_MODEL,
    Category.GRADIENTS,
    Category.OPTIMIZER,
)
_IN_FULL = 2  # decoder layers: the one that runs, and the one that is fetched


def shard(setting: Setting, peaks: dict[Phase, dict[Category, int]]) -> dict[Phase, dict[Category, int]]:
    """Returns what one of `setting.gpus` GPUs holds at the peak of each phase, given what a single one would."""
    gpus = setting.gpus
    if gpus == 1:
        return peaks
    sharded = {}
    for phase, alive in peaks.items():
        own = {c: -(-size // gpus) if c in SHARDED else size for c, size in alive.items()}
        own[Category.WEIGHT_CASTS] = 0 if phase is Phase.OPTIMIZER else gathered_bytes(setting)
        if phase is Phase.BACKWARD and setting.mode == "full":
            own[Category.GRADIENTS] = own.get(Category.GRADIENTS, 0) + gathered_bytes(setting)
        sharded[phase] = {c: size for c, size in own.items() if size}
    return sharded


def gathered_bytes(setting: Setting) -> int:
    """Returns the bytes of the weights that are there in full while a layer runs."""
    geometry = setting.geometry
    if geometry.weights_only:
        return 0
    per_element = 0.53 if setting.mode == "qlora" else setting.compute_width
    root = (1 if geometry.tied else 2) * geometry.embedding * setting.compute_width
    return int(_IN_FULL * geometry.layer_parameters * per_element) + root
