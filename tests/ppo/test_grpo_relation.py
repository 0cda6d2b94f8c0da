"""GRPO is PPO with lambda = gamma = 1, no KL, and the group's mean reward in the critic's place."""

import pytest
import torch

from tests.ppo.runs import make_trainer
from trl_grpo_plus import GRPOConfig, GRPOTrainer

G = 4
SHARED = {
    "num_generations": G,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 2,
    "max_steps": 1,
    "max_grad_norm": 0.0,
    "lr_scheduler_type": "constant",
}


def fixed_rollout(prompts, trainer):
    """The same completions for both algorithms: of different lengths, some ended by EOS, drawn by prompt and place."""
    tokenizer = trainer.processing_class
    prompt_ids = [tokenizer.apply_chat_template(p, add_generation_prompt=True)["input_ids"] for p in prompts]
    completion_ids = []
    for place, ids in enumerate(prompt_ids):
        generator = torch.Generator().manual_seed(1000 * len(ids) + place)
        length = int(torch.randint(1, 9, (), generator=generator))
        tokens = torch.randint(72, 98, (length,), generator=generator).tolist()
        completion_ids.append([*tokens, tokenizer.eos_token_id] if place % 2 else tokens)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": [[0.0] * len(ids) for ids in completion_ids],
    }


def policy_gradients(trainer, monkeypatch):
    """Gradients of one optimizer step, taken before the optimizer moves the weights."""
    found = {}
    original = trainer.create_optimizer

    def create_optimizer(*args, **kwargs):
        optimizer = original(*args, **kwargs)
        step = optimizer.step

        def keep(*args, **kwargs):
            found.update({n: p.grad.clone() for n, p in trainer.model.named_parameters() if p.grad is not None})
            return step(*args, **kwargs)

        optimizer.step = keep
        return optimizer

    monkeypatch.setattr(trainer, "create_optimizer", create_optimizer)
    trainer.train()
    return found


@pytest.mark.parametrize("layout", ["separate", "shared"])
def test_the_policy_gradient_is_grpos_where_the_critic_says_the_groups_mean(tiny_model, tmp_path, monkeypatch, layout):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    grpo = make_trainer(
        tiny_model, tmp_path, trainer=GRPOTrainer, config=GRPOConfig, rollout_func=fixed_rollout,
        num_ppo_epochs=None, scale_rewards="none", beta=0.0, loss_type="dapo", **SHARED,
    )  # fmt: skip
    expected = policy_gradients(grpo, monkeypatch)

    ppo = make_trainer(
        tiny_model, tmp_path, rollout_func=fixed_rollout, critic=layout, kl_coef=0.0, gamma=1.0, lam=1.0,
        whiten_advantages=False, num_ppo_epochs=1, vf_coef=0.0, **SHARED,
    )  # fmt: skip

    def group_mean(batch, critic, batch_size=None):
        if batch_size is None:  # the loss: with vf_coef=0 these values have no say
            return original(batch, critic)
        B, T = batch["completion_ids"].shape
        rewards_B = ppo._rewards_NF.sum(dim=1)
        assert rewards_B.view(-1, G).std(dim=1).min() > 0, "a group of equal rewards would show nothing"
        means_B = rewards_B.view(-1, G).mean(dim=1).repeat_interleave(G)
        return means_B.unsqueeze(1).expand(B, T + 1).clone()

    original = ppo._values
    monkeypatch.setattr(ppo, "_values", group_mean)
    found = policy_gradients(ppo, monkeypatch)

    assert list(ppo._logs["completion"]) == list(grpo._logs["completion"])
    assert found.keys() == expected.keys() and len(found) > 10
    largest = max(g.abs().max() for g in expected.values())
    assert largest > 1e-3
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() < 1e-6 * max(1.0, largest), name
    assert torch.tensor(ppo._logs["advantages"]).allclose(torch.tensor(grpo._logs["advantages"]), atol=1e-6)
