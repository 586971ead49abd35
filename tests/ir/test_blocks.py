"""Layers found in graphs, and graphs with a layer more often: equal, up to ids, to the network of that depth."""

from __future__ import annotations

import msgspec
import pytest

from lowtide.errors import PlanError
from lowtide.ir.block import Block, block_named, references
from lowtide.ir.block_search import find_blocks
from lowtide.ir.check import check
from lowtide.ir.check_graph import check_graph
from lowtide.ir.graph import Graph, Group, Option, Role
from lowtide.ir.likeness import renumbered
from lowtide.ir.periods import Stretch, periodic_stretches
from lowtide.ir.repetition import repeat
from lowtide.ir.simulate import simulate
from lowtide.planners.keep_all import keep_all_schedule
from tests.planners.tape import MIB, Tape, chain, gpt, random_graph, resnet, unet


def only_block(graph: Graph) -> Block:
    (block,) = find_blocks(graph)
    return block


def test_stretches_are_maximal_and_have_their_shortest_period() -> None:
    assert periodic_stretches([7, 1, 2, 1, 2, 1, 3]) == [Stretch(1, 6, 2)]
    assert periodic_stretches([5, 5, 5, 5]) == [Stretch(0, 4, 1)]
    assert periodic_stretches([1, 2, 3]) == []
    nested = periodic_stretches([1, 1, 2, 1, 1, 2])
    assert nested[0] == Stretch(0, 6, 3)
    assert Stretch(0, 2, 1) in nested


@pytest.mark.parametrize(("captured", "wanted"), [(2, 7), (3, 7), (5, 5), (7, 2), (4, 1)])
def test_a_repeated_transformer_is_the_deeper_one(captured: int, wanted: int) -> None:
    shallow = gpt(captured)
    deep = repeat(shallow, only_block(shallow), wanted)
    check_graph(deep)
    assert renumbered(deep) == renumbered(gpt(wanted))


def test_every_stage_of_a_residual_network_is_found_and_repeated() -> None:
    graph = resnet((3, 3, 4, 3))
    blocks = find_blocks(graph)
    assert [b.times for b in blocks] == [2, 2, 3, 2]
    assert len({b.name for b in blocks}) == 4
    for stage, times in enumerate((4, 1, 9, 3)):
        graph = repeat(graph, find_blocks(graph)[stage] if stage == 0 else _stage(graph, blocks[stage]), times)
        check_graph(graph)
    assert renumbered(graph) == renumbered(resnet((5, 2, 10, 4)))


def _stage(graph: Graph, like: Block) -> Block:
    """The block of the same sizes, found anew: ids and names have changed."""

    def sizes_B(g: Graph, block: Block) -> list[int]:
        return [g.values[v].size_B for v in block.values[0]]

    wanted = sizes_B(resnet((3, 3, 4, 3)), like)
    return next(b for b in find_blocks(graph) if sizes_B(graph, b) == wanted)


def test_a_block_says_what_crosses_it() -> None:
    graph = gpt(3)
    block = only_block(graph)
    here = [graph.values[v] for v in block.values[1]]
    act_B = 8 * 1024 * 768 * 2
    assert [here[s].size_B for s in block.passed_down] == [act_B]
    assert [here[s].size_B for s in block.passed_up] == [act_B]
    assert all(here[s].persistent for s in block.owned)
    assert len(block.owned) == 6
    assert all(s < block.made_forward for s in block.saved)
    backward = block.recipes[1][block.forward : block.forward + block.backward]
    assert {graph.recipes[r].segment for r in backward} == {1}


def test_a_layer_of_inference_has_no_backward() -> None:
    tape = Tape("inference")
    tape.segment("forward")
    x = tape.given(MIB)
    for _ in range(3):
        x = tape.op("relu", (tape.op("linear", (x,), MIB, 1e-3, weight_B=64),), MIB, 1e-3)
    tape.leave(tape.op("loss", (x,), 4, 1e-3), 0, Role.OUTPUT)
    graph = tape.graph()
    block = only_block(graph)
    assert (block.forward, block.backward) == (2, 0)
    deep = repeat(graph, block, 6)
    check_graph(deep)
    assert len(deep.program) == 13
    assert sum(v.persistent for v in deep.values) == 6


