"""From a rollout to what the loss reads: where rewards land, which tokens count, how an episode ends."""

import math

import pytest
import torch

from tests.ppo.runs import letters, make_trainer

EOS = 1


def batch_of(trainer, completions, **entries):
    """A rollout as TRL hands it over: prompts of one token, completions right-padded with the pad token 0."""
    T = max(len(c) for c in completions)
    ids = torch.tensor([c + [0] * (T - len(c)) for c in completions])
    mask = torch.tensor([[1] * len(c) + [0] * (T - len(c)) for c in completions])
    prompts = torch.full((len(completions), 1), 50)
    batch = {"prompt_ids": prompts, "prompt_mask": torch.ones_like(prompts), "completion_ids": ids}
    batch.update(completion_mask=mask, num_items_in_batch=mask.sum(), advantages=torch.zeros(len(completions)))
    return {**batch, **{name: torch.tensor(value) for name, value in entries.items()}}


@pytest.fixture
def trainer(tiny_model, tmp_path):
    """gamma = lambda = 1 and a critic that says 10, 11, 12, ... for the states of a completion."""
    trainer = make_trainer(tiny_model, tmp_path, letters, gamma=1.0, lam=1.0, whiten_advantages=False, kl_coef=0.0)
    trainer.model.train()

    def values(batch, critic, batch_size=None):
        B, T = batch["completion_ids"].shape
        return 10.0 + torch.arange(T + 1.0).expand(B, -1)

    trainer._values = values
    return trainer


def rollout(trainer, batch, scores):
    trainer._rewards_NF = torch.tensor(scores).unsqueeze(1)
    with torch.no_grad():
        return trainer._values_and_advantages(batch)


