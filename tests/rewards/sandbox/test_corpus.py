"""The corpus of attacks at every level that works here, and the command that runs it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.rewards.sandbox.conftest import LEVELS, start
from trl_grpo_plus.cli import app
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.rewards.sandbox import attacks

CORPUS = Path(__file__).parents[2] / "data/sandbox_attacks.jsonl"
ENTRIES = attacks.load(CORPUS)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_the_corpus(level, tmp_path):
    if isinstance(start(level), str):
        pytest.skip(start(level))
    out = tmp_path / "out.json"
    done = CliRunner().invoke(app, ["sandbox", "check", str(CORPUS), "--level", level, "--json", str(out)])
    found = json.loads(out.read_text())
    assert done.exit_code == 0, [row for row in found["findings"] if not row["ok"]]
    assert found["level"] == level and len(found["findings"]) == len(ENTRIES) >= 60
    assert not attacks.unknown_conditions(ENTRIES)


def test_a_breach_is_an_exit_code_of_1(tmp_path, monkeypatch):
    """Without a sandbox (level `rlimits`) the same entries get through, and are told."""
    wanted = ("read_secret_file", "net_loopback_tcp", "write_tmp", "h_add")
    entries = [entry for entry in ENTRIES if entry["id"] in wanted]
    file, out = tmp_path / "cases.jsonl", tmp_path / "out.json"
    file.write_text("\n".join(map(json.dumps, entries)))
    arguments = ["sandbox", "check", str(file), "--level", "rlimits", "--json", str(out)]
    assert CliRunner().invoke(app, arguments).exit_code == 1
    found = {row["id"]: row for row in json.loads(out.read_text())["findings"]}
    assert found["read_secret_file"]["reward"] == 1.0
    assert any("got a connection" in text for text in found["net_loopback_tcp"]["broken"])
    assert any("files" in text for text in found["write_tmp"]["broken"])
    assert found["h_add"]["ok"] and not any(row["ok"] for name, row in found.items() if name != "h_add")
    assert not list(Path("/tmp").glob("sbx_attack*"))


def test_info(tmp_path):
    out = tmp_path / "info.json"
    done = CliRunner().invoke(app, ["sandbox", "info", "--json", str(out)])
    assert done.exit_code == 0 and "auto takes" in done.output
    found = json.loads(out.read_text())
    assert list(found["levels"]) == ["namespaces", "landlock", "seccomp", "rlimits"]
    assert all(level["works"] or level["reason"] for level in found["levels"].values())
    for level in LEVELS:
        assert found["levels"][level]["works"] != isinstance(start(level), str)


@pytest.mark.parametrize("text", ["{", '{"id": "x"}', ""])
def test_files_that_hold_no_entries(tmp_path, text):
    file = tmp_path / "cases.jsonl"
    file.write_text(text)
    with pytest.raises(UserError, match=r"cases\.jsonl"):
        attacks.load(file)
    with pytest.raises(UserError, match="no such file"):
        attacks.load(tmp_path / "none")
