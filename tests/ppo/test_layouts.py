"""The critic's layouts: what each trains and leaves alone, that they agree where they must, and 4-bit weights."""

import pytest
import torch
from peft import LoraConfig
from transformers import BitsAndBytesConfig

from tests.ppo.runs import losses, make_trainer, moved, snapshot
from trl_grpo_plus.critic import LAYOUTS
from trl_grpo_plus.errors import UserError

LORA = {"r": 4, "target_modules": "all-linear"}
FOUR_BIT = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}


def lora(mode):
    return {"peft_config": LoraConfig(**LORA)} if mode != "full" else {}


def quantised(mode):
    return {"quantization_config": BitsAndBytesConfig(**FOUR_BIT)} if mode == "qlora" else {}


def train(tiny_model, tmp_path, critic, mode, **options):
    """Trains and checks what moved: the policy's and the critic's trained parameters, and nothing else."""
    trainer = make_trainer(
        tiny_model, tmp_path, critic=critic, max_steps=4, **lora(mode), **quantised(mode), **options
    )
    modules = [("policy", trainer.model), ("critic", trainer.critic_module)]
    modules += [("reference", trainer.ref_model)] if trainer.ref_model is not None else []
    before = {where: snapshot(module.named_parameters()) for where, module in modules}
    trained = {id(p) for p in trainer.model.parameters() if p.requires_grad}
    trained |= {id(p) for p in trainer.critic_module.trained.values()}
    trainer.train()
    for where, module in modules:
        changed = moved(before[where], module.named_parameters())
        expected = {name for name, p in module.named_parameters() if id(p) in trained}
        # In four steps from a head of zeros, not every entry of every tensor need have moved, but most tensors have
        assert changed <= expected, (where, changed - expected)
        assert len(changed) >= 0.7 * len(expected), (where, expected - changed)
    return trainer


@pytest.mark.parametrize("mode", ["full", "lora"])
@pytest.mark.parametrize("critic", LAYOUTS)
@pytest.mark.parametrize("kl_coef", [0.0, 0.05])
def test_every_layout_trains_its_own_parameters_only(tiny_model, tmp_path, critic, mode, kl_coef):
    trainer = train(tiny_model, tmp_path, critic, mode, kl_coef=kl_coef)
    assert (trainer.ref_model is None) == (kl_coef == 0 or mode == "lora")
    assert all(torch.isfinite(torch.tensor(losses(trainer))))


@pytest.mark.parametrize("critic", LAYOUTS)
def test_every_layout_trains_on_4_bit_weights(tiny_model, tmp_path, critic):
    trainer = train(tiny_model, tmp_path, critic, "qlora")
    for name, parameter in trainer.critic_module.trained.items():
        assert parameter.dtype == (torch.float32 if name.startswith("head") else torch.bfloat16), name


@pytest.mark.parametrize("critic", ["separate", "adapter"])
def test_4_bit_weights_keep_their_gradients_after_an_evaluation(tiny_model, tmp_path, critic):
    """bitsandbytes repacks 4-bit weights at a forward pass in eval(), after which gradients are lost silently."""

    def gradients(evaluate):
        trainer = make_trainer(
            tiny_model, tmp_path, critic=critic, per_device_eval_batch_size=4, **lora("qlora"), **quantised("qlora")
        )
        torch.nn.init.ones_(trainer.critic_module.head.linear.weight)
        if evaluate:
            trainer.evaluate(trainer.train_dataset.select(range(4)))
        trainer.model.train()
        torch.manual_seed(1)
        ids = torch.randint(8, 90, (2, 6))
        logps = trainer._logps_and_entropies(trainer.model, batch_of(ids))[0]
        values = trainer._values(batch_of(ids), trainer.critic)
        (logps.sum() + values.sum()).backward()
        policy = {n: p.grad for n, p in trainer.model.named_parameters() if p.grad is not None}
        return {**policy, **{n: p.grad for n, p in trainer.critic_module.trained.items()}}

    fresh, evaluated = gradients(False), gradients(True)
    assert fresh.keys() == evaluated.keys() and len(fresh) > 20
    for name, gradient in fresh.items():
        assert torch.equal(gradient, evaluated[name]), name
    assert any(g.abs().max() > 0 for n, g in fresh.items() if "layers.0" in n and "lora_B" in n)


