"""A memory profile as a table for the terminal and two pictures: the timeline, and the phases' peaks by category."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .categories import CATEGORIES, Category
from .profile import MIB, MemoryProfile

# One colour per category in every picture: weights blue and violet, what training adds warm, what passes green.
COLOURS: dict[Category, str] = {
    Category.WEIGHTS_FROZEN: "#9ecae1",
    Category.WEIGHTS_TRAINABLE: "#3182bd",
    Category.REFERENCE: "#6a51a3",
    Category.CRITIC: "#9e9ac8",
    Category.REWARD_MODEL: "#bcbddc",
    Category.OPTIMIZER: "#e6550d",
    Category.GRADIENTS: "#fdae6b",
    Category.ACTIVATIONS: "#31a354",
    Category.WEIGHT_CASTS: "#74c476",
    Category.LM_HEAD: "#c7e9c0",
    Category.KV_CACHE: "#de2d26",
    Category.OTHER: "#bdbdbd",
}


def print_profile(console: Any, profile: MemoryProfile) -> None:
    """Prints the table of phases, and what it cost to make it."""
    from rich.table import Table

    table = Table(title=f"Memory by phase, MiB ({profile.device}, {profile.backend})")
    table.add_column("phase", no_wrap=True)
    table.add_column("peak", justify="right", no_wrap=True)
    table.add_column("alive at the peak")
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    for phase, record in profile.phases.items():
        held = sorted(record.peak.by_category.items(), key=lambda item: -item[1])
        parts = [f"{category.replace('_', ' ')} {_number(size / MIB)}" for category, size in held if size >= MIB / 20]
        highest = phase is profile.peak_phase
        table.add_row(
            f"{phase} *" if highest else str(phase),
            _number(record.peak.total_bytes / MIB),
            ", ".join(parts),
            str(record.calls),
            f"{record.seconds:.2f}",
            style="bold" if highest else None,
        )
    console.print(table)
    reserved = f", {profile.peak_reserved_bytes / MIB:,.0f} MiB reserved" if profile.peak_reserved_bytes else ""
    share = profile.overhead_s / max(profile.seconds - profile.overhead_s, 1e-9)
    console.print(
        f"* peak: {profile.peak_mib:,.1f} MiB in {profile.peak_phase}{reserved}; {profile.steps} steps in "
        f"{profile.seconds:.1f} s, of which profiling took at least {profile.overhead_s:.1f} s (+{share:.0%})",
        highlight=False,
    )


def save_figures(profile: MemoryProfile, directory: Path) -> list[Path]:
    """Writes `timeline.png` and `phases.png`; returns their paths, none where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    directory.mkdir(parents=True, exist_ok=True)
    return [_timeline(profile, directory / "timeline.png"), _phases(profile, directory / "phases.png")]


def _timeline(profile: MemoryProfile, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(11, 4.5), layout="constrained")
    samples = profile.timeline
    times = [sample.time_s for sample in samples]
    used = [c for c in COLOURS if any(sample.by_category.get(c) for sample in samples)]
    if times:
        stacks = [[sample.by_category.get(c, 0) / MIB for sample in samples] for c in used]
        axes.stackplot(times, stacks, labels=[str(c) for c in used], colors=[COLOURS[c] for c in used], step="post")
        axes.set_xlim(times[0], max(times[-1], times[0] + 1e-3))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8, reverse=True)
    axes.axhline(profile.peak_mib, color="black", linewidth=0.7, linestyle="--")
    axes.set(
        xlabel="seconds",
        ylabel="MiB alive",
        title=f"{profile.about.get('trainer', '')}: peak {profile.peak_mib:,.1f} MiB in {profile.peak_phase}",
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _phases(profile: MemoryProfile, path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 0.45 * len(profile.phases) + 1.6), layout="constrained")
    names = [str(phase) for phase in profile.phases]
    left = [0.0] * len(names)
    for category in COLOURS:
        widths = [record.peak.by_category.get(category, 0) / MIB for record in profile.phases.values()]
        if any(widths):
            axes.barh(names, widths, left=left, color=COLOURS[category], label=str(category))
            left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set(xlabel="MiB alive at the phase's peak", title="Peak of each phase")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _number(mib: float) -> str:
    return "" if mib == 0 else f"{mib:,.0f}" if mib >= 100 else f"{mib:.1f}" if mib >= 0.05 else f"{mib:.3f}"


def legend() -> str:
    """Returns what each category means, one a line."""
    return "\n".join(f"{category}: {meaning}" for category, meaning in CATEGORIES.items())
