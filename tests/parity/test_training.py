"""Whole training runs on the same rollouts: our trainer with everything switched on against TRL's own.

Both trainers get the same scripted completions, so that what differs is the forward, the micro-batches and the rows
that are left out. The witness is TRL's path, which shares no code with ours.
"""

import random

import pytest
import torch
import trl
from datasets import Dataset
from peft import LoraConfig

import trl_grpo_plus
from tests.parity.test_drop_in import OPTIONS, TIMES
from trl_grpo_plus.errors import UserError

PROMPTS = ["1+1", "twelve times 7 is", "what is 3 times 4, and why is it so?", "9-4", "0", "a longer prompt " * 3]
# Length and value of a scripted completion depend on these; four letters, so that rewards repeat within groups.
LETTERS = "aexy"


def scripted(base, tool_masks=False, dead_groups=True):
    """Returns a trainer class whose completions are drawn from a seed, whatever the weights."""

    class Scripted(base):
        _calls = 0

        def _generate(self, prompts):
            rng = random.Random(self._calls)
            self._calls += 1
            tokenizer = self._tokenizer
            prompt_ids, completions, masks = [], [], []
            for i, prompt in enumerate(prompts):
                prompt_ids.append(tokenizer(prompt)["input_ids"])
                if dead_groups and (i // self.num_generations) % 2:
                    text = "x" * rng.randint(1, 9)  # no vowel in any: the group has no signal
                else:
                    text = "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 9)))
                completions.append([*tokenizer(text)["input_ids"], tokenizer.eos_token_id])
                masks.append([int(rng.random() > 0.3) for _ in completions[-1]])
                masks[-1][-1] = 1
            for key in ("mean_length", "min_length", "max_length", "clipped_ratio"):
                self._metrics["train"][f"completions/{key}"].append(float(len(completions)))
            texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
            return prompt_ids, completions, masks if tool_masks else None, texts, None, {}, None, []

    return Scripted


def vowels(completions, **kwargs):
    return [float(sum(c in "ae" for c in text)) for text in completions]


def run(base, model, tmp_path, peft_config=None, tool_masks=False, dead_groups=True, **options):
    config = trl_grpo_plus.GRPOConfig if base is trl_grpo_plus.GRPOTrainer else trl.GRPOConfig
    ours = (
        {} if base is not trl_grpo_plus.GRPOTrainer else {k: options.pop(k) for k in list(options) if k in OUR_OPTIONS}
    )
    for name in OUR_OPTIONS:
        options.pop(name, None)
    settings = {**OPTIONS, "max_steps": 3, "shuffle_dataset": True, **options, **ours}
    trainer = scripted(base, tool_masks, dead_groups)(
        model,
        vowels,
        config(str(tmp_path / base.__module__), **settings),
        Dataset.from_dict({"prompt": PROMPTS}),
        peft_config=peft_config,
    )
    torch.manual_seed(0)
    for name, parameter in trainer.model.named_parameters():
        if "lora_B" in name:  # at zero the gradient of A would be zero, and a wrong one not be seen
            torch.nn.init.normal_(parameter, std=0.1)
    trainer.train()
    return trainer


OUR_OPTIONS = ("share_prompt", "max_tokens_per_forward", "skip_zero_advantage", "trim_padding")
LORA = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=True)


def compare(ours, theirs, weights=1e-5):
    for mine, other in zip(ours.state.log_history, theirs.state.log_history, strict=True):
        for key in set(other) - TIMES:
            # TRL averages some over micro-batches, whatever their size, and ours have other rows; entropy and
            # VESPO's weights are of the rows that ran, see below
            by_micro_batch = ("clip_ratio/", "cispo_clip_ratio", "kl")
            if key in ("entropy", "vespo/phi_seq_mean") or (
                key.startswith(by_micro_batch) and ours.args.gradient_accumulation_steps > 1
            ):
                continue
            assert mine[key] == pytest.approx(other[key], rel=1e-4, abs=1e-6), key
    before = dict(theirs.model.named_parameters())
    moved = 0.0
    for name, parameter in ours.model.named_parameters():
        assert torch.allclose(parameter, before[name], rtol=0, atol=weights), name
        moved = max(moved, float(parameter.detach().abs().max()))
    assert moved > 0


