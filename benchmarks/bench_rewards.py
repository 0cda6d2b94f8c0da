r"""How many verdicts per second does `math` give, and what do hanging completions cost?

Against TRL's `accuracy_reward`, interleaved in one process, on the same completions: worked solutions that end in
`\boxed{}`, half of them right, in the forms that answers take (integers, fractions, decimals, roots, polynomials,
intervals, sets, equations). TRL is given each gold answer in `$...$`, without which it skips half of them. No pair of
completion and gold answer occurs twice before the cached pass, which repeats the batch.

Then the same batch with 5 % of its completions hanging in an endless loop, against the batch without.

    python benchmarks/bench_rewards.py [--rounds 5] [--batch 256] [--workers 2] [--timeout-s 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import random
import statistics
import time
from importlib.metadata import version
from pathlib import Path

HANG = "hang hang hang"
SHARE = 0.05


def problems(n: int, seed: int) -> list[tuple[str, str, bool]]:
    """Returns (completion, gold answer, whether the completion is right) of n different problems."""
    rng = random.Random(seed)
    found = []
    for i in range(n):
        a, b, c = rng.randint(2, 999), rng.randint(2, 99), rng.randint(2, 9)
        form = i % 8
        gold, wrong = [
            (f"{a * b}", f"{a * b + c}"),
            (rf"\frac{{{a}}}{{{b * 1000 + 1}}}", rf"\frac{{{a + 1}}}{{{b * 1000 + 1}}}"),
            (f"{a}.{b}", f"{a}.{b}{c}"),
            (rf"{c}\sqrt{{{a}}}", rf"{c}\sqrt{{{a + 1}}}"),
            (f"x^2 + {a}x - {b}", f"x^2 - {a}x - {b}"),
            (rf"[{b}, {b + a})", rf"({b}, {b + a})"),
            (rf"\{{{b}, {b + a}, -{c}\}}", rf"\{{{b}, {b + a}\}}"),
            (rf"y = {c}x + {a}", rf"y = {c}x - {a}"),
        ][form]
        right = rng.random() < 0.5
        steps = " ".join(
            f"Step {s}: take {rng.randint(1, 99)} and {rng.randint(1, 99)}, which leaves $t_{s}$." for s in range(12)
        )
        found.append((f"{steps}\nSo the answer is $\\boxed{{{gold if right else wrong}}}$.", gold, right))
    return found


def math_or_hang(completion, row):
    """`math`, but for completions that make it hang."""
    if "hang hang hang" in completion:
        while True:
            pass
    from trl_grpo_plus.rewards.registry import get

    global _math
    if "_math" not in globals():
        _math = get("math").build()
    return _math(completion, row)


def seconds(call) -> tuple[float, list]:
    began = time.perf_counter()
    values = call()
    return time.perf_counter() - began, values


def cpu_s(pids: list[int]) -> float:
    """Processor time of this process and of others, which a busy machine does not change."""
    total = time.process_time()
    for pid in pids:
        total += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return total


def throughput(args: argparse.Namespace) -> dict:
    from trl.rewards import accuracy_reward

    from trl_grpo_plus.rewards import RewardSettings, Runtime, build_rewards

    settings = RewardSettings(args.workers, args.timeout_s, 1.0, "memory")
    (ours,) = build_rewards(["math"], Runtime(settings))

    def batch(seed):
        found = problems(args.batch, seed)
        texts, golds, right = zip(*found, strict=True)
        chats = [[{"role": "assistant", "content": text}] for text in texts]
        rows = [{"answer": gold} for gold in golds]
        return list(texts), chats, [f"${gold}$" for gold in golds], rows, [float(r) for r in right]

    def trl(chats, golds):
        return seconds(lambda: accuracy_reward(chats, golds))

    def math(texts, rows):
        return seconds(lambda: [v.value for v in ours.function.verdicts(texts, rows)])

    texts, chats, golds, rows, _ = batch(10_000)  # warms both: imports, parser tables, workers
    trl(chats[:16], golds[:16]), math(texts, rows)
    rounds = []
    for number in range(args.rounds):
        texts, chats, golds, rows, right = batch(number)
        used = {}
        for arm in ("trl", "math") if number % 2 else ("math", "trl"):
            pids = ours.function.runtime.pool.pids
            before = cpu_s(pids)
            if arm == "trl":
                theirs, their_values = trl(chats, golds)
            else:
                cold, values = math(texts, rows)
            same = pids == ours.function.runtime.pool.pids  # a worker that was replaced takes its account along
            used[arm] = 1000 * (cpu_s(pids) - before) / args.batch if same else None
        cached, again = math(texts, rows)
        assert all(a == v for a, v in zip(again, values, strict=True) if v is not None)
        rounds.append(
            {
                "trl_per_s": args.batch / theirs,
                "cold_per_s": args.batch / cold,
                "cached_per_s": args.batch / cached,
                "cpu_ms": used["math"],
                "trl_cpu_ms": used["trl"],
                "right": sum(v == r for v, r in zip(values, right, strict=True)) / args.batch,
                "trl_right": sum(v == r for v, r in zip(their_values, right, strict=True)) / args.batch,
            }
        )
    median = {
        key: statistics.median([r[key] for r in rounds if r[key] is not None] or [float("nan")]) for key in rounds[0]
    }
    return {
        **median,
        "cold_ratio": statistics.median(r["cold_per_s"] / r["trl_per_s"] for r in rounds),
        "cached_ratio": statistics.median(r["cached_per_s"] / r["trl_per_s"] for r in rounds),
        "rounds": rounds,
    }


def hanging(args: argparse.Namespace) -> dict:
    from trl_grpo_plus.rewards import RewardSettings, Runtime, build_rewards

    (ours,) = build_rewards([math_or_hang], Runtime(RewardSettings(args.workers, args.timeout_s, 1.0, "off")))
    found = problems(args.batch, 20_000)
    rows = [{"answer": gold} for _, gold, _ in found]
    plain = [text for text, _, _ in found]
    ours.function.verdicts(plain, rows)  # warm
    hang = random.Random(0).sample(range(args.batch), round(SHARE * args.batch))
    stuck = [f"{text} {HANG}" if i in set(hang) else text for i, text in enumerate(plain)]
    rounds = []
    for _ in range(args.rounds):
        without, _ = seconds(lambda: ours.function.verdicts(plain, rows))
        with_, verdicts = seconds(lambda: ours.function.verdicts(stuck, rows))
        assert [i for i, v in enumerate(verdicts) if v.failure == "timeout"] == sorted(hang), "only those that hang"
        rounds.append({"without_s": without, "with_s": with_, "extra_s": with_ - without})
    extra = [r["extra_s"] for r in rounds]
    return {
        "hanging": len(hang),
        "timeout_s": args.timeout_s,
        "extra_s": statistics.median(extra),
        "largest_extra_s": max(extra),
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout-s", type=float, default=5.0)
    parser.add_argument("--json", default=str(Path(__file__).parent / "results/rewards.json"))
    args = parser.parse_args()
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.ERROR)
    loads = os.getloadavg()
    speed = throughput(args)
    print(
        f"math on {args.workers} workers: {speed['cold_per_s']:.0f} verdicts/s cold, {speed['cached_per_s']:.0f} "
        f"cached; TRL's accuracy_reward {speed['trl_per_s']:.0f}: {speed['cold_ratio']:.2f}x cold, "
        f"{speed['cached_ratio']:.0f}x cached; right {speed['right']:.1%}, TRL {speed['trl_right']:.1%}; CPU "
        f"per verdict {speed['cpu_ms']:.2f} ms, TRL {speed['trl_cpu_ms']:.2f} ms"
    )
    stuck = hanging(args)
    print(
        f"{stuck['hanging']} of {args.batch} completions hang (timeout {args.timeout_s:g} s): "
        f"{stuck['extra_s']:.2f} s more, {stuck['largest_extra_s']:.2f} s at most"
    )
    record = {
        "command": f"python benchmarks/bench_rewards.py --rounds {args.rounds} --batch {args.batch} "
        f"--workers {args.workers} --timeout-s {args.timeout_s:g}",
        "batch": args.batch,
        "workers": args.workers,
        "throughput": speed,
        "hanging": stuck,
        "environment": {
            "device": f"CPU, {os.cpu_count()} cores",
            "processor": platform.processor() or platform.machine(),
            "load_average_1_min": [round(load, 1) for load in (loads[0], os.getloadavg()[0])],  # before and after
            "python": platform.python_version(),
            **{name: version(name) for name in ("trl", "math-verify", "sympy")},
        },
    }
    Path(args.json).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
