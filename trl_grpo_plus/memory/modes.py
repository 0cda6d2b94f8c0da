"""`memory_mode`: how a model is loaded and trained so that it fits, set at once and overridden piece by piece.

    mode     weights                                      trained           reference        optimizer
    full     bfloat16                                     all               a second model   AdamW
    lora     bfloat16                                     LoRA adapters     adapters off     AdamW
    qlora    4-bit NF4, double quantisation (2305.14314)  LoRA adapters     adapters off     paged 8-bit AdamW on CUDA
    auto     the first of them that fits this device with the batch asked for, then the largest micro-batch

All use gradient checkpointing. A setting that the user gives wins, also where it is the default value: what counts is
that it was given (a key of the recipe, an argument of the configuration, or an assignment after it). Without
`memory_mode` nothing here runs, and everything is TRL's.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import trl

from ..errors import UserError, did_you_mean

LORA = {"r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "bias": "none", "task_type": "CAUSAL_LM"}
# Keys of TRL's ModelConfig, in a recipe, by PEFT's names.
_RECIPE_LORA = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "target_modules",
    "lora_target_parameters": "target_parameters",
    "lora_modules_to_save": "modules_to_save",
    "lora_task_type": "task_type",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
}
_ROUTERS = ("gate", "router", "shared_expert_gate")  # of mixtures of experts: trained, they would move the routing


@dataclass(frozen=True)
class ModeChoice:
    """What a memory mode came to.

    Args:
        asked: The mode that was asked for.
        mode: `full`, `lora` or `qlora`.
        settings: What the mode set.
        given: What it would have set, and the user had.
        reasons: Why `auto` chose it, and what should be known of it, a line each.
    """

    asked: str
    mode: str
    settings: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def describe(self) -> str:
        """Returns what to print, some lines."""
        asked = "" if self.asked == self.mode else f" (memory_mode={self.asked})"
        lines = [f"memory mode {self.mode}{asked} set: " + _list(self.settings)]
        if self.given:
            lines.append("given, and kept: " + _list(self.given))
        return "\n".join([*lines, *self.reasons])

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return asdict(self)


def apply_mode(
    model: Any, args: Any, trl_args: tuple[Any, ...], trl_kwargs: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], ModeChoice]:
    """Returns the configuration and the further arguments of `trl.GRPOTrainer` with what `args.memory_mode` sets.

    Args:
        model: A name, a directory or a model; what is already loaded is not loaded anew.
        args: The configuration, which is copied where it changes.
        trl_args: Arguments of `trl.GRPOTrainer` after `args`, by position.
        trl_kwargs: The same by name.

    Raises:
        UserError: The mode is unknown or cannot work with this model or these settings.
    """
    given = _bind(trl_args, trl_kwargs)
    asked = args.memory_mode
    args = copy.copy(args)  # the caller's object may configure another trainer
    reasons: list[str] = []
    mode = asked
    split: dict[str, int] = {}
    if asked == "auto":
        from .auto import choose_mode

        mode, split, reasons = choose_mode(model, args, given)
    choice = ModeChoice(asked, mode, reasons=reasons)
    if args.use_vllm and mode == "qlora":
        raise UserError(
            "memory_mode='qlora' does not work with use_vllm: the 4-bit weights would be sent to vLLM as if they were "
            "ordinary ones. Use memory_mode='lora', or drop use_vllm"
        )
    _set_loading(choice, model, args, given)
    _set_adapter(choice, model, args, given)
    _set_field(choice, args, "gradient_checkpointing", True)
    paged = mode == "qlora" and args.device.type == "cuda"
    _set_field(choice, args, "optim", "paged_adamw_8bit" if paged else _text(args.optim))
    for name, value in split.items():
        choice.settings[name] = value
        setattr(args, name, value)
    if _text(args.optim).startswith("paged_") and args.device.type != "cuda":
        choice.reasons.append(
            f"note: optim={_text(args.optim)} is paged on CUDA only; here it is the same without paging"
        )
    if mode == "full" and choice.settings.get("dtype") == "bfloat16":
        choice.reasons.append(
            "note: a bfloat16 weight takes no update below 1/256 of itself; where memory allows, dtype: float32 "
            "learns from smaller learning rates"
        )
    return args, given, choice


def take_recipe(args: Any, keys: Mapping[str, Any]) -> None:
    """Tells a configuration what its recipe says: only that is given, and `dtype` and LoRA have their own keys there.

    Args:
        args: The configuration, changed in place.
        keys: The recipe's keys, overrides included.
    """
    args.note_given(keys)
    if "dtype" not in keys and "dtype" not in (keys.get("model_init_kwargs") or {}):
        args.model_init_kwargs = {k: v for k, v in (args.model_init_kwargs or {}).items() if k != "dtype"}
    lora = {_RECIPE_LORA[key]: value for key, value in keys.items() if key in _RECIPE_LORA}
    for name in ("target_modules", "target_parameters", "modules_to_save"):
        if isinstance(lora.get(name), str) and lora[name] != "all-linear":
            lora[name] = [lora[name]]
    if lora:
        args.memory_mode_kwargs = {**lora, **(args.memory_mode_kwargs or {})}


def lora_targets(model: Any, init_kwargs: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the names of the linear layers of a language model that LoRA goes to, found in its architecture.

    All of them but the output head and the routers of mixtures of experts. A model by name is built without weights.

    Raises:
        UserError: The architecture has none.
    """
    if isinstance(model, str):
        model = _skeleton(model, dict(init_kwargs or {}))
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    names = set()
    for name, module in model.named_modules():
        last = name.rsplit(".", 1)[-1]
        if module is head or last in _ROUTERS or not _is_linear(module):
            continue
        names.add(last)
    names -= {"lm_head", "score", "embed_out"}
    if not names:
        raise UserError(
            f"memory_mode: {type(model).__name__} has no linear layers that LoRA could go to; name some with "
            f"lora_target_modules, or use memory_mode='full'"
        )
    return sorted(names)


