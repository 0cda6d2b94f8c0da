"""From prompts to samples: n completions of each, in batches whose seeds and rows depend on nothing but the settings.

Stage: evaluation. In: a model, prompts, `Sampling`. Out: one `Sample` per problem and number. Batches go through
`rollouts` (each prompt prefilled once, finished rows dropped), or through plain `generate` where that is not exact.

A batch is the unit of resuming: its rows, its order and its seed follow from the settings and its number alone. A run
that was killed therefore draws the same samples as one that was not, and draws none twice.

The distribution is that of `Sampling`, not of the model's `generation_config.json`: a top-k or a repetition penalty
that a model ships with would make its pass@k another quantity. Its end tokens are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..errors import UserError

# (prompt ids, seed) -> for each its completion's ids, up to and with the end token, and whether it was cut off
Generate = Callable[[list[list[int]], int], list[tuple[list[int], bool]]]


@dataclass(frozen=True)
class Sampling:
    """How samples are drawn.

    Args:
        n: Samples per problem.
        max_new_tokens: Longest completion, in tokens.
        temperature: Of the softmax; 0 takes the likeliest token (greedy).
        top_p: Nucleus; 1 keeps all tokens.
        top_k: Tokens kept; 0 keeps all.
        seed: Fixes the samples, for a batch size and a device.
        batch_size: Samples drawn at once.

    Raises:
        UserError: A value cannot work.
    """

    n: int = 1
    max_new_tokens: int = 512
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    batch_size: int = 64

    def __post_init__(self) -> None:
        for name in ("n", "max_new_tokens", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UserError(f"{name} must be a positive whole number, found {value!r}")
        if self.temperature < 0:
            raise UserError(f"temperature must not be negative, found {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be in (0, 1], found {self.top_p}")
        if self.top_k < 0:
            raise UserError(f"top_k must not be negative (0 keeps all tokens), found {self.top_k}")
        if self.greedy and self.n > 1:
            raise UserError(f"temperature 0 is greedy: all n={self.n} samples would be the same; set n to 1")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion.

    Args:
        problem: Index of its problem.
        number: Which of the problem's samples, from 0.
        text: Decoded without special tokens.
        ids: Its tokens, the end token included.
        truncated: Whether it was cut off at `max_new_tokens`.
    """

    problem: int
    number: int
    text: str
    ids: Sequence[int] = field(repr=False)
    truncated: bool


class Store(Protocol):
    """Where finished batches are kept, so that a killed run goes on; see `store.RunDirectory`."""

    def read(self) -> Mapping[int, list[Sample]]: ...

    def write(self, batch: int, samples: Sequence[Sample]) -> None: ...


def draw_samples(
    prompt_ids: Sequence[Sequence[int]],
    sampling: Sampling,
    generate: Generate,
    *,
    decode: Callable[[list[list[int]]], list[str]],
    store: Store | None = None,
    on_batch: Callable[[list[Sample]], None] | None = None,
) -> list[Sample]:
    """Returns `sampling.n` samples of each prompt, by problem and number.

    Args:
        prompt_ids: Token ids of each prompt.
        sampling: How to draw.
        generate: What draws; see `model_generator`.
        decode: Completions' ids to texts.
        store: Batches that it holds are not drawn again; new ones are written to it.
        on_batch: Called with the samples of each batch, stored or new.
    """
    done = {} if store is None else store.read()
    samples: list[Sample] = []
    for number, batch in enumerate(_batches(prompt_ids, sampling)):
        if number in done:
            drawn = list(done[number])
        else:
            completions = generate([list(prompt_ids[problem]) for problem, _ in batch], _seed(sampling.seed, number))
            texts = decode([ids for ids, _ in completions])
            drawn = [
                Sample(problem, which, text, array("i", ids), truncated)
                for (problem, which), (ids, truncated), text in zip(batch, completions, texts, strict=True)
            ]
            if store is not None:
                store.write(number, drawn)
        samples += drawn
        if on_batch is not None:
            on_batch(drawn)
    return sorted(samples, key=lambda s: (s.problem, s.number))