def batch_of(ids):
    half = ids.size(1) // 2
    ones = torch.ones_like(ids)
    return {
        "prompt_ids": ids[:, :half],
        "prompt_mask": ones[:, :half],
        "completion_ids": ids[:, half:],
        "completion_mask": ones[:, half:],
    }


def test_repacked_4_bit_weights_are_refused(tiny_model):
    from types import SimpleNamespace

    from trl_grpo_plus.quantized import keep_trainable

    layer = torch.nn.Linear(2, 2)
    layer.support_avx512bf16_for_cpu = True
    assert keep_trainable(torch.nn.Sequential(layer)) == 1 and not layer.support_avx512bf16_for_cpu
    layer.weight.quant_state = SimpleNamespace(packing_format_for_cpu=True)
    with pytest.raises(UserError, match="repacked for inference"):
        keep_trainable(torch.nn.Sequential(layer))


@pytest.mark.parametrize("kl_coef", [0.0, 0.05])
def test_an_adapter_on_the_policys_base_is_a_separate_critic_with_lora(tiny_model, tmp_path, kl_coef):
    """Under LoRA both are the same frozen weights with an adapter of the same start."""
    runs = []
    for critic in ("separate", "adapter"):
        trainer = make_trainer(tiny_model, tmp_path, critic=critic, max_steps=6, kl_coef=kl_coef, **lora("lora"))
        trainer.train()
        runs.append(losses(trainer))
    assert runs[0] == pytest.approx(runs[1], abs=1e-6)


@pytest.mark.parametrize("mode", ["full", "lora"])
@pytest.mark.parametrize("critic", LAYOUTS)
def test_gradient_checkpointing_changes_no_loss(tiny_model, tmp_path, critic, mode):
    """With the adapter layout this is what recomputes each layer with the adapter that it ran with."""
    runs = []
    for checkpointing in (False, True):
        trainer = make_trainer(
            tiny_model, tmp_path, critic=critic, max_steps=4, gradient_checkpointing=checkpointing, **lora(mode)
        )
        backbone = trainer.critic_module.__dict__.get("_frozen", (trainer.model,))[0]
        trainer.train()
        runs.append(losses(trainer))
        assert any(getattr(m, "gradient_checkpointing", False) for m in backbone.modules()) == checkpointing
    assert runs[0] == pytest.approx(runs[1], abs=1e-6)


def test_a_frozen_copy_of_the_critic_changes_no_number_but_the_memory(tiny_model, tmp_path):
    runs = []
    for frozen_copy in (False, True):
        trainer = make_trainer(tiny_model, tmp_path, max_steps=8, frozen_critic_copy=frozen_copy)
        trainer.train()
        runs.append(losses(trainer))
    assert runs[0] == pytest.approx(runs[1], abs=1e-6)
    copies = list(zip(trainer.frozen_critic.parameters(), trainer.critic_module.parameters(), strict=True))
    assert all(a.data_ptr() != b.data_ptr() and not a.requires_grad for a, b in copies)


def test_the_policys_rollouts_do_not_depend_on_the_layout(tiny_model, tmp_path):
    from trl_grpo_plus import GRPOConfig, GRPOTrainer

    def first_rollout(trainer):
        trainer.train()
        return list(trainer._logs["completion"])

    texts = [
        first_rollout(make_trainer(tiny_model, tmp_path, critic=critic, max_steps=1, num_generations=2))
        for critic in LAYOUTS
    ]
    grpo = make_trainer(
        tiny_model, tmp_path, config=GRPOConfig, trainer=GRPOTrainer, max_steps=1, num_generations=2,
        num_ppo_epochs=None,
    )  # fmt: skip
    assert texts[0] == texts[1] == texts[2] == first_rollout(grpo)


