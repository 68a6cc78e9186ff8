"""The CPU engine's tree kernels against their definitions: what a path sees, and which path the target accepts."""

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
from tests.kit.trees import FULL_MASK, QLEN_ONLY, ROOT, Built, Path, build, draft_tree, select


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
