"""The CPU engine's kernels against their definitions, worked out here in other ways."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from fixtures.engine.inside.cpu import sgl_kernel
from fixtures.engine.inside.cpu.sgl_kernel.missing import MissingKernel

FULL_MASK, QLEN_ONLY = 0, 1
ROOT = ()


# --- The token tree. A token is told by its path: which child to take at each step from the root down.

Path = tuple[int, ...]


@dataclass
class Drafted:
    """What the draft hands over: its candidates in the order of its numbering, and who was expanded when."""

    topk: int
    candidates: list[Path]
    expanded: list[int]
    """The candidate numbers that were expanded, in order; each begets `topk` candidates."""

    @property
    def parent_list(self) -> list[int]:
        return [-1, *self.expanded]


def draft_tree(rng: random.Random, topk: int, depth: int) -> Drafted:
    """`depth` steps of drafting; at each the `topk` newest candidates that fate prefers are expanded."""
    newest: list[Path] = [(branch,) for branch in range(topk)]
    drafted = Drafted(topk, list(newest), [])
    for _ in range(depth - 1):
        chosen = rng.sample(newest, topk)
        drafted.expanded += [drafted.candidates.index(path) for path in chosen]
        newest = [(*path, branch) for path in chosen for branch in range(topk)]
        drafted.candidates += newest
    return drafted


def select(rng: random.Random, drafted: Drafted, proposed: int) -> list[int]:
    """`proposed` candidate numbers, ascending, none without its ancestors."""
    selected: set[Path] = set()
    while len(selected) < proposed:
        open_ones = [c for c in drafted.candidates if c not in selected and (len(c) == 1 or c[:-1] in selected)]
        selected.add(rng.choice(open_ones))
    return sorted(drafted.candidates.index(path) for path in selected)


@dataclass
class Built:
    """The outputs of the tree's construction, for a batch."""

    mask: Tensor
    positions: Tensor
    rows: Tensor
    first_child: Tensor
    next_sibling: Tensor


def build(
    parent_lists: list[list[int]], selections: list[list[int]], lengths: list[int], topk: int, mode: int
) -> Built:
    batch, n = len(lengths), len(selections[0]) + 1
    cells = n * n * batch + (n * sum(lengths) if mode == FULL_MASK else 0)
    built = Built(
        torch.ones(cells, dtype=torch.bool),
        torch.empty(batch * n, dtype=torch.int64),
        *torch.full((3, batch, n), -1),
    )
    sgl_kernel.build_tree_kernel_efficient_cpu(
        torch.tensor(parent_lists),
        torch.tensor(selections),
        torch.tensor(lengths),
        built.mask,
        built.positions,
        built.rows,
        built.first_child,
        built.next_sibling,
        topk,
        max(map(len, parent_lists)),
        n,
        mode,
    )
    return built


def children_of(paths: list[Path], token: int) -> list[int]:
    return [i for i, path in enumerate(paths) if path and path[:-1] == paths[token]]


def assert_tree(built: Built, b: int, paths: list[Path], length: int, seen: Tensor) -> None:
    """That request `b` has the tree of `paths`, with `seen` [n, n] being its part of the mask."""
    n = len(paths)
    families = [children_of(paths, token) for token in range(n)]
    assert built.positions.view(-1, n)[b].tolist() == [length + len(path) for path in paths]
    assert built.rows[b].tolist() == list(range(b * n, b * n + n))
    assert built.first_child[b].tolist() == [family[0] if family else -1 for family in families]
    siblings = dict(pair for family in families for pair in itertools.pairwise(family))
    assert built.next_sibling[b].tolist() == [siblings.get(token, -1) for token in range(n)]
    ancestry = [[path[: len(other)] == other for other in paths] for path in paths]
    assert seen.tolist() == ancestry


