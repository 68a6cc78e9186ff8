"""The CPU engine's kernels for cache slots and attention against their definitions, worked out here in other ways."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fixtures.engine.inside.cpu import sgl_kernel
from fixtures.engine.inside.cpu.sgl_kernel.missing import MissingKernel
from tests.kit.trees import QLEN_ONLY, ROOT, build, draft_tree, select

# --- Cache slots. Row r of the table holds slots 100 · r, 100 · r + 1, …


def table(rows: int = 4, length: int = 12) -> Tensor:
    return (100 * torch.arange(rows).unsqueeze(1) + torch.arange(length)).int()


def test_slots_are_assigned_to_the_positions_of_each_request() -> None:
    slots = table()
    sgl_kernel.assign_req_to_token_pool_cpu(
        torch.tensor([2, 0]), slots, torch.tensor([3, 10]), torch.tensor([5, 11]), torch.tensor([7, 8, 9]), 12
    )
    expected = table()
    expected[2, 3], expected[2, 4], expected[0, 10] = 7, 8, 9
    assert slots.tolist() == expected.tolist()


def test_slots_are_gathered_request_by_request() -> None:
    found = torch.zeros(6, dtype=torch.int64)
    sgl_kernel.assign_extend_cache_locs_cpu(
        torch.tensor([3, 1]), table(), torch.tensor([4, 0]), torch.tensor([7, 2]), found, 12
    )
    assert found.tolist() == [304, 305, 306, 100, 101, 0]


def test_draft_slots_follow_the_committed_ones() -> None:
    found = torch.zeros(8, dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor([1, 3]), table(), torch.tensor([2, 6]), found, 12, topk=2, num_steps=2
    )
    assert found.tolist() == [102, 103, 104, 105, 306, 307, 308, 309]


@pytest.mark.parametrize("topk", [1, 2, 4])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_branch_sees_the_prefix_and_its_own_draft_slots(topk: int, steps: int) -> None:
    rows, lengths = torch.tensor([3, 0, 1]), torch.tensor([1, 9, 4])
    slots = table(length=24)
    given = torch.zeros(len(rows) * topk * steps, dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(rows, slots, lengths, given, 24, topk, steps)
    seen = sgl_kernel.build_draft_decode_metadata_cpu(slots, rows, lengths, topk, steps, 24)
    assert seen.shape == (3 * topk, 24)
    for b, (row, length) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
        for branch, own in enumerate(given.view(3, topk, steps)[b].tolist()):
            assert seen[b * topk + branch, : length + steps].tolist() == [*slots[row, :length].tolist(), *own]
    assert slots.tolist() == table(length=24).tolist()


def test_slots_of_accepted_tokens_move_to_the_front() -> None:
    found = torch.zeros(6, dtype=torch.int64)
    index = torch.tensor([[0, 2, -1], [3, -1, -1]], dtype=torch.int32)
    sgl_kernel.fill_accept_out_cache_loc_cpu(index, torch.tensor([40, 41, 42, 43, 44, 45]), found)
    assert found.tolist() == [40, 42, 43, 0, 0, 0]


def test_slots_are_copied_in_every_layer_as_if_at_once() -> None:
    layers = [torch.arange(10 * width).view(10, width).float() * scale for width, scale in ((3, 1), (5, -2))]
    before = [layer.clone() for layer in layers]
    sgl_kernel.copy_all_layer_kv_cache_cpu(
        torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64),
        torch.tensor([layer.stride(0) * layer.element_size() for layer in layers]),
        torch.tensor([1, 2, 3]),
        torch.tensor([2, 1, 8]),
    )
    for layer, old in zip(layers, before, strict=True):
        expected = old.clone()
        expected[1], expected[2], expected[3] = old[2], old[1], old[8]
        assert torch.equal(layer, expected)


# --- Attention, against a softmax written out in float64.


@dataclass
class Pool:
    """Keys and values at scattered slots, and the table that says whose they are."""

    keys: Tensor
    values: Tensor
    slots: Tensor
    lengths: list[int]

    def of(self, request: int, end: int) -> tuple[Tensor, Tensor]:
        """[end, K, D] in double precision."""
        slots = self.slots[request, :end].long()
        return self.keys[slots].double(), self.values[slots].double()


def pool(lengths: list[int], kv_heads: int, head_dim: int) -> Pool:
    torch.manual_seed(len(lengths) * 100 + kv_heads)
    keys, values = torch.randn(2, 200, kv_heads, head_dim)
    slots = torch.randperm(200)[: len(lengths) * 40].view(len(lengths), 40).int()
    return Pool(keys, values, slots, lengths)


def naive(query: Tensor, keys: Tensor, values: Tensor, scale: float, seen: list[bool]) -> Tensor:
    """[H, D] for one token's query [H, D] over positions' keys and values [n, K, D], head by head."""
    group = query.shape[0] // keys.shape[1]
    out = []
    for head, q in enumerate(query.double()):
        scores = [scale * float(q @ k) if s else -torch.inf for k, s in zip(keys[:, head // group], seen, strict=True)]
        weights = torch.tensor(scores, dtype=torch.float64).exp()
        out.append(weights @ values[:, head // group] / weights.sum())
    return torch.stack(out)


def extend(cache: Pool, query: Tensor, new: list[int], tree_mask: Tensor | None = None, **changes: object) -> Tensor:
    out = torch.full_like(query, torch.nan)
    sizes = torch.tensor(new, dtype=torch.int32)
    arguments: dict[str, object] = {
        "q": query,
        "k": None,
        "v": None,
        "output": out,
        "k_buffer": cache.keys,
        "v_buffer": cache.values,
        "k_scale": 1.0,
        "v_scale": 1.0,
        "req_to_token": cache.slots,
        "req_pool_indices": torch.arange(len(new)),
        "seq_lens": torch.tensor(cache.lengths),
        "extend_seq_lens": sizes,
        "extend_start_loc": sizes.cumsum(0) - sizes,
        "max_len_extend": max(new),
        "sm_scale": 0.3,
        "logit_cap": 0.0,
        "is_cross_attn": False,
        "sliding_window_size": 0,
        "encoder_lens": None,
        "sinks": None,
        "tree_mask": tree_mask,
        "is_causal": True,
    }
    torch.ops.sgl_kernel.extend_attention_cpu(*(arguments | changes).values())
    return out


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
@pytest.mark.parametrize(
    ("lengths", "new"), [([1], [1]), ([17], [17]), ([17, 3, 30], [4, 3, 1])], ids=["first", "prefill", "batch"]
)
def test_new_positions_attend_to_all_up_to_themselves(
    lengths: list[int], new: list[int], heads: int, kv_heads: int
) -> None:
    cache = pool(lengths, kv_heads, 8)
    query = torch.randn(sum(new), heads, 8)
    rows = iter(extend(cache, query, new))
    for b, (length, size) in enumerate(zip(lengths, new, strict=True)):
        for position in range(length - size, length):
            q = query[sum(new[:b]) + position - (length - size)]
            expected = naive(q, *cache.of(b, position + 1), 0.3, [True] * (position + 1))
            torch.testing.assert_close(next(rows).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("topk", [2, 4])
def test_tree_tokens_attend_to_the_prefix_and_their_ancestors(topk: int) -> None:
    rng = random.Random(topk)
    drafted = [draft_tree(rng, topk, 3) for _ in range(2)]
    selections = [select(rng, one, 6) for one in drafted]
    lengths, n = [12, 5], 7
    mask = build([one.parent_list for one in drafted], selections, lengths, topk, QLEN_ONLY).mask
    cache = pool([length + n for length in lengths], 2, 8)
    query = torch.randn(2 * n, 4, 8)
    rows = iter(extend(cache, query, [n, n], mask))
    for b, length in enumerate(lengths):
        paths = [ROOT, *(drafted[b].candidates[c] for c in selections[b])]
        for token, path in enumerate(paths):
            seen = [True] * length + [path[: len(other)] == other for other in paths]
            expected = naive(query[b * n + token], *cache.of(b, length + n), 0.3, seen)
            torch.testing.assert_close(next(rows).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 1)])
def test_decoding_stores_the_new_position_and_attends_to_all(heads: int, kv_heads: int) -> None:
    lengths = [1, 9, 40]
    cache = pool(lengths, kv_heads, 8)
    query, out = torch.randn(3, heads, 8), torch.empty(3, heads, 8)
    new_keys, new_values = torch.randn(2, 3, kv_heads * 8)
    loc = torch.tensor([int(cache.slots[b, length - 1]) for b, length in enumerate(lengths)])
    before = cache.keys.clone()
    rows, sizes = torch.arange(3), torch.tensor(lengths)
    scratch = torch.empty(0)
    torch.ops.sgl_kernel.decode_attention_cpu(
        *(query, cache.keys, cache.values, 1.0, 1.0, out, new_keys, new_values, loc, scratch),
        *(cache.slots, rows, sizes, 0.3, 0.0, False, 0, None, None),
    )
    assert torch.equal(cache.keys[loc].view(3, -1), new_keys)
    assert torch.equal(cache.values[loc].view(3, -1), new_values)
    others = [slot for slot in range(200) if slot not in loc.tolist()]
    assert torch.equal(cache.keys[others], before[others])
    for b, length in enumerate(lengths):
        expected = naive(query[b], *cache.of(b, length), 0.3, [True] * length)
        torch.testing.assert_close(out[b].double(), expected, atol=1e-5, rtol=1e-5)


# --- What isn't there.


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"k_scale": 0.5}, "quantised"),
        ({"logit_cap": 30.0}, "logit cap"),
        ({"is_cross_attn": True}, "cross attention"),
        ({"sliding_window_size": 128}, "sliding window"),
        ({"sinks": torch.zeros(2)}, "attention sinks"),
        ({"is_causal": False}, "without a causal mask"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_attention_of_other_families_is_refused_by_name(change: dict[str, object], named: str) -> None:
    with pytest.raises(MissingKernel, match=f"extend_attention_cpu .*{named}.*Llama-family"):
        extend(pool([3], 2, 8), torch.randn(3, 2, 8), [3], **change)


def test_a_missing_kernel_fails_by_name_when_it_is_called() -> None:
    kernel = sgl_kernel.moe_align_block_size
    with pytest.raises(MissingKernel, match=r"^sgl_kernel\.moe_align_block_size is not part of .*engine = \"sglang\""):
        kernel(torch.zeros(1), 4)


def test_a_missing_operation_is_no_attribute_and_says_so_by_name() -> None:
    assert not hasattr(torch.ops.sgl_kernel, "fused_experts_cpu")
    with pytest.raises(AttributeError, match=r"^torch\.ops\.sgl_kernel\.fused_experts_cpu is not part of"):
        _ = torch.ops.sgl_kernel.fused_experts_cpu


def test_the_sign_of_compiled_amx_kernels_stays_missing() -> None:
    # SGLang takes its presence for leave to call AMX kernels from every layer.
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")
