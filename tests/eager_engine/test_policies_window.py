"""The search for a window, against every run of pieces there is."""

import math

from hypothesis import given
from hypothesis import strategies as st

from lowtide._core import Arena
from tests.oracle.capacity import Addresses, End
from tests.oracle.policies.window import Piece, Window, cheapest_window, moved_for, pieces

_PIECES = st.lists(
    st.builds(
        lambda size_B, owner, cost: Piece(size_B, owner, cost if owner else 0.0, size_B if owner else 0),
        st.integers(1, 8),
        st.integers(0, 40),
        st.sampled_from([0.0, 1.0, 2.5, 1e9, math.inf]),
    ),
    max_size=12,
)


def _every_run(capacity: list[Piece], need_B: int) -> list[tuple[float, int]]:
    runs = [capacity[i : j + 1] for i in range(len(capacity)) for j in range(i, len(capacity))]
    return [
        (sum(piece.cost for piece in run), sum(piece.evicted_B for piece in run))
        for run in runs
        if sum(piece.size_B for piece in run) >= need_B and not any(math.isinf(piece.cost) for piece in run)
    ]


@given(capacity=_PIECES, need_B=st.integers(1, 30))
def test_no_run_is_cheaper(capacity: list[Piece], need_B: int) -> None:
    window, runs = cheapest_window(capacity, need_B), _every_run(capacity, need_B)
    if not runs:
        assert window is None
    else:
        assert window is not None
        assert math.isclose(window.cost, min(runs)[0])


def test_a_range_is_read_by_address_and_what_slides_is_priced() -> None:
    capacity = Addresses(Arena(1024, 64))
    offsets = [capacity.allocate(128, End.LOW, owner) for owner in (1, 2, 3, 4)]
    capacity.free(offsets[1] or 0)
    costs = {1: 5.0, 3: 1.0}
    read = pieces(capacity, lambda owner: costs.get(owner, math.inf))
    assert [(piece.size_B, piece.owner) for piece in read] == [(128, 1), (128, 0), (128, 3), (128, 4), (512, 0)]
    assert cheapest_window(read, 256) == Window((), 0.0, 0)
    assert cheapest_window(read, 640) is None  # 4 is not evictable
    assert moved_for(read, 640, set(), bool) == 256  # 3 and 4 go down
    assert moved_for(read, 640, set(), lambda owner: owner != 4) is None
    assert moved_for(read, 640, {3, 4}, bool) == 0
