"""The README's tables of rewards and of their sandbox; `tables.py` writes them."""

import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def sandbox_levels() -> str:
    """What each level of isolation stops and leaves, from the package itself."""
    from trl_grpo_plus.rewards.sandbox.levels import LEVELS

    lines = ["| level | needs | stops | does not stop |", "|---|---|---|---|"]
    lines += [f"| `{level.name}` | {level.needs} | {level.stops} | {level.leaves} |" for level in LEVELS.values()]
    lines.append("| `external` | `runner: module:function` of your own | what your runner stops | the rest |")
    return "\n".join(lines)


def sandbox() -> str:
    """Programs per second in the sandbox and with a plain interpreter, and what the soak found."""
    record = json.loads((RESULTS / "sandbox.json").read_text())
    rows: dict[str, dict[str, dict]] = {}
    for result in record["throughput"]:
        rows.setdefault(result["workload"], {})[result["way"]] = result
    levels = [run["level"] for run in record["soak"]]
    others = ["bubblewrap"] if record["bubblewrap"] else []
    heads = ["programs per second", "plain interpreter", *others, *(f"`{level}`" for level in levels)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for workload, ways in rows.items():
        base = next(result for name, result in ways.items() if name.startswith("python"))
        cells = [f"{ways[w]['per_s']:.0f} ({ways[w]['ratio']:.1f}x)" if w in ways else "" for w in (*others, *levels)]
        lines.append(f"| {workload} | {base['per_s']:.0f} (`{base['way']}`) | {' | '.join(cells)} |")
    lines.append("")
    soaks = "; ".join(
        f"`{run['level']}` {run['wrong']} wrong verdicts, {run['leftover_processes']} processes left, descriptors "
        f"{run['before']['descriptors']} before and {run['after']['descriptors']} after, servers "
        f"{run['before']['server_kib'] / 1024:.0f} MiB before and {run['before_the_kill']['server_kib'] / 1024:.0f} "
        "MiB when they were killed on purpose"
        for run in record["soak"]
    )
    lines.append(
        f"Medians of {record['rounds']} interleaved rounds, {record['workers']} workers, "
        f"{record['environment']['device']}; the plain interpreter is not confined and decides by its exit code"
        f"{', as it does in ' + record['bubblewrap'] if others else ''}. A "
        f"soak of {record['soak'][0]['programs']:,} programs, one in ten hostile: {soaks} "
        "([results](benchmarks/results/sandbox.json))."
    )
    return "\n".join(lines)


def rewards() -> str:
    """What the registry has, without plugins."""
    from trl_grpo_plus.rewards.catalog import catalog

    lines = ["| name | pays for | needs | options |", "|---|---|---|---|"]
    for row in catalog():
        if row["plugin"] is not None:
            continue
        needs = ", ".join(f"`{column}`" for column in row["columns"])
        options = ", ".join(f"`{name}`" for name in row["options"])
        description = row["description"].replace("|", "\\|").replace("<", "&lt;")
        lines.append(f"| `{row['name']}` | {description} | {needs} | {options} |")
    return "\n".join(lines)


def reward_speed() -> str:
    """Throughput of `math` and the cost of hanging completions."""
    record = json.loads((RESULTS / "rewards.json").read_text())
    speed, hang, environment = record["throughput"], record["hanging"], record["environment"]
    load = environment["load_average_1_min"][0]
    busy = f", on a machine busy with other work (load average {load:.0f})" if load > 2 else ""
    lines = [
        "| | TRL's `accuracy_reward` | `math` | from the cache |",
        "|---|---|---|---|",
        f"| verdicts per second | {speed['trl_per_s']:.0f} | {speed['cold_per_s']:.0f} ({speed['cold_ratio']:.0f}x) "
        f"| {speed['cached_per_s']:,.0f} ({speed['cached_ratio']:,.0f}x) |",
        f"| processor time per verdict, ms | {speed['trl_cpu_ms']:.1f} | {speed['cpu_ms']:.2f} | |",
        "",
        f"Medians of {len(speed['rounds'])} interleaved batches of {record['batch']} on {record['workers']} workers, "
        f"{environment['device']}{busy}; TRL's runs in the trainer's process. With {hang['hanging']} of "
        f"{record['batch']} completions in an endless loop and a timeout of {hang['timeout_s']:g} s, a batch takes "
        f"{hang['extra_s']:.1f} s more (at most {hang['largest_extra_s']:.1f}) "
        f"([results](benchmarks/results/rewards.json)).",
    ]
    return "\n".join(lines)
