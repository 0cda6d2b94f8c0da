"""Where the group decoding is exact, and the reason where it is not.

Stage: rollouts. `why_not` looks at the model and at the generation config and names the first thing that
`GroupDecoding` does not reproduce exactly, so that the caller takes TRL's own path and says why. It errs on the side
of falling back: a field of the generation config, a logits processor, a kind of cache layer or of adapter that has not
been read counts as unsupported.
"""

from __future__ import annotations

import inspect
from typing import Any

import peft
import torch
from transformers import DynamicCache, GenerationConfig, GenerationMixin
from transformers.generation import logits_process as processors
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from .kv_cache import SUPPORTED

# What `generate` was when this module was loaded: a test double or a patched `generate` must be called, not bypassed.
_GENERATE = {GenerationMixin.generate, peft.PeftModel.generate, peft.PeftModelForCausalLM.generate}

# Methods of `GenerationMixin` that take part in the loop. A model that brings its own keeps state that we do not know.
_LOOP_METHODS = (
    "_sample",
    "_prepare_cache_for_generation",
    "_prepare_position_ids_for_generation",
    "_update_model_kwargs_for_generation",
    "prepare_inputs_for_generation",
)
# Models whose own `prepare_inputs_for_generation` was read: it only acts with "longrope", which is refused below.
_READ = {("Phi3ForCausalLM", "prepare_inputs_for_generation"), ("PhimoeForCausalLM", "prepare_inputs_for_generation")}

# Fields of the generation config that may have any value: they are about single rows, and `generate` turns them into
# processors and criteria before our loop starts; or they do nothing without a mode that is refused below.
_ANY_VALUE = frozenset(
    (
        *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time"),
        *("do_sample", "temperature", "top_k", "top_p", "min_p", "top_h"),
        *("typical_p", "epsilon_cutoff", "eta_cutoff", "renormalize_logits", "remove_invalid_values"),
        *("repetition_penalty", "no_repeat_ngram_size", "bad_words_ids", "sequence_bias"),
        *("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
        *(
            "exponential_decay_length_penalty",
            "pad_token_id",
            "bos_token_id",
            "eos_token_id",
            "decoder_start_token_id",
        ),
        *("disable_compile", "compile_config", "max_cache_len", "cache_config", "continuous_batching_config"),
        *("early_stopping", "length_penalty", "max_matching_ngram_size", "num_assistant_tokens"),
        *("num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_lookbehind"),
        *("target_lookbehind", "assistant_ensemble_weight", "transformers_version"),
    )
)
# Fields that must keep a value without effect. Every other field of `GenerationConfig`, those of later versions too,
# must be None. Entries that are no field of it are carried along by `generate` and read by nothing.
_NO_EFFECT: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "use_cache": (True,),
    "cache_implementation": ("dynamic", "hybrid"),  # "hybrid" from a hub config means dynamic to `generate`
    "penalty_alpha": (0,),
    "diversity_penalty": (0,),
    "low_memory": (False,),
    "use_mtp": (False,),
    "is_assistant": (False,),
    "token_healing": (False,),
    "guidance_scale": (1,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "return_dict_in_generate": (False,),
    "output_attentions": (False,),
    "output_hidden_states": (False,),
    "output_scores": (False,),
    "output_logits": (False,),
}

# Processors that treat a row by itself, from its ids and scores, whatever its index in the batch.
_ROW_WISE_PROCESSORS = {
    processors.EpsilonLogitsWarper,
    processors.EtaLogitsWarper,
    processors.ExponentialDecayLengthPenalty,
    processors.ForcedBOSTokenLogitsProcessor,
    processors.ForcedEOSTokenLogitsProcessor,
    processors.InfNanRemoveLogitsProcessor,
    processors.LogitNormalization,
    processors.MinLengthLogitsProcessor,
    processors.MinNewTokensLengthLogitsProcessor,
    processors.MinPLogitsWarper,
    processors.NoBadWordsLogitsProcessor,
    processors.NoRepeatNGramLogitsProcessor,
    processors.RepetitionPenaltyLogitsProcessor,
    processors.SequenceBiasLogitsProcessor,
    processors.SuppressTokensAtBeginLogitsProcessor,
    processors.SuppressTokensLogitsProcessor,
    processors.TemperatureLogitsWarper,
    processors.TopHLogitsWarper,
    processors.TopKLogitsWarper,
    processors.TopPLogitsWarper,
    processors.TypicalLogitsWarper,
}

# Adapters that act on every token by itself, whatever else is in the batch or in the row.
_TOKEN_WISE_ADAPTERS = {"LORA", "ADALORA", "IA3", "LOHA", "LOKR", "OFT", "BOFT", "VERA", "HRA", "VBLORA", "LN_TUNING"}


def why_not(model: Any, generation_config: GenerationConfig) -> str | None:
    """The reason why `generate_groups` would not be exact, or None.

    Args:
        model: A transformers model or a PEFT model around one, unwrapped from DDP.
        generation_config: What would be passed to `model.generate`.
    """
    return _why_not_model(model) or _why_not_config(model, generation_config)


def why_not_prefill_once(model: Any) -> str | None:
    """The reason why the copies of a prompt may not share one prefill, or None.

    TRL generates in training mode, where dropout is active: `generate` draws another mask for each copy of a prompt.
    A completion would still have the same distribution, but the completions of a group would not be independent.
    """
    for name, module in model.named_modules():
        if module.training:
            is_dropout = isinstance(module, torch.nn.modules.dropout._DropoutNd)
            for key, value in vars(module).items():
                random = (is_dropout and key == "p") or "drop" in key or "jitter" in key
                if random and isinstance(value, float) and value > 0:
                    return f"dropout is active in training mode (`{name}`, {key}={value})"
    return None


def processors_are_row_wise(logits_processor: Any) -> bool:
    """Whether rows may be left out between two calls of every processor in the list."""
    return all(type(processor) in _ROW_WISE_PROCESSORS for processor in logits_processor)


def select_processor_rows(logits_processor: Any, rows: torch.Tensor) -> None:
    """Keeps only `rows` in what row-wise processors hold: the padding of each prompt, for the repetition penalty."""
    for processor in logits_processor:
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, torch.Tensor):
            processor.prompt_ignore_length = ignored.to(rows.device)[rows]


