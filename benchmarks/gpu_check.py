"""What only a GPU can tell: parity of the packed forward in bfloat16 and float32, step times, and memory.

Writes one JSON with `parity` (per dtype: differences of the packed and of TRL's path from a float32 reference),
`results` (those of `bench_step`), `memory` (peaks by phase, measured and planned) and the environment. `--device cpu`
runs the same on a tiny geometry.

    bash benchmarks/gpu_check.sh [OUT.json]
"""

import argparse
import json
import tempfile
from pathlib import Path

import torch
from bench_step import Point, build_model, measure
from gpu_memory import memory_check
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

from trl_grpo_plus._quiet import quiet
from trl_grpo_plus.forward import inspect_model, packed_logps_and_entropies
from trl_grpo_plus.report import environment


def rectangle(P: int, C: int, G: int, prompts: int, vocabulary: int, device: str):
    """Returns ids and mask (B, P + C): prompts of different length, completions of different length."""
    generator = torch.Generator().manual_seed(0)
    rows, masks = [], []
    for i in range(prompts):
        length = P - i * (P // 4)
        prompt = torch.randint(5, vocabulary, (length,), generator=generator)
        for j in range(G):
            keep = C - j * (C // (2 * G))
            completion = torch.randint(5, vocabulary, (C,), generator=generator)
            rows.append(torch.cat([torch.zeros(P - length, dtype=torch.long), prompt, completion]))
            masks.append((torch.arange(P + C) >= P - length) & (torch.arange(P + C) < P + keep))
    return torch.stack(rows).to(device), torch.stack(masks).long().to(device)


def parity(directory: str, device: str, P: int, C: int, layers: int) -> dict:
    """Returns the largest differences from float32 of log-probabilities, and relative ones of gradients."""
    found = {}
    truth = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, num_hidden_layers=layers).to(device)
        model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear"))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.02)
        add_fused_lm_head(model.get_base_model(), temperature=1.0, outputs=("log_probs", "entropy"))
        ids, mask = rectangle(P, C, 4, 2, model.config.vocab_size, device)
        scored = mask[:, -C:] != 0
        weight = torch.randn(scored.shape, generator=torch.Generator().manual_seed(1)).to(device) * scored

        def plain(model=model, ids=ids, mask=mask):
            labels = ids.masked_fill(mask == 0, -100)
            labels[:, :-C] = -100
            return model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs[:, -C:]

        def packed(model=model, ids=ids, mask=mask):
            return packed_logps_and_entropies(model, ids, mask, C)[0]

        for path, score in (("plain", plain), ("packed", packed)):
            model.zero_grad()
            logps = score()
            (logps.float() * weight).sum().backward()
            gradient = torch.cat([p.grad.float().reshape(-1) for p in model.parameters() if p.grad is not None])
            values = torch.where(scored, logps.detach().float(), 0.0)
            if not truth:
                truth.update(logps=values, gradient=gradient)
            key = f"{path}_{str(dtype).removeprefix('torch.')}"
            difference = values - truth["logps"]
            found[key] = {
                "logp_max_difference": float(difference.abs().max()),
                "logp_rms_difference": float(difference.square().mean().sqrt()),
                "gradient_relative_difference": float(
                    (gradient - truth["gradient"]).norm() / truth["gradient"].norm()
                ),
            }
        found["exactness"] = inspect_model(model).reason or "exact"
        del model
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--out", default="benchmarks/results/gpu_check.json")
    parser.add_argument("--quick", action="store_true", help="Plan by the closed form only.")
    parser.add_argument("--scratch", default=str(Path(tempfile.gettempdir()) / "gpu_check"))
    options = parser.parse_args()
    quiet()
    small = options.device == "cpu"
    options.geometry = "tiny" if small else "qwen2.5-1.5b"
    options.dtype = "float32" if small else "bfloat16"
    options.repeats, options.steps = (1, 2) if small else (2, 3)
    points = [Point(64, 16, lora=True), Point(32, 16, prompts=4, skewed=True, lora=True), Point(16, 16, lora=True)]
    if not small:
        points = [
            Point(1024, 512, lora=True),
            Point(256, 512, prompts=4, skewed=True, lora=True),
            Point(1024, 256, G=16, lora=True, beta=0.04),
        ]
    directory = build_model(options.geometry, getattr(torch, options.dtype), options.device, Path(options.scratch))
    record = {"environment": environment(), "geometry": options.geometry, "device": options.device}
    record["parity"] = parity(directory, options.device, *((48, 16, 2) if small else (512, 128, 4)))
    for name, values in record["parity"].items():
        print(name, values, flush=True)
    shape = (32, 16, 4) if small else (512, 256, 8)
    record["memory"] = memory_check(directory, options.device, *shape, Path(options.scratch), exact=not options.quick)
    record["results"] = []
    for point in points:
        result = measure(point, options)
        record["results"].append(result)
        ratios = "  ".join(f"{k} {v:.2f}x" for k, v in result["ratios"].items())
        print(f"{point.name}: {ratios}  peak MiB {result['peak_mib']}", flush=True)
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        Path(options.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
