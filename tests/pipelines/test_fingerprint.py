"""Fingerprints see contents and names of files, nothing else; changes are named by key."""

import os
import shutil

from trl_grpo_plus.pipelines.fingerprint import changes, of_json, of_path, paths_in


def test_contents_and_names_count_but_not_places_or_times(tmp_path):
    one = tmp_path / "one"
    (one / "inner").mkdir(parents=True)
    (one / "a.bin").write_bytes(b"weights" * 1_000_000)  # several chunks
    (one / "inner/b.json").write_text("{}")
    before = of_path(one)
    shutil.copytree(one, tmp_path / "two")
    os.utime(tmp_path / "two/a.bin", (1, 1))
    assert of_path(tmp_path / "two") == before
    (tmp_path / "two/inner/b.json").write_text("{ }")
    assert of_path(tmp_path / "two") != before
    (one / "inner/b.json").rename(one / "inner/c.json")
    assert of_path(one) != before


def test_a_known_file_is_not_read_again_unless_it_changed(tmp_path):
    file, known = tmp_path / "file", {}
    file.write_text("first")
    first = of_path(file, known)
    assert list(known.values()) == [first]
    known[next(iter(known))] = "remembered"
    assert of_path(file, known) == "remembered"
    file.write_text("second one")
    assert of_path(file, known) == of_path(file) != first


def test_paths_in_a_configuration(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "math").mkdir()
    (tmp_path / "data.jsonl").write_text("")
    here = str(tmp_path / "data.jsonl")
    config = {"rewards": ["math", {"math": 1}], "prompts": [{"source": here}, {"source": "./data.jsonl"}], "n": 1}
    assert list(paths_in({**config, "again": here, "text": "and/or\nmore", "hub": "openai/gsm8k"})) == [
        here,
        "./data.jsonl",
    ]


def test_the_order_of_keys_does_not_count():
    assert of_json({"a": 1, "b": [1, 2]}) == of_json({"b": [1, 2], "a": 1}) != of_json({"a": 1, "b": [2, 1]})


def test_changes_are_named():
    old = {"a": 1, "prompts": [{"size": 3, "source": "x"}], "gone": True, "list": [1]}
    new = {"a": 1, "prompts": [{"size": 4, "source": "x"}], "new": "y", "list": [1, 2]}
    assert changes(old, new) == [
        "prompts[0].size: 3 -> 4",
        "gone: true -> absent",
        "list: [1] -> [1, 2]",
        "new: absent -> y",
    ]
    assert changes(old, old) == []
