"""Proximal Policy Optimization (arXiv 1707.06347) for language models, on the rollouts and rewards of our GRPO.

An episode is one completion: state s_t is the prompt and the completion tokens before token t, action a_t is token t.
The episode ends with the EOS token, which is itself an action and earns the score; a completion that reached
`max_completion_length` without one is truncated. Tokens that a tool wrote are no actions: the time index skips them.

    policy (trained), critic (trained), reference (frozen, for the KL penalty), reward model (frozen) or verifiers

are the four models of the classical layout. From one rollout of B completions of up to T tokens:

    score_B                   weighted sum of the verifiers and the reward model                     shared with GRPO
    r_BT                      r_t = -kl_coef (log pi_old - log pi_ref)(a_t), and the score at the end  token_rewards
    V_BT                      critic, once per rollout
    A_BT, R_BT                GAE(gamma, lambda), arXiv 1506.02438; R = A + V                                    gae
    A_BT                      whitened over all tokens of all processes                                       whiten
    num_ppo_epochs times over the rollout's minibatches:
      L = mean_t [ L_CLIP(t) + vf_coef L_VF(t) - entropy_coef H(t) ]         clipped_surrogate, clipped_value_loss

How this differs from the papers: the value loss is clipped as in OpenAI's baselines and has a factor 1/2; policy and
critic are clipped to `max_grad_norm` each by itself; every token weighs the same in the mean, as in TRL's `dapo`; the
rollout is cut into minibatches once, not anew in each epoch.

Shapes: B completions, T completion tokens, F rewards, N completions of all processes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from trl.trainer.utils import get_config_model_id

from .critic.training import CriticTrainer
from .errors import UserError
from .ppo_config import PPOConfig

Reduce = Callable[[torch.Tensor], torch.Tensor]

# Every metric that PPOTrainer logs beside TRL's own. "Token" is a token that the policy chose; means are over all of
# them, in all processes: of a rollout where it says so, or else of an optimizer step.
METRICS = {
    "kl": "mean over tokens of log pi_old - log pi_ref (k1, nats); rollout; absent where kl_coef is 0",
    "entropy": "mean over tokens of the policy's entropy (nats)",
    "policy/loss": "mean over tokens of the clipped surrogate loss",
    "policy/clip_fraction": "share of tokens whose ratio pi/pi_old is outside the clip range and gets no gradient",
    "policy/approx_kl": "mean over tokens of (rho - 1) - log rho, rho = pi/pi_old: the KL to pi_old (k3, nats)",
    "value/loss": "mean over tokens of the clipped value loss, with its factor 1/2 and without vf_coef",
    "value/clip_fraction": "share of tokens whose value left the clip range and gets the clipped loss",
    "value/grad_norm": "norm of the critic's gradient before clipping",
    "value/mean": "mean over tokens of the critic's value; rollout",
    "value/explained_variance": "1 - Var(R - V) / Var(R) over tokens; rollout; 1 is perfect, 0 as good as a constant",
    "returns/mean": "mean over tokens of the return R = A + V that the critic learns; rollout",
    "returns/std": "standard deviation of the same",
    "advantages/mean": "mean over tokens of the advantage before whitening; rollout",
    "advantages/std": "standard deviation of the same",
}


# The mathematics


def token_rewards(
    scores_B: torch.Tensor,
    mask_BT: torch.Tensor,
    kl_coef: float = 0.0,
    logps_BT: torch.Tensor | None = None,
    ref_logps_BT: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns r_t = -kl_coef (log pi_old(a_t|s_t) - log pi_ref(a_t|s_t)) + score [t is the last action], (B, T).

    The KL penalty inside the reward is that of InstructGPT (arXiv 2203.02155, eq. 2), with the k1 estimator per token.
    """
    remaining_BT = mask_BT.flip(1).cumsum(1).flip(1)  # actions from t on, t included
    is_last_BT = mask_BT.bool() & (remaining_BT == 1)
    rewards_BT = torch.where(is_last_BT, scores_B.unsqueeze(1), 0.0)
    if logps_BT is not None and ref_logps_BT is not None:
        rewards_BT = rewards_BT - kl_coef * torch.where(mask_BT.bool(), logps_BT - ref_logps_BT, 0.0)
    return rewards_BT


