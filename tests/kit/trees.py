"""Random token trees as a draft hands them over, told by paths: which child is taken at each step from the root."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from fixtures.engine.inside.cpu import sgl_kernel

FULL_MASK, QLEN_ONLY = 0, 1
ROOT = ()

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
    """The trees as the kernel builds them, one per request, `lengths` being the committed ones."""
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
