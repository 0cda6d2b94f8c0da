"""Our generation against `model.generate`, which is what TRL calls: samples, in distribution."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
import torch

from tests.parity.generation_cases import PROMPT_IDS, build, config_like_trl, ours, reference


@pytest.mark.parametrize("geometry", ["llama", "gemma3"])
@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.02, "repetition_penalty": 1.2}]
)
def test_same_seed_same_samples_while_no_row_leaves(geometry, fields):
    model = build(geometry)
    sampled = config_like_trl(**fields)
    torch.manual_seed(3)
    expected = reference(model, PROMPT_IDS, sampled)
    assert len(set(map(tuple, expected))) > 3, "the test needs copies that differ"
    torch.manual_seed(3)
    assert ours(model, PROMPT_IDS, sampled, drop_finished=False)[0] == expected


def test_a_seed_reproduces_the_samples():
    model = build()
    runs = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        runs.append(ours(model, PROMPT_IDS * 4, config_like_trl()))
    assert runs[0] == runs[1] and runs[0] != runs[2]
    assert runs[0][1].decode_tokens < runs[0][1].stock_decode_tokens


TINY, TINY_EOS = 6, [2]
WARPS = [
    {},
    {"temperature": 0.6},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.2},
    {"temperature": 1.4, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
]


def warp(logits: list[float], fields: dict) -> list[float]:
    """Probabilities after temperature, top-k, top-p and min-p, from their definitions."""
    exps = [math.exp(x / fields.get("temperature", 1.0)) for x in logits]
    order = sorted(range(len(exps)), key=lambda i: -exps[i])
    if fields.get("top_k"):
        exps = [e if i in order[: fields["top_k"]] else 0.0 for i, e in enumerate(exps)]
    if "top_p" in fields:  # the smallest set whose mass reaches top_p
        kept, mass = set(), 0.0
        for i in order:
            if mass < fields["top_p"]:
                kept.add(i)
            mass += exps[i] / sum(exps)
        exps = [e if i in kept else 0.0 for i, e in enumerate(exps)]
    if "min_p" in fields:
        exps = [e if e >= fields["min_p"] * max(exps) else 0.0 for e in exps]
    return [e / sum(exps) for e in exps]


def enumerate_completions(model, prompt: list[int], new_tokens: int, fields: dict) -> dict[tuple[int, ...], float]:
    """Exact probability of every completion, by running each prefix alone, without cache and without padding."""
    probabilities = {}

    def extend(completion: tuple[int, ...], probability: float) -> None:
        if completion and (completion[-1] in TINY_EOS or len(completion) == new_tokens):
            probabilities[completion] = probability
            return
        with torch.no_grad():
            logits = model(torch.tensor([prompt + list(completion)]), use_cache=False).logits[0, -1]
        for token, p in enumerate(warp(logits.double().tolist(), fields)):
            if p > 0:
                extend((*completion, token), probability * p)

    extend((), 1.0)
    return probabilities


def chi_square_p(statistic: float, degrees: int) -> float:
    return float(torch.special.gammaincc(torch.tensor(degrees / 2.0).double(), torch.tensor(statistic / 2.0).double()))


def goodness_of_fit(counts: Counter, probabilities: dict) -> float:
    """P-value; outcomes expected fewer than 5 times are put together."""
    assert set(counts) <= set(probabilities), "an outcome that has probability 0"
    total = sum(counts.values())
    cells, rest = [], [0.0, 0.0]
    for outcome, p in probabilities.items():
        if p * total >= 5:
            cells.append((counts[outcome], p * total))
        else:
            rest = [rest[0] + counts[outcome], rest[1] + p * total]
    cells += [tuple(rest)] if rest[1] >= 5 else []
    return chi_square_p(sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1)


def tiny(seed: int = 0):
    return build("llama", seed=seed, vocab_size=TINY, initializer_range=0.13)


TINY_PROMPTS = [[3, 4, 5, 3, 1], [5, 1]]


@pytest.mark.parametrize("fields", WARPS, ids=str)
def test_samples_follow_the_exact_probabilities(fields):
    model = tiny()
    torch.manual_seed(0)
    prompt_ids = TINY_PROMPTS * 8000  # copies interleaved, padding in half of the rows
    completions, _ = ours(
        model, prompt_ids, config_like_trl(max_new_tokens=3, eos_token_id=TINY_EOS, **fields), TINY_EOS
    )
    for which, prompt in enumerate(TINY_PROMPTS):
        counts = Counter(map(tuple, completions[which::2]))
        assert goodness_of_fit(counts, enumerate_completions(model, prompt, 3, fields)) > 1e-3
        # The test has power: a slightly different temperature is noticed.
        other = {**fields, "temperature": 1.25 * fields.get("temperature", 1.0)}
        wrong = enumerate_completions(model, prompt, 3, other)
        if set(counts) <= set(wrong):
            assert goodness_of_fit(counts, wrong) < 1e-4


def test_copies_are_independent():
    """First tokens of two copies of a prompt are distributed as the product."""
    model = tiny()
    torch.manual_seed(0)
    prompt = TINY_PROMPTS[0]
    completions, _ = ours(model, [prompt] * 8000, config_like_trl(max_new_tokens=1, eos_token_id=TINY_EOS), TINY_EOS)
    single = enumerate_completions(model, prompt, 1, {})
    pairs = {(a, b): p * q for (a, p), (b, q) in itertools.product(single.items(), repeat=2)}
    tokens = list(map(tuple, completions))
    counts = Counter(zip(tokens[:4000], tokens[4000:], strict=True))
    assert goodness_of_fit(counts, pairs) > 1e-3


def test_long_samples_are_distributed_as_those_of_generate():
    """Lengths and last tokens of completions of up to 40 tokens, while rows are dropped all the time."""
    model = tiny()
    sampled = config_like_trl(max_new_tokens=40, eos_token_id=TINY_EOS, temperature=1.3)
    prompt_ids = TINY_PROMPTS * 1500
    torch.manual_seed(0)
    completions, stats = ours(model, prompt_ids, sampled, TINY_EOS)
    torch.manual_seed(1)
    stock = reference(model, prompt_ids, sampled, TINY_EOS)
    assert stats.decode_tokens < 0.6 * stats.stock_decode_tokens
    for which in range(2):
        samples = [Counter((len(c), c[-1], c[len(c) // 2]) for c in side[which::2]) for side in (completions, stock)]
        pooled = samples[0] + samples[1]
        common = [outcome for outcome, n in pooled.items() if n >= 20]
        table = [[side[o] for o in common] + [1500 - sum(side[o] for o in common)] for side in samples]
        statistic = sum((a - b) ** 2 / (a + b) for a, b in zip(*table, strict=True))
        assert len(common) > 20
        assert chi_square_p(statistic, len(common)) > 1e-3