# The parts


def _set_loading(choice: ModeChoice, model: Any, args: Any, given: dict[str, Any]) -> None:
    kwargs = dict(args.model_init_kwargs or {})
    quantisation = given.get("quantization_config") or kwargs.get("quantization_config")
    if not isinstance(model, str):
        loaded_4bit = getattr(model, "is_loaded_in_4bit", False) or getattr(model, "is_loaded_in_8bit", False)
        if choice.mode == "qlora" and not loaded_4bit:
            raise UserError(
                "memory_mode='qlora' loads the model in 4 bits, but this one is loaded already: give its name or "
                "directory, or load it with a quantization_config"
            )
        choice.given["model"] = f"loaded, {getattr(model, 'dtype', '?')}".replace("torch.", "")
        return
    dtype = kwargs.get("dtype", kwargs.get("torch_dtype"))
    if dtype is not None:
        choice.given["dtype"] = str(dtype).removeprefix("torch.")
    else:
        choice.settings["dtype"] = kwargs["dtype"] = "bfloat16"
    if quantisation is not None:
        choice.given["quantization_config"] = _quantisation_text(quantisation)
    elif choice.mode == "qlora":
        from transformers import BitsAndBytesConfig

        compute = kwargs.get("dtype") or dtype
        given["quantization_config"] = config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=compute if compute in ("float32", torch.float32) else torch.bfloat16,
        )
        choice.settings["quantization_config"] = _quantisation_text(config)
    args.model_init_kwargs = kwargs


def _set_adapter(choice: ModeChoice, model: Any, args: Any, given: dict[str, Any]) -> None:
    wanted = dict(args.memory_mode_kwargs or {})
    if given.get("peft_config") is not None:
        choice.given["peft_config"] = type(given["peft_config"]).__name__
        return
    if hasattr(model, "peft_config"):
        choice.given["model"] = "has an adapter"
        return
    if choice.mode == "full":
        return
    from peft import LoraConfig

    known = set(inspect.signature(LoraConfig).parameters)
    for name in wanted:
        if name not in known:
            raise UserError(f"memory_mode_kwargs: LoRA has no option `{name}`{did_you_mean(name, known)}")
    options = {**LORA, **wanted}
    if not options.get("target_modules") and not options.get("target_parameters"):
        options["target_modules"] = lora_targets(model, args.model_init_kwargs)
    given["peft_config"] = LoraConfig(**options)
    told = {k: v for k, v in options.items() if k not in ("bias", "task_type") and (k in wanted or v)}
    for name, value in told.items():
        (choice.given if name in wanted else choice.settings)[f"lora.{name}"] = value


def _set_field(choice: ModeChoice, args: Any, name: str, value: Any) -> None:
    before = getattr(args, name)
    if args.was_given(name):
        choice.given[name] = _text(before) if name == "optim" else before
    else:
        choice.settings[name] = value
        setattr(args, name, value)


def _text(option: Any) -> str:
    """Returns the value of an option that may be one of transformers' enumerations."""
    return str(getattr(option, "value", option))


def _bind(trl_args: tuple[Any, ...], trl_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments after `args` by name."""
    names = list(inspect.signature(trl.GRPOTrainer.__init__).parameters)
    names = names[names.index("args") + 1 :]
    return {**dict(zip(names, trl_args, strict=False)), **trl_kwargs}


def _skeleton(name: str, kwargs: dict[str, Any]) -> Any:
    """Returns the model of a name on the meta device: its modules without weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    options = {key: kwargs[key] for key in ("revision", "trust_remote_code") if kwargs.get(key) is not None}
    try:
        config = AutoConfig.from_pretrained(name, **options)
    except OSError as error:
        raise UserError(f"model_name_or_path: {name} cannot be loaded: {error}") from error
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config.get_text_config(), trust_remote_code=False)


def _is_linear(module: Any) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, (torch.nn.Linear, Conv1D))


def _quantisation_text(config: Any) -> str:
    values = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    if values.get("load_in_4bit"):
        double = ", double quantisation" if values.get("bnb_4bit_use_double_quant") else ""
        compute = str(values.get("bnb_4bit_compute_dtype", "")).removeprefix("torch.")
        return f"4-bit {values.get('bnb_4bit_quant_type')}{double}, computes in {compute}"
    return "8-bit" if values.get("load_in_8bit") else str(values.get("quant_method"))


def _list(values: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        return " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)

    return ", ".join(f"{name}={text(value)}" for name, value in values.items()) or "nothing"