def _why_not_model(model: Any) -> str | None:
    base = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    name = type(base).__name__
    if not isinstance(base, GenerationMixin) or base.config.is_encoder_decoder:
        return f"{name} is not a decoder-only model that generates"
    for module in (model, base):
        if "generate" in vars(module) or type(module).generate not in _GENERATE:
            return f"`{type(module).__name__}.generate` is not the one of transformers or peft"
    for method in _LOOP_METHODS:
        own = method in vars(base) or getattr(type(base), method) is not getattr(GenerationMixin, method)
        if own and (name, method) not in _READ:
            return f"{name} has its own `{method}`"
    takes = inspect.signature(base.forward).parameters
    for argument in ("attention_mask", "position_ids"):
        if argument not in takes:
            return f"{name} takes no `{argument}`"
    if is_deepspeed_zero3_enabled() or is_fsdp_managed_module(base):
        return "the parameters are sharded: all processes must run the same number of steps"
    return _why_not_adapters(model) or _why_not_architecture(base)


def _why_not_adapters(model: Any) -> str | None:
    if isinstance(model, peft.PeftModel):
        for config in model.peft_config.values():
            if str(getattr(config.peft_type, "value", config.peft_type)) not in _TOKEN_WISE_ADAPTERS:
                return f"adapter type {config.peft_type} is not known to treat every token by itself"
            if getattr(config, "alora_invocation_tokens", None) is not None:
                return "activated LoRA switches on at a token of the prompt"
    return None


def _why_not_architecture(base: Any) -> str | None:
    text_config = base.config.get_text_config(decoder=True)
    if getattr(base, "_is_stateful", False) or not base._supports_default_dynamic_cache():
        return f"{type(base).__name__} keeps a state that is not a key/value cache"
    for layer in DynamicCache(config=text_config).layers:
        if type(layer) not in SUPPORTED:
            return f"cache layer {type(layer).__name__} cannot be split into rows"
    rope = getattr(text_config, "rope_parameters", None) or {}
    for entry in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        if entry.get("rope_type") in ("dynamic", "longrope"):
            return f'"{entry["rope_type"]}" rotary embeddings depend on the longest row of the batch'
    return None


def _why_not_config(model: Any, generation_config: GenerationConfig) -> str | None:
    known = vars(GenerationConfig())
    for name in known:
        value = getattr(generation_config, name, None)
        if value is None:  # `generate` then takes the model's
            value = getattr(model.generation_config, name, None)
        if value is None or name.startswith("_") or name in _ANY_VALUE or value in _NO_EFFECT.get(name, ()):
            continue
        return f"generation option `{name}={value!r}`"
    return None
