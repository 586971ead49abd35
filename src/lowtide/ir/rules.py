"""The law: every rule of a legal plan by name, in one sentence each. `check.py` enforces it."""

from __future__ import annotations

from lowtide.errors import IllegalPlan

GRAPH_RULES = {
    "graph-ids": "every value and recipe stands at the index that is its id",
    "graph-references": "values, recipes and segments that are named exist, and arguments name reads that exist",
    "graph-program": "the program runs each of its recipes once, in segments that do not decrease, on values that "
    "are there, and makes every value that leaves",
    "graph-origins": "every value is produced by a recipe or arrives; a persistent one arrives",
    "graph-parts": "a recipe touches only values of its own part of the bundle, persistent values apart",
    "graph-traces": "a trace releases what it allocated, once, except its outputs, which have their values' sizes",
    "graph-takeovers": "a recipe overwrites values that it reads, each once, with an output of the same size",
    "graph-states": "a generator state is the last output of a random recipe, or read by a pure replay",
    "graph-groups": "groups share no recipe, and what the program runs of a group is its first option",
    "graph-effects": "every random or opaque recipe is in the program, or stands for one that is, at the same place "
    "of another option of its group",
    "graph-residency": "only a persistent value, or one that leaves, is host-resident; what replaces one "
    "has its size and its placement, and leaves",
    "graph-numbers": "sizes and times are finite and not negative; together they come to no more than half an EiB and "
    "a day",
}
SCHEDULE_RULES = {
    "reference": "a step names recipes, values and memories that exist",
    "boundaries": "segments begin in order, each once, the first one with the first step",
    "after": "a step waits only for earlier steps that run or copy something",
    "part": "a value or recipe is touched only in segments of its own part of the bundle",
    "segment": "a recipe runs no earlier than its segment; a random or opaque one exactly there",
    "readable": "a value is not read after the last segment that may read it",
    "resident": "what a step reads is in the memory it reads from",
    "in-flight": "a step that reads bytes is ordered after the step on another engine that writes them",
    "replay-state": "a replay reads the generator state it replays",
    "keep": "a run keeps some of its recipe's outputs, each once",
    "keep-resident": "a run keeps no value that is already on the device",
    "group": "of a group only one option's recipes run",
    "once": "every random or opaque recipe of the program, or its stand-in, runs exactly once",
    "once-order": "random and opaque recipes run in the program's order",
    "consume-copies": "a value that is overwritten has no copy in another memory, unless it is resident there",
    "consume-visible": "of what the caller sees only a parameter, buffer, input, gradient or state is overwritten, and "
    "only by a kept value that is handed over and held",
    "consumed": "a value that was overwritten is gone until a run makes it anew; one that the caller gave never "
    "comes back",
    "drop-absent": "only what is there is dropped",
    "drop-persistent": "a persistent value, or what overwrote it, is not dropped from its placement",
    "drop-handed-over": "a value that the caller holds is not dropped",
    "leave": "a value that leaves is where it is to be when its segment ends: on the device, or host-resident",
    "send": "a value is sent from the device to a memory that does not have it",
    "fetch": "a value is fetched from a memory that has it to a device that does not",
    "freed-in-flight": "bytes are freed or overwritten only after every step that touches them is known to be done",
    "budget": "live bytes never exceed the budget",
    "host-budget": "bytes on the host never exceed the budget of the host",
}
LAYOUT_RULES = {
    "placement": "every allocation of the schedule is placed exactly once with its size, and nothing else is",
    "height": "every allocation lies inside the layout, at an aligned address",
    "overlap": "no two allocations share a byte at the same time, nor one with a live block",
    "reuse": "bytes pass to a step on another engine only when it is ordered after all that touched them before",
}
RULES = GRAPH_RULES | SCHEDULE_RULES | LAYOUT_RULES


def illegal(rule: str, what: str, step: int | None = None) -> IllegalPlan:
    """Makes the error for a broken rule.

    Arguments:
        rule: its name.
        what: the values and recipes concerned, by name.
        step: index of the step; None when no step is to blame.
    """
    where = "" if step is None else f"step {step}: "
    return IllegalPlan(f"{where}{what} breaks rule {rule!r}: {RULES[rule]}")
