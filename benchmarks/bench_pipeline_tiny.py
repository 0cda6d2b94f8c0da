"""The five stages of R1 on a CPU: what each does to held-out problems, and how long the whole takes.

The pipeline runs as a process of its own, as a user starts it; seconds include imports and everything else.

    python benchmarks/bench_pipeline_tiny.py [--out benchmarks/results/pipeline_tiny.json]
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/pipeline_tiny.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "r1_tiny"
        command = ["pipeline", "recipes/r1_tiny/pipeline.yaml"]
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "trl_grpo_plus.cli", *command, "--output_dir", str(output)], check=True, cwd=ROOT
        )
        seconds = time.perf_counter() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        record = {
            "command": " ".join(["grpo-plus", *command]),
            "seconds": round(seconds, 1),
            "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
            **json.loads((output / "summary.json").read_text()),
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")
        shutil.copy(output / "summary.png", options.out.with_suffix(".png"))
    print(f"{seconds:.0f} s, {record['cpu_seconds']:.0f} CPU-s; {options.out}")


if __name__ == "__main__":
    main()
