"""Patterns of recipes as data, and the places of a program that match them. Torch-free.

A pattern is an expression, written down as a tree of calls whose leaves are constants and variables. It is matched from
its last operator towards what that was computed from, so that it is found once per place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from lowtide.ir.call import Arg, Read, Ref
from lowtide.ir.graph import Recipe
from lowtide.ops.builder import GraphBuilder


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor or a constant, whatever it is; the same wherever the pattern says the name again."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """A recipe of one of some operators, with arguments that match, and no others.

    Arguments:
        ops: names of operators.
        args: a pattern per argument, in order.
        name: what is read where its result is read, for use as a variable; empty for none.
        commutes: whether two arguments may come in either order.
        shared: whether the program may use its result, and what that was computed from, elsewhere as well.
    """

    ops: tuple[str, ...]
    args: tuple[Term, ...]
    name: str = ""
    commutes: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Either:
    """One of several patterns; of those that match, each gives a match."""

    terms: tuple[Term, ...]


Term = Variable | Call | Either | Arg


@dataclass(frozen=True, slots=True)
class Match:
    """A place of a program that matches a pattern.

    Arguments:
        found: what the pattern's variables and named calls stand for.
        recipes: of the calls that are not shared, in the order of the program; the last is the pattern's last operator.
    """

    found: Mapping[str, Read | Arg]
    recipes: tuple[int, ...]

    def read(self, name: str) -> Read | None:
        """The tensor that a variable stands for; None where it stands for a constant, or is not in what matched."""
        read = self.found.get(name)
        return read if isinstance(read, Read) else None


def matches(builder: GraphBuilder, pattern: Call, known: Mapping[str, Read | Arg] | None = None) -> Iterator[Match]:
    """Every place that matches a pattern, in the program's order; one that matches in several manners comes as often.

    Arguments:
        known: what some of the variables stand for.

    O(program) for patterns that fail early almost everywhere.
    """
    place = {r: i for i, r in enumerate(builder.graph.program)}
    for root in list(builder.calls(*pattern.ops)):
        for found, recipes in _call(builder, pattern, root, dict(known or {}), outside=pattern.shared):
            if all(_is_inner(builder, r, recipes) for r in recipes - {root.id}):
                yield Match(found, tuple(sorted(recipes, key=place.__getitem__)))


_Bound = tuple[dict[str, Read | Arg], frozenset[int]]


def _is_inner(builder: GraphBuilder, recipe: int, recipes: frozenset[int]) -> bool:
    """Whether all that a recipe makes is read by others of the match alone."""
    outputs = builder.recipes[recipe].outputs
    return all(builder.values[v].leaves is None and recipes.issuperset(builder.readers.get(v, ())) for v in outputs)


def _call(
    builder: GraphBuilder, pattern: Call, recipe: Recipe, found: dict[str, Read | Arg], *, outside: bool
) -> Iterator[_Bound]:
    if recipe.op not in pattern.ops or len(recipe.args) != len(pattern.args) or recipe.kwargs:
        return
    passed = [recipe.reads[arg.index] if isinstance(arg, Ref) else arg for arg in recipe.args]
    own = frozenset() if outside else frozenset({recipe.id})
    for arguments in (passed, passed[::-1]) if pattern.commutes else (passed,):
        for bound, recipes in _all(builder, pattern.args, arguments, found, outside=outside):
            yield bound, recipes | own


def _all(
    builder: GraphBuilder,
    terms: tuple[Term, ...],
    arguments: Sequence[Read | Arg],
    found: dict[str, Read | Arg],
    *,
    outside: bool,
) -> Iterator[_Bound]:
    if not terms:
        yield found, frozenset()
        return
    for bound, recipes in _term(builder, terms[0], arguments[0], found, outside=outside):
        for whole, more in _all(builder, terms[1:], arguments[1:], bound, outside=outside):
            yield whole, recipes | more


def _term(
    builder: GraphBuilder, term: Term, argument: Read | Arg, found: dict[str, Read | Arg], *, outside: bool
) -> Iterator[_Bound]:
    match term:
        case Variable(name):
            if found.get(name, argument) == argument:
                yield {**found, name: argument}, frozenset()
        case Either(terms):
            for one in terms:
                yield from _term(builder, one, argument, found, outside=outside)
        case Call(name=name):
            maker = builder.made_by(argument.value) if isinstance(argument, Read) else None
            if maker is None or found.get(name, argument) != argument:
                return
            bound = {**found, name: argument} if name else found
            yield from _call(builder, term, maker, bound, outside=outside or term.shared)
        case _:
            if not isinstance(argument, Read) and argument == term:
                yield found, frozenset()
