"""Shapes of language models, as far as memory depends on them: from a config.json, the Hub, or built in.

No torch and no transformers here: a plan must be there at once, and for models whose weights are nowhere at hand.

Names: H hidden size, I intermediate size, V vocabulary, Q = heads x head width, K = key/value heads x head width.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import UserError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A linear layer of a decoder layer; `name` is that of transformers, by which LoRA finds it."""

    name: str
    inputs: int
    outputs: int
    bias: bool = False

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs

    def lora_parameters(self, rank: int) -> int:
        """A (rank, inputs) and B (outputs, rank)."""
        return rank * (self.inputs + self.outputs)


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The shape of a decoder-only transformer with gated MLPs.

    Args:
        name: As it was asked for.
        model_type: transformers' name of the architecture.
        hidden: H.
        layers: Number of decoder layers.
        heads: Query heads.
        kv_heads: Key/value heads.
        head_dim: Width of a head.
        intermediate: I, of the MLP.
        vocab: V.
        tied: The LM head is the embedding.
        qkv_bias: The query, key and value projections have biases.
        qk_norm: Queries and keys are normalised per head.
        sandwich_norms: Four norms in a layer instead of two (Gemma 2 and 3).
        scaled_embedding: The embedding is multiplied by a constant (Gemma).
        window: Width of the sliding window of the layers that have one.
        full_attention_layers: Layers without a window; `None`: all.
        parameter_count: Of models whose layers differ (mixtures of experts), which are counted and not modelled.
        active_parameters: Of the same, those that a token passes through.
    """

    name: str
    model_type: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    sandwich_norms: bool = False
    scaled_embedding: bool = False
    window: int | None = None
    full_attention_layers: int | None = None
    parameter_count: int | None = None
    active_parameters: int | None = None

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def weights_only(self) -> bool:
        """Whether only the weights are known, and not what the layers hold in a forward."""
        return self.parameter_count is not None

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The linear layers of a decoder layer, in the order in which they run."""
        H, intermediate, bias = self.hidden, self.intermediate, self.qkv_bias
        return (
            Linear(name="q_proj", inputs=H, outputs=self.q_size, bias=bias),
            Linear(name="k_proj", inputs=H, outputs=self.kv_size, bias=bias),
            Linear(name="v_proj", inputs=H, outputs=self.kv_size, bias=bias),
            Linear(name="o_proj", inputs=self.q_size, outputs=H),
            Linear(name="gate_proj", inputs=H, outputs=intermediate),
            Linear(name="up_proj", inputs=H, outputs=intermediate),
            Linear(name="down_proj", inputs=intermediate, outputs=H),
        )

    @property
    def norm_parameters(self) -> int:
        """Of a decoder layer."""
        return (4 if self.sandwich_norms else 2) * self.hidden + (2 * self.head_dim if self.qk_norm else 0)

    @property
    def linear_weights(self) -> int:
        """Elements of the weight matrices of a decoder layer: what is quantised, and what autocast copies."""
        return sum(linear.weights for linear in self.linears)

    @property
    def layer_parameters(self) -> int:
        return self.linear_weights + sum(x.outputs for x in self.linears if x.bias) + self.norm_parameters

    @property
    def embedding(self) -> int:
        """Elements of the embedding, and of an untied LM head."""
        return self.vocab * self.hidden

    @property
    def backbone_parameters(self) -> int:
        """All without an untied LM head: what a critic or a reward model has."""
        if self.parameter_count is not None:
            return self.parameter_count - (0 if self.tied else self.embedding)
        return self.embedding + self.layers * self.layer_parameters + self.hidden

    @property
    def parameters(self) -> int:
        return self.backbone_parameters + (0 if self.tied else self.embedding)

    def lora_parameters(self, rank: int, targets: tuple[str, ...] | None = None) -> int:
        """Parameters of a LoRA on these linear layers (`None`: all) of every decoder layer."""
        chosen = [x for x in self.linears if targets is None or x.name in targets]
        return self.layers * sum(x.lora_parameters(rank) for x in chosen)


def _llama(name: str, H: int, layers: int, heads: int, kv: int, inner: int, vocab: int, **other: Any) -> Geometry:
    shape: dict[str, Any] = {"model_type": "llama", "head_dim": H // heads, **other}
    return Geometry(
        name=name, hidden=H, layers=layers, heads=heads, kv_heads=kv, intermediate=inner, vocab=vocab, **shape
    )


def _qwen2(*shape: Any, **other: Any) -> Geometry:
    return _llama(*shape, model_type="qwen2", qkv_bias=True, **other)


def _qwen3(*shape: Any, **other: Any) -> Geometry:
    return _llama(*shape, model_type="qwen3", qk_norm=True, head_dim=128, **other)


def _gemma3(*shape: Any, window: int = 1024, head_dim: int = 256) -> Geometry:
    layers: int = shape[2]
    return _llama(
        *shape, model_type="gemma3_text", head_dim=head_dim, tied=True, qk_norm=True, sandwich_norms=True,
        scaled_embedding=True, window=window, full_attention_layers=layers // 6,
    )  # fmt: skip


_DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "vocab_size": 129280,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
}  # fmt: skip

