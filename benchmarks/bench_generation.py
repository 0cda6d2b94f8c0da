"""How much faster are completions without vLLM?

TRL's way (pad, `model.generate` over all rows, cut) against `generate_groups`, interleaved in one process on the same
model, prompts and generation config. A random Llama of about 10 million parameters has nearly uniform next tokens, so
that k EOS ids of 4,096 give both arms completion lengths from the same geometric distribution; without EOS ids all
completions have the full length.

    python benchmarks/bench_generation.py [--repeats 5] [--points P,C,prompts,eos ...] [--json FILE]

Prints, for each point, the median seconds of both arms, their ratio and the token positions that were run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from trl.trainer.utils import pad

from trl_grpo_plus.rollouts import generate_groups

G, VOCAB, PAD = 8, 4096, 0
# Prompt length, completion length, distinct prompts, EOS ids (0: all completions have the full length).
POINTS = [(1024, 64, 2, 0), (256, 64, 2, 0), (64, 256, 8, 48), (16, 64, 2, 0), (16, 64, 8, 0)]


def build() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=VOCAB,
        max_position_embeddings=4096,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).train()


def generation_config(completion: int, eos: list[int]) -> GenerationConfig:
    """What TRL makes of its default options."""
    return GenerationConfig(
        max_new_tokens=completion,
        min_new_tokens=None if len(eos) > 1 else completion,
        do_sample=True,
        pad_token_id=PAD,
        bos_token_id=1,
        eos_token_id=eos,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        repetition_penalty=1.0,
        disable_compile=True,
    )


def stock(model, prompt_ids, config, eos) -> list[list[int]]:
    """The lines of TRL's `_generate_single_turn` that run without vLLM."""
    tensors = [torch.tensor(ids) for ids in prompt_ids]
    input_ids = pad(tensors, padding_value=PAD, padding_side="left")
    attention_mask = pad([torch.ones_like(t) for t in tensors], padding_value=0, padding_side="left")
    with torch.no_grad():
        output = model.generate(input_ids=input_ids, attention_mask=attention_mask, generation_config=config)
    completions = output[:, input_ids.size(1) :]
    is_eos = torch.isin(completions, torch.tensor(eos))
    first = torch.where(is_eos.any(1), is_eos.int().argmax(1), is_eos.size(1))
    return [row[: end + 1] for row, end in zip(completions.tolist(), first.tolist(), strict=True)]


def measure(model, prompt: int, completion: int, prompts: int, n_eos: int, repeats: int) -> dict:
    eos = list(range(2, 2 + max(n_eos, 1)))
    config = generation_config(completion, eos)
    torch.manual_seed(1)
    distinct = torch.randint(1000, VOCAB, (prompts, prompt)).tolist()
    prompt_ids = [ids for ids in distinct for _ in range(G)]
    seconds = {"stock": [], "ours": []}
    mean_length = {"stock": [], "ours": []}
    stats = None
    for repeat in range(-1, repeats):  # the first pair is a warm-up
        arms = ("stock", "ours") if repeat % 2 else ("ours", "stock")
        for arm in arms:
            torch.manual_seed(repeat + 10)
            start = time.perf_counter()
            if arm == "stock":
                completions = stock(model, prompt_ids, config, eos)
            else:
                completions, stats = generate_groups(
                    model, prompt_ids, config, pad_token_id=PAD, eos_token_ids=eos, device="cpu"
                )
            if repeat >= 0:
                seconds[arm].append(time.perf_counter() - start)
                mean_length[arm].append(statistics.mean(map(len, completions)))
    median = {arm: statistics.median(values) for arm, values in seconds.items()}
    return {
        "prompt": prompt,
        "completion": completion,
        "prompts": prompts,
        "num_generations": G,
        "eos_ids": n_eos,
        "stock_s": median["stock"],
        "ours_s": median["ours"],
        "ratio": median["stock"] / median["ours"],
        "all_stock_s": seconds["stock"],
        "all_ours_s": seconds["ours"],
        "mean_completion_stock": statistics.mean(mean_length["stock"]),
        "mean_completion_ours": statistics.mean(mean_length["ours"]),
        "tokens_stock": stats.stock_tokens,
        "tokens_ours": stats.tokens,
    }


def environment() -> dict:
    return {
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "trl")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--points", nargs="*", help="P,C,prompts,eos; default: the grid")
    parser.add_argument("--json", type=Path, help="write the results there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    points = [tuple(map(int, p.split(","))) for p in options.points] if options.points else POINTS
    model = build()
    results = []
    print(
        f"{'P':>5} {'C':>4} {'rows':>5} {'mean len':>9} {'stock s':>8} {'ours s':>7} {'ratio':>6}  tokens run / stock"
    )
    for point in points:
        row = measure(model, *point, repeats=options.repeats)
        results.append(row)
        print(
            f"{row['prompt']:5} {row['completion']:4} {row['prompts'] * G:5} {row['mean_completion_ours']:9.1f}"
            f" {row['stock_s']:8.2f} {row['ours_s']:7.2f} {row['ratio']:6.2f}"
            f"  {row['tokens_ours']} / {row['tokens_stock']}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps({"environment": environment(), "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
