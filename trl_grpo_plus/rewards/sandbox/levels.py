"""Levels of isolation, strongest first: what each needs, what it stops, and what it does not."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import UserError, did_you_mean


@dataclass(frozen=True)
class Level:
    """A level of isolation.

    Args:
        name: Name in recipes, logs and tables.
        rank: The metric's value; a higher one is stronger.
        needs: What the machine must offer.
        stops: What a program cannot do.
        leaves: What it can still do, or see.
    """

    name: str
    rank: int
    needs: str
    stops: str
    leaves: str


LEVELS = {
    level.name: level
    for level in (
        Level(
            "namespaces",
            4,
            "user namespaces and seccomp; Landlock on top where there is one",
            "network, files beyond the Python runtime, seeing or signalling processes, making processes, "
            "raising limits",
            "kernel bugs, timing, use of CPU and memory within the limits",
        ),
        Level(
            "landlock",
            3,
            "Landlock (Linux 5.13 or newer) and seccomp",
            "network, reading or writing files beyond the Python runtime, signalling processes, making processes, "
            "raising limits",
            "as above, and: names, sizes and times of files, those of /proc too (which processes there are), the "
            "host's name. Honest programs have no scratch directory",
        ),
        Level(
            "seccomp",
            2,
            "seccomp",
            "network, writing any file, signalling processes, making processes, raising limits",
            "as above, and: every file that the trainer's user can read",
        ),
        Level(
            "rlimits",
            1,
            "nothing",
            "using more CPU, memory or output than the limits: no sandbox",
            "everything that the trainer's user can do",
        ),
    )
}
EXTERNAL = "external"
AUTO = "auto"


def candidates(level: str, min_level: str | None) -> list[str]:
    """Returns the levels to try, strongest first.

    Args:
        level: A level, or `auto` for the strongest that passes its self-test.
        min_level: The weakest that `auto` may take; `None` is `landlock`.

    Raises:
        UserError: A name is unknown, or `level` is weaker than `min_level`.
    """
    for option, value in (("level", level), ("min_level", min_level)):
        known = [*LEVELS, *([AUTO, EXTERNAL] if option == "level" else [])]
        if value is not None and value not in known:
            raise UserError(f"sandbox {option}: unknown level `{value}`{did_you_mean(str(value), known)}; {known}")
    if level == AUTO:
        least = LEVELS[min_level or "landlock"].rank
        return [name for name, each in LEVELS.items() if each.rank >= least]
    if level != EXTERNAL and min_level is not None and LEVELS[level].rank < LEVELS[min_level].rank:
        raise UserError(f"sandbox level `{level}` is weaker than min_level `{min_level}`; lower min_level to allow it")
    return [level]


# Which attempts of the self-test a level may let through, since it does not claim to stop them.
_LET_THROUGH = {
    "namespaces": frozenset[str](),
    "landlock": frozenset[str](),
    "seccomp": frozenset({"read a file of the user", "see processes"}),
}
_NEEDED_EXCEPT = {"seccomp": frozenset({"write to the null device"})}


def judge_self_test(level: str, tried: dict[str, str], needed: dict[str, str]) -> list[str]:
    """Returns what speaks against a level, from the report of its self-test; nothing where it holds.

    Args:
        level: The level.
        tried: What each forbidden attempt met; an empty text where it worked.
        needed: What each thing that programs need met; an empty text where it worked.
    """
    against = [f"a program can {name}" for name, met in tried.items() if not met and name not in _LET_THROUGH[level]]
    excepted = _NEEDED_EXCEPT.get(level, frozenset())
    against += [f"a program cannot {name} ({met})" for name, met in needed.items() if met and name not in excepted]
    return against
