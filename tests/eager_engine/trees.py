"""A TreeLSTM over random trees (Tai et al., 2015): another graph for every batch."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Tree = Any
"""The number of a leaf, or a pair of trees."""
State = tuple[torch.Tensor, torch.Tensor]


def random_tree(leaves: int, seed: int) -> Tree:
    """A binary tree over leaves 0, 1, ..., joined at random."""
    choose = random.Random(seed)
    forest: list[Tree] = list(range(leaves))
    while len(forest) > 1:
        left = forest.pop(choose.randrange(len(forest)))
        right = forest.pop(choose.randrange(len(forest)))
        forest.append((left, right))
    return forest[0]


class TreeReader(nn.Module):
    """Binary TreeLSTM; the class of a tree from its root."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.leaf = nn.Linear(width, 2 * hidden)
        self.join = nn.Linear(2 * hidden, 5 * hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, tree: Tree, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(F.dropout(self._read(tree, x)[0], 0.1)), y)

    def _read(self, tree: Tree, x: torch.Tensor) -> State:
        if isinstance(tree, int):
            cell, gate = self.leaf(x[tree]).chunk(2, dim=1)
            cell = torch.tanh(cell)
            return gate.sigmoid() * cell, cell
        (left_h, left_c), (right_h, right_c) = self._read(tree[0], x), self._read(tree[1], x)
        gates = self.join(torch.cat([left_h, right_h], 1))
        enter, left, right, leave, fresh = gates.chunk(5, dim=1)
        cell = enter.sigmoid() * torch.tanh(fresh) + left.sigmoid() * left_c + right.sigmoid() * right_c
        return leave.sigmoid() * torch.tanh(cell), cell