def test_the_score_is_on_the_last_token_and_eos_is_an_action(trainer):
    out = rollout(trainer, batch_of(trainer, [[60, 61, EOS], [60, EOS]]), [1.0, 2.0])
    assert out["action_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert out["returns"].tolist() == [[1.0, 1.0, 1.0], [2.0, 2.0, 0.0]]
    assert out["advantages"].tolist() == [[-9.0, -10.0, -11.0], [-8.0, -9.0, 0.0]]
    assert out["num_items_in_batch"].item() == 5


def test_a_truncated_completion_ends_or_goes_on_as_asked(trainer):
    batch = batch_of(trainer, [[60, 61, 62], [60, EOS]])
    assert rollout(trainer, batch, [1.0, 1.0])["returns"][:, 0].tolist() == [1.0, 1.0]
    trainer.args.bootstrap_truncated = True
    # V after the third token is 13; after EOS there is nothing
    assert rollout(trainer, batch, [1.0, 1.0])["returns"][:, 0].tolist() == [14.0, 1.0]


def test_tokens_of_a_tool_are_no_actions(trainer):
    batch = batch_of(trainer, [[60, 61, 62, EOS], [60, 61, 62, 63]], tool_mask=[[1, 0, 0, 1], [1, 1, 0, 0]])
    trainer.args.lam = 0.0  # one-step errors: r + V(next action) - V(this one)
    out = rollout(trainer, batch, [1.0, 1.0])
    assert out["action_mask"].tolist() == [[1, 0, 0, 1], [1, 1, 0, 0]]
    assert out["advantages"].tolist() == [[3.0, 0.0, 0.0, 1.0 - 13.0], [1.0, 1.0 - 11.0, 0.0, 0.0]]


def test_an_unscored_completion_teaches_nothing(trainer):
    out = rollout(trainer, batch_of(trainer, [[60, EOS], [60, EOS]]), [math.nan, 1.0])
    assert out["action_mask"].tolist() == [[0, 0], [1, 1]]
    assert out["advantages"][0].tolist() == [0.0, 0.0] and out["num_items_in_batch"].item() == 2
    assert all(torch.isfinite(x).all() for x in out.values())


def test_a_masked_truncated_completion_teaches_nothing(trainer):
    batch = batch_of(trainer, [[60, 61, 62], [60, 61, EOS]])
    batch["completion_mask"][0] = 0  # what TRL does with mask_truncated_completions
    out = rollout(trainer, batch, [1.0, 1.0])
    assert out["action_mask"].tolist() == [[0, 0, 0], [1, 1, 1]] and out["advantages"][0].abs().sum() == 0


def test_the_kl_penalty_is_per_token_and_the_score_comes_on_top(trainer):
    trainer.args.kl_coef = 0.5
    batch = batch_of(
        trainer, [[60, 61, EOS]], old_per_token_logps=[[-1.0, -2.0, -3.0]], ref_per_token_logps=[[-2.0, -2.0, -1.0]]
    )
    out = rollout(trainer, batch, [1.0])
    # rewards: -0.5 * 1, 0, 1 - 0.5 * -2
    assert out["returns"].tolist() == [[1.5, 2.0, 2.0]]
    assert trainer._metrics["train"]["kl"] == [pytest.approx(-1 / 3)]


def test_whitening_is_over_all_tokens(trainer):
    trainer.args.whiten_advantages = True
    out = rollout(trainer, batch_of(trainer, [[60, 61, EOS], [60, EOS]]), [1.0, 5.0])
    tokens = out["advantages"][out["action_mask"].bool()]
    assert tokens.mean().abs() < 1e-6 and abs(tokens.std(unbiased=False) - 1) < 1e-6
    assert out["returns"].tolist() == [[1.0, 1.0, 1.0], [5.0, 5.0, 0.0]], "the critic learns returns as they are"


def test_the_rollouts_metrics(trainer):
    rollout(trainer, batch_of(trainer, [[60, 61, EOS], [60, EOS]]), [1.0, 2.0])
    found = {name: values[-1] for name, values in trainer._metrics["train"].items()}
    returns, values = torch.tensor([1.0, 1, 1, 2, 2]), torch.tensor([10.0, 11, 12, 10, 11])
    assert found["returns/mean"] == pytest.approx(1.4) and found["value/mean"] == pytest.approx(10.8)
    assert found["returns/std"] == pytest.approx(returns.std(unbiased=False).item())
    assert found["advantages/mean"] == pytest.approx((returns - values).mean().item())
    assert found["advantages/std"] == pytest.approx((returns - values).std(unbiased=False).item())
    explained = 1 - (returns - values).var(unbiased=False) / returns.var(unbiased=False)
    assert found["value/explained_variance"] == pytest.approx(explained.item(), rel=1e-5)
    assert list(trainer._logs["advantages"]) == pytest.approx([-10.0, -8.5])


def test_values_of_the_critic_come_from_the_policys_positions(tiny_model, tmp_path):
    """Entry t is read where the policy's logit for token t is: before the token, whatever the padding."""
    trainer = make_trainer(tiny_model, tmp_path)
    torch.nn.init.normal_(trainer.critic_module.head.linear.weight)
    batch = batch_of(trainer, [[60, 61, 62]])
    with torch.no_grad():
        values = trainer._values(batch, trainer.critic)
        assert values.shape == (1, 4)
        for t in range(4):  # a state's value does not depend on what comes after it
            cut = batch_of(trainer, [[60, 61, 62][:t] + [77] * (3 - t)])
            assert torch.allclose(trainer._values(cut, trainer.critic)[0, : t + 1], values[0, : t + 1], atol=1e-6)
            if t < 3:
                assert not torch.allclose(trainer._values(cut, trainer.critic)[0, t + 1 :], values[0, t + 1 :])
        padded = batch_of(trainer, [[60, 61, 62]])
        padded["prompt_ids"] = torch.tensor([[0, 0, 50]])
        padded["prompt_mask"] = torch.tensor([[0, 0, 1]])
        assert torch.allclose(trainer._values(padded, trainer.critic), values, atol=1e-5)
