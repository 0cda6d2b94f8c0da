"""`memory_mode="auto"`: the choice against a plain search over everything."""

import pytest

from trl_grpo_plus.errors import UserError
from trl_grpo_plus.memory.choose import choose
from trl_grpo_plus.memory.devices import GIB, NO_OVERHEAD, Overhead
from trl_grpo_plus.memory.plan import peak_bytes, plan
from trl_grpo_plus.memory.setting import MODES, make_setting


def settings():
    return make_setting("qwen2.5-1.5b", prompt=512, completion=1024, group=8, batch=8, accumulation=4)


@pytest.mark.parametrize("gib", [4, 6, 9, 12, 16, 24, 40, 80])
def test_it_is_the_first_mode_that_fits_and_its_largest_micro_batch(gib):
    setting, overhead = settings(), Overhead()

    def needed(mode, batch):
        peak = peak_bytes(setting.but(mode=mode, batch=batch, accumulation=32 // batch))
        return peak + overhead.of(peak)

    fitting = [m for m in MODES if needed(m, 8) <= gib * GIB]
    chosen = choose(setting, gib * GIB)
    if fitting:
        sizes = [b for b in (8, 16, 32) if needed(fitting[0], b) <= gib * GIB]
        assert (chosen.mode, chosen.batch) == (fitting[0], sizes[-1])
    else:
        sizes = [b for b in (1, 2, 4) if needed("qlora", b) <= gib * GIB]
        assert (chosen.mode, chosen.batch) == ("qlora", sizes[-1])
    assert chosen.batch * chosen.accumulation == 32 and chosen.plan.fits
    assert len(chosen.reasons) == 1 + (MODES.index(chosen.mode) if fitting else 3)
    assert all("GiB" in reason for reason in chosen.reasons)


def test_nothing_fits():
    with pytest.raises(UserError, match="not even qlora with a micro-batch of 1 fits: it needs .* GiB"):
        choose(settings(), GIB)


def test_a_byte_less_is_not_enough():
    setting = settings()
    exactly = peak_bytes(setting.but(mode="full", batch=8, accumulation=4))
    assert choose(setting, exactly, overhead=NO_OVERHEAD).mode == "full"
    assert choose(setting, exactly - 1, overhead=NO_OVERHEAD).mode == "lora"
    assert plan(setting, gpu=exactly, overhead=NO_OVERHEAD, mode="full").fits
