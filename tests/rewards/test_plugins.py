"""Rewards of a second, really installed package, through its entry points."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent / "plugin_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Environment in which the package is installed."""
    source = tmp_path_factory.mktemp("source") / "package"
    shutil.copytree(PACKAGE, source)
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(target), str(source)], check=True)
    path = os.pathsep.join([str(target), str(Path(__file__).parents[2])])
    return {**os.environ, "PYTHONPATH": path}


def grpo_plus(environment, *arguments):
    command = [sys.executable, "-m", "trl_grpo_plus.cli", "rewards", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_the_list_has_them_and_names_the_broken_ones(installed):
    listed = json.loads(grpo_plus(installed, "list", "--json").stdout)
    rows = {row["name"]: row for row in listed["rewards"]}
    assert rows["brevity"]["plugin"] == "brevity-rewards" and rows["gsm8k"]["plugin"] is None
    assert rows["brevity"]["options"] == {"target_words": "int = 100"} and rows["brevity"]["aliases"] == ["short"]
    assert rows["shouting"]["description"] == "1.0 where nothing is in lower case."
    assert set(listed["broken_plugins"]) == {"broken of brevity-rewards", "clash of brevity-rewards"}
    assert "a_package_that_is_not_installed" in listed["broken_plugins"]["broken of brevity-rewards"]
    assert "`gsm8k` is registered already" in listed["broken_plugins"]["clash of brevity-rewards"]


def test_they_run_in_workers_by_name_and_alias(installed):
    for name, value in (("brevity", 0.75), ("short", 0.75), ("shouting", 0.0)):
        option = ["--option", "target_words=4"] if value else []
        done = grpo_plus(installed, "try", name, "--completion", "word", *option, "--json")
        assert json.loads(done.stdout)["value"] == value, done.stderr
    done = grpo_plus(installed, "try", "gsm8k", "--completion", "5", "--answer", "4", "--json")
    assert json.loads(done.stdout)["value"] == 0.0


def test_an_unknown_name_tells_of_broken_plugins(installed):
    done = grpo_plus(installed, "try", "brevety", "--completion", "x")
    assert done.returncode == 2 and "did you mean `brevity`?" in done.stderr
    assert "Plugin broken of brevity-rewards cannot be used: ModuleNotFoundError" in done.stderr
