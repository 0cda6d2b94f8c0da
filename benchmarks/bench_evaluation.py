"""SmolLM2-135M-Instruct on GSM8K, and before and after GRPO with LoRA on short arithmetic; all on a CPU.

The commands are those of the README; each goes on where it was stopped, so this may be killed and started again.

    make smollm2
    python benchmarks/bench_evaluation.py [--out benchmarks/results/evaluation.json] [--gsm8k ../shared/data/gsm8k]

Questions: what does a model that no one trained for it get on 100 real problems, greedy and sampled? Does GRPO with
LoRA raise the accuracy on problems that were held out, by more than chance? The trained model is that of
recipes/smollm2-135m_chain_sum_lora.yaml, whose settings were chosen before the test split was looked at.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

MODEL = ".cache/smollm2-135m-instruct"
RECIPE = "recipes/smollm2-135m_chain_sum_lora.yaml"
TRAINED = "runs/smollm2-135m_chain_sum_lora"
CHAIN_SUM = ["--data", "reasoning_gym:chain_sum:min_terms=2,max_terms=2,min_digits=1,max_digits=2", "--chat", "false"]
CHAIN_SUM += ["--size", "200", "--max_new_tokens", "6", "--rewards", "gsm8k"]
SAMPLED, GREEDY = ["--n", "4", "--k", "1", "4"], ["--greedy"]


def grpo_plus(*arguments: str) -> None:
    print("grpo-plus", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "trl_grpo_plus.cli", *arguments], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/evaluation.json"))
    parser.add_argument("--gsm8k", default="../shared/data/gsm8k", help="Directory with test.jsonl.")
    options = parser.parse_args()
    gsm8k = ["--data", options.gsm8k, "--size", "100", "--max_new_tokens", "256", "--rewards", "gsm8k"]
    gsm8k += ["--batch_size", "20"]
    record: dict = {"command": " ".join(["python", *sys.argv]), "runs": {}, "comparisons": {}}

    if not (Path(TRAINED) / "adapter_model.safetensors").exists():
        started = any(Path(TRAINED).glob("checkpoint-*"))
        grpo_plus("train", RECIPE, *(["--resume"] if started else []))
    summary = json.loads((Path(TRAINED) / "summary.json").read_text())
    kept = ("recipe", "model", "parameters", "parameters_trained", "steps", "seconds", "before", "after")
    record["training"] = {key: summary[key] for key in kept}
    arms = {
        "gsm8k_greedy": (MODEL, gsm8k, GREEDY),
        "gsm8k_sampled": (MODEL, gsm8k, SAMPLED),
        "chain_sum_before": (MODEL, CHAIN_SUM, SAMPLED),
        "chain_sum_after": (TRAINED, CHAIN_SUM, SAMPLED),
        "chain_sum_before_greedy": (MODEL, CHAIN_SUM, GREEDY),
        "chain_sum_after_greedy": (TRAINED, CHAIN_SUM, GREEDY),
    }
    from trl_grpo_plus.evaluation.comparison import as_json, compare

    for name, (model, data, how) in arms.items():
        output = f"runs/eval/{name}"
        grpo_plus("eval", "--model", model, *data, *how, "--output_dir", output)
        record["runs"][name] = json.loads((Path(output) / "result.json").read_text())
    for suffix in ("", "_greedy"):
        runs = (f"runs/eval/chain_sum_{when}{suffix}" for when in ("before", "after"))
        record["comparisons"][f"chain_sum{suffix}"] = as_json(compare(*runs))
    record["environment"] = record["runs"]["gsm8k_greedy"]["environment"]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
