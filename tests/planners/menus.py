"""Graphs with more than one implementation: networks of `tape.py` with other backwards, random graphs with anything.

Units: `_B` bytes, `_s` seconds.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import msgspec

from lowtide.errors import LowtideError
from lowtide.ir.call import Read
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Effect, Graph, Group, MiniTrace, Option, Recipe, Role, Value
from lowtide.planners.implementations.choice import choose
from lowtide.planners.reductions.stages import stage_program
from tests.planners.tape import gpt, random_graph, resnet, traffic_s, unet


class Menu:
    """A graph to which options are being added."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values, self.recipes = list(graph.values), list(graph.recipes)
        self.groups: list[Group] = list(graph.groups)

    def value(self, size_B: int) -> int:
        self.values.append(Value(len(self.values), f"v{len(self.values)}", size_B, Role.ACTIVATION))
        return len(self.values) - 1

    def recipe(
        self, like: Recipe, reads: Sequence[int], outputs: Sequence[int], time_s: float, workspace_B: int = 0
    ) -> int:
        sized = [v for v in outputs if self.values[v].size_B]
        inside = (workspace_B,) if workspace_B else ()
        events = (*inside, *(self.values[v].size_B for v in sized), *((-1,) if workspace_B else ()))
        host_resident = tuple(len(inside) + sized.index(v) if v in sized else None for v in outputs)
        self.recipes.append(Recipe(
            len(self.recipes), f"other {like.op}", tuple(outputs), tuple(Read(v) for v in dict.fromkeys(reads)),
            segment=like.segment, time_s=time_s, trace=MiniTrace(events, host_resident, measured=True),
        ))  # fmt: skip
        return len(self.recipes) - 1

    def group(self, replaces: Sequence[int], *options: Sequence[int]) -> None:
        made = [
            Option("program", tuple(replaces)),
            *(Option(f"option {k}", tuple(o)) for k, o in enumerate(options, 1)),
        ]
        self.groups.append(Group(f"group {len(self.groups)}", tuple(made), "saved values"))

    def finish(self) -> Graph:
        return msgspec.structs.replace(
            self.graph, values=tuple(self.values), recipes=tuple(self.recipes), groups=tuple(self.groups)
        )


