"""The words that plan, simulation and profile share: the phases of a step, and what memory is held for.

    rollout.prefill -> rollout.decode -> reward -> reference -> old_logprobs -> critic_values
        -> (forward -> critic -> backward) x micro-batches -> optimizer -> checkpoint

A peak belongs to one phase; the bytes alive at it are split into categories, which add up to the peak. Both are
strings, and go into JSON and metric names (`memory/<phase>/peak_mib`) as they are.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """A part of a training step, in the order in which they run."""

    PREFILL = "rollout.prefill"
    DECODE = "rollout.decode"
    REWARD = "reward"
    REFERENCE = "reference"
    OLD_LOGPROBS = "old_logprobs"
    CRITIC_VALUES = "critic_values"
    FORWARD = "forward"
    CRITIC = "critic"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    OTHER = "other"


class Category(StrEnum):
    """What bytes are held for; every live byte has exactly one category."""

    WEIGHTS_TRAINABLE = "weights_trainable"
    WEIGHTS_FROZEN = "weights_frozen"
    REFERENCE = "reference"
    CRITIC = "critic"
    REWARD_MODEL = "reward_model"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    ACTIVATIONS = "activations"
    WEIGHT_CASTS = "weight_casts"
    LM_HEAD = "lm_head"
    KV_CACHE = "kv_cache"
    OTHER = "other"


PHASES: dict[Phase, str] = {
    Phase.PREFILL: "generation: the prompts",
    Phase.DECODE: "generation: the completions",
    Phase.REWARD: "verifiers, and the reward model's forward",
    Phase.REFERENCE: "log-probabilities of the reference",
    Phase.OLD_LOGPROBS: "log-probabilities of the policy that sampled",
    Phase.CRITIC_VALUES: "values of a rollout, without gradients",
    Phase.FORWARD: "the policy's forward that is trained on, and the loss",
    Phase.CRITIC: "the critic's forward that is trained on",
    Phase.BACKWARD: "backward of policy and critic",
    Phase.OPTIMIZER: "clipping of gradients, and the optimizer's update",
    Phase.CHECKPOINT: "saving",
    Phase.OTHER: "all between",
}

CATEGORIES: dict[Category, str] = {
    Category.WEIGHTS_TRAINABLE: "the policy's weights that are trained: all of them, or its adapter",
    Category.WEIGHTS_FROZEN: "the policy's other weights, with the constants of quantisation, and its buffers",
    Category.REFERENCE: "a reference model of its own",
    Category.CRITIC: "the critic's weights, trained and frozen, beyond those that it shares, and its frozen copy",
    Category.REWARD_MODEL: "reward models",
    Category.GRADIENTS: "gradients of policy and critic",
    Category.OPTIMIZER: "the optimizer's state",
    Category.ACTIVATIONS: "what layers keep for the backward, and their temporaries in either direction",
    Category.WEIGHT_CASTS: "copies of weights in another dtype: autocast's cache, dequantised 4-bit weights",
    Category.LM_HEAD: "workspace of the language model head and the log-probabilities, both directions",
    Category.KV_CACHE: "keys and values during generation",
    Category.OTHER: "batches, values, and all else",
}
