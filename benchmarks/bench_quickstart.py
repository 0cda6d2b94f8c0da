"""Does the quickstart show what it says? Three seeds on held-out problems, and the control that must show nothing.

Each run is a process of its own, as a user starts it; seconds include imports and everything else. The settings were
chosen on the validation split; the problems that are measured here belong to the test split.

    python benchmarks/bench_quickstart.py [--out benchmarks/results/quickstart.json] [--seeds 0 1 2]
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ARMS = {"control": ["--control"], "mixed": ["--style", "mixed"], "lora": ["--lora"]}


def run(arguments: list[str]) -> dict:
    """Runs `grpo-plus quickstart` and returns what it measured, with the wall time of the whole process in seconds."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "quickstart"
        command = [sys.executable, "-m", "trl_grpo_plus.cli", "quickstart", "--output_dir", str(output), *arguments]
        started = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        result = json.loads((output / "summary.json").read_text())
    before, after = result["before"], result["after"]
    return {
        "arguments": arguments,
        "before": before["pass1"],
        "before_interval": before["interval"],
        "after": after["pass1"],
        "after_interval": after["interval"],
        "gain": result["gain"],
        "gain_interval": result["gain_interval"],
        "greedy": [before["greedy"], after["greedy"]],
        "worked_share": [before["worked_share"], after["worked_share"]],
        "given_worked": [before["given_worked"], after["given_worked"]],
        "mean_length_tokens": [before["mean_length"], after["mean_length"]],
        "no_signal": result["no_signal"],
        "problems": after["problems"],
        "samples_per_problem": after["samples"],
        "seconds": round(seconds, 1),
        "cpu_seconds": round(sum(phase["cpu_s"] for phase in result["timings"].values()), 1),
        "environment": result["environment"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/quickstart.json"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", help="run only these seeds and arms, and keep the file's other results")
    parser.add_argument("--note", help="kept beside results whose seconds do not count (a busy machine)")
    options = parser.parse_args()
    record: dict = {"seeds": {}, "arms": {}}
    if options.only:
        record = json.loads(options.out.read_text())
    record["command"] = "python benchmarks/bench_quickstart.py"
    runs = [("seeds", str(seed), ["--seed", str(seed)]) for seed in options.seeds]
    runs += [("arms", name, [*arguments, "--seed", str(options.seeds[0])]) for name, arguments in ARMS.items()]
    for kind, name, arguments in runs:
        if options.only and name not in options.only:
            continue
        result = run(arguments)
        if options.note:
            result["note"] = options.note
        record["environment"] = result.pop("environment")
        record[kind][name] = result
        print(f"{kind} {name}: {result['before']:.3f} -> {result['after']:.3f} in {result['seconds']} s", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
