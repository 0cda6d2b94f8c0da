"""`PPOTrainer` and `PPOConfig` as a user meets them: options, refusals, metrics, reward model, learning rates."""

import copy
import json
import math
import re
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForSequenceClassification

import trl_grpo_plus
from tests.ppo.runs import OPTIONS, letters, logs, losses, make_trainer
from trl_grpo_plus import GRPOConfig, PPOConfig, PPOTrainer
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.ppo import METRICS


@pytest.fixture(scope="module")
def reward_model(tiny_model, tmp_path_factory):
    """Directory of a random sequence classification model with one label and the tiny model's tokenizer."""
    from tests.tiny import tiny_tokenizer

    directory = tmp_path_factory.mktemp("reward") / "reward-model"
    torch.manual_seed(3)
    config = LlamaConfig.from_pretrained(tiny_model, num_labels=1)
    LlamaForSequenceClassification(config).save_pretrained(directory)
    tiny_tokenizer().save_pretrained(directory)
    return str(directory)


def test_the_classical_four_models(tiny_model, tmp_path, reward_model):
    trainer = make_trainer(tiny_model, tmp_path, [], reward_model=reward_model, max_steps=2)
    models = [trainer.model, trainer.critic_module, trainer.ref_model, trainer.reward_funcs[0]]
    sizes = [sum(p.numel() for p in model.parameters()) for model in models]
    assert sizes[0] == sizes[2] and all(size > 20_000 for size in sizes)
    shared = set.intersection(*({p.data_ptr() for p in model.parameters()} for model in models))
    assert not shared
    reward = copy.deepcopy(trainer.reward_funcs[0].state_dict())
    trainer.train()
    assert all(torch.equal(value, reward[name]) for name, value in trainer.reward_funcs[0].state_dict().items())
    log = trainer.state.log_history[0]
    assert log["rewards/reward-model/std"] > 0 and log["reward"] == pytest.approx(log["rewards/reward-model/mean"])


def test_a_reward_model_is_added_to_verifiers_with_their_weights(tiny_model, tmp_path, reward_model):
    args = PPOConfig(str(tmp_path), **OPTIONS, max_steps=1, reward_model=reward_model, reward_weights=[2.0])
    rows = Dataset.from_dict({"prompt": [[{"role": "user", "content": "2+2="}]] * 16, "answer": ["4"] * 16})
    trainer = PPOTrainer(tiny_model, letters, args, rows, rewards=[{"gsm8k": 0.5}])
    assert trainer.reward_func_names == ["letters", "reward-model", "gsm8k"]
    assert trainer.reward_weights.tolist() == [2.0, 1.0, 0.5] and args.reward_weights == [2.0]
    trainer.train()


@pytest.mark.parametrize("kind", ["text", "conversation"])
def test_prompts_are_text_or_conversations(tiny_model, tmp_path, kind):
    prompt = {"text": "abc", "conversation": [{"role": "user", "content": "abc"}]}[kind]
    rows = Dataset.from_dict({"prompt": [prompt] * 16})

    def length(completions, **kwargs):
        return [float(len(str(c))) for c in completions]

    trainer = make_trainer(tiny_model, tmp_path, length, rows, max_steps=1)
    trainer.train()
    assert len(losses(trainer)) == 1


def test_logged_metrics_are_those_of_the_documentation(tiny_model, tmp_path):
    trainer = make_trainer(tiny_model, tmp_path, max_steps=4, per_device_eval_batch_size=4)
    trainer.train()
    trainer.evaluate(trainer.train_dataset.select(range(4)))
    train, evaluation = logs(trainer)[0], logs(trainer)[-1]
    assert set(METRICS) <= train.keys()
    assert {f"eval_{name}" for name in METRICS} - evaluation.keys() == {"eval_value/grad_norm"}
    assert all(math.isfinite(v) for v in train.values() if isinstance(v, (int, float)))
    own = {
        name for name in train if name.split("/")[0] in ("policy", "value", "returns", "advantages", "kl", "entropy")
    }
    assert own == set(METRICS), "every metric of ours is documented"
    assert "frac_reward_zero_std" not in train, "there are no groups"
    readme = (Path(trl_grpo_plus.__file__).parents[1] / "README.md").read_text()
    for name, meaning in METRICS.items():
        assert f"| `{name}` | {meaning} |\n" in readme, name


def test_the_metrics_of_the_first_step_are_those_of_the_old_policy(tiny_model, tmp_path):
    trainer = make_trainer(tiny_model, tmp_path, max_steps=4)
    trainer.train()
    first, second = logs(trainer)[:2]
    assert first["policy/clip_fraction"] == first["value/clip_fraction"] == 0 and first["policy/approx_kl"] < 1e-9
    assert second["policy/approx_kl"] > 1e-7 and first["kl"] == 0 and first["value/mean"] == 0
    # zero values: the value loss is half the mean squared return
    mean_square = first["returns/mean"] ** 2 + first["returns/std"] ** 2
    assert first["value/loss"] == pytest.approx(mean_square / 2, rel=0.5)  # of one of two minibatches