# Shapes as in the models' published config.json. Gemma 3 is its text model, without the vision tower of 4B and above.
BUILT_IN: dict[str, Geometry] = {
    geometry.name: geometry
    for geometry in (
        _qwen2("qwen2.5-0.5b", 896, 24, 14, 2, 4864, 151936, tied=True),
        _qwen2("qwen2.5-1.5b", 1536, 28, 12, 2, 8960, 151936, tied=True),
        _qwen2("qwen2.5-3b", 2048, 36, 16, 2, 11008, 151936, tied=True),
        _qwen2("qwen2.5-7b", 3584, 28, 28, 4, 18944, 152064),
        _qwen2("qwen2.5-14b", 5120, 48, 40, 8, 13824, 152064),
        _qwen2("qwen2.5-32b", 5120, 64, 40, 8, 27648, 152064),
        _qwen2("qwen2.5-72b", 8192, 80, 64, 8, 29568, 152064),
        _qwen3("qwen3-0.6b", 1024, 28, 16, 8, 3072, 151936, tied=True),
        _qwen3("qwen3-1.7b", 2048, 28, 16, 8, 6144, 151936, tied=True),
        _qwen3("qwen3-4b", 2560, 36, 32, 8, 9728, 151936, tied=True),
        _qwen3("qwen3-8b", 4096, 36, 32, 8, 12288, 151936),
        _llama("llama-3-8b", 4096, 32, 32, 8, 14336, 128256),
        _llama("llama-3-70b", 8192, 80, 64, 8, 28672, 128256),
        _llama("llama-3.2-1b", 2048, 16, 32, 8, 8192, 128256, tied=True),
        _llama("llama-3.2-3b", 3072, 28, 24, 8, 8192, 128256, tied=True),
        _llama("smollm2-135m", 576, 30, 9, 3, 1536, 49152, tied=True),
        _llama("smollm2-360m", 960, 32, 15, 5, 2560, 49152, tied=True),
        _llama("smollm2-1.7b", 2048, 24, 32, 32, 8192, 49152, tied=True),
        _gemma3("gemma-3-270m", 640, 18, 4, 1, 2048, 262144, window=512),
        _gemma3("gemma-3-1b", 1152, 26, 4, 1, 6912, 262144, window=512),
        _gemma3("gemma-3-4b", 2560, 34, 8, 4, 10240, 262208),
        _gemma3("gemma-3-12b", 3840, 48, 16, 8, 15360, 262208),
        _gemma3("gemma-3-27b", 5376, 62, 32, 16, 21504, 262208, head_dim=128),
    )
}
_SAME = {"llama-3.1-8b": "llama-3-8b", "llama-3.1-70b": "llama-3-70b", "llama-3.3-70b": "llama-3-70b",
         "meta-llama-3-8b": "llama-3-8b", "meta-llama-3-70b": "llama-3-70b", "deepseek-r1": "deepseek-v3",
         "meta-llama-3.1-8b": "llama-3-8b", "meta-llama-3.1-70b": "llama-3-70b"}  # fmt: skip
_SUFFIXES = ("-instruct", "-base", "-it", "-pt", "-chat", "-hf")


def load_geometry(model: str | Path | Geometry) -> Geometry:
    """Returns the shape of a model.

    Args:
        model: A geometry; a directory with a config.json, or such a file; a built-in name, also as the Hub spells it
            (`Qwen/Qwen2.5-7B-Instruct`); or another model id, whose config.json is then fetched from the Hub.

    Raises:
        UserError: There is no such model, or its architecture is not known; says what would do.
    """
    if isinstance(model, Geometry):
        return model
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return read_config(_read_json(path), str(model))
    text = str(model)
    built_in = _built_in(text)
    if built_in is not None:
        return built_in
    known = sorted([*BUILT_IN, "deepseek-v3"])
    if "/" not in text or text.startswith((".", "/", "~")):
        raise UserError(
            f"model {text!r} is neither a directory with a config.json, nor a built-in name"
            f"{did_you_mean(text.lower(), known)}, nor an id of the Hub (owner/name). Built in: {', '.join(known)}"
        )
    try:
        from huggingface_hub import hf_hub_download

        file = Path(hf_hub_download(text, "config.json"))
    except Exception as error:  # no network, no such model, no access: each has a type of its own
        raise UserError(
            f"model {text!r} is not built in, and its config.json could not be read from the Hub "
            f"({type(error).__name__}): give a directory with its config.json, or one of {', '.join(known)}"
        ) from None
    return read_config(_read_json(file), text)