ONE = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
CASES = {
    "default": {},
    "twenty_steps": {"max_steps": 20, "learning_rate": 1e-4},
    "beta": {"beta": 0.04},
    "iterations": {"num_iterations": 2, "epsilon": 0.01},
    "one_micro_batch": {**ONE, "beta": 0.04, "num_iterations": 2, "epsilon": 0.01},
    "one_micro_batch_cispo": {**ONE, "loss_type": "cispo", "epsilon_high": 1.01, "num_iterations": 2},
    "one_micro_batch_vespo": {**ONE, "loss_type": "vespo", "num_iterations": 2},
    "several_steps_a_generation": {"steps_per_generation": 4, "gradient_accumulation_steps": 2, "max_steps": 5},
    "accumulation_beyond_a_generation": {"steps_per_generation": 2, "gradient_accumulation_steps": 4},
    "accumulation_out_of_phase": {"steps_per_generation": 2, "gradient_accumulation_steps": 3, "max_steps": 4},
    "small_micro_batches": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
    **{f"loss_{name}": {"loss_type": name, "num_iterations": 2} for name in ("grpo", "bnpo", "dr_grpo", "cispo")},
    **{f"loss_{name}": {"loss_type": name, "num_iterations": 2} for name in ("sapo", "vespo")},
    "loss_luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence", "num_iterations": 2},
    "sequence_level": {"importance_sampling_level": "sequence", "num_iterations": 2},
    "two_sided_clipping": {"delta": 1.5, "num_iterations": 2},
    "top_entropy_quantile": {"top_entropy_quantile": 0.5},
    "entropy_bonus": {"entropy_coef": 0.01},
    "off_policy_mask": {"off_policy_mask_threshold": 0.5, "num_iterations": 2},
    "no_scaling": {"scale_rewards": "none"},
    "truncated_masked": {"mask_truncated_completions": True},
    "temperature": {"temperature": 0.7, "num_iterations": 2},
    "checkpointing": {"gradient_checkpointing": True},
    "checkpointing_reentrant": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "padding_multiple": {"pad_to_multiple_of": 8},
    "budget": {"max_tokens_per_forward": 40},
    "budget_checkpointing": {"max_tokens_per_forward": 40, "gradient_checkpointing": True, "beta": 0.1},
    "forced": {"share_prompt": True},
    "only_skip": {"share_prompt": False, "trim_padding": False},
    "only_skip_iterations": {"share_prompt": False, "trim_padding": False, "num_iterations": 2},
    "only_trim": {"share_prompt": False, "skip_zero_advantage": False},
}


@pytest.mark.parametrize("case", CASES, ids=list(CASES))
def test_same_weights_as_trl(case, tiny_model_without_chat, tmp_path):
    theirs = run(trl.GRPOTrainer, tiny_model_without_chat, tmp_path, **CASES[case])
    ours = run(trl_grpo_plus.GRPOTrainer, tiny_model_without_chat, tmp_path, **CASES[case])
    compare(ours, theirs)
    saved = [log["work/saved"] for log in ours.state.log_history if "work/saved" in log]
    assert saved and sum(saved) > 0, "nothing was saved: the case tests nothing"


@pytest.mark.parametrize(
    "options", [{}, {"beta": 0.04}, {"max_tokens_per_forward": 40}], ids=["plain", "beta", "budget"]
)
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_same_adapter_as_trl(options, dora, tiny_model_without_chat, tmp_path):
    config = LoraConfig(r=4, target_modules="all-linear", use_dora=dora)
    theirs = run(trl.GRPOTrainer, tiny_model_without_chat, tmp_path, config, gradient_checkpointing=True, **options)
    ours = run(
        trl_grpo_plus.GRPOTrainer, tiny_model_without_chat, tmp_path, config, gradient_checkpointing=True, **options
    )
    compare(ours, theirs)


def test_multi_turn_masks(tiny_model_without_chat, tmp_path):
    options = {**ONE, "tool_masks": True, "num_iterations": 2}
    theirs = run(trl.GRPOTrainer, tiny_model_without_chat, tmp_path, **options)
    ours = run(trl_grpo_plus.GRPOTrainer, tiny_model_without_chat, tmp_path, **options)
    compare(ours, theirs)


