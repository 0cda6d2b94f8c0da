"""How long a completion may take, and when it is set aside for others that wait behind it.

A completion is held to be slow by the processor time that it took: on a busy machine all take long on the clock, and
to set them all aside would cost a fork each. Only one that sleeps is told by the clock.
"""

from __future__ import annotations

from .work import Worker

STARTUP_S = 120.0  # for a worker to be born, and to import and build a verifier
# A completion that others wait behind is slow after so many mean times of a verdict, in these bounds.
_MEANS, _MIN_S, _MAX_S = 6.0, 0.025, 0.25
_NEWEST = 0.05  # weight of the newest verdict in the running mean
_ON_THE_CLOCK = 4.0  # a completion that sleeps is slow after so many times that
_MAX_CREDIT = 0.2  # of a timeout, taken off for what those set aside have cost the others


class Clocks:
    """What the dispatcher learns of the times of verdicts, and what follows for each completion."""

    def __init__(self) -> None:
        self._mean_s = 0.0
        self._proven: set[int] = set()  # verifiers that have given a verdict
        self._held_up_s = 0.0

    def verdict(self, spec: int, cpu_s: float) -> None:
        """Takes note of a verdict and the processor time that it took."""
        self._proven.add(spec)
        self._mean_s += _NEWEST * (cpu_s - self._mean_s)

    def set_aside(self, cost_s: float) -> None:
        """Takes note of what a completion cost the others until it was set aside."""
        self._held_up_s += cost_s

    def rest(self) -> None:
        """Takes note that nothing is under way."""
        self._held_up_s = 0.0

    def limit_s(self, worker: Worker) -> float:
        """Returns the time after which a worker is killed."""
        if worker.building:
            return STARTUP_S
        timeout_s = worker.given[0].timeout_s
        return timeout_s - min(self._held_up_s, _MAX_CREDIT * timeout_s) if worker.aside else timeout_s

    def next_look_s(self, worker: Worker) -> float:
        """Returns in how many seconds a completion may turn out to be slow."""
        slow_s, elapsed_s = self._slow_s(worker), worker.elapsed_s()
        return slow_s - elapsed_s if elapsed_s < slow_s else slow_s / 4

    def is_slow(self, worker: Worker) -> bool:
        """Returns whether the completion that a worker is at takes long."""
        slow_s, elapsed_s = self._slow_s(worker), worker.elapsed_s()
        if elapsed_s <= slow_s:
            return False
        asleep = elapsed_s > _ON_THE_CLOCK * slow_s and worker.is_asleep()
        return asleep or worker.used_cpu_s() > 0.9 * slow_s

    def _slow_s(self, worker: Worker) -> float:
        if worker.fresh:  # the first verdict of a process takes longer, the very first of a verifier as its imports do
            return _MAX_S if worker.given[0].spec in self._proven else worker.given[0].timeout_s
        return min(max(_MEANS * self._mean_s, _MIN_S), _MAX_S)