def with_backwards(graph: Graph, mask: bool = True) -> Graph:
    """A network whose rectifiers may run backward from input or packed mask, and its batch norms from the output."""
    menu = Menu(graph)
    by_read: dict[int, list[Recipe]] = {}
    for r in graph.program:
        for v in graph.recipes[r].read_values:
            by_read.setdefault(v, []).append(graph.recipes[r])
    for forward in [graph.recipes[r] for r in graph.program]:
        if forward.op not in ("relu", "batch_norm"):
            continue
        x, y = forward.reads[0].value, forward.outputs[0]
        key = y if forward.op == "relu" else forward.outputs[1]
        backward = [b for b in by_read.get(key, ()) if b.op == "bwd" and b.reads[1].value == (y if key == y else x)]
        backward = [b for b in backward if key != y or len(b.reads) == 2]
        if len(backward) != 1:
            continue
        (back,) = backward
        other = [x if v == y else y if v == x else v for v in back.read_values]
        candidates = [[menu.recipe(back, other, back.outputs, back.time_s * (1.0 if key == y else 1.1))]]
        if mask and key == y:
            bits = menu.value(graph.values[y].size_B // 32)
            pack = menu.recipe(forward, [y], [bits], traffic_s(graph.values[y].size_B))
            packed = [bits if v == y else v for v in back.read_values]
            candidates.append([pack, menu.recipe(back, packed, back.outputs, back.time_s)])
        menu.group([back.id], *candidates)
    return menu.finish()


def with_chunks(graph: Graph, op: str = "loss", chunks: int = 4) -> Graph:
    """A network whose last operators may run at once, with a fraction of their memory and more time."""
    menu = Menu(graph)
    last = next(graph.recipes[r] for r in graph.program if graph.recipes[r].op == op)
    before = next(graph.recipes[r] for r in graph.program if last.reads[0].value in graph.recipes[r].outputs)
    logits, x = last.reads[0].value, before.reads[0].value
    weight = before.reads[1].value
    back = [graph.recipes[r] for r in graph.program if graph.recipes[r].op == "bwd"][:2]
    chunk_B = 2 * graph.values[logits].size_B // chunks
    forward = menu.recipe(last, [x, weight], last.outputs, 1.1 * (before.time_s + last.time_s), chunk_B // 2)
    both_s = before.time_s + sum(b.time_s for b in back)
    backward = menu.recipe(back[1], [back[0].reads[0].value, x, weight], back[1].outputs, 1.1 * both_s, chunk_B)
    menu.group([before.id, last.id, back[0].id, back[1].id], [forward, backward])
    return menu.finish()


def random_menu(seed: int, recipes: int = 8, segments: int = 2, groups: int = 3) -> Graph:
    """A random graph with random options: other reads, masks packed, outputs made apart, two made as one."""
    dice = random.Random(seed)
    graph = random_graph(seed, recipes, segments, mirrored=True)
    for _ in range(20 * groups):
        if len(graph.groups) == groups:
            break
        other = _one_more(dice, graph)
        if other is not None and _is_sound(other):
            graph = other
    return graph


def every_choice(graph: Graph) -> Iterator[dict[int, int]]:
    options = [range(len(g.options)) for g in graph.groups]
    return (dict(enumerate(choice)) for choice in itertools.product(*options))


def _one_more(dice: random.Random, graph: Graph) -> Graph | None:
    taken = {r for g in graph.groups for o in g.options for r in o.recipes}
    free = [r for r in graph.program if r not in taken and graph.recipes[r].effect is Effect.PURE]
    if not free:
        return None
    menu = Menu(graph)
    recipe = graph.recipes[dice.choice(free)]
    before = graph.program[: graph.program.index(recipe.id)]
    there = [v for r in before for v in graph.recipes[r].outputs if graph.values[v].role is not Role.GENERATOR]
    time_s, workspace_B = dice.randint(1, 9) * 1e-3, dice.choice((0, 0, 8192, 16384))
    kind = dice.random()
    if kind < 0.35 and there:
        reads = [dice.choice(there) if dice.random() < 0.6 else v for v in recipe.read_values]
        candidates = [[menu.recipe(recipe, reads, recipe.outputs, time_s, workspace_B)]]
        if dice.random() < 0.4:
            reads = [dice.choice(there), *recipe.read_values[:1]]
            candidates.append([menu.recipe(recipe, reads, recipe.outputs, time_s + 1e-3, 4096)])
        menu.group([recipe.id], *candidates)
    elif kind < 0.65 and there:
        mask, source = menu.value(dice.randint(0, 2) * 4096), dice.choice(there)
        maker = next(graph.recipes[r] for r in before if source in graph.recipes[r].outputs)
        pack = menu.recipe(maker, [source], [mask], dice.randint(0, 3) * 1e-3)
        kept = [v for v in recipe.read_values if v != source]
        menu.group([recipe.id], [pack, menu.recipe(recipe, [*kept, mask], recipe.outputs, time_s, workspace_B)])
    elif kind < 0.8 and len(recipe.outputs) > 1:
        reads = recipe.read_values
        parts = [menu.recipe(recipe, reads[: 1 + k], [v], time_s / 2) for k, v in enumerate(recipe.outputs)]
        menu.group([recipe.id], parts)
    else:
        partners = [graph.recipes[r] for r in before if r in free and graph.recipes[r].segment == recipe.segment]
        if not partners:
            return None
        one = dice.choice(partners)
        reads = [v for v in (*one.read_values, *recipe.read_values) if v not in one.outputs]
        fused = menu.recipe(recipe, reads, (*one.outputs, *recipe.outputs), time_s, workspace_B)
        costlier = menu.recipe(recipe, recipe.read_values[:1], recipe.outputs, time_s + 2e-3)
        menu.group([one.id, recipe.id], [fused], [one.id, costlier])
    return menu.finish()


def _is_sound(graph: Graph) -> bool:
    """Whether every choice has a program that can run."""
    try:
        for choice in every_choice(graph):
            chosen = choose(graph, choice)
            check_graph(chosen)
            stage_program(chosen)
    except LowtideError:
        return False
    return True


MENUS = {
    "resnet menu": lambda: with_backwards(resnet((1, 1, 1, 1))),
    "unet menu": lambda: with_backwards(unet(2)),
    "gpt menu": lambda: with_chunks(gpt(2)),
}
"""Networks with more than one implementation, small, by name."""
