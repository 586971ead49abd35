"""What a link may save of what its backward reads, from everything to nothing, and the time to rematerialise the rest.

Links that are alike have the same options, and are solved once.

Units: `_B` bytes, `_ps` picoseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

from lowtide.planners.chain.links import Links

LEVELS = 6  # options per link
_ROUNDS = 12  # of leaving values out


@dataclass(frozen=True, slots=True)
class LinkOption:
    """Saving these values of a link.

    Arguments:
        rest_ps: to rematerialise what else its backward reads, given what crosses in front of the link and behind it.
    """

    saved: frozenset[int]
    rest_ps: int


def link_options(links: Links) -> tuple[tuple[LinkOption, ...], ...]:
    """Finds the options of every link, most bytes first; the first one saves everything.

    O(distinct links * values^2 * stages).
    """
    known: dict[Hashable, tuple[tuple[tuple[int, ...], int], ...]] = {}
    found = []
    for k in range(len(links.links)):
        key, later = _likeness(links, k), links.later[k]
        if key not in known:
            place = {v: i for i, v in enumerate(later)}
            known[key] = tuple((tuple(place[v] for v in sorted(o.saved)), o.rest_ps) for o in _options(links, k))
        found.append(tuple(LinkOption(frozenset(later[i] for i in saved), ps) for saved, ps in known[key]))
    return tuple(found)


def recomputed_stages(links: Links, link: int, there: Collection[int], needed: Collection[int]) -> tuple[int, ...]:
    """The stages of a link to recompute for values of it.

    Arguments:
        there: what of the link need not be rematerialised; everything in front of it is there.

    O(reads of the link).
    """
    program, missing, found = links.program, set(needed), list[int]()
    for t in reversed(links.links[link]):
        if not missing.isdisjoint(links.half.outputs[t]):
            found.append(t)
            missing.update(v for v in program.read_ids[t] if v not in there)
    return tuple(reversed(found))


def time_ps(links: Links, stages: Iterable[int]) -> int:
    """Time of recomputing stages."""
    return sum(links.program.stages[t].recompute_ps for t in stages)


def running_B(links: Links, stages: Sequence[int], kept: Collection[int]) -> int:
    """Most bytes that running some stages of a link takes, one after another, what is kept of them included.

    Arguments:
        kept: of what they produce. The rest is dropped after its last use.
    """
    program = links.program
    last = {v: t for t in stages for v in program.read_ids[t]}
    most_B = now_B = 0
    mine: set[int] = set()
    for t in stages:
        most_B = max(most_B, now_B + program.stages[t].trace_B)
        fresh = {v for v in links.half.outputs[t] if v in links.again and (v in kept or v in last)}
        now_B += sum(program.size_B[v] for v in fresh)
        mine |= fresh
        over = {v for v in program.read_ids[t] if v in mine and last[v] == t and v not in kept}
        now_B -= sum(program.size_B[v] for v in over)
    return most_B


def handed_on(links: Links, link: int) -> frozenset[int]:
    """What a link produces that later ones read."""
    return frozenset(v for t in links.links[link] for v in links.half.outputs[t] if links.last_reader.get(v, -1) > link)


def permanent(links: Links, link: int) -> frozenset[int]:
    """What a link produces that is always kept."""
    return frozenset(v for t in links.links[link] for v in links.half.outputs[t]) - links.again


def _likeness(links: Links, link: int) -> Hashable:
    """What the options of a link depend on."""
    program, half, stages = links.program, links.half, links.links[link]
    number: dict[int, int] = {}
    for t in stages:
        for v in half.outputs[t]:
            number[v] = len(number)
    later, onward = set(links.later[link]), handed_on(links, link)
    return tuple(
        (
            program.stages[t].recompute_ps,
            tuple(number.get(v, -1) for v in program.read_ids[t]),
            tuple((program.size_B[v], v in later, v in links.again, v in onward) for v in half.outputs[t]),
        )
        for t in stages
    )


def _options(links: Links, link: int) -> list[LinkOption]:
    """Leaves out, round by round, what saves most bytes for the time that it costs; then thins what was found."""
    size_B, later = links.program.size_B, links.later[link]
    fixed = permanent(links, link) | handed_on(links, link)

    def rest_ps(saved: Collection[int]) -> int:
        rest = [v for v in later if v not in saved]
        return time_ps(links, recomputed_stages(links, link, fixed.union(saved), rest))

    saved = set(later)
    found = [LinkOption(frozenset(saved), 0)]
    at_once = max(1, len(later) // _ROUNDS)
    while saved:
        now_ps = found[-1].rest_ps
        rates = sorted((-size_B[v] / (rest_ps(saved - {v}) - now_ps + 1.0), v) for v in saved)
        saved.difference_update(v for _, v in rates[:at_once])
        found.append(LinkOption(frozenset(saved), rest_ps(saved)))
    return _thinned(found, [sum(size_B[v] for v in o.saved) for o in found])


def _thinned(found: list[LinkOption], bytes_B: list[int]) -> list[LinkOption]:
    """Drops options that save more and cost no less than another, and keeps a few that lie apart in bytes."""
    front = [
        k for k, o in enumerate(found)
        if not any(bytes_B[j] <= bytes_B[k] and p.rest_ps <= o.rest_ps and (j > k or bytes_B[j] < bytes_B[k])
                   for j, p in enumerate(found) if j != k)
    ]  # fmt: skip
    if len(front) <= LEVELS:
        return [found[k] for k in front]
    most_B = bytes_B[front[0]]
    chosen = [front[0]]
    for level in range(1, LEVELS - 1):
        target_B = most_B * (LEVELS - 1 - level) // (LEVELS - 1)
        chosen.append(min(front, key=lambda k: abs(bytes_B[k] - target_B)))
    return [found[k] for k in dict.fromkeys([*chosen, front[-1]])]