def test_every_part_of_a_bundle_has_its_own_layers() -> None:
    graph = chain(24, parts=2)
    blocks = find_blocks(graph)
    assert len(blocks) == 2
    deep = repeat(graph, blocks[0], 5)
    check_graph(deep)
    assert len(deep.program) > len(graph.program)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_found_can_be_repeated(seed: int) -> None:
    graph = random_graph(seed, 14, 2, mirrored=True)
    for block in find_blocks(graph):
        check_graph(repeat(graph, block, block.times + 2))


def test_a_repeated_graph_can_be_planned() -> None:
    shallow = gpt(2)
    deep = repeat(shallow, only_block(shallow), 5)
    schedule = keep_all_schedule(deep)
    peak_B = simulate(deep, schedule).peak_B
    assert peak_B == simulate(gpt(5), keep_all_schedule(gpt(5))).peak_B
    check(deep, schedule, peak_B)


def test_repeating_as_often_as_captured_changes_ids_alone() -> None:
    graph = resnet((3, 2, 2, 2))
    block = find_blocks(graph)[0]
    assert renumbered(repeat(graph, block, block.times)) == renumbered(graph)


def test_new_instances_have_names_of_their_own() -> None:
    graph = gpt(3, dropout=False)
    block = only_block(graph)
    named = _with_modules(graph, block)
    deep = repeat(named, only_block(named), 6)
    modules = {r.origin.module for r in deep.recipes if r.origin.module}
    assert modules == {f"h.{i}.mlp" for i in range(6)}
    names = [v.name for v in deep.values]
    assert len(set(names)) == len(names)
    assert only_block(named).name == "h"


def _with_modules(graph: Graph, block: Block) -> Graph:
    module = {r: f"h.{i}.mlp" for i, row in enumerate(block.recipes) for r in row}
    recipes = tuple(
        msgspec.structs.replace(r, origin=msgspec.structs.replace(r.origin, module=module.get(r.id, "")))
        for r in graph.recipes
    )
    return msgspec.structs.replace(graph, recipes=recipes)


def test_wires_lead_to_what_each_instance_refers_to() -> None:
    graph = gpt(4)
    block = only_block(graph)
    for instance, row in enumerate(block.recipes):
        for recipe, wires in zip(row, block.wires, strict=True):
            for value, wire in zip(references(graph.recipes[recipe]), wires, strict=True):
                if wire is not None and 0 <= instance + wire.step < block.times:
                    assert block.values[instance + wire.step][wire.slot] == value


def test_layers_that_differ_are_no_block() -> None:
    assert find_blocks(unet(4)) == ()
    assert find_blocks(gpt(1)) == ()


def test_a_value_that_every_instance_hands_to_one_reader_is_refused() -> None:
    """A sum over all layers has as many terms as there are layers: repeating would not be the deeper network."""
    tape = Tape("collected")
    tape.segment("forward")
    x, outputs = tape.given(MIB), []
    for _ in range(3):
        x = tape.op("linear", (x,), MIB, 1e-3, weight_B=64)
        outputs.append(x)
    tape.leave(tape.op("cat", tuple(outputs), 3 * MIB, 1e-3), 0, Role.OUTPUT)
    assert find_blocks(tape.graph()) == ()


def test_recipes_of_groups_belong_to_no_block() -> None:
    graph = gpt(3)
    block = only_block(graph)
    options = (Option("plain", (block.recipes[1][0],)),)
    assert find_blocks(msgspec.structs.replace(graph, groups=(Group("g", options),))) == ()


def test_errors_name_the_blocks_that_there_are() -> None:
    graph = gpt(3)
    blocks = find_blocks(graph)
    with pytest.raises(PlanError, match=r"no block 'h'.*'layer' \(3 in a row\)"):
        block_named(graph, blocks, "h")
    with pytest.raises(PlanError, match="at least once"):
        repeat(graph, blocks[0], 0)
