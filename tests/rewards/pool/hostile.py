"""Verifiers that do what their completion says, run in workers by the tests."""

import contextlib
import ctypes
import os
import signal
import sys
import time

from trl_grpo_plus.rewards import Verdict


def obey(completion, row, *, value: float = 1.0):
    """Does what the completion says and returns `value`."""
    word, _, argument = completion.partition(" ")
    if word == "spin":
        while True:
            pass
    elif word == "sleep":
        time.sleep(float(argument))
    elif word == "deaf":  # as code in C does that looks at no signals, and code that catches everything
        for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        while True:
            with contextlib.suppress(BaseException):
                time.sleep(1)
    elif word == "raise":
        raise ValueError(argument)
    elif word == "quit":
        sys.exit(3)
    elif word == "leave":
        os._exit(3)
    elif word == "crash":
        ctypes.string_at(0)
    elif word == "eat":
        hoard = []
        while True:
            hoard.append(bytearray(50_000_000))
    elif word == "once":  # dies the first time, is well the second time
        if not os.path.exists(argument):
            with open(argument, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
    elif word == "doomed":  # as if someone were about to kill the processes named
        if str(os.getpid()) in argument.split():
            os.kill(os.getpid(), signal.SIGKILL)
    elif word == "spawn":
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        with open(argument, "w") as file:
            file.write(str(pid))
        time.sleep(60)
    elif word == "nan":
        return float("nan")
    elif word == "none":
        return None
    elif word == "text":
        return "a word"
    elif word == "pid":
        return Verdict(value, str(os.getpid()))
    elif word == "main":
        return Verdict(value, str(sys.modules["__main__"].__dict__.get("__file__")), str("torch" in sys.modules))
    return Verdict(value, completion)


class Picky:
    """A verifier whose making fails in a worker only."""

    def __init__(self, maker: int):
        if os.getpid() != maker:
            raise RuntimeError("not here")

    def verify(self, completion, row):
        return 1.0


def lazy(completion, row):
    """Imports a module of the tests when it first runs, which takes a while."""
    from tests.rewards.pool import slow_import

    return Verdict(1.0, str(slow_import.PID), str(os.getpid()))
