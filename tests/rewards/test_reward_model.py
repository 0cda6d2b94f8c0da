"""`reward_model` gives TRL's own scores, in any batch, and refuses models that are no reward models."""

from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from transformers import AutoTokenizer, LlamaForSequenceClassification, Trainer
from trl import GRPOTrainer

from tests.tiny import save_tiny_model
from trl_grpo_plus.errors import UserError
from trl_grpo_plus.rewards import build_rewards

PROMPT = [{"role": "user", "content": "2+2?"}]
COMPLETIONS = ["4", "It is 4, since 2 and 2 make 4.", "5", "four"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = save_tiny_model(tmp_path_factory.mktemp("reward") / "model")
    torch.manual_seed(1)
    model = LlamaForSequenceClassification.from_pretrained(path, num_labels=1)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(path)
    return str(path)


def function(directory, **options):
    return build_rewards([{"reward_model": {"model": directory, **options}}])[0].function


def trl_scores(directory, prompts, completions):
    """What TRL's trainer makes of a reward model: its `_calculate_rewards`, on these texts."""
    model = LlamaForSequenceClassification.from_pretrained(directory)
    trainer = object.__new__(GRPOTrainer)
    trainer.accelerator = SimpleNamespace(device=torch.device("cpu"), is_main_process=True)
    trainer._metrics, trainer._current_train_step_time = {"train": {}}, 0.0
    trainer.reward_funcs, trainer.reward_func_names = [model], ["model"]
    trainer.reward_processing_classes = [AutoTokenizer.from_pretrained(directory)]
    trainer.environments, trainer.chat_template_kwargs = None, {}
    trainer.state = SimpleNamespace(global_step=0)
    trainer.args = SimpleNamespace(report_to=[])
    with patch.object(Trainer, "_prepare_inputs", lambda self, inputs: inputs):
        rewards = trainer._calculate_rewards([{"prompt": p} for p in prompts], prompts, completions, None)
    return rewards[:, 0].tolist()


@pytest.mark.parametrize("chat", [True, False])
def test_scores_are_those_of_trl(directory, chat):
    prompts = [PROMPT if chat else "2+2? "] * 4
    completions = [[{"role": "assistant", "content": c}] if chat else c for c in COMPLETIONS]
    expected = trl_scores(directory, prompts, completions)
    verdicts = function(directory, batch_size=3).verdicts(COMPLETIONS, [{"prompt": p} for p in prompts])
    assert [v.value for v in verdicts] == pytest.approx(expected, abs=1e-5)
    assert len({round(v, 4) for v in expected}) == 4  # the scores tell the completions apart


def test_scores_do_not_depend_on_the_batch(directory):
    rows = [{"prompt": "2+2? "}] * 4
    one, all_ = (function(directory, batch_size=n).verdicts(COMPLETIONS, rows) for n in (1, 4))
    assert [v.value for v in one] == pytest.approx([v.value for v in all_], abs=1e-5)
    squeezed = function(directory, sigmoid=True).verdicts(COMPLETIONS, rows)
    assert [v.value for v in squeezed] == pytest.approx(
        torch.tensor([v.value for v in one]).sigmoid().tolist(), abs=1e-5
    )


def test_long_sequences_lose_their_beginning_and_empty_ones_are_unscored(directory):
    cut = function(directory, max_tokens=3).verdicts(["xx2+2", "yy2+2"], [{"prompt": "a"}, {"prompt": "b"}])
    assert cut[0].value == pytest.approx(cut[1].value, abs=1e-6)
    assert function(directory).verdicts([""], [{"prompt": ""}])[0].value is None


def test_what_is_no_reward_model_is_refused(directory, tmp_path):
    with pytest.raises(UserError, match="cannot be loaded"):
        function(str(tmp_path / "nothing"))
    model = LlamaForSequenceClassification.from_pretrained(directory, num_labels=3, ignore_mismatched_sizes=True)
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(directory).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has 3 outputs"):
        function(str(tmp_path))
    with pytest.raises(UserError, match="dtype must be"):
        function(directory, dtype="int4")
