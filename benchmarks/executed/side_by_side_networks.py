"""The networks that lowtide is compared on, and which of stock torch.compile's budgets are compiled for each."""

from __future__ import annotations

from benchmarks.networks import FURTHER, SUBJECTS, WITHOUT_DROPOUT, Subject

NETWORKS: dict[str, Subject] = {
    "gpt2": SUBJECTS["gpt2"],
    "bert": FURTHER["bert"],
    "resnet50": SUBJECTS["resnet50"],
    "unet": SUBJECTS["unet"],
    "gpt2-no-dropout": WITHOUT_DROPOUT["gpt2"],
}
BUDGETS: dict[str, tuple[float, ...]] = {
    "gpt2": (1.0, 0.5, 0.25, 0.0),
    "bert": (1.0, 0.5, 0.0),
    "resnet50": (1.0, 0.25),
    "unet": (1.0, 0.5, 0.0),
    "gpt2-no-dropout": (1.0, 0.5, 0.25, 0.0),
}
"""Inductor takes half a minute or more for each."""
USUAL = ("gpt2", "bert", "resnet50", "unet")
