"""All planners. A new one is its own file and one line here; it earns all contract tests with it."""

from __future__ import annotations

from lowtide.planners.annealing import LocalSearch
from lowtide.planners.base import AbstractPlanner
from lowtide.planners.classic.checkmate import Checkmate, LpRounding, RandomRounding
from lowtide.planners.classic.chen import CheckpointAll, ChenGreedy, ChenGreedyLinear, ChenSqrt, ChenSqrtLinear
from lowtide.planners.classic.revolve import Revolve, RevolveBlocks
from lowtide.planners.classic.rotor import Rotor
from lowtide.planners.classic.static_offload import CheckpointOffload, ConvolutionOffload, SavedOffload, TensorCache
from lowtide.planners.classic.superneurons import CostAware, MemoryCentric, SpeedCentric, SuperNeurons
from lowtide.planners.cuts import MultiCutReplay, SingleCutReplay
from lowtide.planners.greedy import Greedy
from lowtide.planners.keep_all import KeepAll
from lowtide.planners.portfolio import Portfolio

PLANNERS: tuple[AbstractPlanner, ...] = (
    KeepAll(),
    Greedy(),
    SingleCutReplay(),
    MultiCutReplay(),
    LocalSearch(),
    Portfolio(),
)
# For comparison, and for proof on small graphs. The linear and integer programmes take minutes on what they accept by
# themselves; here they decline what would take them longer than seconds.
CLASSICS: tuple[AbstractPlanner, ...] = (
    CheckpointAll(),
    ChenSqrt(),
    ChenSqrtLinear(),
    ChenGreedy(),
    ChenGreedyLinear(),
    Revolve(),
    RevolveBlocks(),
    Rotor(),
    SpeedCentric(),
    MemoryCentric(),
    CostAware(),
    LpRounding(most_recipes=24),
    RandomRounding(most_recipes=24),
    Checkmate(most_recipes=24),
)
# For comparison where values may be offloaded to the host; they refuse problems without links.
MOVERS: tuple[AbstractPlanner, ...] = (
    ConvolutionOffload(),
    TensorCache(),
    SavedOffload(),
    CheckpointOffload(),
    SuperNeurons(),
)
