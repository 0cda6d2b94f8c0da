"""The planner against measurement: settings drawn at random, both kinds of plan, and what really training them takes.

    python benchmarks/bench_planner.py                    # 40 settings and 24 of stages; goes on where it was stopped
    python benchmarks/bench_planner.py --seeds 0 1 2      # these, seeds are in the results
    python benchmarks/bench_planner.py --replan           # plans again, keeps what was measured

Errors are those of the whole step's peak, plan / measurement - 1. See `planner_truth` for how is measured. Seeds from
100 on draw SFT, a reward model's training and rejection sampling (`planner_truth_stages`). A second part continues
deep models from two depths, and compares that with running all of their layers.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from planner_truth import describe, draw, measure
from planner_truth_stages import draw_stage, measure_stage

from trl_grpo_plus._quiet import quiet
from trl_grpo_plus.memory.plan import plan
from trl_grpo_plus.memory.setting import make_setting
from trl_grpo_plus.memory.simulate import simulate, simulate_at
from trl_grpo_plus.report import environment

OUT = Path(__file__).parent / "results" / "planner.json"
DEEP = {
    "full": {"mode": "full", "dtype": "float32", "reference": True},
    "lora": {"mode": "lora"},
    "qlora, ppo": {"mode": "qlora", "algorithm": "ppo", "critic": "adapter"},
}


STAGES = 100  # the first seed of these
SEEDS = [*range(40), *range(STAGES, STAGES + 24)]


def drawn(seed: int):
    return (draw if seed < STAGES else draw_stage)(random.Random(seed))


def planned(setting, exact: bool) -> dict:
    made = plan(setting, exact=exact)
    return {
        "peak": made.peak,
        "phase": str(made.limiting_phase),
        "took_s": round(made.took_s, 3),
        "totals": {str(phase): total for phase, total in made.totals.items()},
    }


def summarize(settings: list[dict]) -> dict:
    summary = {}
    for name in ("closed", "exact"):
        chosen = [s for s in settings if name in s]
        if chosen:
            errors = [abs(s[name]["peak"] / s["measured"]["all"] - 1) for s in chosen]
            summary[name] = {
                "settings": len(chosen),
                "median_error": statistics.median(errors),
                "largest_error": max(errors),
                "median_s": statistics.median(s[name]["took_s"] for s in chosen),
            }
    return summary


def depths() -> list[dict]:
    """What continuing from two depths misses, against running a whole model of 24 layers."""
    rows = []
    for name, options in DEEP.items():
        setting = make_setting("qwen2.5-0.5b", **options)
        begin = time.perf_counter()
        continued = simulate(setting)
        took_s = time.perf_counter() - begin
        whole = simulate_at(setting, setting.geometry.layers)
        errors = [sum(continued[phase].values()) / sum(alive.values()) - 1 for phase, alive in whole.items()]
        rows.append({"setting": name, "largest_error": max(map(abs, errors)), "took_s": round(took_s, 1)})
        print(rows[-1], flush=True)
    return rows


def show(entry: dict, name: str) -> None:
    error = entry[name]["peak"] / entry["measured"]["all"] - 1
    print(f"seed {entry['seed']:3d}  {name} {error:+.3%}  {entry['setting']}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--replan", action="store_true")
    parser.add_argument("--depths", action="store_true", help="only the part about deep models")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    quiet()
    record = json.loads(given.out.read_text()) if given.out.exists() else {"settings": []}
    known = {s["seed"]: s for s in record["settings"]}

    def save() -> None:
        settings = [known[seed] for seed in sorted(known)]
        kept = {k: v for k, v in record.items() if k == "depths"}
        summary = summarize([s for s in settings if s["seed"] < STAGES])
        summary["stages"] = summarize([s for s in settings if s["seed"] >= STAGES])
        new = {"environment": environment(), "summary": summary, **kept, "settings": settings}
        given.out.write_text(json.dumps(new, indent=1) + "\n")

    if given.depths:
        record["depths"] = depths()
        save()
        return
    with tempfile.TemporaryDirectory() as scratch:
        for seed in given.seeds:
            setting = drawn(seed)
            if seed not in known:
                measured = (measure if setting.rl else measure_stage)(setting, Path(scratch))
                known[seed] = {"seed": seed, "setting": describe(setting), "measured": measured}
            if given.replan or "closed" not in known[seed]:
                known[seed]["closed"] = planned(setting, exact=False)
                save()
            show(known[seed], "closed")
    for seed in given.seeds:
        if given.replan or "exact" not in known[seed]:
            known[seed]["exact"] = planned(drawn(seed), exact=True)
            save()
        show(known[seed], "exact")
    print(json.dumps(json.loads(given.out.read_text())["summary"], indent=1))


if __name__ == "__main__":
    main()
