"""A model by its directory or id, ready to be sampled from: full weights, or a LoRA adapter on its base."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ..errors import UserError

_WEIGHTS = ("*.safetensors", "*.bin", "config.json", "adapter_config.json", "tokenizer*", "chat_template*")
_BLOCKS, _BLOCK_BYTES = 256, 1 << 16
_DTYPES = ("auto", "float32", "bfloat16", "float16")


def _check(name: str) -> None:
    path = Path(name)
    if path.is_dir():
        if not _is_adapter(name) and not (path / "config.json").exists():
            raise UserError(f"model: {name} is no model directory: it has neither config.json nor adapter_config.json")
    elif name.startswith((".", "/", "~")):
        raise UserError(f"model: no such directory: {name}")


def _is_adapter(name: str) -> bool:
    return (Path(name) / "adapter_config.json").exists()


def _base_of(adapter: str) -> str:
    base = json.loads((Path(adapter) / "adapter_config.json").read_text()).get("base_model_name_or_path")
    if not base:
        raise UserError(f"model: {adapter}/adapter_config.json names no base_model_name_or_path")
    return str(base)


def load_tokenizer(name: str, trust_remote_code: bool = False) -> Any:
    """Returns the tokenizer of a model, padding on the left; an adapter without one has its base's.

    Args:
        name: A directory or an id.
        trust_remote_code: Allow code of the model's repository.

    Raises:
        UserError: There is none.
    """
    from transformers import AutoTokenizer

    _check(name)
    if _is_adapter(name) and not any(Path(name).glob("tokenizer*")):
        name = _base_of(name)
    try:
        return AutoTokenizer.from_pretrained(name, padding_side="left", trust_remote_code=trust_remote_code)
    except Exception as error:  # the Hub's client and the tokenizers raise errors of many kinds
        raise UserError(f"model: no tokenizer for {name}: {type(error).__name__}: {str(error).strip()}") from error


def default_device(use_cpu: bool = False) -> str:
    """Returns `cuda` where there is a GPU that may be used, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() and not use_cpu else "cpu"


def load_model(name: str, dtype: str = "auto", *, use_cpu: bool = False, trust_remote_code: bool = False) -> Any:
    """Returns a model in evaluation mode, on the first GPU where there is one.

    Args:
        name: A directory or an id; of an adapter, its base is loaded as well.
        dtype: `auto` (float32 on a CPU, else the checkpoint's), `float32`, `bfloat16` or `float16`.
        use_cpu: Do not use a GPU.
        trust_remote_code: Allow code of the model's repository.

    Raises:
        UserError: The model, or the base of an adapter, cannot be loaded.
    """
    import torch
    from peft import AutoPeftModelForCausalLM
    from transformers import AutoModelForCausalLM

    _check(name)
    if dtype not in _DTYPES:
        raise UserError(f"dtype must be one of {', '.join(_DTYPES)}, found {dtype!r}")
    device = default_device(use_cpu)
    wanted = "float32" if dtype == "auto" and device == "cpu" else dtype
    kind = AutoPeftModelForCausalLM if _is_adapter(name) else AutoModelForCausalLM
    try:
        model = kind.from_pretrained(
            name,
            dtype=wanted if wanted == "auto" else getattr(torch, wanted),
            trust_remote_code=trust_remote_code,
        )
    except Exception as error:  # of many kinds: no such repository, no network, a broken file, a base that is gone
        base = f" (an adapter of {_base_of(name)})" if _is_adapter(name) else ""
        raise UserError(f"model: {name}{base} cannot be loaded: {type(error).__name__}: {error}") from error
    return model.to(device).eval()


def model_fingerprint(name: str) -> str:
    """Returns a hash of the contents of a model directory, an adapter's base included; of an id, the id's own.

    Of large files, blocks all over the file stand for the whole: a training step changes every one of them.
    """
    path = Path(name)
    digest = hashlib.sha256()
    if not path.is_dir():
        digest.update(name.encode())
        return digest.hexdigest()[:16]
    for file in sorted({file for pattern in _WEIGHTS for file in path.glob(pattern)}):
        size = file.stat().st_size
        digest.update(f"{file.name}/{size}/".encode())
        with file.open("rb") as content:
            stride = max(_BLOCK_BYTES, (size - _BLOCK_BYTES) // (_BLOCKS - 1))
            for start in range(0, size, stride):
                content.seek(start)
                digest.update(content.read(_BLOCK_BYTES))
    if _is_adapter(name):
        digest.update(model_fingerprint(_base_of(name)).encode())
    return digest.hexdigest()[:16]
