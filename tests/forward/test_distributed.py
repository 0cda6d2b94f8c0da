"""Two processes with different work: one has only rows to skip, the other several forwards."""

import pytest
import torch

from tests.forward.cases import build, evaluate, micro_batch, plain
from tests.processes import leave
from trl_grpo_plus.forward import packed_logps_and_entropies


def worker(rank, store, results):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(build("llama"))
    ids, mask, C = micro_batch()
    options = {"skip_rows_B": torch.ones(len(ids), dtype=torch.bool)} if rank == 0 else {"max_tokens": 16}
    for _ in range(2):  # a second round finds the reducer as the first one left it
        gradients = evaluate(
            model, lambda: packed_logps_and_entropies(model, ids, mask, C, compute_entropy=True, **options), mask, C
        )[2]
    if rank == 0:
        torch.save({k.removeprefix("module."): g for k, g in gradients.items()}, results)
    leave()


@pytest.mark.slow
def test_gradients_are_averaged_over_processes(tmp_path):
    torch.multiprocessing.spawn(worker, (str(tmp_path / "store"), str(tmp_path / "gradients")), nprocs=2)
    found = torch.load(tmp_path / "gradients")
    model = build("llama")
    ids, mask, C = micro_batch()
    expected = evaluate(model, lambda: plain(model, ids, mask, C), mask, C)[2]
    for name, gradient in expected.items():
        assert (found[name] - gradient / 2).norm() <= 1e-5 * gradient.norm(), name
