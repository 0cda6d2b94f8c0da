import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_grpo_plus.forward import composition_reason, grouped_permutation, optimizer_steps, regroup, trim


def test_optimizer_steps_follow_gradient_accumulation():
    assert optimizer_steps(4, 2) == [0, 0, 1, 1]
    assert optimizer_steps(2, 4) == [0, 0]
    assert optimizer_steps(3, 2, first_step=3) == [0, 1, 1]
    # Two passes over three micro-batches, two a step: (0, 1) (2, 0) (1, 2). No two are together in both.
    assert optimizer_steps(3, 2, num_iterations=2) == [0, 1, 2]
    assert optimizer_steps(4, 2, num_iterations=3) == [0, 0, 1, 1]


@given(
    size=st.integers(1, 6),
    steps=st.lists(st.integers(0, 2), min_size=1, max_size=6),
    data=st.data(),
)
@settings(max_examples=80, deadline=None)
def test_every_optimizer_step_keeps_its_rows(size, steps, data):
    n = size * len(steps)
    prompts = data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    order = grouped_permutation(prompts, steps)
    assert sorted(order) == list(range(n))
    for step in set(steps):
        members = [i for i, s in enumerate(steps) if s == step]
        before = {row for i in members for row in range(i * size, (i + 1) * size)}
        after = {row for i in members for row in order[i * size : (i + 1) * size]}
        assert before == after


@pytest.mark.parametrize(("groups", "completions", "size"), [(4, 4, 4), (4, 4, 8), (8, 2, 4), (2, 8, 4), (3, 4, 6)])
def test_groups_are_together_when_they_fit(groups, completions, size):
    rows = groups * completions
    shuffled = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).tolist()
    prompts = [row // completions for row in shuffled]
    order = grouped_permutation(prompts, [0] * (rows // size))
    pieces = sum(len({prompts[row] for row in order[i : i + size]}) for i in range(0, rows, size))
    # as few (prompt, micro-batch) pairs as the sizes allow
    least = {(3, 4, 6): 4}.get((groups, completions, size), max(groups, rows // size))
    assert pieces == least


def test_groups_of_mixed_sizes_fill_a_micro_batch_exactly():
    order = grouped_permutation([0] * 3 + [1] * 2 + [2] * 2 + [3] * 2 + [4] * 3, [0, 0])
    first = {0, 1, 2, 9, 10, 11}  # the two groups of three
    assert set(order[:6]) in (first, set(range(12)) - first)


def test_rows_that_cannot_be_cut_evenly_are_an_error():
    with pytest.raises(ValueError, match="5 rows"):
        grouped_permutation([0] * 5, [0, 0])


def test_losses_that_see_the_micro_batch_are_named():
    assert composition_reason("dapo") is None
    assert composition_reason("grpo") is None
    assert "bnpo" in composition_reason("bnpo")
    assert "quantile" in composition_reason("dapo", top_entropy_quantile=0.2)
    assert "entropy bonus" in composition_reason("dapo", entropy_bonus=True)


def test_regroup_moves_whole_rows():
    rows = 8
    prompts = torch.tensor([3, 5, 3, 5, 5, 3, 5, 3])
    batch = {
        "prompt_ids": torch.stack([torch.full((rows,), 9), prompts], 1),
        "prompt_mask": torch.stack([(prompts == 5).long(), torch.ones(rows, dtype=torch.long)], 1),
        "completion_ids": torch.arange(rows)[:, None],
        "advantages": torch.arange(rows).float(),
        "num_items_in_batch": torch.tensor(17),
        "names": [f"row{i}" for i in range(rows)],
        "nothing": None,
    }
    parts = [
        {k: v[i : i + 4] if isinstance(v, list) or (v is not None and v.ndim) else v for k, v in batch.items()}
        for i in (0, 4)
    ]
    found = regroup(parts, [0, 0])
    assert [len(set(part["prompt_ids"][:, 1].tolist())) for part in found] == [1, 1]
    for part in found:
        assert part["completion_ids"][:, 0].tolist() == part["advantages"].tolist()
        assert part["names"] == [f"row{int(i)}" for i in part["advantages"]]
        assert (prompts[part["completion_ids"][:, 0]] == part["prompt_ids"][:, 1]).all()
        assert part["num_items_in_batch"] == 17
        assert part["nothing"] is None
    assert sorted(torch.cat([part["advantages"] for part in found]).tolist()) == list(range(rows))


def batch_of(prompt_lengths, completion_lengths, P=6, C=5):
    B = len(prompt_lengths)
    prompt_mask = torch.stack([(torch.arange(P) >= P - n).long() for n in prompt_lengths])
    completion_mask = torch.stack([(torch.arange(C) < n).long() for n in completion_lengths])
    return {
        "prompt_ids": torch.arange(B * P).view(B, P),
        "prompt_mask": prompt_mask,
        "completion_ids": torch.arange(B * C).view(B, C),
        "completion_mask": completion_mask,
        "old_per_token_logps": torch.rand(B, C),
        "importance_sampling_ratio": torch.rand(B, 1),
        "advantages": torch.rand(B),
        "num_items_in_batch": torch.tensor(3),
    }


def test_trim_cuts_to_the_longest_row():
    batch = batch_of((2, 4), (3, 1))
    found = trim(batch)
    assert torch.equal(found["prompt_ids"], batch["prompt_ids"][:, 2:])
    assert torch.equal(found["prompt_mask"], batch["prompt_mask"][:, 2:])
    for key in ("completion_ids", "completion_mask", "old_per_token_logps"):
        assert torch.equal(found[key], batch[key][:, :3])
    for key in ("importance_sampling_ratio", "advantages", "num_items_in_batch"):
        assert found[key] is batch[key]


def test_trim_with_prompt_and_completion_of_one_width():
    found = trim(batch_of((2, 4), (3, 5), P=5, C=5))
    assert found["prompt_ids"].shape == (2, 4)
    assert found["completion_ids"].shape == (2, 5)


def test_trim_keeps_two_columns_and_leaves_images_alone():
    found = trim(batch_of((1, 1), (0, 1)))  # a (B, 1) tensor would read as one value per sequence in TRL's metrics
    assert found["completion_ids"].shape == (2, 2)
    assert found["prompt_ids"].shape == (2, 1)
    batch = {**batch_of((2, 4), (3, 1)), "pixel_values": torch.rand(2, 3)}
    assert trim(batch)["prompt_ids"] is batch["prompt_ids"]
