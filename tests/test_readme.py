"""The README's numbers are those of benchmarks/results, and its commands exist."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_tables_are_those_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    assert tables.render(README) == README, "run: python benchmarks/tables.py"
    for name in tables.TABLES:
        assert f"<!-- {name} -->" in README


def test_make_targets_recipes_and_commands_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"\bmake ([a-z][a-z0-9-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.M), target
    for recipe in re.findall(r"recipes/[\w.-]+\.yaml", README):
        assert (ROOT / recipe).exists(), recipe
    from trl_grpo_plus.cli import app

    commands = {command.name for command in (*app.registered_commands, *app.registered_groups)}
    assert set(re.findall(r"grpo-plus ([a-z]+)", README)) <= commands


def test_links_to_files_hold():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
    assert sys.version_info >= (3, 11)
