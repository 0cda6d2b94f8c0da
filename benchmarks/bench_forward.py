"""Forward and backward of one micro-batch: TRL's rectangle against the packed row, interleaved, median of their ratio.

    python benchmarks/bench_forward.py                      # the four points, one thread, float32
    python benchmarks/bench_forward.py --points P1024 --reps 7 --json out.json

A randomly initialised Llama of about 10M parameters, two prompts a micro-batch with 8 completions each unless the
point says otherwise. "stock" is TRL's call on the rectangle as it stands after generation; "packed" is ours on the
same rectangle. Peak tensor memory counts the bytes of all tensors alive above those alive before the call, as seen
by PyTorch's profiler on a CPU, and `max_memory_allocated` on a GPU.
"""

import argparse
import json
import platform
import statistics
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer.utils import add_fused_lm_head

from trl_grpo_plus.forward.packed import packed_logps_and_entropies

# name: prompt length, longest completion, prompts, whether completion lengths are skewed (mean a third of the longest)
POINTS = {
    "P1024": (1024, 64, 2, False),
    "P256": (256, 64, 2, False),
    "skewed": (64, 256, 8, True),
    "P16": (16, 64, 2, False),
}


def micro_batch(P, C, prompts, skewed, vocab, G=8, device="cpu"):
    generator = torch.Generator().manual_seed(0)
    B = prompts * G
    ids = torch.randint(3, vocab, (B, P + C), generator=generator)
    ids[:, :P] = ids[::G, :P].repeat_interleave(G, dim=0)
    mask = torch.ones_like(ids)
    if skewed:
        u = torch.rand(B, generator=generator)
        lengths = (C * u**2).long().clamp(1, C)  # E[u^2] = 1/3
        lengths[0] = C
        mask[:, P:] = (torch.arange(C) < lengths[:, None]).long()
        ids = ids * mask
    return ids.to(device), mask.to(device)


def stock(model, ids, mask, C):
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-C] = -100
    outputs = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    return outputs.log_probs[:, -C:], outputs.entropy[:, -C:]


def packed(model, ids, mask, C):
    return packed_logps_and_entropies(model, ids, mask, C, compute_entropy=True)[:2]


def step(model, run, ids, mask, C, weights):
    model.zero_grad(set_to_none=True)
    start = time.perf_counter()
    logps, _ = run(model, ids, mask, C)
    loss = (logps * weights).sum()
    float(loss)  # waits for a GPU
    middle = time.perf_counter()
    loss.backward()
    if ids.is_cuda:
        torch.cuda.synchronize()
    return middle - start, time.perf_counter() - middle


def peak_mib(model, run, ids, mask, C, weights):
    """Peak bytes of tensors alive during forward and backward, above those alive before, in MiB."""
    model.zero_grad(set_to_none=True)
    if ids.is_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(model, run, ids, mask, C, weights)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step(model, run, ids, mask, C, weights)
    alive = peak = 0
    events = profile.profiler.kineto_results.events()
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak / 2**20


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", nargs="*", default=list(POINTS), choices=list(POINTS))
    parser.add_argument("--reps", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="write the results here")
    parser.add_argument("--no-memory", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    config = LlamaConfig(
        hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=4096, max_position_embeddings=4096,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(args.device, getattr(torch, args.dtype))
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    results = []
    for point in args.points:
        P, C, prompts, skewed = POINTS[point]
        ids, mask = micro_batch(P, C, prompts, skewed, config.vocab_size, device=args.device)
        weights = torch.randn(len(ids), C, generator=torch.Generator().manual_seed(1)).to(args.device) * mask[:, -C:]
        batch = (ids, mask, C, weights)
        times = {"stock": [], "packed": []}
        for _ in range(args.reps + 1):
            times["stock"].append(step(model, stock, *batch))
            times["packed"].append(step(model, packed, *batch))
        ratios = [sum(a) / sum(b) for a, b in zip(times["stock"][1:], times["packed"][1:], strict=True)]
        row = {"point": point, "P": P, "C": C, "B": len(ids), "speedup": statistics.median(ratios)}
        for name, pairs in times.items():
            row[f"{name}_forward_s"], row[f"{name}_backward_s"] = (
                statistics.median(p[i] for p in pairs[1:]) for i in (0, 1)
            )
        stats = packed_logps_and_entropies(model, ids, mask, C)[2]
        row["token_ratio"] = stats.tokens_stock / stats.tokens_run
        if not args.no_memory:
            row["stock_peak_mib"], row["packed_peak_mib"] = (peak_mib(model, f, *batch) for f in (stock, packed))
            row["memory_ratio"] = row["packed_peak_mib"] / row["stock_peak_mib"]
        results.append(row)
        print({k: round(v, 3) if isinstance(v, float) else v for k, v in row.items()}, flush=True)
    if args.json:
        environment = {
            "torch": torch.__version__, "python": platform.python_version(), "processor": platform.machine(),
            "threads": args.threads, "device": args.device, "dtype": args.dtype,
        }  # fmt: skip
        with open(args.json, "w") as file:
            json.dump({"environment": environment, "reps": args.reps, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