def blocks(mask: Tensor, lengths: list[int], n: int, mode: int) -> Iterator[Tensor]:
    """Each request's block of the flat mask, [n, n] or [n, length + n]."""
    for length in lengths:
        width = n + (length if mode == FULL_MASK else 0)
        yield mask[: n * width].view(n, width)
        mask = mask[n * width :]
    assert len(mask) == 0


def test_a_tree_by_hand() -> None:
    # The root has children 0 and 1 (tokens 1 and 2); candidate 1 was expanded first, and its first child is token 3.
    built = build([[-1, 1, 0]], [[0, 1, 2]], [7], topk=2, mode=QLEN_ONLY)
    assert built.positions.tolist() == [7, 8, 8, 9]
    assert built.first_child.tolist() == [[1, -1, 3, -1]]
    assert built.next_sibling.tolist() == [[-1, 2, -1, -1]]
    assert built.mask.view(4, 4).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]


@pytest.mark.parametrize("mode", [FULL_MASK, QLEN_ONLY], ids=["full", "qlen"])
@pytest.mark.parametrize("depth", [1, 2, 3, 10])
def test_a_chain_is_a_tree_of_only_children(depth: int, mode: int) -> None:
    parents = list(range(-1, depth - 1)) if depth > 1 else []
    lengths = [5, 1, 12]
    built = build([parents] * 3, [list(range(depth))] * 3, lengths, topk=1, mode=mode)
    paths = [(0,) * token for token in range(depth + 1)]
    for b, block in enumerate(blocks(built.mask, lengths, depth + 1, mode)):
        assert_tree(built, b, paths, lengths[b], block[:, -(depth + 1) :])


@pytest.mark.parametrize("mode", [FULL_MASK, QLEN_ONLY], ids=["full", "qlen"])
@pytest.mark.parametrize("topk", [1, 2, 4])
@pytest.mark.parametrize("seed", range(12))
def test_random_trees_are_built_as_their_paths_say(seed: int, topk: int, mode: int) -> None:
    rng = random.Random(seed)
    depth = rng.randint(1, 6)
    lengths = [rng.randint(1, 30) for _ in range(rng.randint(1, 4))]
    drafted = [draft_tree(rng, topk, depth) for _ in lengths]
    proposed = rng.randint(1, min(12, len(drafted[0].candidates)))
    selections = [select(rng, one, proposed) for one in drafted]
    built = build([one.parent_list for one in drafted], selections, lengths, topk, mode)
    for b, block in enumerate(blocks(built.mask, lengths, proposed + 1, mode)):
        paths = [ROOT, *(drafted[b].candidates[candidate] for candidate in selections[b])]
        assert block[:, : -(proposed + 1)].all(), "the prefix is seen by every token"
        assert_tree(built, b, paths, lengths[b], block[:, -(proposed + 1) :])


def test_a_token_whose_parent_was_not_selected_is_out_of_reach() -> None:
    # Candidate 2 is a child of candidate 1, which equal scores left out.
    built = build([[-1, 1, 0]], [[0, 2]], [7], topk=2, mode=QLEN_ONLY)
    assert built.first_child.tolist() == [[1, -1, -1]]
    assert built.next_sibling.tolist() == [[-1, -1, -1]]


def test_bit_packed_masks_are_refused_by_name() -> None:
    with pytest.raises(MissingKernel, match="tree mask of mode 2"):
        build([[]], [[0]], [7], topk=1, mode=2)


# --- Greedy verification.


@dataclass
class Verified:
    predicts: list[int]
    accept_index: list[list[int]]
    accepted: list[int]


def verify(built: Built, tokens: list[list[int]], predictions: list[int], width: int) -> Verified:
    batch = len(tokens)
    predicts = torch.zeros(len(predictions), dtype=torch.int32)
    index = torch.full((batch, width), -1, dtype=torch.int32)
    count = torch.zeros(batch, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=index,
        accept_token_num=count,
        candidates=torch.tensor(tokens),
        retrive_index=built.rows,
        retrive_next_token=built.first_child,
        retrive_next_sibling=built.next_sibling,
        target_predict=torch.tensor(predictions),
    )
    return Verified(predicts.tolist(), index.tolist(), count.tolist())


