"""Importing the package costs nothing and warns of nothing; stages know neither the trainer nor each other."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import trl_grpo_plus

PACKAGE = Path(trl_grpo_plus.__file__).parent
STAGES = ("prompts", "rollouts", "rewards", "forward")
# What a stage may import of ours, besides itself.
SHARED = {"errors"}


def test_the_import_is_quick_and_silent():
    code = (
        "import time, trl; start = time.perf_counter(); import trl_grpo_plus; took = time.perf_counter() - start;"
        "assert took < 0.5, took; import sys; assert 'torch' not in sys.modules or 'torch' in dir(trl)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent)
    assert done.returncode == 0 and not done.stderr and not done.stdout, done.stderr


def test_public_names_are_there_and_documented():
    for name in trl_grpo_plus.__all__:
        value = getattr(trl_grpo_plus, name)
        assert name == "__version__" or value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        trl_grpo_plus.nothing  # noqa: B018


def imports_of(file):
    """Yields (level, module) of each import of ours in a file, module parts relative to the package."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            here = list(file.relative_to(PACKAGE).parts[:-1])
            base = here[: len(here) - node.level + 1]
            yield [*base, *(node.module.split(".") if node.module else [])], [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trl_grpo_plus"):
            yield node.module.split(".")[1:], [alias.name for alias in node.names]


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_imports_only_itself_and_what_is_shared(stage):
    for file in (PACKAGE / stage).rglob("*.py"):
        for module, names in imports_of(file):
            target = module[0] if module else names[0]
            assert target == stage or target in SHARED, f"{file.name} imports {'.'.join(module)} {names}"


def test_no_file_of_the_package_has_more_than_one_concept():
    for file in PACKAGE.rglob("*.py"):
        assert len(file.read_text().splitlines()) <= 450, file
