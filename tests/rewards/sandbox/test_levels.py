"""Which level runs, what its self-test refuses, and that nothing weaker is taken silently."""

import pytest

from tests.rewards.sandbox.conftest import LEVELS, start
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.rewards.sandbox import Limits, NoLevel, Sandbox, client, levels, pool, runtime
from trl_grpo_plus.rewards.sandbox.inside import probe


def test_at_least_one_level_works_here():
    assert any(not isinstance(start(level), str) for level in LEVELS), [start(level) for level in LEVELS]


def test_auto_takes_the_strongest_and_never_less_than_landlock():
    assert levels.candidates("auto", None) == ["namespaces", "landlock"]
    assert levels.candidates("auto", "seccomp") == ["namespaces", "landlock", "seccomp"]
    assert levels.candidates("auto", "namespaces") == ["namespaces"]
    assert levels.candidates("seccomp", None) == ["seccomp"]  # named, so wanted


@pytest.mark.parametrize(
    ("level", "least", "message"),
    [
        ("landlok", None, "did you mean `landlock`"),
        ("auto", "external", "unknown level `external`"),
        ("seccomp", "landlock", "`seccomp` is weaker than min_level `landlock`"),
    ],
)
def test_levels_that_are_refused(level, least, message):
    with pytest.raises(UserError, match=message):
        levels.candidates(level, least)


# What a server must not be trusted with: its self-test meets an attempt that works.
LEAKS = {
    "a seccomp filter without Landlock behind it": ("landlock", {"landlock_abi": 0}, "read a file of the user"),
    "no filter": ("landlock", {"level": "rlimits"}, "make a process"),
}


@pytest.mark.parametrize("leak", LEAKS)
def test_the_self_test_finds_what_is_not_confined(leak, tmp_path, monkeypatch):
    """The level's own code is broken in the server, and the server is refused."""
    claimed, changes, found = LEAKS[leak]
    inside = client._BOOT.parent
    copy = tmp_path / "inside"
    copy.mkdir()
    for file in inside.glob("*.py"):
        (copy / file.name).write_text(file.read_text())
    server = copy / "server.py"
    text = server.read_text()
    arguments = "level, machine, version, (*readable, *devices), writable, scratch"
    assert arguments in text
    broken = arguments.replace("level", repr(changes.get("level", claimed)))
    broken = broken.replace("version", str(changes["landlock_abi"])) if "landlock_abi" in changes else broken
    # Writing would be held by the filter then, which is how the level `seccomp` works.
    server.write_text(text.replace(arguments, broken))
    monkeypatch.setattr(client, "_BOOT", copy / "boot.py")
    with pytest.raises(client.LevelFailed, match=found):
        client.Server(claimed)


def test_every_attempt_counts_against_the_levels_that_claim_to_stop_it():
    for level, allowed in levels._LET_THROUGH.items():
        for name in ("read a file of the user", "make a process", "signal the trainer"):
            against = levels.judge_self_test(level, {name: ""}, {})
            assert bool(against) == (name not in allowed), (level, name)
    assert levels.judge_self_test("landlock", {"make a process": "refused"}, {"signal itself": ""}) == []
    assert levels.judge_self_test("landlock", {}, {"signal itself": "refused"})
    assert probe.REPORT == 3


def test_auto_fails_closed(monkeypatch):
    monkeypatch.setattr(pool, "Server", lambda name: (_ for _ in ()).throw(client.LevelFailed(f"{name}: not here")))
    with pytest.raises(NoLevel, match="namespaces: not here; landlock: not here.*grpo-plus sandbox info"):
        Sandbox()


def test_other_systems_are_told_their_choices(monkeypatch):
    monkeypatch.setattr(runtime.platform, "machine", lambda: "riscv64")
    with pytest.raises(UserError, match="x86_64 and aarch64, not of riscv64; use level `external`"):
        runtime.check_platform("landlock")
    monkeypatch.setattr(runtime.sys, "platform", "darwin")
    with pytest.raises(UserError, match="needs Linux, found darwin"):
        runtime.check_platform("rlimits")


def test_programs_know_nothing_of_the_trainers_environment(any_sandbox, monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    server = client.Server(any_sandbox.level)
    with client.memory_files(b"import os; print(dict(os.environ))", b"", None, None) as files:
        server.run("script", files, Limits())
        shown = client.read_all(files[2], 10_000).decode()
    server.close()
    assert "HOME" in shown and "secret" not in shown and "PYTHONPATH" not in shown