def test_the_loss_is_the_sum_of_its_parts(tiny_model, tmp_path):
    options = {"gradient_accumulation_steps": 4, "steps_per_generation": 4, "max_steps": 3}
    trainer = make_trainer(tiny_model, tmp_path, vf_coef=0.3, entropy_coef=0.01, **options)
    trainer.train()
    for log in logs(trainer)[:3]:
        parts = log["policy/loss"] + 0.3 * log["value/loss"] - 0.01 * log["entropy"]
        assert log["loss"] == pytest.approx(parts, abs=1e-6)


def test_the_split_into_micro_batches_changes_no_loss(tiny_model, tmp_path):
    runs = []
    for size, steps in ((4, 4), (8, 2), (2, 8)):
        trainer = make_trainer(
            tiny_model, tmp_path, per_device_train_batch_size=size, gradient_accumulation_steps=steps,
            steps_per_generation=steps, max_steps=6,
        )  # fmt: skip
        trainer.train()
        runs.append(losses(trainer))
    assert runs[1] == pytest.approx(runs[0], abs=2e-5) and runs[2] == pytest.approx(runs[0], abs=2e-5)


def test_policy_and_critic_have_their_own_learning_rates(tiny_model, tmp_path):
    trainer = make_trainer(tiny_model, tmp_path, learning_rate=1e-4, max_steps=4, weight_decay=0.1)
    trainer.train()
    rates = {(g.get("role", "policy"), g["initial_lr"], g["weight_decay"]) for g in trainer.optimizer.param_groups}
    assert rates == {("policy", 1e-4, 0.1), ("policy", 1e-4, 0.0), ("critic", 1e-3, 0.1), ("critic", 1e-3, 0.0)}
    parameters = [id(p) for group in trainer.optimizer.param_groups for p in group["params"]]
    assert len(parameters) == len(set(parameters))
    assert {id(p) for p in trainer.critic_module.trained.values()} <= set(parameters)
    frozen = make_trainer(tiny_model, tmp_path, critic_learning_rate=0.0, max_steps=2)
    before = {n: p.detach().clone() for n, p in frozen.critic_module.trained.items()}
    frozen.train()
    assert all(torch.equal(before[n], p) for n, p in frozen.critic_module.trained.items())


def test_the_critic_learns_the_returns(tiny_model, tmp_path):
    """With a reward that the prompt decides and a policy that stands still, the value loss falls."""
    lengths = [{"role": "user", "content": "q" * (1 + 4 * (i % 2))} for i in range(32)]
    rows = Dataset.from_dict({"prompt": [[message] for message in lengths]})

    def by_prompt(prompts, **kwargs):
        return [float(len(p[0]["content"]) > 1) for p in prompts]

    trainer = make_trainer(
        tiny_model, tmp_path, by_prompt, rows, max_steps=60, learning_rate=0.0, critic_learning_rate=5e-3,
        kl_coef=0.0, lam=1.0,
    )  # fmt: skip
    trainer.train()
    explained = [log["value/explained_variance"] for log in logs(trainer) if "value/explained_variance" in log]
    assert abs(explained[0]) < 0.1 and explained[-1] > 0.9


def test_the_policy_learns(tiny_model, tmp_path):
    def vowels(completions, **kwargs):
        texts = [completion[0]["content"] for completion in completions]
        return [sum(c in "aeiou" for c in text) / 8 for text in texts]

    trainer = make_trainer(tiny_model, tmp_path, vowels, max_steps=160, learning_rate=5e-3, kl_coef=0.0)
    trainer.train()
    rewards = [log["reward"] for log in logs(trainer) if "reward" in log]
    assert sum(rewards[-8:]) / 8 > 4 * sum(rewards[:8]) / 8


def test_one_epoch_without_a_reference(tiny_model, tmp_path):
    options = {"num_ppo_epochs": 1, "gradient_accumulation_steps": 4, "kl_coef": 0.0, "max_steps": 2}
    trainer = make_trainer(tiny_model, tmp_path, **options)
    trainer.train()
    assert trainer.ref_model is None and "kl" not in logs(trainer)[0]
    assert [log["policy/clip_fraction"] for log in logs(trainer)[:2]] == [0.0, 0.0]


def test_a_reference_without_old_log_probabilities(tiny_model, tmp_path):
    options = {"num_ppo_epochs": 1, "gradient_accumulation_steps": 4, "max_steps": 2}
    trainer = make_trainer(tiny_model, tmp_path, **options)
    trainer.train()
    first, second = logs(trainer)[:2]
    assert first["kl"] == 0 and second["kl"] != 0 and abs(second["policy/approx_kl"]) < 1e-9


