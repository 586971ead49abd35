"""The largest size for which something holds, found with quick guesses and few true answers."""

from __future__ import annotations

from collections.abc import Callable

Ask = Callable[[int], bool]


def largest(guess: Ask, ask: Ask, *, low: int, high: int | None, step: int, good: int | None = None) -> int | None:
    """Finds a size whose true answer is yes, and whose next larger one was guessed or found to be no.

    Sizes grow by doubled strides until a guess is no, then the stride is halved; the size found is asked truly, and
    what that teaches the guesses starts the search again from there. Where the answers are not monotone (a larger size
    may fit where a smaller one does not), larger sizes that would do can remain unseen: the result's own answer is true
    all the same.

    Arguments:
        guess: may err; becomes better near the sizes that were asked.
        ask: the truth, and expensive.
        low, high: the least and the largest size (None: no limit), `low` plus a multiple of `step`.
        step: distance of neighbouring sizes.
        good: a size that is known to be right.

    Returns: None if not even `low` is. A size of 1 is asked last: models and tracers treat it apart.
    """
    if low == step == 1 and good is None and high != 1:
        found = largest(guess, ask, low=2, high=high, step=1)
        return 1 if found is None and ask(1) else found
    bad = None if high is None else high + step  # the least size known, or taken, to be wrong
    while True:
        found = _guessed(guess, low - step if good is None else good, bad, step)
        if found is None and good is None and (bad is None or bad > low):
            found = low
        if found is None:
            return good
        if ask(found):
            good = found
        else:
            bad = found


def _guessed(guess: Ask, base: int, bad: int | None, step: int) -> int | None:
    """The largest size above `base` and below `bad` that strides find guessed as right."""
    found, stride = base, step
    while bad is None or found + stride < bad:
        if guess(found + stride):
            found += stride
            stride *= 2
        else:
            bad = found + stride
    while bad - found > step:
        middle = found + (bad - found) // step // 2 * step
        if guess(middle):
            found = middle
        else:
            bad = middle
    return None if found == base else found
