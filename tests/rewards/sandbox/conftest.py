"""Sandboxes of each level, started once; a level that does not pass its self-test on this machine is skipped."""

import pytest

from trl_grpo_plus.rewards.sandbox import Limits, NoLevel, Sandbox

LEVELS = ("namespaces", "landlock")
_started = {}


def start(level):
    """Returns the level's sandbox, or the reason why there is none here."""
    if level not in _started:
        try:
            _started[level] = Sandbox(level)
        except NoLevel as error:
            _started[level] = str(error)
    return _started[level]


@pytest.fixture(params=LEVELS)
def sandbox(request):
    found = start(request.param)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture
def any_sandbox():
    """The strongest sandbox here, for what does not depend on the level; one must work."""
    found = [start(level) for level in LEVELS]
    return next(each for each in found if not isinstance(each, str))


@pytest.fixture
def limits():
    return Limits(cpu_s=2.0, memory_mib=512)