def test_the_configuration_derives_what_trl_goes_by(tmp_path):
    args = PPOConfig(str(tmp_path), use_cpu=True, bf16=False, learning_rate=2e-6)
    assert (args.num_generations, args.num_iterations, args.beta) == (1, 4, 0.05)
    assert args.critic_learning_rate == pytest.approx(2e-5) and args.num_generations_eval is None
    kept = {k: v for k, v in args.to_dict().items() if k in PPOConfig.__dataclass_fields__}
    kept.pop("generation_batch_size")
    assert PPOConfig(**kept).kl_coef == args.kl_coef
    assert PPOConfig(str(tmp_path), use_cpu=True, bf16=False, num_generations=4).num_generations == 4
    odd = PPOConfig(str(tmp_path), use_cpu=True, bf16=False, per_device_train_batch_size=3)
    assert odd.generation_batch_size == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use_vllm": True}, "does not support vLLM"),
        ({"fsdp": "full_shard"}, "fsdp: PPOTrainer runs on one device or with DDP"),
        ({"deepspeed": {"zero_optimization": {"stage": 2}}}, "deepspeed: PPOTrainer runs on one device"),
        ({"loss_type": "grpo"}, "loss_type='grpo' is an option of GRPO's loss"),
        ({"scale_rewards": "none"}, "scale_rewards='none' is an option of GRPO's loss"),
        ({"beta": 0.04}, "beta=0.04 is GRPO's option: PPO's is `kl_coef`"),
        ({"num_iterations": 2}, "num_iterations=2 is GRPO's option: PPO's is `num_ppo_epochs`"),
        ({"critic": "seperate"}, "critic='seperate': expected separate, adapter or shared"),
        ({"critic": "shared", "frozen_critic_copy": True}, "frozen_critic_copy needs critic='separate'"),
        ({"critic": "adapter", "sync_ref_model": True}, "the critic's adapter sits on the reference"),
        ({"critic": "adapter", "gradient_checkpointing_kwargs": {"use_reentrant": True}}, "use_reentrant=False"),
        ({"lam": 1.2}, "lam=1.2 must be between 0 and 1"),
        ({"num_ppo_epochs": 0}, "num_ppo_epochs=0 must be at least 1"),
        ({"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}, "a rollout of one completion"),
        ({"num_generations": 3}, "num_generations=3 does not divide the generation batch"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path, options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        PPOConfig(str(tmp_path), **{"use_cpu": True, "bf16": False, **options})


def test_the_launchers_fsdp_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(UserError, match="fsdp: PPOTrainer runs on one device"):
        PPOConfig(str(tmp_path), use_cpu=True, bf16=False)


def test_vision_and_mixtures_of_experts_are_refused(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(PPOTrainer, "_is_vlm", property(lambda self: True, lambda self, value: None), raising=False)
    with pytest.raises(UserError, match="trains text models only"):
        make_trainer(tiny_model, tmp_path)
    monkeypatch.undo()
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.config.output_router_logits = False
    with pytest.raises(UserError, match="set router_aux_loss_coef=0"):
        trl_options = {"router_aux_loss_coef": 0.01}
        make_trainer(model, tmp_path, **trl_options)


def test_a_grpo_configuration_is_refused(tiny_model, tmp_path):
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    with pytest.raises(UserError, match="args must be a PPOConfig, found GRPOConfig"):
        PPOTrainer(tiny_model, letters, args)


def test_the_model_card_says_ppo(tiny_model, tmp_path):
    trainer = make_trainer(tiny_model, tmp_path)
    trainer.create_model_card()
    card = (tmp_path / "README.md").read_text()
    assert "trained with PPO" in card and "1707.06347" in card
    assert {"trl", "ppo", "trl-grpo-plus"} == set(trainer.model.model_tags)


def test_the_configuration_goes_to_json_and_through_a_file(tiny_model, tmp_path):
    trainer = make_trainer(tiny_model, tmp_path, critic="adapter", gradient_checkpointing=True)
    fields = json.loads(trainer.args.to_json_string())
    assert fields["critic"] == "adapter" and fields["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    torch.save(trainer.args, tmp_path / "args.bin")
    assert torch.load(tmp_path / "args.bin", weights_only=False).critic == "adapter"


def test_the_completion_log_has_ppos_advantages(tiny_model, tmp_path):
    import pandas

    trainer = make_trainer(
        tiny_model, tmp_path, max_steps=1, log_completions=True, num_completions_to_print=0, whiten_advantages=False
    )
    trainer.train()
    table = pandas.read_parquet(tmp_path / "completions/completions_00001.parquet")
    assert len(table) == 16 and table["advantage"].abs().sum() > 0
    # values are zero at first, so that the advantages of a completion are lambda's powers of its score
    scored = table[table["letters"] > 0]
    assert ((scored["advantage"] > 0.5 * scored["letters"]) & (scored["advantage"] <= scored["letters"])).all()
    assert (table[table["letters"] == 0]["advantage"] == 0).all()
