"""How HiGHS is run here."""

from __future__ import annotations

import threading

import highspy

THREADS = 1  # HiGHS needs the same number in every instance of a process


def run(highs: highspy.Highs) -> None:
    """Solves in a thread of its own, so that Ctrl-C reaches this one and cancels.

    Raises:
        KeyboardInterrupt: on Ctrl-C.
    """
    highs.HandleUserInterrupt = True
    thread = threading.Thread(target=highs.run, name="lowtide-highs", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.05)
    except BaseException:
        highs.cancelSolve()
        thread.join(5.0)
        raise