@pytest.mark.parametrize(("depth", "right"), [(d, r) for d in (1, 2, 3, 5, 10) for r in range(d + 1)])
def test_a_chain_is_accepted_up_to_its_first_wrong_draft(depth: int, right: int) -> None:
    built = build([list(range(-1, depth - 1))], [list(range(depth))], [9], topk=1, mode=QLEN_ONLY)
    tokens = [100 + i for i in range(depth + 1)]
    predictions = [100 + i + 1 if i != right else 7 for i in range(depth + 1)]
    seen = verify(built, [tokens], predictions, depth + 1)
    assert seen.accepted == [right]
    assert seen.accept_index == [[*range(right + 1), *[-1] * (depth - right)]]
    assert seen.predicts == [*range(101, 101 + right), 7, *[0] * (depth - right)]


def test_requests_of_a_batch_are_verified_apart() -> None:
    built = build([[-1]] * 3, [[0, 1]] * 3, [4, 4, 4], topk=2, mode=QLEN_ONLY)
    tokens = [[50, 10, 11]] * 3
    # The first request takes the first child, the second the second, the third none.
    seen = verify(built, tokens, [10, 1, 2, 11, 3, 4, 12, 5, 6], 2)
    assert seen.accepted == [1, 1, 0]
    assert seen.accept_index == [[0, 1], [3, 5], [6, -1]]
    assert seen.predicts == [10, 1, 0, 11, 0, 4, 12, 0, 0]


@pytest.mark.parametrize("topk", [1, 2, 4])
@pytest.mark.parametrize("seed", range(25))
def test_random_trees_are_accepted_along_the_predicted_path(seed: int, topk: int) -> None:
    rng = random.Random(seed)
    depth, batch = rng.randint(1, 5), rng.randint(1, 4)
    drafted = [draft_tree(rng, topk, depth) for _ in range(batch)]
    proposed = rng.randint(1, min(12, len(drafted[0].candidates)))
    selections = [select(rng, one, proposed) for one in drafted]
    built = build([one.parent_list for one in drafted], selections, [3] * batch, topk, QLEN_ONLY)
    trees = [[ROOT, *(one.candidates[c] for c in chosen)] for one, chosen in zip(drafted, selections, strict=True)]
    # Siblings bear different tokens: their branch. A prediction is right or one of the other branches.
    tokens = [[path[-1] if path else 99 for path in tree] for tree in trees]
    predictions = [rng.randrange(topk + 1) for _ in range(batch * (proposed + 1))]
    seen = verify(built, tokens, predictions, depth + 1)
    for b, tree in enumerate(trees):
        first = b * len(tree)
        taken = sorted((p for p in tree if is_predicted(p, tree, predictions[first:])), key=len)
        rows = [first + tree.index(path) for path in taken]
        assert seen.accepted[b] == len(taken) - 1
        assert seen.accept_index[b] == rows + [-1] * (depth + 1 - len(rows))
        assert [seen.predicts[row] for row in rows] == [predictions[row] for row in rows]
    kept = {row for rows in seen.accept_index for row in rows}
    assert all(token == 0 for row, token in enumerate(seen.predicts) if row not in kept)


def is_predicted(path: Path, tree: list[Path], predictions: Sequence[int]) -> bool:
    """Whether each step of the path is what the target predicts where it is taken."""
    return all(predictions[tree.index(path[:i])] == step for i, step in enumerate(path))


def test_the_bonus_token_is_the_last_accepted_one() -> None:
    bonus = torch.zeros(3, dtype=torch.int32)
    accepted = torch.tensor([[11, 12, 13], [21, 0, 0], [31, 32, 0]], dtype=torch.int32)
    sgl_kernel.fill_bonus_tokens_cpu(accepted.flatten(), torch.tensor([3, 1, 2], dtype=torch.int32), bonus, 3)
    assert bonus.tolist() == [13, 21, 32]


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
