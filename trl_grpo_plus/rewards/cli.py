"""`grpo-plus rewards`: what rewards there are, what one says of a completion, and whether it can be trusted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import UserError

app = typer.Typer(
    help="Verifiable rewards: list them, try one, check and audit graders, score files.", no_args_is_help=True
)

_Workers = Annotated[str, typer.Option(help="Worker processes: a number, or auto for the cores.")]
_SHOWN = 300


def _cut(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
    return escape("".join(c if c.isprintable() else repr(c)[1:-1] for c in text))


def _options(pairs: list[str]) -> dict[str, Any]:
    """Returns `["tag=null", "x=1"]` as options, values read as YAML."""
    import yaml

    options = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UserError(f"--option takes key=value, found `{pair}`")
        options[key.replace("-", "_")] = yaml.safe_load(value)
    return options


@app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """All rewards that go by a name: what they pay for, the columns they need, their options."""
    from .catalog import catalog
    from .plugins import broken_plugins

    rows = catalog()
    if as_json:
        print(json.dumps({"rewards": rows, "broken_plugins": broken_plugins()}, indent=2))
        return
    table = Table("name", "pays for", "needs", "options", box=None, pad_edge=False, header_style="bold")
    for row in rows:
        name = row["name"] + "".join(f"\n({alias})" for alias in row["aliases"])
        origin = "" if row["plugin"] is None else f" (from {row['plugin']})"
        options = "\n".join(f"{key}: {text}" for key, text in row["options"].items())
        table.add_row(escape(name), escape(row["description"] + origin), ", ".join(row["columns"]), escape(options))
    Console().print(table)
    for name, problem in broken_plugins().items():
        Console(stderr=True).print(f"[yellow]plugin {escape(name)} cannot be used: {escape(problem)}[/yellow]")


@app.command("try")
def try_command(
    name: Annotated[str, typer.Argument(help="A reward: a name, or module:function.")],
    completion: Annotated[str, typer.Option(help="The completion; @FILE reads a file, - the standard input.")],
    answer: Annotated[str | None, typer.Option(help="The row's gold answer: its column `answer`.")] = None,
    prompt: Annotated[str, typer.Option(help="The row's prompt.")] = "",
    row: Annotated[str | None, typer.Option(help="Further columns of the row, as a JSON object.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="An option of the reward: key=value; repeatable.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """The verdict of one reward on one completion, with its reason."""
    from .build import build_rewards
    from .function import Reward

    columns: dict[str, Any] = {"prompt": prompt}
    if row is not None:
        try:
            columns |= json.loads(row)
        except (ValueError, TypeError) as error:
            raise UserError(f"--row must be a JSON object: {error}") from error
    if answer is not None:
        columns["answer"] = answer
    (reward,) = build_rewards([{name: _options(option or [])}])
    if not isinstance(reward.function, Reward):
        raise UserError(f"`{name}` is a function in TRL's form; `grpo-plus rewards audit {name}` takes those")
    verdict = reward.function.verdict(_text(completion), columns)
    if as_json:
        print(
            json.dumps(
                {
                    "value": verdict.value,
                    "answer": verdict.answer,
                    "reason": verdict.reason,
                    "failure": verdict.failure,
                }
            )
        )
        return
    console = Console()
    console.print(f"value   {'unscored' if verdict.value is None else f'{verdict.value:g}'}", highlight=False)
    console.print(f"answer  {'none found' if verdict.answer is None else _cut(verdict.answer)}", highlight=False)
    console.print(f"reason  {_cut(verdict.reason)}", highlight=False)


def _text(given: str) -> str:
    if given == "-":
        return sys.stdin.read()
    if given.startswith("@"):
        file = Path(given[1:])
        if not file.is_file():
            raise UserError(f"--completion: no such file: {file}")
        return file.read_text()
    return given


@app.command("check")
def check_command(
    cases: Annotated[str, typer.Argument(help="A file of cases with known values (JSONL).")],
    json_out: Annotated[str | None, typer.Option("--json", help="Write all results to this file.")] = None,
    workers: _Workers = "auto",
    kind: Annotated[list[str] | None, typer.Option(help="Only cases of this kind; repeatable.")] = None,
) -> None:
    """Grade a file of cases whose right values are known; exit 1 on a disagreement outside ambiguous cases."""
    from .cases import VERIFIERS, load_cases
    from .check import check

    loaded = load_cases(cases)
    for name in kind or []:
        if name not in VERIFIERS:
            raise UserError(f"--kind: unknown kind {name!r}; known: {', '.join(VERIFIERS)}")
    chosen = [case for case in loaded if not kind or case.kind in kind]
    if not chosen:
        raise UserError(f"{cases} holds no cases of {', '.join(kind or [])}")
    report = check(chosen, workers)
    console = Console()
    for outcome in report.outcomes:
        if outcome.right:
            continue
        found = "unscored" if outcome.value is None else f"{outcome.value:g}"
        style, note = ("dim", " (ambiguous)") if outcome.ambiguous else ("red", "")
        console.print(
            f"[{style}]{escape(outcome.id)}{note}[/{style}]: found {found}, right is {outcome.wanted}; "
            f"{_cut(outcome.why)}",
            highlight=False,
        )
        answer = "" if outcome.answer is None else f"answer {_cut(outcome.answer)}; "
        console.print(f"    {answer}{_cut(outcome.reason)}", highlight=False)
    table = Table("kind", "right", "of", "ambiguous, agreed", "seconds", box=None, pad_edge=False, header_style="bold")
    for row in report.table():
        agreed = f"{row['ambiguous_agreed']} of {row['ambiguous']}" if row["ambiguous"] else ""
        table.add_row(row["kind"], str(row["right"]), str(row["total"]), agreed, f"{row['seconds']:.2f}")
    console.print(table)
    wrong = len(report.disagreements)
    total = sum(row["total"] for row in report.table())
    console.print(
        f"{total - wrong} of {total} right in {report.seconds:.1f} s on {report.workers} worker(s)", highlight=False
    )
    if json_out is not None:
        Path(json_out).write_text(json.dumps(report.as_json(), indent=2) + "\n")
    if wrong:
        raise typer.Exit(1)


@app.command("audit")
def audit_command(
    name: Annotated[str, typer.Argument(help="Any reward: module:function in TRL's form or ours, or a name.")],
    kind: Annotated[str | None, typer.Option(help="math, numeric, choice, text, format, json or code.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="An option of the reward: key=value; repeatable.")] = None,
    json_out: Annotated[str | None, typer.Option("--json", help="Write all results to this file.")] = None,
    workers: _Workers = "auto",
    timeout_s: Annotated[float, typer.Option("--timeout-s", help="Seconds for each completion.")] = 5.0,
) -> None:
    """What a reward pays for and should not: near misses, guesses, echoes, hostile texts; exit 1 where it does."""
    from .audit import Finding, audit, kind_of
    from .runtime import RewardSettings

    settings = RewardSettings(workers, timeout_s, max_failures=1.0, cache="off")
    result = audit(name, kind_of(name, kind), _options(option or []), settings)
    console = Console()

    def show(title: str, findings: list[Finding], style: str) -> None:
        console.print(
            f"[{style}]{title}: {len(findings)}[/{style}]" if findings else f"{title}: none", highlight=False
        )
        for finding in findings:
            probe, verdict = finding.probe, finding.verdict
            value = "unscored" if verdict.value is None else f"{verdict.value:g}"
            console.print(f"  {value:>8}  {probe.family}: {escape(probe.what)}", highlight=False)
            console.print(f"            {_cut(probe.completion[-120:])}", highlight=False)
            if verdict.reason:
                console.print(f"            {_cut(verdict.reason)}", highlight=False)

    asked = len(result.findings)
    form = "chat messages" if result.messages else "texts"
    console.print(f"{escape(name)}: {asked} {result.kind} completions, given as {form}\n", highlight=False)
    if result.full == 0.0:
        console.print("[yellow]It pays for no right answer: is this its kind of task?[/yellow]")
    show("Pays for and should not", result.paid_wrongly, "red")
    show("Does not pay for and should", result.refused, "yellow")
    show("Raises, hangs or crashes on", result.failed, "yellow")
    if json_out is not None:
        lines = [
            {
                "family": f.probe.family,
                "what": f.probe.what,
                "completion": f.probe.completion[:2000],
                "value": f.verdict.value,
                "reason": f.verdict.reason,
                "failure": f.verdict.failure,
                "paid_wrongly": f in result.paid_wrongly,
            }
            for f in result.findings
        ]
        Path(json_out).write_text(json.dumps({"reward": name, "kind": result.kind, "probes": lines}, indent=2) + "\n")
    if result.paid_wrongly or result.full == 0.0:
        raise typer.Exit(1)


@app.command("score")
def score_command(
    data: Annotated[str, typer.Argument(help="JSONL: a completion (or a list of them) and the row's columns a line.")],
    rewards: Annotated[list[str], typer.Option("--rewards", help="A reward, or YAML as in a recipe; repeatable.")],
    out: Annotated[
        str | None, typer.Option(help="Write each completion with its verdicts to this JSONL file.")
    ] = None,
    field: Annotated[str | None, typer.Option(help="The field that holds the completion.")] = None,
    cache: Annotated[str, typer.Option(help="File of the cache of verdicts; memory or off.")] = "memory",
    workers: _Workers = "auto",
    timeout_s: Annotated[float, typer.Option("--timeout-s", help="Seconds for each completion.")] = 5.0,
) -> None:
    """Grade a file of completions, to look for bugs of a reward before training."""
    import yaml

    from .runtime import RewardSettings, Runtime
    from .score import read_completions, score

    spec: list[Any] = []
    for text in rewards:
        parsed = yaml.safe_load(text)
        spec.extend(parsed if isinstance(parsed, list) else [parsed])
    completions, rows = read_completions(data, field)
    columns = score(completions, rows, spec, Runtime(RewardSettings(workers, timeout_s, 1.0, cache)))
    console = Console()
    table = Table(
        "reward", "weight", "mean", "std", "unscored", "timeouts", "errors", "seconds", box=None, pad_edge=False
    )
    for column in columns:
        s = column.summary()
        shares = (f"{s[key]:.1%}" if key in s else "" for key in ("unscored", "timeouts", "errors"))
        seconds = f"{s['latency_s']:.2f}" if "latency_s" in s else ""
        table.add_row(
            escape(column.name), f"{column.weight:g}", f"{s['mean']:.4f}", f"{s['std']:.4f}", *shares, seconds
        )
    console.print(f"{len(completions)} completions", highlight=False)
    console.print(table)
    for column in columns:
        console.print(f"\n{escape(column.name)}: the most frequent verdicts", highlight=False)
        for value, reason, n in column.summary()["reasons"]:
            shown = "unscored" if value is None else f"{value:g}"
            console.print(f"  {n:>6} x {shown:>8}  {_cut(reason)}", highlight=False)
    if out is not None:
        with open(out, "w") as file:
            for i, (completion, row) in enumerate(zip(completions, rows, strict=True)):
                verdicts = {
                    c.name: {"value": v.value, "answer": v.answer, "reason": v.reason}
                    for c in columns
                    for v in [c.verdicts[i]]
                }
                file.write(json.dumps({**row, "completion": completion, "rewards": verdicts}) + "\n")
        console.print(f"\nwritten to {escape(out)}", highlight=False)
