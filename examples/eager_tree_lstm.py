"""Train a TreeLSTM, another tree for every batch, inside four fifths of the bytes it would take; nothing is captured.

Run: python examples/eager_tree_lstm.py
"""

import random
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import lowtide

Tree = Any  # the number of a leaf, or a pair of trees


def random_tree(leaves: int, seed: int) -> Tree:
    """Leaves joined two by two, at random."""
    choose = random.Random(seed)
    forest: list[Tree] = list(range(leaves))
    while len(forest) > 1:
        left = forest.pop(choose.randrange(len(forest)))
        right = forest.pop(choose.randrange(len(forest)))
        forest.append((left, right))
    return forest[0]


class TreeLSTM(nn.Module):
    """Reads a tree from its leaves to its root."""

    def __init__(self, width: int = 64, classes: int = 4) -> None:
        super().__init__()
        self.leaf = nn.Linear(width, 2 * width)
        self.join = nn.Linear(2 * width, 5 * width)
        self.head = nn.Linear(width, classes)

    def forward(self, tree: Tree, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.dropout(self.read(tree, x)[0], 0.1))

    def read(self, tree: Tree, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """State and cell of a node."""
        if isinstance(tree, int):
            gate, cell = self.leaf(x[tree]).chunk(2, dim=1)
            return gate.sigmoid() * cell.tanh(), cell.tanh()
        (left_h, left_c), (right_h, right_c) = self.read(tree[0], x), self.read(tree[1], x)
        enter, left, right, leave, fresh = self.join(torch.cat([left_h, right_h], 1)).chunk(5, dim=1)
        cell = enter.sigmoid() * fresh.tanh() + left.sigmoid() * left_c + right.sigmoid() * right_c
        return leave.sigmoid() * cell.tanh(), cell


def batches(count: int) -> Iterator[tuple[Tree, torch.Tensor, torch.Tensor]]:
    """Trees of 12 to 16 leaves."""
    draw = torch.Generator().manual_seed(1)
    for number in range(count):
        leaves = 12 + number % 5
        x = torch.randn(leaves, 64, 64, generator=draw)
        yield random_tree(leaves, number), x, torch.randint(0, 4, (64,), generator=draw)


def train(budget: int | None, steps: int = 5) -> tuple[list[float], int]:
    """An ordinary loop, inside a budget. Returns its losses, and the most bytes that it held."""
    torch.manual_seed(0)
    model = TreeLSTM()
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    with lowtide.eager(budget or "8GiB", model=model, optimizer=optimizer) as run:
        for tree, x, y in batches(steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(tree, x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    stats = run.stats()
    print(f"{stats.peak_B:,} bytes held, {stats.evictions} evictions, {stats.recomputations} recomputations")
    return losses, stats.peak_B


free_losses, peak_B = train(None)
held_losses, held_B = train(peak_B * 4 // 5)
assert held_losses == free_losses
assert held_B <= peak_B * 4 // 5
