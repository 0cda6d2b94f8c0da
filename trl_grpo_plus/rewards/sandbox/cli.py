"""`grpo-plus sandbox info | check`: which levels of isolation work here, and whether they hold against attacks."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(name="sandbox", help="The sandbox for code rewards.", no_args_is_help=True)


@app.command("info")
def info_command(
    json_out: Annotated[Path | None, typer.Option("--json", help="Also write the findings to a file.")] = None,
) -> None:
    """Show the levels of isolation, which of them pass their self-test on this machine, and why others do not."""
    from rich.console import Console
    from rich.table import Table

    from ...errors import UserError
    from . import slots
    from .client import LevelFailed, Server
    from .levels import LEVELS

    table = Table("level", "here", "stops", "does not stop", show_lines=True)
    found: dict[str, Any] = {}
    for level in LEVELS.values():
        try:
            server = Server(level.name)
            server.close()
            here = "works" if level.name != "rlimits" else "works, but is no sandbox"
            found[level.name] = {"works": True, "landlock_abi": server.landlock_abi}
        except (LevelFailed, UserError) as error:
            here = str(error).removeprefix(f"{level.name}: ")
            found[level.name] = {"works": False, "reason": here}
        table.add_row(level.name, here, level.stops, level.leaves)
    console = Console()
    console.print(table)
    auto = next((name for name, each in found.items() if each["works"] and name in ("namespaces", "landlock")), None)
    console.print(f"auto takes: {auto or 'nothing: no level of at least `landlock` works here'}")
    console.print(f"{platform.machine()}, Linux {platform.release()}, {slots.cores()} programs at a time", style="dim")
    if json_out is not None:
        json_out.write_text(json.dumps({"levels": found, "auto": auto}, indent=1) + "\n")


@app.command("check")
def check_command(
    cases: Annotated[Path, typer.Argument(help="A corpus of attacks, JSON lines.")],
    level: Annotated[str, typer.Option(help="The level to check; auto is the strongest that works here.")] = "auto",
    json_out: Annotated[Path | None, typer.Option("--json", help="Also write the findings to a file.")] = None,
) -> None:
    """Run a corpus of attacks; exit 1 where a reward is wrong or anything outside the sandbox was touched."""
    from rich.console import Console
    from rich.table import Table

    from . import attacks
    from .pool import Sandbox

    console = Console()
    entries = attacks.load(cases)
    for name in attacks.unknown_conditions(entries):
        console.print(f"unknown condition `{name}`: all known ones are checked instead", style="yellow")
    findings = []
    with attacks.planted() as fixtures:
        sandbox = Sandbox(level, min_level="rlimits" if level == "rlimits" else None)
        try:
            for entry in entries:
                findings.append(attacks.run_entry(sandbox, entry, fixtures))
        finally:
            sandbox.close()
    table = Table("category", "entries", "wrong reward", "something touched", title=f"level {sandbox.level}")
    for category in dict.fromkeys(finding.category for finding in findings):
        of = [finding for finding in findings if finding.category == category]
        wrong = sum(finding.reward != finding.expected for finding in of)
        table.add_row(category, str(len(of)), str(wrong), str(sum(bool(finding.broken) for finding in of)))
    console.print(table)
    for finding in findings:
        if not finding.ok:
            says = "; ".join(finding.broken)
            console.print(
                f"[bold red]{finding.id}[/bold red]: reward {finding.reward}, expected {finding.expected} "
                f"({finding.reason}){'; ' + says if says else ''}",
                highlight=False,
            )
    if json_out is not None:
        rows = [{**vars(finding), "ok": finding.ok} for finding in findings]
        json_out.write_text(json.dumps({"level": sandbox.level, "findings": rows}, indent=1) + "\n")
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)