def _built_in(text: str) -> Geometry | None:
    name = text.rsplit("/", 1)[-1].lower()
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    name = _SAME.get(name, name)
    if name == "deepseek-v3":
        return read_config(_DEEPSEEK_V3, "deepseek-v3")
    return BUILT_IN.get(name)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path}: expected the fields of a model, found {type(config).__name__}")
    return config


# Architectures whose decoder layer is the one that `Geometry` describes.
_DENSE = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text", "smollm3")


def read_config(config: dict[str, Any], name: str) -> Geometry:
    """Returns the shape that the fields of a config.json describe.

    Raises:
        UserError: A field is missing, or the architecture is not known.
    """
    text = config.get("text_config")
    if isinstance(text, dict):  # a vision-language model: its language model
        config = {**text, "model_type": text.get("model_type", config.get("model_type"))}
    kind = str(config.get("model_type"))
    try:
        H, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        layers = int(config["num_hidden_layers"])
        shape: dict[str, Any] = {
            "name": name, "model_type": kind, "hidden": H, "layers": layers, "heads": heads,
            "kv_heads": int(config.get("num_key_value_heads") or heads),
            "head_dim": int(config.get("head_dim") or H // heads),
            "intermediate": int(config["intermediate_size"]), "vocab": int(config["vocab_size"]),
            "tied": bool(config.get("tie_word_embeddings", kind.startswith("gemma"))),
        }  # fmt: skip
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{name}: the config of a `{kind}` lacks a usable field: {error}") from None
    if kind in ("deepseek_v3", "qwen3_moe", "mixtral", "qwen2_moe"):
        total, active = _count_experts(config, shape)
        return Geometry(**shape, parameter_count=total, active_parameters=active)
    if kind not in _DENSE:
        raise UserError(
            f"{name}: the layers of a `{kind}` are not known to the planner, which knows {', '.join(_DENSE)} and "
            "counts the weights of mixtures of experts"
        )
    types = config.get("layer_types") or []
    window = config.get("sliding_window")
    if kind == "gemma3_text":
        full = types.count("full_attention") if types else layers // int(config.get("sliding_window_pattern") or 6)
        return Geometry(
            **shape,
            qk_norm=True,
            sandwich_norms=True,
            scaled_embedding=True,
            window=window,
            full_attention_layers=full,
        )
    if "sliding_attention" in types and window:
        full = types.count("full_attention")
    elif kind == "mistral" and window:
        full = 0
    else:
        window, full = None, layers
    return Geometry(
        **shape,
        qkv_bias=kind == "qwen2" or bool(config.get("attention_bias")),
        qk_norm=kind == "qwen3",
        window=window,
        full_attention_layers=full,
    )


def _count_experts(config: dict[str, Any], shape: dict[str, Any]) -> tuple[int, int]:
    """Returns all parameters and those that one token passes through, of a mixture of experts."""
    H, layers, heads, kind = shape["hidden"], shape["layers"], shape["heads"], shape["model_type"]
    head_dim, kv_heads = shape["head_dim"], shape["kv_heads"]
    experts = int(config.get("n_routed_experts") or config.get("num_experts") or config["num_local_experts"])
    per_token = int(config["num_experts_per_tok"])
    inner = int(config.get("moe_intermediate_size") or config["intermediate_size"])
    shared = int(config.get("n_shared_experts") or 0) * inner + int(config.get("shared_expert_intermediate_size") or 0)
    dense = int(config.get("first_k_dense_replace") or 0)
    if kind == "deepseek_v3":  # multi-head latent attention, arXiv 2412.19437, section 2.1.1
        q, kv = int(config["q_lora_rank"]), int(config["kv_lora_rank"])
        nope, rope, v = (int(config[key]) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        attention = H * q + q + q * heads * (nope + rope) + H * (kv + rope) + kv
        attention += kv * heads * (nope + v) + heads * v * H
    else:
        attention = 2 * H * heads * head_dim + 2 * H * kv_heads * head_dim
        attention += 2 * head_dim if kind == "qwen3_moe" else 0
        attention += (heads + 2 * kv_heads) * head_dim if kind == "qwen2_moe" else 0
    router = experts * H + (H if kind == "qwen2_moe" else 0)
    expert = 3 * H * inner
    always = layers * (attention + 2 * H) + H + (layers - dense) * (router + 3 * H * shared)
    always += dense * 3 * H * shape["intermediate"] + shape["vocab"] * H * (1 if shape["tied"] else 2)
    sparse = layers - dense
    return always + sparse * experts * expert, always + sparse * per_token * expert
