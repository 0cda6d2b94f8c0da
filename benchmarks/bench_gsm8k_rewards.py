"""GSM8K's own solutions through `gsm8k` and `math`: each reference must pay 1.0, each with another final number 0.0.

    python benchmarks/bench_gsm8k_rewards.py --data ../shared/data/gsm8k     # writes results/gsm8k_rewards.json

The final number is changed in five ways, each of which makes another answer of it: one more, the other sign, a digit
more, a digit less (where there are two), a hundredth more. Verifiers are called one completion at a time, in this
process.
"""

import argparse
import json
import platform
from decimal import Decimal
from pathlib import Path

from trl_grpo_plus.rewards import get

ROOT = Path(__file__).parents[1]


def changed(number: str) -> list[str]:
    value = Decimal(number.replace(",", ""))
    others = [value + 1, -value, Decimal(f"{value}7") if value == int(value) else value * 10, value + Decimal("0.01")]
    if value == int(value) and abs(value) >= 10:
        others.append(Decimal(int(abs(value) // 10)))
    return [f"{other:f}" for other in others if other != value]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data/gsm8k")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/gsm8k_rewards.json")
    arguments = parser.parse_args()
    rows = []
    for split in ("train", "test"):
        rows += [json.loads(line) for line in (arguments.data / f"{split}.jsonl").read_text().splitlines()]
    results = {}
    for name in ("gsm8k", "math"):
        verify = get(name).build()
        paid = refused = wrong = 0
        missed, overpaid = [], []
        for row in rows:
            head, _, number = row["answer"].rpartition("#### ")
            if verify(row["answer"], row).value == 1.0:
                paid += 1
            else:
                missed.append(row["answer"][-80:])
            for other in changed(number):
                wrong += 1
                if verify(f"{head}#### {other}", row).value == 0.0:
                    refused += 1
                else:
                    overpaid.append(f"{number} {other}")
        results[name] = {
            "references": len(rows),
            "references_paid": paid,
            "changed": wrong,
            "changed_refused": refused,
            "missed": missed[:20],
            "overpaid": overpaid[:20],
        }
        print(name, json.dumps(results[name]))
    environment = {"python": platform.python_version(), "device": "CPU, 1 thread", "machine": platform.machine()}
    record = {"command": "python benchmarks/bench_gsm8k_rewards.py", "environment": environment, "results": results}
    arguments.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