def test_a_batch_without_any_signal_leaves_the_weights_and_a_gradient_of_zero(tiny_model_without_chat, tmp_path):
    silent = lambda completions, **kwargs: [1.0] * len(completions)  # noqa: E731
    for options in ({}, {"share_prompt": False, "trim_padding": False}):
        trainer = scripted(trl_grpo_plus.GRPOTrainer)(
            tiny_model_without_chat,
            silent,
            trl_grpo_plus.GRPOConfig(str(tmp_path), max_steps=2, **{**OPTIONS, **options}),
            Dataset.from_dict({"prompt": PROMPTS}),
        )
        before = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
        trainer.train()
        assert trainer.state.log_history[0]["grad_norm"] == 0.0
        for name, parameter in trainer.model.named_parameters():
            assert parameter.equal(before[name]), name


def test_entropy_is_that_of_the_rows_that_ran(tiny_model_without_chat, tmp_path):
    def entropy(base, **options):
        trainer = run(base, tiny_model_without_chat, tmp_path, max_steps=1, **ONE, **options)
        return trainer.state.log_history[0]["entropy"]

    everything = entropy(trl.GRPOTrainer)
    assert entropy(trl_grpo_plus.GRPOTrainer, skip_zero_advantage=False) == pytest.approx(everything, rel=1e-5)
    packed = entropy(trl_grpo_plus.GRPOTrainer)
    plain = entropy(trl_grpo_plus.GRPOTrainer, share_prompt=False)
    assert packed == pytest.approx(plain, rel=1e-5) and packed != pytest.approx(everything, rel=1e-5)
    assert packed == pytest.approx(everything, rel=0.2)


def test_a_wrong_attention_is_caught_and_the_run_goes_on(tiny_model_without_chat, tmp_path, monkeypatch, caplog):
    from trl_grpo_plus.forward import attention

    right = attention.attend_shared

    def wrong(module, query, key, value, *args, **kwargs):  # keys one token late, as an off-by-one would have it
        return right(module, query, key.roll(1, dims=2), value, *args, **kwargs)

    monkeypatch.setattr(attention, "attend_shared", wrong)
    theirs = run(trl.GRPOTrainer, tiny_model_without_chat, tmp_path)
    with caplog.at_level("WARNING"):
        ours = run(trl_grpo_plus.GRPOTrainer, tiny_model_without_chat, tmp_path)
    compare(ours, theirs)
    said = [r.message for r in caplog.records if "shared-prompt forward is off" in r.message]
    assert len(said) == 1 and "log-probability of completion token" in said[0]
    assert ours.savings()["share_prompt"].startswith("off: it is not equal to the plain path")
    with pytest.raises(UserError, match="share_prompt=True: it is not equal"):
        run(trl_grpo_plus.GRPOTrainer, tiny_model_without_chat, tmp_path, share_prompt=True)


def test_what_is_on_and_what_cannot_be(tiny_model_without_chat, tmp_path):
    def trainer(**options):
        args = trl_grpo_plus.GRPOConfig(str(tmp_path), **{**OPTIONS, **options})
        return trl_grpo_plus.GRPOTrainer(tiny_model_without_chat, vowels, args, Dataset.from_dict({"prompt": PROMPTS}))

    assert set(trainer().savings().values()) == {"on"}
    off = trainer(beta=0.1, prefill_once="false", share_prompt=False).savings()
    assert off["skip_zero_advantage"] == "off: beta=0.1: the KL term of such rows has a gradient"
    assert off["prefill_once"] == off["share_prompt"] == "off: switched off"
    with pytest.raises(UserError, match="skip_zero_advantage=True is not exact here: beta=0.1"):
        trainer(beta=0.1, skip_zero_advantage=True)
    with pytest.raises(UserError, match="max_tokens_per_forward needs the shared-prompt forward: share_prompt=False"):
        trainer(share_prompt=False, max_tokens_per_forward=100)
    with pytest.raises(UserError, match="share_prompt must be true, false or auto, found 'perhaps'"):
        trainer(share_prompt="perhaps")
    with pytest.raises(UserError, match="decode_chunk must be auto or a positive whole number, found '0'"):
        trainer(decode_chunk="0")
