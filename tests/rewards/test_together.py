"""The rewards of a trainer verify a batch at the same time, each verdict once."""

import threading
import time

from trl_grpo_plus.rewards import RewardSettings, Runtime, Verdict, build_rewards

TIMES = []


class Slow:
    """Waits a while; says from when to when."""

    def verify(self, completion, row):
        began = time.monotonic()
        time.sleep(0.2)
        TIMES.append((began, time.monotonic()))
        return Verdict(float(len(completion)), threading.current_thread().name)


class OnDevice:
    """Wants whole batches, in the trainer's thread."""

    device = None

    def to(self, device):
        self.device = device

    def verify_batch(self, completions, rows):
        assert len(completions) == len(rows)
        return [Verdict(2.0 * len(c), threading.current_thread().name, str(self.device)) for c in completions]


def spec_in_threads(name):
    from trl_grpo_plus.rewards import RewardFunction
    from trl_grpo_plus.rewards.registry import Entry

    return RewardFunction.of_entry(Entry(name, Slow, "", runs="thread", cache=False), {})


def test_all_are_at_it_at_once_and_each_once():
    TIMES.clear()
    rewards = build_rewards([spec_in_threads("a"), OnDevice, spec_in_threads("b"), spec_in_threads("c")])
    for reward in rewards:
        reward.function.to("cpu")
    completions = ["x", "yy"]
    began = time.monotonic()
    values = [reward.function(["p", "p"], completions) for reward in rewards]
    took = time.monotonic() - began
    assert values == [[1.0, 2.0], [2.0, 4.0], [1.0, 2.0], [1.0, 2.0]]
    assert len(TIMES) == 6 and took < 0.5
    assert rewards[1].function.verdict("x", {}) == Verdict(2.0, threading.main_thread().name, "cpu")
    again = [reward.function(["p", "p"], completions) for reward in rewards]  # the same list: verified anew
    assert again == values and len(TIMES) == 12


def test_a_batch_that_was_not_asked_for_by_all_is_forgotten():
    first, second = (r.function for r in build_rewards([spec_in_threads("a"), spec_in_threads("b")]))
    assert first(["p"], ["x"]) == [1.0]  # a batch that the second is never asked for
    assert second(["p"], ["yyy"]) == [3.0] and first(["p"], ["yyy"]) == [3.0]


def test_a_batch_verifier_that_fails_fails_on_all():
    class Broken:
        def verify_batch(self, completions, rows):
            return [1.0]

    (reward,) = build_rewards([Broken], Runtime(RewardSettings(max_failures=1.0)))
    verdicts = reward.function.verdicts(["a", "b"], [{}, {}])
    assert [v.failure for v in verdicts] == ["error"] * 2 and "1 verdicts for 2" in verdicts[0].reason


def test_threads_that_hang_are_given_up():
    from trl_grpo_plus.rewards.threads import verify_in_threads

    def verify(completion, row):
        if completion == "hang":
            time.sleep(30)
        return Verdict(1.0, completion)

    items = [("hang" if i % 3 == 0 else str(i), {}) for i in range(12)]
    began = time.monotonic()
    verdicts = verify_in_threads(verify, items, at_once=2, given_up_s=0.3)
    assert time.monotonic() - began < 5.0
    assert [v.failure for v in verdicts] == ["timeout" if i % 3 == 0 else None for i in range(12)]
    assert [v.answer for v in verdicts if v.value] == [str(i) for i in range(12) if i % 3]
