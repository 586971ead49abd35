"""Seconds of an operator on tensors of another size: measured ones, scaled by the roofline model. Torch-free.

Units: `_s` seconds.
"""

from __future__ import annotations

from msgspec.structs import replace

from lowtide.ir.graph import Graph, Recipe
from lowtide.profile.machines import MACHINES
from lowtide.profile.measurement import Measurement, output_paths
from lowtide.profile.roofline import predict_s


def scaled_s(known: Graph, like: Recipe, recipe: Recipe, measurement: Measurement) -> float:
    """Scales the seconds of one recipe to another shape of it.

    Arguments:
        known: the graph of `like`, measured.
        like: a recipe of `known`, with its seconds.
        recipe: the same one for another shape, its reads with their geometry.
        measurement: what a run of it returned.

    Returns: seconds; the model gives their ratio alone, which is off by less than the model itself.
    """
    machine = MACHINES["cpu"]  # any will do for a ratio
    values = list(known.values)
    for value, path in zip(recipe.outputs, output_paths(recipe), strict=False):
        result = measurement.at(path)
        if result is not None:
            values[value] = replace(values[value], geometry=result.geometry)
    here = replace(known, values=tuple(values))
    return like.time_s * predict_s(here, recipe, machine) / predict_s(known, like, machine)
