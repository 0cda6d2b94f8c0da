"""A training in a process of its own: `python -m tests.ppo.run_training '{"model": ..., "output_dir": ..., ...}'`.

Keys of the JSON besides the options of `make_trainer`: `lora` (rank), `kill_at` (step at whose end the process kills
itself, as a power cut would), `resume` (a checkpoint), `fixed` (completions are a function of the prompt, so that one
process and two have the same), `losses` (file for the losses). Process 0 writes the losses.
"""

import json
import os
import signal
import sys
import zlib

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRL_EXPERIMENTAL_SILENCE="1")

import torch  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import TrainerCallback  # noqa: E402

from tests.ppo.runs import logs, make_trainer  # noqa: E402
from tests.processes import leave  # noqa: E402


class KillAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def fixed_rollout(prompts, trainer):
    """Completions of 1 to 8 tokens that depend on the prompt's text only; half of them end with EOS."""
    tokenizer = trainer.processing_class
    prompt_ids = [tokenizer.apply_chat_template(p, add_generation_prompt=True)["input_ids"] for p in prompts]
    completion_ids = []
    for prompt in prompts:
        generator = torch.Generator().manual_seed(zlib.crc32(prompt[0]["content"].encode()))
        length = int(torch.randint(1, 9, (), generator=generator))
        tokens = torch.randint(72, 98, (length,), generator=generator).tolist()
        completion_ids.append([*tokens, tokenizer.eos_token_id] if length % 2 else tokens)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": [[0.0] * len(ids) for ids in completion_ids],
    }


def main(options):
    model, output_dir = options.pop("model"), options.pop("output_dir")
    rank, kill_at = options.pop("lora", None), options.pop("kill_at", None)
    resume, file = options.pop("resume", None), options.pop("losses")
    if options.pop("fixed", False):
        options["rollout_func"] = fixed_rollout
    if rank:
        options["peft_config"] = LoraConfig(r=rank, target_modules="all-linear")
    trainer = make_trainer(model, output_dir, **options)
    if kill_at:
        trainer.add_callback(KillAt(kill_at))
    trainer.train(resume_from_checkpoint=resume)
    if trainer.is_world_process_zero():
        wrapped = type(trainer.model_wrapped).__name__, type(trainer.critic).__name__
        with open(file, "w") as out:
            json.dump({"logs": logs(trainer), "processes": trainer.accelerator.num_processes, "wrapped": wrapped}, out)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    leave()
