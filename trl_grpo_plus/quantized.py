"""4-bit weights that go on training on a CPU.

On CPUs with AVX512-BF16, a bitsandbytes 4-bit layer repacks its weight in place at its first forward without gradients
in `eval()` (an evaluation, say). The packed kernel has no gradient: training afterwards raises nothing, and silently
loses the gradient through every 4-bit layer. Seen in bitsandbytes 0.49 and 0.50.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from .errors import UserError


def is_quantized(model: nn.Module) -> bool:
    """Returns whether a model was loaded with 4-bit or 8-bit weights."""
    return bool(getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False))


def keep_trainable(model: nn.Module) -> int:
    """Keeps the 4-bit layers of a model from being repacked, and returns how many there are.

    Raises:
        UserError: A layer has been repacked before, so that training would lose gradients.
    """
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "support_avx512bf16_for_cpu")]
    for layer in layers:
        if getattr(getattr(layer.weight, "quant_state", None), "packing_format_for_cpu", False):
            raise UserError(
                "the model's 4-bit weights have been repacked for inference on the CPU (by a forward pass in eval() "
                "mode) and cannot be trained any more: load the model anew, and train before evaluating it elsewhere"
            )
        layer.support_avx512bf16_for_cpu = False
    return len(layers)


def refuse_vllm(model: Any, args: Any, arguments: Iterable[Any]) -> None:
    """Refuses vLLM for a model with quantised weights, whose packed data would be sent to it as ordinary weights.

    Args:
        model: A model, or its name.
        args: The configuration.
        arguments: All further arguments of the trainer.

    Raises:
        UserError: The model is quantised, or would be when it is loaded.
    """
    configs = [*arguments, (args.model_init_kwargs or {}).get("quantization_config")]
    asked = any(getattr(each, "load_in_4bit", False) or getattr(each, "load_in_8bit", False) for each in configs)
    if asked or (isinstance(model, nn.Module) and is_quantized(model)):
        raise UserError(
            "use_vllm: the quantised weights of this model would be sent to vLLM as if they were ordinary ones. Train "
            "it with LoRA on bfloat16 weights, or drop use_vllm"
        )