@pytest.mark.parametrize("critic", LAYOUTS)
def test_an_adapter_that_was_trained_before_is_its_own_reference(tiny_model, tmp_path, critic):
    """TRL then keeps a copy of it as a third adapter, and switches to it and back for the reference's forward pass."""
    from peft import get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    policy = get_peft_model(
        AutoModelForCausalLM.from_pretrained(tiny_model), LoraConfig(**LORA, task_type="CAUSAL_LM")
    )
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.02)
    trainer = make_trainer(policy, tmp_path, critic=critic, max_steps=6)
    assert set(policy.peft_config) == {"default", "ref"}
    before = snapshot(policy.named_parameters()), snapshot(trainer.critic_module.trained.items())
    trainer.train()
    changed = moved(before[0], policy.named_parameters())
    assert {name.rsplit(".", 2)[1] for name in changed} - {"critic"} == {"default"}
    assert len(moved(before[1], trainer.critic_module.trained.items())) > 0.7 * len(before[1]) or critic == "shared"
    kls = [log["kl"] for log in trainer.state.log_history if "kl" in log]
    assert kls[0] == 0 and kls[1] != 0


@pytest.mark.parametrize("critic", LAYOUTS)
def test_every_layout_trains_in_bfloat16(tiny_model, tmp_path, critic):
    runs = []
    for bf16 in (False, True):
        trainer = make_trainer(tiny_model, tmp_path, critic=critic, max_steps=3, bf16=bf16, **lora("lora"))
        trainer.train()
        runs.append(losses(trainer))
    assert runs[1] == pytest.approx(runs[0], abs=0.02) and runs[1] != runs[0]


def test_other_adapters_are_refused(tiny_model, tmp_path):
    from peft import IA3Config

    with pytest.raises(UserError, match="LoRA adapters only, found .*IA3"):
        make_trainer(tiny_model, tmp_path, peft_config=IA3Config(task_type="CAUSAL_LM"))


@pytest.mark.parametrize("mode", ["full", "lora"])
def test_the_policy_is_saved_without_the_critics_adapter(tiny_model, tmp_path, mode):
    from safetensors.torch import load_file

    names = []
    for critic in ("shared", "adapter"):
        trainer = make_trainer(tiny_model, tmp_path, critic=critic, **lora(mode))
        trainer.save_model(str(tmp_path / critic))
        trainer.model.save_pretrained(tmp_path / f"{critic}-by-hand")
        file = "adapter_model.safetensors" if mode == "lora" else "model.safetensors"
        names += [list(load_file(tmp_path / where / file)) for where in (critic, f"{critic}-by-hand")]
    assert names[0] and names[0] == names[1] == names[2] == names[3]
    assert sorted(p.name for p in (tmp_path / "adapter/critic").iterdir()) == ["critic.json", "critic.safetensors"]


def test_a_shared_critic_reads_the_policys_forward_pass_or_runs_its_own(tiny_model, tmp_path):
    trainer = make_trainer(tiny_model, tmp_path, critic="shared")
    torch.nn.init.ones_(trainer.critic_module.head.linear.weight)
    calls = []
    trainer.model.base_model.register_forward_hook(lambda *args: calls.append(1))
    batch = batch_of(torch.randint(8, 90, (2, 6), generator=torch.Generator().manual_seed(0)))
    alone = trainer._values(batch, trainer.critic)
    assert len(calls) == 1
    with trainer.critic_module.listening():
        trainer._logps_and_entropies(trainer.model, batch)
    heard = trainer._values(batch, trainer.critic)
    assert len(calls) == 2 and torch.allclose(heard, alone, atol=1e-6)
    with trainer.critic_module.listening():
        trainer._logps_and_entropies(trainer.model, {name: x[:1] for name, x in batch.items()})
    again = trainer._values(batch, trainer.critic)
    assert len(calls) == 4 and torch.allclose(again, alone, atol=1e-6)
    for values in (alone, heard, again):
        (gradient,) = torch.autograd.grad(values.sum(), trainer.model.base_model.norm.weight)
        assert gradient.abs().sum() > 0, "the value loss trains the policy's backbone"
