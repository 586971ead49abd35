"""Patterns of recipes as data, and the places of a program that match them. Torch-free.

A pattern is an expression, written down as a tree of calls whose leaves are constants and variables. It is matched from
its last operator towards what that was computed from, so that it is found once per place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lowtide.ir.call import Arg, Read, Ref
from lowtide.ir.graph import Recipe
from lowtide.ops.builder import GraphBuilder

Test = Callable[[GraphBuilder, Recipe], bool]
Link = Callable[[GraphBuilder, Read], bool]


@dataclass(frozen=True, slots=True)
class Variable:
    """A tensor or a constant, whatever it is; the same wherever the pattern says the name again.

    Arguments:
        any_view: whether it may be seen otherwise here than where it was named first.
    """

    name: str
    any_view: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A recipe of one of some operators, with arguments that match, and no others.

    Arguments:
        ops: names of operators.
        args: a pattern per argument, in order.
        commutes: whether two arguments may come in either order.
        shared: whether the program may use its result, and what that was computed from, elsewhere as well.
    """

    ops: tuple[str, ...]
    args: tuple[Term, ...]
    commutes: bool = False
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Named:
    """What a pattern matches, for use as a variable."""

    name: str
    term: Term


@dataclass(frozen=True, slots=True)
class Through:
    """What a pattern matches, or what recipes of one argument make of it, one after the other.

    Arguments:
        test: whether a recipe may lie in between.
        most: how many of them; None for any number.
    """

    test: Test
    term: Term
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Either:
    """One of several patterns; of those that match, each gives a match."""

    terms: tuple[Term, ...]


Term = Variable | Named | Call | Through | Either | Arg


@dataclass(frozen=True, slots=True)
class Match:
    """A place of a program that matches a pattern.

    Arguments:
        found: what variables stand for, and named patterns.
        roots: the last recipe of each pattern.
        recipes: of the calls that are not shared, in the order of the program.
    """

    found: Mapping[str, Read | Arg]
    roots: tuple[Recipe, ...]
    recipes: tuple[int, ...]

    def read(self, name: str) -> Read | None:
        """The tensor that a variable stands for; None where it stands for a constant, or is not in what matched."""
        read = self.found.get(name)
        return read if isinstance(read, Read) else None


def matches(
    builder: GraphBuilder, *patterns: Call, known: Mapping[str, Read | Arg] | None = None, link: Link | None = None
) -> Iterator[Match]:
    """Every place that matches some patterns at once; one that matches in several manners comes as often.

    Arguments:
        patterns: their variables are the same in all of them; the first says in which order places come.
        known: what some of the variables stand for.
        link: what has to be true of the reads by which a recipe of the pattern reads what another one makes.

    O(program) per pattern, where patterns fail early almost everywhere.
    """
    place = {r: i for i, r in enumerate(builder.graph.program)}
    calling = {pattern.ops: list(builder.calls(*pattern.ops)) for pattern in patterns}
    matcher = _Matcher(builder, link or (lambda *_: True), calling)
    for found, roots, recipes in matcher.together(patterns, dict(known or {})):
        handed_on = {root.id for root in roots}
        if all(_is_inner(builder, r, recipes) for r in recipes - handed_on):
            yield Match(found, roots, tuple(sorted(recipes, key=place.__getitem__)))


def _is_inner(builder: GraphBuilder, recipe: int, recipes: frozenset[int]) -> bool:
    """Whether all that a recipe makes is read by others of the match alone."""
    outputs = builder.recipes[recipe].outputs
    return all(builder.values[v].leaves is None and recipes.issuperset(builder.readers.get(v, ())) for v in outputs)


def _is_same_value(one: Read | Arg, other: Read | Arg) -> bool:
    return isinstance(one, Read) and isinstance(other, Read) and one.value == other.value


def _is_open(term: Term, found: Mapping[str, Read | Arg]) -> bool:
    """Whether a term is followed further, or names what is to be seen otherwise before it is known."""
    if isinstance(term, Variable):
        return term.any_view and term.name not in found
    return isinstance(term, Named | Call | Through | Either)


_Found = dict[str, Read | Arg]
_Bound = tuple[_Found, frozenset[int]]


@dataclass(frozen=True, slots=True)
class _Matcher:
    """Yields every manner in which a term matches: what variables stand for, and the recipes that are not shared.

    Arguments:
        calling: the program's recipes that call some operators.
    """

    builder: GraphBuilder
    link: Link
    calling: Mapping[tuple[str, ...], Sequence[Recipe]]

    def together(
        self, patterns: Sequence[Call], found: _Found
    ) -> Iterator[tuple[_Found, tuple[Recipe, ...], frozenset[int]]]:
        if not patterns:
            yield found, (), frozenset()
            return
        first, *others = patterns
        for root in self.calling[first.ops]:
            for bound, recipes in self.call(first, root, found, shared=first.shared):
                for whole, roots, more in self.together(others, bound):
                    yield whole, (root, *roots), recipes | more

    def call(self, pattern: Call, recipe: Recipe, found: _Found, *, shared: bool) -> Iterator[_Bound]:
        if recipe.op not in pattern.ops or len(recipe.args) != len(pattern.args) or recipe.kwargs:
            return
        passed = [recipe.reads[arg.index] if isinstance(arg, Ref) else arg for arg in recipe.args]
        own = frozenset() if shared else frozenset({recipe.id})
        for arguments in (passed, passed[::-1]) if pattern.commutes else (passed,):
            # What is known by now fails before anything is followed to where it was computed.
            pairs = sorted(zip(pattern.args, arguments, strict=True), key=lambda pair: _is_open(pair[0], found))
            for bound, recipes in self.all(pairs, found, shared=shared):
                yield bound, recipes | own

    def all(self, pairs: Sequence[tuple[Term, Read | Arg]], found: _Found, *, shared: bool) -> Iterator[_Bound]:
        if not pairs:
            yield found, frozenset()
            return
        (term, argument), *others = pairs
        for bound, recipes in self.term(term, argument, found, shared=shared):
            for whole, more in self.all(others, bound, shared=shared):
                yield whole, recipes | more

    def term(self, term: Term, argument: Read | Arg, found: _Found, *, shared: bool) -> Iterator[_Bound]:
        match term:
            case Variable(name, any_view):
                if name not in found:
                    yield {**found, name: argument}, frozenset()
                elif found[name] == argument or (any_view and _is_same_value(found[name], argument)):
                    yield found, frozenset()
            case Named(name, inner):
                if found.get(name, argument) == argument:
                    yield from self.term(inner, argument, {**found, name: argument}, shared=shared)
            case Either(terms):
                for one in terms:
                    yield from self.term(one, argument, found, shared=shared)
            case Through(test, inner, most):
                yield from self.term(inner, argument, found, shared=shared)
                maker = self.maker(argument)
                if most != 0 and maker is not None and maker.reads and test(self.builder, maker):
                    rest = Through(test, inner, None if most is None else most - 1)
                    own = frozenset() if shared else frozenset({maker.id})
                    for bound, recipes in self.term(rest, maker.reads[0], found, shared=shared):
                        yield bound, recipes | own
            case Call():
                maker = self.maker(argument)
                if maker is not None:
                    yield from self.call(term, maker, found, shared=shared or term.shared)
            case _:
                if not isinstance(argument, Read) and argument == term:
                    yield found, frozenset()

    def maker(self, argument: Read | Arg) -> Recipe | None:
        """The recipe that makes what is read, if it is read as it has to be."""
        if not isinstance(argument, Read) or not self.link(self.builder, argument):
            return None
        return self.builder.made_by(argument.value)