def _batches(prompt_ids: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[list[tuple[int, int]]]:
    """Yields the (problem, number) pairs of each batch, longest prompts first.

    Prompts of like length share a batch, so there is little padding; and a batch that is too large for the memory is
    the first one.
    """
    order = sorted(range(len(prompt_ids)), key=lambda i: (-len(prompt_ids[i]), i))
    rows = [(problem, number) for problem in order for number in range(sampling.n)]
    for start in range(0, len(rows), sampling.batch_size):
        yield rows[start : start + sampling.batch_size]


def _seed(seed: int, batch: int) -> int:
    """Returns the seed of a batch: seeds that follow each other would give related streams to some generators."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{batch}".encode()).digest()[:7], "big")


def encode(prompts: Sequence[Any], tokenizer: Any, **chat_template_kwargs: Any) -> list[list[int]]:
    """Returns the token ids of each prompt (a text or chat messages), ready to be answered.

    Args:
        prompts: Texts or messages.
        tokenizer: The model's.
        **chat_template_kwargs: For the chat template, such as `enable_thinking`.
    """
    encoded = []
    for prompt in prompts:
        if isinstance(prompt, str):
            encoded.append(list(tokenizer(prompt)["input_ids"]))
            continue
        ids = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=True, **chat_template_kwargs
        )["input_ids"]
        encoded.append(list(ids))
    return encoded


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Returns the tokens that end a completion: the model's and the tokenizer's, as TRL's trainer takes them."""
    own = getattr(model.generation_config, "eos_token_id", None)
    found = [] if own is None else [own] if isinstance(own, int) else list(own)
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in found:
        found.insert(0, tokenizer.eos_token_id)
    return found


def model_generator(model: Any, tokenizer: Any, sampling: Sampling) -> Generate:
    """Returns what draws from a transformers or PEFT model, in evaluation mode.

    The model's mode and the global random state are left as they were: evaluating does not change a training around
    it.

    Args:
        model: The model, unwrapped from DDP.
        tokenizer: Its tokenizer.
        sampling: How to draw.
    """
    import torch
    from transformers import GenerationConfig

    ends = end_tokens(model, tokenizer)
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else ends[0]
    drawn: dict[str, Any] = {"do_sample": False}
    if not sampling.greedy:
        drawn = {
            "do_sample": True,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
        }
    config = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        pad_token_id=pad,
        eos_token_id=ends,
        disable_compile=True,
        **drawn,
    )

    def generate(prompt_ids: list[list[int]], seed: int) -> list[tuple[list[int], bool]]:
        devices = [model.device] if model.device.type == "cuda" else []
        training = model.training
        model.eval()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=devices), _without_shipped_settings(model):
                torch.manual_seed(seed)
                completions = _complete(model, prompt_ids, config, pad, ends)
        finally:
            model.train(training)
        return [(ids, not ids or ids[-1] not in ends) for ids in completions]

    return generate


def _complete(model: Any, prompt_ids: list[list[int]], config: Any, pad: int, ends: list[int]) -> list[list[int]]:
    from ..rollouts import generate_groups, generate_plain, why_not

    if why_not(model, config) is None:
        return generate_groups(model, prompt_ids, config, pad_token_id=pad, eos_token_ids=ends, device=model.device)[0]
    return generate_plain(model, prompt_ids, config, pad_token_id=pad, eos_token_ids=ends, device=model.device)


@contextlib.contextmanager
def _without_shipped_settings(model: Any) -> Iterator[None]:
    """Takes the model's own generation settings away meanwhile: `generate` would fill in whatever ours leaves open."""
    from transformers import GenerationConfig

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    shipped = base.generation_config
    base.generation_config = GenerationConfig()
    try:
        yield
    finally:
        base.generation_config = shipped
