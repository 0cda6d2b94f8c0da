"""An evaluation in a process of its own: `python -m tests.evaluation.run_evaluation MODEL OUTPUT_DIR FILE`.

Greedy, so that a sample does not depend on the process that draws it. Process 0 writes the metrics to FILE.
"""

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TRL_EXPERIMENTAL_SILENCE="1")

from datasets import Dataset  # noqa: E402

from tests.processes import leave  # noqa: E402
from trl_grpo_plus import GRPOConfig, GRPOTrainer  # noqa: E402
from trl_grpo_plus.evaluation import Sampling  # noqa: E402
from trl_grpo_plus.evaluation.training import PolicyEvaluation  # noqa: E402
from trl_grpo_plus.rewards import Verdict, register  # noqa: E402


def length_is_odd(completion, row):
    return Verdict(float((len(completion) + row["level"]) % 2), completion[:1] or None)


def main(model, output_dir, file):
    register("length_is_odd", description="for a test", accuracy=True, runs="inline")(length_is_odd)
    rows = Dataset.from_list([{"prompt": f"{i}+{i * i}=", "level": i} for i in range(7)])
    args = GRPOConfig(
        output_dir=output_dir,
        use_cpu=True,
        bf16=False,
        report_to="none",
        per_device_train_batch_size=8,
        max_completion_length=8,
        rewards=["length_is_odd"],
    )
    trainer = GRPOTrainer(model, args=args, train_dataset=rows, eval_dataset=rows)
    sampling = Sampling(max_new_tokens=8, temperature=0, batch_size=2)
    trainer.evaluation = PolicyEvaluation(["length_is_odd"], sampling)
    found = trainer.evaluate()
    if trainer.is_world_process_zero():
        found["processes"] = trainer.accelerator.num_processes
        with open(file, "w") as out:
            json.dump(found, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
    leave()
