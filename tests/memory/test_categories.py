"""The words that plan and profile share."""

import json

from trl_grpo_plus.memory.categories import CATEGORIES, PHASES, Category, Phase


def test_every_phase_and_category_says_what_it_is():
    assert list(PHASES) == list(Phase) and list(CATEGORIES) == list(Category)
    assert all(PHASES.values()) and all(CATEGORIES.values())


def test_they_are_plain_words_in_json_and_metric_names():
    assert json.loads(json.dumps({Phase.PREFILL: {Category.KV_CACHE: 1}})) == {"rollout.prefill": {"kv_cache": 1}}
    assert f"memory/{Phase.BACKWARD}/peak_mib" == "memory/backward/peak_mib"
