"""Lists operators whose schema says less than they do. Torch-free.

They were found by running torch's own samples of every operator and looking at every byte before and after. An operator
is here if it writes an argument that its schema does not mark, if it draws from the random generator without the tag
for it, or if a result looks at an argument's bytes and the schema calls it new. Of collectives no schema says enough:
they read and write after they have returned, together with other processes.
"""

from __future__ import annotations

import msgspec


class Hidden(msgspec.Struct, frozen=True):
    """What a schema does not say.

    Arguments:
        writes: names of the arguments that are written.
        only_if: name of the argument that has to be true for that; empty: always.
        spare: names of the arguments that a recomputation leaves out where they were written: its results do not
            depend on them, and it must not write them twice.
        draws: random numbers.
    """

    writes: tuple[str, ...] = ()
    only_if: str = ""
    spare: tuple[str, ...] = ()
    draws: bool = False


_STATISTICS = Hidden(writes=("running_mean", "running_var"), only_if="training", spare=("running_mean", "running_var"))

WRONG_SCHEMAS: dict[str, Hidden] = {
    "aten.native_batch_norm.default": _STATISTICS,
    "aten._batch_norm_impl_index.default": _STATISTICS,
}
"""By name, with the overload."""

UNDECLARED_VIEWS = frozenset(
    {
        "aten._unsafe_view.default",
        "aten._reshape_alias.default",
        "aten.unsafe_split.Tensor",
        "aten.unsafe_split_with_sizes.default",
        "aten.lift_fresh.default",
        "aten.lift.default",
    }
)
"""Their results look at their argument's bytes, and they read none themselves."""

COMMUNICATING = frozenset(
    {
        *("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "symm_mem", "_dtensor"),
        "fsdp",  # packs parameters into the buffers of collectives, and says little of what it writes
    }
)
"""Namespaces of operators that may write any of their arguments, and use them and their results until somebody has
waited. They are never recomputed, since other processes would have to join in; what they touch is not evicted."""

TRUSTED = frozenset({"aten", "prims", "prim", "lowtide"})
"""Namespaces whose schemas, with the exceptions above, are true. An operator of another library may write what its
schema does not mark, which is looked for each time, and draw random numbers, whose state is recorded each time."""