def gae(
    rewards_BT: torch.Tensor,
    values_BT: torch.Tensor,
    last_values_B: torch.Tensor,
    mask_BT: torch.Tensor,
    gamma: float,
    lam: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns advantages and returns (B, T): generalized advantage estimation (arXiv 1506.02438, eq. 11, 12 and 16).

    delta_t = r_t + gamma V(s_t+1) - V(s_t) and A_t = delta_t + gamma lambda A_t+1, where t + 1 is the next action;
    R_t = A_t + V(s_t). Both are 0 where the mask is.

    Args:
        rewards_BT: Rewards per action.
        values_BT: V(s_t), the value before token t.
        last_values_B: V after the last action: 0 where the episode ended, the critic's where it was cut off.
        mask_BT: 1 for actions, 0 for padding and for tokens of tools.
        gamma: Discount per action.
        lam: Lambda.
    """
    advantages_BT = torch.zeros_like(values_BT)
    next_value_B, next_advantage_B = last_values_B, torch.zeros_like(last_values_B)
    for t in reversed(range(values_BT.size(1))):
        is_action_B = mask_BT[:, t].bool()
        delta_B = rewards_BT[:, t] + gamma * next_value_B - values_BT[:, t]
        advantage_B = delta_B + gamma * lam * next_advantage_B
        advantages_BT[:, t] = torch.where(is_action_B, advantage_B, 0.0)
        next_value_B = torch.where(is_action_B, values_BT[:, t], next_value_B)
        next_advantage_B = torch.where(is_action_B, advantage_B, next_advantage_B)
    return advantages_BT, torch.where(mask_BT.bool(), advantages_BT + values_BT, 0.0)


def moments(
    x_BT: torch.Tensor, mask_BT: torch.Tensor, reduce: Reduce = lambda x: x
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns mean and (population) variance over the tokens of the mask; `reduce` sums over the processes."""
    count, total = reduce(torch.stack([mask_BT.sum().to(x_BT.dtype), (x_BT * mask_BT).sum()]))
    mean = total / count.clamp(min=1.0)
    variance = reduce((((x_BT - mean) * mask_BT) ** 2).sum()) / count.clamp(min=1.0)
    return mean, variance


def whiten(x_BT: torch.Tensor, mask_BT: torch.Tensor, reduce: Reduce = lambda x: x) -> torch.Tensor:
    """Returns (x - mean) / sqrt(variance + 1e-8) over the tokens of the mask, 0 elsewhere."""
    mean, variance = moments(x_BT, mask_BT, reduce)
    return (x_BT - mean) * torch.rsqrt(variance + 1e-8) * mask_BT


def clipped_surrogate(
    logps_BT: torch.Tensor, old_logps_BT: torch.Tensor, advantages_BT: torch.Tensor, low: float, high: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns -L_CLIP = -min(rho A, clip(rho, 1 - low, 1 + high) A) (arXiv 1707.06347, eq. 7), and where it clips."""
    ratio_BT = torch.exp(logps_BT - old_logps_BT)
    clipped_BT = torch.clamp(ratio_BT, 1 - low, 1 + high)
    loss_BT = -torch.min(ratio_BT * advantages_BT, clipped_BT * advantages_BT)
    return loss_BT, clipped_BT * advantages_BT < ratio_BT * advantages_BT


def clipped_value_loss(
    values_BT: torch.Tensor, old_values_BT: torch.Tensor, returns_BT: torch.Tensor, clip: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns L_VF = max((V - R)^2, (V_old + clip(V - V_old, -c, c) - R)^2) / 2, and where the second is larger.

    The squared error of arXiv 1707.06347, eq. 9, clipped as in OpenAI's baselines; `clip=None` leaves it unclipped.
    """
    error_BT = (values_BT - returns_BT) ** 2
    if clip is None:
        return 0.5 * error_BT, torch.zeros_like(error_BT, dtype=torch.bool)
    change_BT = values_BT - old_values_BT
    # Within the range V itself: V_old + (V - V_old) is rounded, and would count as clipped where it is larger.
    clipped_BT = torch.where(change_BT.abs() > clip, old_values_BT + change_BT.clamp(-clip, clip), values_BT)
    clipped_error_BT = (clipped_BT - returns_BT) ** 2
    return 0.5 * torch.max(error_BT, clipped_error_BT), clipped_error_BT > error_BT


# The trainer


class PPOTrainer(CriticTrainer):
    """Proximal Policy Optimization with the constructor, data, rewards and rollouts of `GRPOTrainer`.

    Args:
        model: As in `GRPOTrainer`.
        reward_funcs: As in `GRPOTrainer`.
        args: A `PPOConfig`; `None` builds a default one.
        *trl_args: `GRPOTrainer`'s further positional arguments.
        reward_model: A sequence classification model with one label, or its id or directory; its score is added to
            the other rewards with weight 1. Replaces `args.reward_model`.
        **kwargs: `GRPOTrainer`'s further keyword arguments.

    Raises:
        UserError: Something is asked for that PPO does not support; the message names the option.
    """

    _tag_names = ["trl", "ppo", "trl-grpo-plus"]
    _name = "PPO"
    _paper = {
        "title": "Proximal Policy Optimization Algorithms",
        "id": "1707.06347",
        "citation": (
            "@article{schulman2017proximal,\n"
            "    title   = {{Proximal Policy Optimization Algorithms}},\n"
            "    author  = {John Schulman and Filip Wolski and Prafulla Dhariwal and Alec Radford and Oleg Klimov},\n"
            "    year    = 2017,\n"
            "    eprint  = {arXiv:1707.06347},\n"
            "}"
        ),
    }

    _rewards_NF: torch.Tensor | None = None  # of the rollout that is being scored
    _loss_sums: torch.Tensor | None = None  # of the metrics of the loss, over the micro-batches of an optimizer step

    def __init__(
        self,
        model: Any,
        reward_funcs: Any = None,
        args: PPOConfig | None = None,
        *trl_args: Any,
        reward_model: Any = None,
        **kwargs: Any,
    ) -> None:
        if args is None:
            name = model if isinstance(model, str) else get_config_model_id(model.config)
            args = PPOConfig(f"{name.split('/')[-1]}-PPO")
        if not isinstance(args, PPOConfig):
            raise UserError(f"args must be a PPOConfig, found {type(args).__name__}")
        reward_model = reward_model if reward_model is not None else args.reward_model
        if reward_model is not None:
            given = reward_funcs if isinstance(reward_funcs, list) else [reward_funcs] if reward_funcs else []
            reward_funcs = [*given, reward_model]
            if args.reward_weights is not None:
                args = copy.copy(args)  # the caller's object may configure another trainer
                args.reward_weights = [*args.reward_weights, 1.0]
        super().__init__(model, reward_funcs, args, *trl_args, **kwargs)

    # Rollout: rewards, values, advantages

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._rewards_NF = super()._calculate_rewards(*args, **kwargs)
        return self._rewards_NF

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        batch: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if self.num_generations == 1:  # a group of one has no deviation, and PPO no groups
            self._metrics["train" if self.model.training else "eval"].pop("frac_reward_zero_std", None)
        with torch.no_grad():
            return {**batch, **self._values_and_advantages(batch)}

    def _values_and_advantages(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Returns what the loss needs of the rollout, computed once: old values and log-probabilities, A, R, mask."""
        args, reduce = self.args, self._sum_over_processes
        metrics = self._metrics["train" if self.model.training else "eval"]
        ids_BT, attention_BT = batch["completion_ids"], batch["completion_mask"]
        B = len(ids_BT)

        assert self._rewards_NF is not None
        rewards_BF = self._rewards_NF[self.accelerator.process_index * B :][:B]
        scores_B = (rewards_BF * self.reward_weights.to(rewards_BF.device)).nansum(dim=1)
        is_scored_B = ~rewards_BF.isnan().all(dim=1)  # unscored completions teach nothing, to policy and critic
        mask_BT = attention_BT * batch.get("tool_mask", 1) * is_scored_B.unsqueeze(1)

        values_BT1 = self._values(batch, self._old_critic(), args.per_device_train_batch_size)
        lengths_B = attention_BT.sum(dim=1)
        last_ids_B = ids_BT.gather(1, (lengths_B - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        ends = torch.tensor([*self.eos_token_ids, self._tokenizer.pad_token_id], device=ids_BT.device)
        is_truncated_B = ~torch.isin(last_ids_B, ends)
        last_values_B = values_BT1.gather(1, lengths_B.unsqueeze(1)).squeeze(1)
        last_values_B = last_values_B * is_truncated_B * args.bootstrap_truncated
        values_BT = values_BT1[:, :-1]

        old_logps_BT, ref_logps_BT = batch.get("old_per_token_logps"), batch.get("ref_per_token_logps")
        if old_logps_BT is None and ref_logps_BT is not None:  # TRL leaves them out where policy and old policy agree
            size = args.per_device_train_batch_size
            old_logps_BT, _ = self._logps_and_entropies(self.model, batch, batch_size=size)
        if ref_logps_BT is not None:
            metrics["kl"].append(moments(old_logps_BT - ref_logps_BT, mask_BT, reduce)[0].item())
        rewards_BT = token_rewards(scores_B, mask_BT, args.kl_coef, old_logps_BT, ref_logps_BT)
        advantages_BT, returns_BT = gae(rewards_BT, values_BT, last_values_B, mask_BT, args.gamma, args.lam)

        return_mean, return_variance = moments(returns_BT, mask_BT, reduce)
        error_variance = moments(returns_BT - values_BT, mask_BT, reduce)[1]
        advantage_mean, advantage_variance = moments(advantages_BT, mask_BT, reduce)
        metrics["value/mean"].append(moments(values_BT, mask_BT, reduce)[0].item())
        metrics["value/explained_variance"].append((1 - error_variance / return_variance.clamp(min=1e-12)).item())
        metrics["returns/mean"].append(return_mean.item())
        metrics["returns/std"].append(return_variance.sqrt().item())
        metrics["advantages/mean"].append(advantage_mean.item())
        metrics["advantages/std"].append(advantage_variance.sqrt().item())

        if args.whiten_advantages:
            advantages_BT = whiten(advantages_BT, mask_BT, reduce)
        self._log_advantages((advantages_BT * mask_BT).sum(1) / mask_BT.sum(1).clamp(min=1))
        rollout = {
            "action_mask": mask_BT,
            "old_values": values_BT,
            "advantages": advantages_BT,
            "returns": returns_BT,
            "num_items_in_batch": reduce(mask_BT.sum()),
        }
        return rollout if old_logps_BT is None else {**rollout, "old_per_token_logps": old_logps_BT}

    def _values(self, batch: dict[str, Any], critic: Any, batch_size: int | None = None) -> torch.Tensor:
        """Returns values (B, T + 1) of the critic, `batch_size` completions at a time."""
        ids, attention, T = _prompt_and_completion(batch)
        size = batch_size or len(ids)
        parts = [critic(ids[i : i + size], attention[i : i + size], T) for i in range(0, len(ids), size)]
        return torch.cat(parts)

    def _logps_and_entropies(self, model: Any, batch: dict[str, Any], **kwargs: Any) -> tuple[torch.Tensor, Any]:
        """Returns the policy's log-probabilities and entropies of the completion tokens, (B, T) each, as TRL does."""
        logps_BT, entropies_BT, _ = self._get_per_token_logps_and_entropies(
            model, *_prompt_and_completion(batch), **kwargs
        )
        return logps_BT, entropies_BT

    def _log_advantages(self, advantages_B: torch.Tensor) -> None:
        """Puts PPO's advantages, a mean per completion, in place of those that TRL logged for the rollout."""
        advantages_N = self.accelerator.gather(advantages_B).tolist()
        log = self._logs["advantages"]
        for _ in range(min(len(log), len(advantages_N))):
            log.pop()
        log.extend(advantages_N)

    def _sum_over_processes(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.accelerator.reduce(x, reduction="sum")
        return total

    # Loss

    def _why_not_skip(self) -> str | None:
        return "the value loss of such rows has a gradient"

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        args, mask_BT = self.args, inputs["action_mask"]
        with self.critic_module.listening():
            logps_BT, entropies_BT = self._logps_and_entropies(model, inputs, compute_entropy=True)
        with self._critic_sync():
            values_BT = self._values(inputs, self.critic)[:, :-1]
        old_logps_BT = inputs.get("old_per_token_logps", logps_BT.detach())

        policy_BT, policy_clipped_BT = clipped_surrogate(
            logps_BT, old_logps_BT, inputs["advantages"], self.epsilon_low, self.epsilon_high
        )
        value_BT, value_clipped_BT = clipped_value_loss(
            values_BT, inputs["old_values"], inputs["returns"], args.cliprange_value
        )
        loss_BT = policy_BT + args.vf_coef * value_BT
        if self.entropy_coef:
            loss_BT = loss_BT - self.entropy_coef * entropies_BT

        # Tokens of all processes in one optimizer step, the rollout's divided evenly among its steps: DDP then takes
        # the mean over the processes. The split into micro-batches and processes does not change the gradient.
        tokens = inputs["num_items_in_batch"].clamp(min=1) / self.accelerator.num_processes
        if self.model.training:
            tokens = tokens * self.current_gradient_accumulation_steps / args.steps_per_generation
        loss: torch.Tensor = (loss_BT * mask_BT).sum() / tokens

        with torch.no_grad():
            log_ratio_BT = (logps_BT - old_logps_BT) * mask_BT
            means = {
                "policy/loss": policy_BT,
                "policy/clip_fraction": policy_clipped_BT,
                "policy/approx_kl": torch.expm1(log_ratio_BT) - log_ratio_BT,
                "value/loss": value_BT,
                "value/clip_fraction": value_clipped_BT,
                "entropy": entropies_BT,
            }
            sums = torch.stack([*((x * mask_BT).sum().float() for x in means.values()), mask_BT.sum().float()])
            self._loss_sums = sums if self._loss_sums is None else self._loss_sums + sums
            if self.accelerator.sync_gradients:  # the last micro-batch of an optimizer step, or an evaluation's batch
                *totals, count = self._sum_over_processes(self._loss_sums).tolist()
                self._loss_sums = None
                metrics = self._metrics["train" if self.model.training else "eval"]
                for name, total in zip(means, totals, strict=True):
                    metrics[name].append(total / max(count, 1))
        return loss


def _prompt_and_completion(batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Returns token ids and attention mask (B, P + T), and T."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    return ids, attention, batch["completion_ids"].size(1)
