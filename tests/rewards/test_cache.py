"""The cache of verdicts: by content, across processes and kills, and never in the way."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from trl_grpo_plus.rewards import RewardFunction, RewardSettings, Runtime, Verdict, build_rewards
from trl_grpo_plus.rewards.cache import VerdictCache, verdict_key
from trl_grpo_plus.rewards.registry import Entry, same_text

CALLS = []


class Counted:
    """Counts its calls; runs in threads of this process."""

    def __init__(self, factor: float = 1.0, column: str = "answer"):
        self.factor, self.column = factor, column

    def verify(self, completion, row):
        CALLS.append(completion)
        if completion == "fail":
            return Verdict.failed("no luck", "timeout")
        if completion == "skip":
            return Verdict.unscored("nothing to score")
        return Verdict(self.factor * (completion == row[self.column]), completion)


def counted(runtime, version=1, **options):
    import inspect

    known = dict(inspect.signature(Counted).parameters)
    entry = Entry("counted", Counted, "", ("answer",), version=version, runs="thread", same=same_text, options=known)
    function = RewardFunction.of_entry(entry, options)
    function.bind(runtime)
    return function


def calls(function, completions, rows):
    CALLS.clear()
    scored = function.score(completions, rows)
    return sorted(CALLS), scored


ROW = {"answer": "a", "prompt": "p"}


def test_repeats_are_verified_once_within_a_batch_and_across_batches():
    function = counted(Runtime())
    done, scored = calls(function, ["a", "b", "a", "skip"], [ROW] * 4)
    assert done == ["a", "b", "skip"] and scored.cache_hits == 1
    assert [v.value for v in scored.verdicts] == [1.0, 0.0, 1.0, None]
    done, again = calls(function, ["a", "b", "a", "skip"], [ROW] * 4)
    assert done == [] and again.cache_hits == 4 and again.verdicts == scored.verdicts
    assert again.metrics()["cache_hits"] == 1.0


def test_failures_are_tried_again():
    function = counted(Runtime())
    for _ in range(2):
        done, scored = calls(function, ["fail"], [ROW])
        assert done == ["fail"] and scored.cache_hits == 0


def test_the_key_is_all_that_the_verdict_depends_on():
    runtime = Runtime()
    assert calls(counted(runtime), ["a"], [ROW])[0] == ["a"]
    assert calls(counted(runtime), ["a"], [{**ROW, "prompt": "other"}])[0] == []  # a column that it does not read
    assert calls(counted(runtime), ["a"], [{**ROW, "answer": "b"}])[0] == ["a"]
    assert calls(counted(runtime, factor=2.0), ["a"], [ROW])[0] == ["a"]
    assert calls(counted(runtime, version=2), ["a"], [ROW])[0] == ["a"]
    assert verdict_key(b"v", "a", {"answer": 1}) != verdict_key(b"v", "a", {"answer": "1"})
    assert verdict_key(b"v", "a", {"answer": 1}) != verdict_key(b"w", "a", {"answer": 1})
    assert verdict_key(b"v", "\ud800", {}) is not None and verdict_key(b"v", "a", {"image": object()}) is None


def test_rows_without_a_key_are_verified_each_time():
    function = counted(Runtime())
    row = {"answer": object()}
    assert calls(function, ["a", "a"], [row, row])[0] == ["a", "a"]


def test_off_is_off():
    function = counted(Runtime(RewardSettings(cache="off")))
    assert calls(function, ["a", "a"], [ROW] * 2)[0] == ["a", "a"]


def test_a_file_serves_another_process_and_outlives_a_kill(tmp_path):
    code = (
        "import os, signal; from trl_grpo_plus.rewards import *; from trl_grpo_plus.rewards.runtime import *;"
        f"r = Runtime(RewardSettings(), {str(tmp_path)!r}); f = build_rewards(['regex'], r)[0].function;"
        "print(f.verdicts(['ab', 'b'], [{'pattern': 'a'}] * 2), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    (reward,) = build_rewards(["regex"], Runtime(RewardSettings(), tmp_path))
    scored = reward.function.score(["ab", "b", "c"], [{"pattern": "a"}] * 3)
    assert scored.cache_hits == 2 and str(scored.verdicts[:2]) == done.stdout.strip()
    assert os.listdir(tmp_path) == ["reward_cache.sqlite3"]


def test_texts_that_are_no_utf8_come_back():
    cache = VerdictCache()
    verdict = Verdict(0.5, "half \ud800 a pair", "\x00 zero")
    cache.put_many([(b"k" * 32, verdict), (b"n" * 32, Verdict.unscored("x"))])
    assert cache.get_many([b"k" * 32, b"n" * 32, b"z" * 32]) == {b"k" * 32: verdict, b"n" * 32: Verdict.unscored("x")}


def test_the_oldest_go_first():
    cache = VerdictCache(max_rows=100)
    keys = [i.to_bytes(32, "big") for i in range(250)]
    for key in keys:
        cache.put_many([(key, Verdict(1.0))])
    kept = cache.get_many(keys)
    assert 90 <= len(kept) <= 100 and list(kept)[-1] == keys[-1] and keys[0] not in kept


def test_a_damaged_file_is_moved_away(tmp_path, caplog):
    file = tmp_path / "cache.sqlite3"
    file.write_bytes(b"no database at all, but long enough to be read as one" * 100)
    cache = VerdictCache(file)
    cache.put_many([(b"k", Verdict(1.0))])
    assert cache.get_many([b"k"]) == {b"k": Verdict(1.0)} and "is damaged" in caplog.text
    assert (tmp_path / "cache.sqlite3.damaged").exists()


def test_a_file_that_cannot_be_used_is_no_obstacle(tmp_path, caplog):
    cache = VerdictCache(tmp_path)  # a directory
    cache.put_many([(b"k", Verdict(1.0))])
    assert cache.get_many([b"k"]) == {} and caplog.text.count("cannot be used") == 1
    full = VerdictCache(tmp_path / "full.sqlite3")
    full.put_many([(b"k", Verdict(1.0))])
    full._connection.execute("PRAGMA query_only = ON")
    full.put_many([(b"l", Verdict(1.0))])
    assert full.get_many([b"k"]) == {} and "going on without it" in caplog.text


def test_many_threads_and_connections_share_a_file(tmp_path):
    file = tmp_path / "cache.sqlite3"
    caches = [VerdictCache(file) for _ in range(3)]

    def work(n):
        for i in range(30):
            caches[n % 3].put_many([(f"{n} {i}".encode(), Verdict(float(i)))])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caches[0].get_many([f"{n} {i}".encode() for n in range(6) for i in range(30)])) == 180
    with sqlite3.connect(file) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("value", ["off", "no", False])
def test_off_as_yaml_reads_it(value):
    assert Runtime(RewardSettings(cache=value)).cache is None
