"""The comparison of PPO and GRPO as a table, a picture and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .categories import Category
from .figures import COLOURS
from .profile import MIB, MemoryProfile

# What stays from step to step, as against what comes and goes within one.
RESIDENT = (
    Category.WEIGHTS_TRAINABLE,
    Category.WEIGHTS_FROZEN,
    Category.REFERENCE,
    Category.CRITIC,
    Category.REWARD_MODEL,
    Category.OPTIMIZER,
    Category.GRADIENTS,
)


def rows(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns, for each arm, its peak in MiB, the part of it that is resident, and both as multiples of GRPO's."""
    base: dict[Any, dict[str, Any]] = {}
    found: list[dict[str, Any]] = []
    for record in records:
        profile = MemoryProfile.from_json(record["profile"])
        resident = sum(profile.peak.by_category.get(category, 0) for category in RESIDENT)
        row = {
            "layout": record["layout"],
            "mode": record["mode"],
            "peak_mib": profile.peak_mib,
            "phase": str(profile.peak_phase),
            "resident_mib": resident / MIB,
        }
        found.append(row)
        if row["layout"] == "grpo":
            base[row["mode"]] = row
    for row in found:
        grpo = base.get(row["mode"])
        row["of_grpo"] = row["peak_mib"] / grpo["peak_mib"] if grpo else None
        row["resident_of_grpo"] = row["resident_mib"] / grpo["resident_mib"] if grpo else None
    return found


def print_comparison(console: Any, records: Sequence[dict[str, Any]]) -> None:
    """Prints a line for each arm."""
    from rich.table import Table

    table = Table(title="PPO against GRPO, peak memory of a step")
    for name in ("layout", "mode", "peak, MiB", "of GRPO's", "in", "resident, MiB", "of GRPO's"):
        table.add_column(name, justify="left" if name in ("layout", "mode", "in") else "right")
    for row in rows(records):
        times = ["" if row[key] is None else f"{row[key]:.2f}x" for key in ("of_grpo", "resident_of_grpo")]
        table.add_row(
            row["layout"],
            row["mode"] or "",
            f"{row['peak_mib']:,.1f}",
            times[0],
            row["phase"],
            f"{row['resident_mib']:,.1f}",
            times[1],
        )
    console.print(table)
    console.print("resident: weights of all models, gradients and optimizer state at the peak", highlight=False)


def save_comparison(records: Sequence[dict[str, Any]], directory: Path) -> list[Path]:
    """Writes `comparison.json` and, where matplotlib is installed, `comparison.png`."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "comparison.json"
    slim = [
        {**record, "profile": {k: v for k, v in record["profile"].items() if k != "timeline"}} for record in records
    ]
    file.write_text(json.dumps({"rows": rows(records), "records": slim}, indent=1) + "\n")
    return [file, *draw_comparison([("", records)], directory / "comparison.png")]


def draw_comparison(groups: Sequence[tuple[str, Sequence[dict[str, Any]]]], path: Path) -> list[Path]:
    """Draws the peaks by category: a panel for each titled group of records; returns the paths written."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    height = 0.28 * max(len(records) for _, records in groups) + 1.8
    figure, panels = plt.subplots(
        1, len(groups), figsize=(4 + 5 * len(groups), height), layout="constrained", squeeze=False, sharey=True
    )
    used: dict[Category, Any] = {}
    for axes, (title, records) in zip(panels[0], groups, strict=True):
        names = [" ".join(filter(None, (record["layout"], record["mode"]))) for record in records]
        peaks = [MemoryProfile.from_json(record["profile"]).peak.by_category for record in records]
        left = [0.0] * len(names)
        for category, colour in COLOURS.items():
            widths = [peak.get(category, 0) / MIB for peak in peaks]
            if any(widths):
                used[category] = axes.barh(names, widths, left=left, color=colour)
                left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.set(xlabel="MiB at the peak", title=title)
    panels[0][0].invert_yaxis()
    figure.legend(list(used.values()), [str(c) for c in used], loc="outside right center", fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return [path]
