"""Problems on both sides of a split: found by content, against a slow comparison of all pairs."""

import random
import time

from hypothesis import given, settings
from hypothesis import strategies as st

from trl_grpo_plus.prompts.overlap import find_overlap, text_of, words_of

JANET = "Janet’s ducks lay 16 eggs per day. She eats three for breakfast every morning and bakes muffins for friends."


def test_the_same_problem_in_other_clothes():
    held_out = [JANET, "What is 3+4?", "A robe takes 2 bolts of blue fiber and half that much white fiber."]
    train = [
        [{"role": "system", "content": "Think."}, {"role": "user", "content": "what is 3 + 4"}],
        "  janet's DUCKS lay 16 eggs per day; she eats three for breakfast every morning, and bakes muffins for her.",
        "What is 3-4?",
    ]
    found = find_overlap(train, held_out)
    assert found.exact == ((1, 0),) and [(i, j) for i, j, _ in found.near] == [(0, 1)]
    assert find_overlap([JANET.upper().replace("’", "'")], [JANET]).exact == ((0, 0),)
    assert found.problems == 2 and found.describe().startswith("2 of 3 held-out problems stand in the training data")
    assert find_overlap(train[2:], held_out).describe() == "none of 3 held-out problems stands in the training data"


def test_signs_and_numbers_are_content():
    assert words_of("3 + 4 = ?") != words_of("3 - 4 = ?") and words_of("12 apples") != words_of("13 apples")
    assert words_of("３＋４，Please!") == words_of("3+4 please!") and words_of("5 − 2") == words_of("5 - 2")
    assert text_of([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]) == "b"


def test_nearly_the_same_and_longer_or_changed():
    other = JANET.replace("16", "17")  # one number changed: most runs of eight words go with it, near or not
    longer = f"{JANET} How much does she make?"
    found = find_overlap([longer], [JANET])
    assert found.near == ((0, 0, 1.0),), "all of it stands in a longer one"
    assert not find_overlap([JANET[:40]], [JANET]).problems, "a part of it is not it"
    assert not find_overlap([other.replace("eggs", "stones")], [JANET]).problems


def test_the_wording_of_the_task_does_not_count():
    wording = (
        "You are given a problem of arithmetic below. Think about it step by step, write down every step you take, "
        "check each of them once more, and put nothing but your final answer within the box at the end of the text. "
        "Do not round, do not guess, and do not write anything after the box please. Problem: {} plus {}"
    )
    held_out = [wording.format(a, a + 1) for a in range(50)]
    found = find_overlap([wording.format(a, a + 2) for a in range(100, 150)], held_out)
    assert found.problems == 0
    assert find_overlap([held_out[7]], held_out).exact == ((7, 0),)


words = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), min_size=0, max_size=14).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(st.lists(words, max_size=5), st.lists(words, max_size=5))
def test_against_all_pairs(train, held_out):
    def runs(text):
        split = text.split()
        return {tuple(split[k : k + 8]) for k in range(len(split) - 7)}

    found = find_overlap(train, held_out)
    exact = {i for i, h in enumerate(held_out) if any(h.split() == t.split() for t in train)}
    near = set()
    for i, h in enumerate(held_out):  # so few problems that no run is common wording
        telling = {r for r in runs(h) if sum(r in runs(other) for other in held_out) <= 3}
        if telling and any(len(telling & runs(t)) >= 0.8 * len(telling) for t in train):
            near.add(i)
    assert {i for i, _ in found.exact} == exact and {i for i, _, _ in found.near} == near - exact


def test_real_sizes_take_seconds():
    generator = random.Random(0)
    vocabulary = [f"w{i}" for i in range(5000)]
    texts = [" ".join(generator.choices(vocabulary, k=60)) for _ in range(8000)]
    started = time.process_time()
    found = find_overlap(texts, [*texts[:5], *(" ".join(generator.choices(vocabulary, k=60)) for _ in range(1300))])
    assert found.exact == tuple((i, i) for i in range(5)) and not found.near
    assert time.process_time() - started < 20
