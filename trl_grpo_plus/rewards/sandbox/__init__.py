"""Running programs that a model has written, and judging them, without docker, a cloud key, or root.

A server process is exec'd from the trainer, with nothing of the trainer's environment; every program gets a fresh fork
of it that is confined before it runs a line. A program is only ever asked for its answers: expected values, tests and
comparisons stay in the trainer or in a tester process that the program cannot reach.

    Sandbox   servers of one level of isolation        pool, client, slots; levels, runtime, limits
    plan      tests -> what each process is told       plan
    judge     program + tests -> Score                 judge, compare
    inside/   what runs in the server's processes      server, confine, program, tester, codec
"""

from .client import SandboxError
from .compare import FromJson
from .judge import Score, judge_script, judge_tests
from .limits import Limits
from .plan import Calls, Unusable, plan
from .pool import NoLevel, Sandbox, shared

__all__ = [
    "Calls",
    "FromJson",
    "Limits",
    "NoLevel",
    "Sandbox",
    "SandboxError",
    "Score",
    "Unusable",
    "judge_script",
    "judge_tests",
    "plan",
    "shared",
]
