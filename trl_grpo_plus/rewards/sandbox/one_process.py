"""Tests that must share a process with the program: why they cannot be run, said plainly."""

from __future__ import annotations

import ast

_STREAMS = ("sys.stdout", "sys.stderr")
_INPUT = ("sys.stdin", "builtins.input")


def why_in_one_process(tree: ast.Module) -> str | None:
    """Returns what tests do to the program's own process, `None` where nothing of the kind is seen.

    Every honest program would fail them from outside. That is read from the tests alone: no program can choose to be
    left without a verdict.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(ast.unparse(target) in _INPUT for target in node.targets):
            return "the tests replace the program's stdin; cases of stdin and stdout are the form for that"
        if not isinstance(node, (ast.Call, ast.arg)):
            continue
        name = node.arg if isinstance(node, ast.arg) else ast.unparse(node.func)
        if isinstance(node, ast.arg) and name != "monkeypatch":
            continue
        patched = [a.value for a in getattr(node, "args", ())[:1] if isinstance(a, ast.Constant)]
        if "patch" in name.split(".") and not set(patched) & set(_STREAMS) or name == "monkeypatch":
            return f"the tests patch what the program uses (`{name}`), which is in another process"
    return None
