"""The networks whose plans are executed, not only simulated."""

from __future__ import annotations

from benchmarks.networks import FURTHER, SUBJECTS, Subject

NETWORKS: dict[str, Subject] = {**SUBJECTS, "densenet121": FURTHER["densenet121"]}
